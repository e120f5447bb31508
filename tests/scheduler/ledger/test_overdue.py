"""Guards, from records alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.artifact import PushedModel
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.serving import claim_pushes
from spanwise.orchestrator.storage import BucketArchive, parse_url
from spanwise.orchestrator.store import MemoryStore
from spanwise.orchestrator.testing import FakeClock
from spanwise.scheduler.alerts.alert import Site
from spanwise.scheduler.alerts.watchdog import list_alerts
from spanwise.scheduler.ledger import heartbeat
from spanwise.scheduler.ledger.holder import find_holder
from spanwise.scheduler.ledger.overdue import OverdueTicks, find_overdue, find_stale, last_push, measure_progress
from spanwise.scheduler.ledger.pauses import current_pause, pause_schedule
from spanwise.scheduler.ledger.schedule_status import explain_ticks, list_problems, read_status
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule, retire_schedule
from spanwise.scheduler.ledger.ticks import attempt_claim, claim_tick, newest_tick
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.schedule_key import format_cause
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick, ticks
from spanwise.scheduler.schedule.timetable import Timetable

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RAN = TickEnd(outcome=TickOutcome.RAN, run=1)
HOURLY = Timetable("p", cron="0 * * * *", span=days_before(1))


def hourly(store: MemoryStore) -> ScheduleRecord:
    """A schedule that counts since half past eleven."""
    since = NOON - 30 * MINUTE
    return put_schedule(store, ScheduleRecord(timetable=HOURLY, since=since))


def held(store: MemoryStore, since: datetime) -> None:
    """Somebody's run holds the pipeline."""
    lease.acquire(store, "p", "a run", clock=Clock(now=lambda: since))


def overdue(store: MemoryStore, known: ScheduleRecord, minutes: int) -> OverdueTicks | None:
    """So many minutes after the first tick."""
    now = NOON + minutes * MINUTE
    newest, paused, holder = newest_tick(store, "p"), current_pause(store, "p", now), find_holder(store, "p", now)
    return find_overdue(store, known, now, newest=newest, paused=paused, holder=holder)


def test_a_schedule_whose_clock_was_set_back_is_not_healthy_and_promises_no_tick_before_it_has_caught_up() -> None:
    """Nothing is due until then: it said that the next tick was an hour away, and that all was well."""
    store = MemoryStore()
    hourly(store)
    ahead = NOON + timedelta(hours=3)
    claim_tick(store, "p", Tick(at=ahead, name="ahead", wall=ahead, span=1), holder=1, now=ahead, end=RAN)

    status = read_status(store, "p", NOON)

    assert not status.healthy
    assert list_problems(status) == [
        "the clock is 3 h 00 min behind the last tick that was taken, and nothing is due until then"
    ]
    assert status.next is not None
    assert status.next.at == ahead + timedelta(hours=1)
    assert [found.kind for found in list_alerts(status, NOON, Site(host="h", folder=Path()))][-1] == "scheduler"


def test_a_tick_is_overdue_when_nobody_has_taken_it_for_a_minute() -> None:
    """Not before: a scheduler may be about to."""
    store = MemoryStore()
    known = hourly(store)

    assert overdue(store, known, 1) is None
    found = overdue(store, known, 2)

    assert found is not None
    assert (found.first.at, found.count) == (NOON, 1)


def test_what_came_while_a_schedule_was_out_of_its_file_is_not_overdue() -> None:
    """Brought back, it counts from then, also where ticks of it were taken before."""
    store = MemoryStore()
    hourly(store)
    ran = Tick(at=NOON, name="12", wall=NOON, span=1)
    claim_tick(store, "p", ran, holder=1, now=NOON, end=TickEnd(outcome=TickOutcome.RAN))
    retire_schedule(store, "p")

    known = put_schedule(store, ScheduleRecord(timetable=HOURLY, since=NOON + 210 * MINUTE))

    assert overdue(store, known, 215) is None
    found = overdue(store, known, 245)
    assert found is not None
    assert (found.first.at, found.count) == (NOON + 240 * MINUTE, 1)


def test_a_tick_that_waits_for_a_run_is_not_overdue() -> None:
    """It came just before the run began, so that it has not been overrun by it, and is done after it."""
    store = MemoryStore()
    known = hourly(store)
    held(store, NOON + timedelta(seconds=1))

    assert overdue(store, known, 30) is None


@pytest.mark.parametrize("beats", [True, False])
def test_the_tick_of_a_scheduler_on_a_host_with_another_clock_is_open_as_long_as_it_beats(monkeypatch, beats) -> None:
    """It was said that the tick had been left open by a scheduler that is gone."""
    store, clock = MemoryStore(), FakeClock()
    known = hourly(store)
    monkeypatch.setattr(process, "identity", lambda: Identity("elsewhere/0/0", 1, 1))
    taker = heartbeat.register(store, NOON - 10 * MINUTE)
    claim_tick(store, "p", Tick(at=NOON, name="noon", wall=NOON, span=1), holder=taker.number, now=NOON)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if beats:
            heartbeat.beat(store, taker, NOON - 9 * MINUTE)

    monkeypatch.setattr(lease, "Clock", lambda: replace(clock.lease(), sleep=sleep))

    found = overdue(store, known, 2)

    assert (found is None) is beats


@pytest.mark.parametrize(
    ("goes_on", "state", "doing"),
    [
        (True, State.RUNNING, "attempt 1 is running"),
        (False, State.RUNNING, "attempt 1 was left open"),
        (False, State.FAILED, "attempt 1 has ended: failed"),
    ],
)
def test_a_tick_whose_scheduler_died_in_the_middle_of_an_attempt_is_overdue_unless_its_run_goes_on(
    monkeypatch, goes_on: bool, state: State, doing: str
) -> None:
    """The machine lost its power, say: a monthly schedule was called healthy until the next tick, with exit code 0."""
    store = MemoryStore()
    table = Timetable("p", cron="0 12 1 * *", span=days_before(1))
    known = put_schedule(store, ScheduleRecord(timetable=table, since=NOON - MINUTE))
    tick, me = next(ticks(table, NOON - MINUTE)), process.identity()
    monkeypatch.setattr(process, "identity", lambda: replace(me, started=me.started + 1))
    taker = heartbeat.register(store, NOON)
    claim_tick(store, "p", tick, holder=taker.number, now=NOON)
    monkeypatch.setattr(process, "identity", lambda: replace(me, started=me.started + (0 if goes_on else 1)))
    lock = lease.acquire(store, "p", "run 1", clock=Clock(now=lambda: NOON))
    cause = Run(pipeline="p", trigger=Trigger.SCHEDULE, cause=format_cause("p", tick.name), token=lock.token)
    run = store.begin_run(cause, attempt_claim("p", tick.name, 1))
    store.update_run(replace(run, state=state))

    status = read_status(store, "p", NOON + 2 * MINUTE)

    assert (status.overdue, status.healthy) == (
        (None, True) if goes_on else (OverdueTicks(first=tick, count=1, abandoned=True), False)
    )
    (explained,) = explain_ticks(store, table, known, NOON, NOON + MINUTE)
    assert explained.why.startswith(f"{doing}; scheduler 1 on ")
    lock.release()


def test_a_tick_that_was_left_open_is_not_overdue_in_a_pause() -> None:
    """Whoever takes it over has it wait."""
    store = MemoryStore()
    known = hourly(store)
    claim_tick(store, "p", Tick(at=NOON, name="noon", wall=NOON, span=1), holder=9, now=NOON)
    assert overdue(store, known, 2) is not None

    pause_schedule(store, "p", who="ann", why="disks", now=NOON)

    assert overdue(store, known, 2) is None


def test_a_tick_that_a_run_has_overrun_is_overdue_when_nobody_says_so() -> None:
    """A scheduler would have skipped it, or ended the run, at once."""
    store = MemoryStore()
    known = hourly(store)
    held(store, NOON - MINUTE)

    assert overdue(store, known, 30) is not None


def test_a_run_hides_no_dead_scheduler_for_longer_than_a_tick() -> None:
    """The tick after the one that waits has come since, and nobody has skipped it."""
    store = MemoryStore()
    known = hourly(store)
    held(store, NOON + timedelta(seconds=1))

    found = overdue(store, known, 62)

    assert found is not None
    assert found.count == 2


def test_output_of_a_run_on_another_host_is_progress(tmp_path: Path) -> None:
    """Under a root in object storage its logs are there, and not in the folder of the scheduler that has adopted it."""
    there, here = (BucketArchive(tmp_path / host, parse_url("memory://progress")) for host in ("there", "here"))
    store = MemoryStore(archive=here)
    run = store.begin_run(Run(pipeline="p", trigger=Trigger.SCHEDULE))
    log = there.root / "p" / ".runs" / str(run.number) / "logs" / "Trainer.1.log"
    log.parent.mkdir(parents=True)
    seen = []
    for epoch in range(3):
        log.write_text("an epoch\n" * epoch)
        there.keep_log(log, 0)
        seen.append(measure_progress(store, run, here.root))

    assert seen == sorted(set(seen))


def push(store: MemoryStore, *, pushed: int, model: int = 1, reason: str | None = None, node: str = "Pusher") -> None:
    """A run of a Pusher, as the publisher records it."""
    run = store.begin_run(Run(pipeline="p"))
    execution = store.begin(Execution(pipeline="p", run=run.number, node=node))
    facts = {"pushed": pushed, "model": f"p/Trainer/model/{model}", "pushed_destination": f"/serving/{model}"}
    output = PushedModel("/root/pushed", properties={**facts, "reason": reason})
    claims = claim_pushes(store, execution, [output])
    ended = replace(execution, state=State.COMPLETE, outputs={"pushed_model": (output,)})
    store.publish(ended, *claims)


def test_a_model_that_is_not_pushed_again_is_as_old_as_before() -> None:
    """As where no new data comes, so that each run trains what serves: the model grows stale although the runs succeed."""
    times = FakeClock(NOON)
    store = MemoryStore(times)
    known = ScheduleRecord(
        timetable=replace(HOURLY, freshness=timedelta(days=1)), since=NOON, pushes=("Pusher/pushed_model",)
    )
    push(store, pushed=1)
    for _ in range(3):
        times.sleep(12 * 3600)
        push(store, pushed=1, reason="not pushed again: version 1 is this model, pushed by p/1")

    found = find_stale(store, known, times())

    assert last_push(store, known) == NOON
    assert found is not None
    assert found.pushed == NOON


def test_the_last_push_is_known_after_any_number_of_refused_models() -> None:
    """It was said that no model was ever pushed, and its age was no longer measured."""
    times = FakeClock(NOON)
    store = MemoryStore(times)
    known = ScheduleRecord(timetable=HOURLY, since=NOON, pushes=("Pusher/pushed_model",))
    push(store, pushed=1)
    times.sleep(60)
    for number in range(150):
        push(store, pushed=0, model=2 + number, reason="not pushed: it is worse")

    assert last_push(store, known) == NOON


def test_the_last_push_is_known_after_its_pusher_was_renamed() -> None:
    """Also once it is renamed back; it was said that no model was ever pushed. What another part pushes now is not meant."""
    times = FakeClock(NOON)
    store = MemoryStore(times)
    known = ScheduleRecord(timetable=HOURLY, since=NOON, pushes=("Pusher/pushed_model",))
    renamed = replace(known, pushes=("Deploy/pushed_model",))
    put_schedule(store, known)
    push(store, pushed=1)

    assert last_push(store, put_schedule(store, renamed)) == NOON
    times.sleep(60)
    push(store, pushed=1, model=2, node="Deploy")
    for loaded in (renamed, known, renamed):
        assert last_push(store, put_schedule(store, loaded)) == NOON + MINUTE
    assert last_push(store, put_schedule(store, replace(known, pushes=()))) is None
    part = replace(HOURLY, pipeline="p:data")
    put_schedule(store, replace(known, timetable=part, pushes=("Deploy/pushed_model",)))
    assert last_push(store, put_schedule(store, known)) == NOON
