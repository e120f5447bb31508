"""One pipeline on a clock that the test moves; its runs are records, ended by the test, in a real ledger."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.lease import Lease
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.store import AlreadyClaimed, MemoryStore
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.daemon import open_tick, scheduled_run
from spanwise.scheduler.daemon.description import ScheduleDescription
from spanwise.scheduler.daemon.pipeline_scheduler import PipelineScheduler
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger import heartbeat
from spanwise.scheduler.ledger.heartbeat import HeartbeatWatch, mark_ended, read_scheduler, register
from spanwise.scheduler.ledger.missed import MissedTicks, list_missed
from spanwise.scheduler.ledger.pauses import pause_schedule
from spanwise.scheduler.ledger.schedule_status import explain_ticks
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule, read_schedule
from spanwise.scheduler.ledger.status_formatting import format_past_ticks
from spanwise.scheduler.ledger.ticks import (
    OverrunCause,
    attempt_claim,
    end_tick,
    list_ticks,
    list_unsettled,
    mark_overrun,
    read_tick,
)
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.overrun import describe_overrun
from spanwise.scheduler.schedule.span_rule import SourceRule, days_before
from spanwise.scheduler.schedule.ticks import ticks
from spanwise.scheduler.schedule.timetable import Catchup, OverrunPolicy, Timetable

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SITE = alert.local_site()


@dataclass(eq=False)  # as a process, it is only itself
class Child:
    """A process that makes a run; the test says how far it has come."""

    job: scheduled_run.ScheduledJob
    world: "World"
    returncode: int | None = None
    terminated: bool = False
    killed: bool = False
    run: Run | None = None
    lease: Lease | None = None
    pid: int = field(default_factory=count(1000).__next__)

    def poll(self):
        return self.returncode

    def terminate(self):
        self.terminated = True

    def kill(self):
        self.killed, self.returncode = True, -9

    def wait(self):
        return self.returncode

    def begin(self):
        """Begins its run, as the runner does: under the lease, with the claim of the attempt."""
        store = self.world.records
        self.lease = lease.acquire(store, "p", "a run", clock=self.world.clock)
        wanted = Run(
            pipeline="p",
            trigger=Trigger.SCHEDULE,
            cause=self.job.tick,
            span=self.job.span,
            token=self.lease.token,
            started=self.world.now,
        )
        try:
            self.run = store.begin_run(wanted, attempt_claim("p", self.job.tick, self.job.attempt))
        except AlreadyClaimed:
            self.lease.release()
            self.returncode = scheduled_run.TAKEN
        return self

    def finish(self, state=State.COMPLETE, error=None, *, exits=True):
        """Records the end of its run; unless it `exits`, the process lives on."""
        ended = replace(self.run, state=state, error=error, ended=self.world.now)
        self.world.records.update_run(ended)
        self.lease.release(closed=True)
        if exits:
            self.returncode = 0 if state is State.COMPLETE else 1
        self.run = ended
        return self


class World:
    """A store, a clock, and a scheduler after another."""

    def __init__(self, root, **terms):
        self.root = root
        self.now = MIDNIGHT + timedelta(minutes=30)
        self.monotonic = 1000.0
        self.records = MemoryStore(lambda: self.now)
        self.store = self.records  #: what the scheduler sees of it
        self.clock = lease.Clock(now=lambda: self.now, monotonic=lambda: self.monotonic, sleep=self.sleep)
        self.children = []
        self.terms = {"cron": "0 * * * *", "span": days_before(1), **terms}
        self.open()

    def sleep(self, seconds):
        self.monotonic += seconds

    def open(self):
        """A scheduler enters."""
        self.me = register(self.records, self.now)
        described = ScheduleDescription(timetable=Timetable("p", **self.terms), source="/p.py:daily", calendar="day")
        known = put_schedule(self.records, ScheduleRecord(timetable=described.timetable, since=self.now))
        services = SchedulerServices(root=self.root, config=None, site=SITE, start=self.start)
        self.watched = PipelineScheduler(described, known, services, HeartbeatWatch())

    def die(self):
        """The scheduler is gone, and another comes."""
        mark_ended(self.records, self.me)
        self.store = self.records
        self.open()

    def start(self, job):
        child = Child(job, self)
        self.children.append(child)
        return child

    def step(self, by=timedelta(0), **options):
        self.now += by
        self.monotonic += by.total_seconds()
        self.watched.step(self.store, self.me.number, self.now, self.monotonic, **{"until": self.now, **options})

    def at(self, hour, minute=0, second=0):
        """Steps at this time of the day, whatever lies between."""
        self.step(MIDNIGHT + timedelta(hours=hour, minutes=minute, seconds=second) - self.now)

    @property
    def child(self):
        return self.children[-1]

    @property
    def outcomes(self):
        """What became of each tick, by the hour of its moment."""
        found = list(list_ticks(self.records, "p"))[::-1]
        return {e.tick.at.hour: e.end.outcome.value if e.end else "open" for e in found}

    @property
    def told(self):
        return [(letter.alert.kind, letter.alert.subject) for letter in outbox.list_waiting(self.root)]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_tick_runs_at_its_moment_and_never_before(world):
    """With the span that it means."""
    world.step()
    world.at(0, 59, 59)
    assert world.children == []
    assert world.watched.due_at == MIDNIGHT + HOUR

    world.at(1)

    assert [(c.job.tick, c.job.span, c.job.attempt) for c in world.children] == [("2026-03-01T01:00Z", 20512, 1)]


def test_a_tick_in_a_gap_gives_each_node_the_day_that_it_names(tmp_path):
    """23:30 becomes 00:00 of the next day; a rule for each node means the day that a rule for all does."""
    rules = SourceRule("clicks", days_before(0)), SourceRule("prices", days_before(7))
    world = World(tmp_path, cron="30 23 * * *", zone="America/Nuuk", span=days_before(0), sources=rules)
    world.step()

    world.step(datetime(2026, 3, 29, 1, tzinfo=UTC) - world.now)

    (child,) = world.children
    assert (child.job.tick, child.job.span) == ("2026-03-28T23:30", 20540)
    assert child.job.by_node == {"clicks": 20540, "prices": 20533}


def test_a_run_that_is_complete_ends_its_tick(world):
    """And nobody is told, since nothing was wrong."""
    world.at(1)
    world.child.begin().finish()

    world.at(1, 10)

    assert world.outcomes == {1: "ran"}
    assert world.told == []
    assert not world.watched.busy


def test_a_tick_that_overran_is_skipped(world):
    """The run is let be; the owner is told what to recover."""
    world.at(1)
    world.child.begin()

    world.at(2)
    world.child.finish()
    world.at(2, 30)

    assert world.outcomes == {1: "ran", 2: "skipped"}
    subject = "p overran: p/1 goes on after 1 h 00 min, so the tick 2026-03-01T02:00Z was skipped"
    assert world.told == [("overrun", subject)]
    assert len(world.children) == 1


def test_no_recovery_is_announced_while_a_span_is_missing(world):
    """A tick that ran says nothing of the one that was lost before it; once that is recovered, it ends the alert."""
    world.at(1)
    world.child.begin().finish(State.FAILED, "Trainer failed")
    world.at(1, 1)
    world.at(2)
    world.child.begin().finish()
    world.at(2, 1)
    assert [kind for kind, _ in world.told] == ["failure"]

    MissedTicks(world.records).recover("p", [20512], 9, now=world.now)
    world.at(3)
    world.child.begin().finish()
    world.at(3, 1)

    assert [kind for kind, _ in world.told] == ["failure", "recovery"]


def test_a_run_that_was_started_by_hand_is_overrun_as_well(world):
    """Whoever holds the pipeline."""
    held = lease.acquire(world.records, "p", "a run", clock=world.clock)
    world.records.begin_run(Run(pipeline="p", token=held.token, started=world.now))

    world.at(1)

    assert world.outcomes == {1: "skipped"}
    assert world.children == []


@pytest.mark.parametrize("policy", [OverrunPolicy.ALLOW_TO_COMPLETE, OverrunPolicy.KILL_AND_RUN])
@pytest.mark.parametrize("ahead_s", [-120, 120])
def test_a_run_on_a_host_with_another_clock_is_overrun_as_well(tmp_path, policy, ahead_s):
    """Its heartbeat tells that it lives, once an attempt has found it there."""
    world = World(tmp_path, overrun=policy)
    held = lease.acquire(world.records, "p", "run 1", clock=world.clock)
    world.records.begin_run(Run(pipeline="p", token=held.token, started=world.now))

    def beat(number):
        claim = world.records.find_claim("lease", "p#1")
        who = {**claim.facts["who"], "machine": "elsewhere/0/0"}
        last = (world.now + timedelta(seconds=ahead_s)).isoformat()
        world.records.amend(replace(claim, facts={**claim.facts, "who": who, "beat": number, "last_beat": last}))

    beat(1)
    world.at(1)
    world.child.returncode = scheduled_run.HELD
    beat(6)
    world.at(1, 0, 16)

    if policy is OverrunPolicy.ALLOW_TO_COMPLETE:
        assert world.outcomes == {1: "skipped"}
    else:
        assert [child.job.end_others for child in world.children] == [False, True]


def test_a_run_is_ended_for_the_next_tick(tmp_path):
    """The new attempt is told to end the old run first; the old tick was killed once its run has ended."""
    world = World(tmp_path, overrun=OverrunPolicy.KILL_AND_RUN)
    world.at(1)
    old = world.child.begin()

    world.at(2)
    new = world.child
    assert new.job.end_others
    assert world.outcomes == {1: "open", 2: "open"}
    mark_overrun(world.records, "p", old.job.tick, cause_of(new.job.tick))  # as the new child does
    old.finish(State.CANCELED, "stopped by `spanwise stop`")
    new.begin()
    world.at(2, 1)
    new.finish()
    world.at(2, 2)

    assert world.outcomes == {1: "killed", 2: "ran"}
    assert [kind for kind, _ in world.told] == ["overrun"]


def test_a_run_that_was_complete_before_it_was_killed_ran(tmp_path):
    """What counts is how it ended, not what was meant to be done to it."""
    world = World(tmp_path, overrun=OverrunPolicy.KILL_AND_RUN)
    world.at(1)
    old = world.child.begin()
    world.at(2)
    mark_overrun(world.records, "p", old.job.tick, cause_of(world.child.job.tick))

    old.finish()
    world.at(2, 1)

    assert world.outcomes == {1: "ran", 2: "open"}


def test_a_run_that_is_ended_for_the_next_tick_is_not_retried(tmp_path):
    """Its retries are for failures; the next tick has taken its place, and its owner is alerted once."""
    world = World(tmp_path, overrun=OverrunPolicy.KILL_AND_RUN, retry=Retry(times=3, backoff_s=1.0))
    world.at(1)
    old = world.child.begin()
    world.at(2)
    mark_overrun(world.records, "p", old.job.tick, cause_of(world.child.job.tick))
    old.finish(State.CANCELED, "stopped by the scheduler")
    world.child.begin()

    world.at(2, 30)

    assert world.outcomes == {1: "killed", 2: "open"}
    assert len(world.children) == 2
    subject = "p overran: p/1 was killed after 1 h 00 min for the tick 2026-03-01T02:00Z (overrun policy killandrun)"
    assert world.told == [("overrun", subject)]


@pytest.mark.parametrize("policy", OverrunPolicy)
def test_a_run_that_succeeded_ran_however_slowly_its_process_exits(tmp_path, policy):
    """Its record decides; the next tick neither overruns it nor ends its process."""
    world = World(tmp_path, overrun=policy)
    world.at(1)
    slow = world.child.begin().finish(exits=False)

    world.at(2)

    assert world.outcomes == {1: "ran", 2: "open"}
    assert world.told == []
    assert (slow.killed, slow.terminated, world.child.job.end_others) == (False, False, False)


@pytest.mark.parametrize("policy", OverrunPolicy)
def test_a_run_that_another_scheduler_saw_to_its_end_ran(tmp_path, policy):
    """Whoever takes the next tick first decides by the record, not by the process that it does not know."""
    world = World(tmp_path, overrun=policy)
    world.at(1)
    world.child.begin().finish(exits=False)
    first = world.watched, world.me
    world.open()

    world.at(2)
    assert world.outcomes == {1: "ran", 2: "open"}
    world.watched, world.me = first
    world.at(2, 1)

    assert world.outcomes == {1: "ran", 2: "open"}
    assert world.told == []
    assert list(world.watched.open) == []


def test_a_failed_run_whose_process_lingers_failed(tmp_path):
    """It is not retried, since the next tick has come, and was not killed for it."""
    world = World(tmp_path, overrun=OverrunPolicy.KILL_AND_RUN, retry=Retry(times=1, backoff_s=60.0))
    world.at(1)
    world.child.begin().finish(State.FAILED, "Trainer failed", exits=False)

    world.at(2)

    assert world.outcomes == {1: "failed", 2: "open"}
    (record,) = list_missed(world.records, "p")
    assert record.end.why == "Trainer failed; not retried, since the next tick has come"


def test_the_end_of_a_run_is_noticed_although_its_process_lingers(world):
    """A failure is alerted soon, and the process is waited for, then ended, without touching the outcome."""
    world.at(1)
    slow = world.child.begin().finish(State.FAILED, "Trainer failed", exits=False)

    world.at(1, 1)
    assert world.outcomes == {1: "failed"}
    assert [kind for kind, _ in world.told] == ["failure"]
    assert world.watched.has_runs
    assert not slow.killed

    world.at(1, 5)
    assert slow.killed
    assert not world.watched.has_runs
    assert world.outcomes == {1: "failed"}


@pytest.mark.parametrize(
    ("policy", "outcomes", "why"),
    [
        (
            OverrunPolicy.KILL_AND_RUN,
            {1: "killed", 2: "open"},
            "ended for the tick 2026-03-01T02:00Z (overrun policy killandrun) before its attempt 2 had begun",
        ),
        (OverrunPolicy.ALLOW_TO_COMPLETE, {1: "open", 2: "skipped"}, "the tick 2026-03-01T01:00Z had not ended"),
    ],
)
def test_a_retry_that_is_about_to_begin_is_overrun_by_what_it_is(tmp_path, policy, outcomes, why):
    """Its first run has ended, and is neither called running nor killed."""
    world = World(tmp_path, overrun=policy, retry=Retry(times=1, backoff_s=60.0))
    world.at(1)
    world.child.begin().finish(State.FAILED, "Trainer failed")
    world.at(1, 1)
    world.at(1, 5)
    assert len(world.children) == 2

    world.at(2)

    assert world.outcomes == outcomes
    (record,) = list_missed(world.records, "p")
    assert record.end.why == why


@pytest.mark.parametrize("policy", OverrunPolicy)
def test_a_run_that_ended_a_moment_ago_and_holds_the_lease_is_not_overrun(tmp_path, policy):
    """Between the record of its end and the release of its lease lies a moment, in which the tick waits."""
    world = World(tmp_path, overrun=policy)
    held = lease.acquire(world.records, "p", "a run", clock=world.clock)
    run = world.records.begin_run(Run(pipeline="p", token=held.token, started=world.now))
    world.step(timedelta(minutes=29, seconds=59))
    world.records.update_run(replace(run, state=State.COMPLETE, ended=world.now))
    world.at(1)
    assert world.outcomes == {}

    held.release(closed=True)
    world.at(1, 0, 1)

    assert world.outcomes == {1: "open"}
    assert not world.child.job.end_others


def test_a_tick_whose_run_has_not_begun_makes_way(tmp_path):
    """No run of it can begin any more, and its process is ended."""
    world = World(tmp_path, overrun=OverrunPolicy.KILL_AND_RUN)
    world.at(1)
    waiting = world.child

    world.at(2)

    assert world.outcomes == {1: "killed", 2: "open"}
    assert waiting.killed
    waiting.begin()
    assert waiting.returncode == scheduled_run.TAKEN


def test_a_clock_set_back_runs_nothing_again(world):
    """Until it has passed the last tick; that is told once."""
    world.at(5)
    world.child.begin().finish()
    world.at(5, 1)

    for hour in (2, 3, 4, 5):
        world.at(hour)
    world.at(6)

    assert [c.job.tick[11:13] for c in world.children] == ["05", "06"]
    assert [kind for kind, _ in world.told if kind == "scheduler"] == ["scheduler"]


def test_a_clock_that_has_caught_up_is_told_once(world):
    """The alert that it was set back ends."""
    world.at(5)
    world.child.begin().finish()
    for hour in (2, 6, 7):
        world.at(hour)

    assert [subject for _, subject in world.told if "clock" in subject] == [
        "scheduler: the clock was set back (p)",
        "p recovered: the clock has caught up with the last tick that was taken",
    ]


def test_a_clock_set_forward_misses_what_it_passed_over(world):
    """The latest runs; the others are recorded and told as missed."""
    world.at(1)
    world.child.begin().finish()

    world.at(6, 30)

    assert world.outcomes == {1: "ran", 2: "missed", 3: "missed", 4: "missed", 5: "missed", 6: "open"}
    assert world.told == [("missed", "p: 4 ticks missed")]


def test_missed_ticks_are_made_up_for_one_after_another(tmp_path):
    """With `catchup=all`, and a tick that comes meanwhile waits its turn: it overran nothing."""
    world = World(tmp_path, catchup=Catchup.ALL)
    world.step()
    world.at(3, 10)
    for minute in (15, 55):
        world.child.begin().finish()
        world.at(3, minute)
    assert world.outcomes == {1: "ran", 2: "ran", 3: "open"}
    world.child.begin()

    world.at(4, 1)

    assert world.outcomes == {1: "ran", 2: "ran", 3: "open", 4: "skipped"}, "but the last of them can be overrun"


def test_a_year_of_minutes_is_not_walked(tmp_path):
    """A scheduler that was away for a year records what it missed in one go."""
    world = World(tmp_path, cron="* * * * *")
    world.step()

    world.step(timedelta(days=365))

    found = list(list_ticks(world.records, "p"))
    assert len(found) < 120
    assert "about 530000 ticks" in found[-1].end.why
    assert found[-1].end.first_span == 20512
    assert len(world.children) == 1


def test_a_tick_that_stands_for_several_has_their_spans_alone(tmp_path):
    """No tick meant the spans of a weekend, so nobody can ingest them: a backfill of all others recovers it."""
    world = World(tmp_path, cron="0 3 * * tue-sat")
    world.step()

    world.step(timedelta(days=200))

    summary = list_missed(world.records, "p")[0]
    spans = [tick.span for tick in ticks(Timetable("p", **world.terms), MIDNIGHT, summary.tick.at)]
    assert summary.spans == spans
    assert len(spans) < spans[-1] - spans[0]
    assert MissedTicks(world.records).recover("p", spans, 1, now=world.now) == [
        read_tick(world.records, "p", summary.tick.name)
    ]


def test_a_failed_run_is_tried_again_where_it_stopped(tmp_path):
    """After the wait; its end is told when the last attempt has failed."""
    world = World(tmp_path, retry=Retry(times=1, backoff_s=60.0))
    world.at(1)
    world.child.begin().finish(State.FAILED, "Trainer failed")
    world.at(1, 1)
    assert len(world.children) == 1

    world.at(1, 2)
    again = world.child
    again.begin().finish(State.FAILED, "Trainer failed")
    world.at(1, 3)

    assert (again.job.attempt, again.job.base) == (2, 1)
    assert world.outcomes == {1: "failed"}
    assert world.told == [("failure", "p failed on span 2026-02-28")]


def test_a_run_that_somebody_stopped_is_not_tried_again(tmp_path):
    """They had a reason."""
    world = World(tmp_path, retry=Retry(times=3))
    world.at(1)
    world.child.begin().finish(State.CANCELED, "stopped by `spanwise stop`")

    world.at(1, 1)

    assert world.outcomes == {1: "failed"}


def test_an_attempt_that_could_not_begin_counts(tmp_path):
    """Its last words, from its log, say why."""
    world = World(tmp_path, retry=Retry(times=1, backoff_s=1.0))
    for minute in (0, 1):
        world.at(1, minute)
        log = scheduled_run.log_path(world.root, "p", world.child.job.tick, 1)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("waiting\n\nspanwise: there is no file p.py\n")
        world.child.returncode = 2
        world.at(1, minute, 30)

    assert world.outcomes == {1: "failed"}
    (record,) = list_missed(world.records, "p")
    assert record.end.why == "there is no file p.py (attempt 2 of 2)"
    assert [c.job.attempt for c in world.children] == [1, 1]


def test_an_attempt_that_found_no_metadata_does_not_count(tmp_path):
    """It is made again, at a schedule without retries too; only one that finds them away each time has failed."""
    world = World(tmp_path)
    world.at(1)
    log = scheduled_run.log_path(world.root, "p", world.child.job.tick, 1)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\nspanwise: The metadata store is unavailable\n")
    for _ in range(open_tick.MOST_OUTAGES):
        world.child.returncode = scheduled_run.UNAVAILABLE
        world.step()
        assert world.child.returncode is not None, "there is a wait before the next"
        world.step(timedelta(seconds=open_tick.OUTAGE_S))
        assert world.child.returncode is None
    assert world.outcomes == {1: "open"}
    world.child.returncode = scheduled_run.UNAVAILABLE
    world.step()

    assert world.outcomes == {1: "failed"}
    (record,) = list_missed(world.records, "p")
    assert record.end.why == "The metadata store is unavailable"


def test_an_attempt_that_lost_the_metadata_does_not_count_either(tmp_path, monkeypatch):
    """Once its end is recorded, the next takes up where it stopped; closing it is repeated as long as they are away."""
    world = World(tmp_path, retry=Retry(times=1, backoff_s=1.0))
    world.at(1)
    lost = world.child.begin()
    monkeypatch.setattr(process, "is_alive", lambda who: False if who == lost.lease.who else None)
    for _ in range(3):  # the run itself, and twice what is to close it
        world.child.returncode = scheduled_run.UNAVAILABLE
        world.step()
        assert world.child.job.close == 1
    lost.finish(State.FAILED, "abandoned: its controller died", exits=False)
    world.child.returncode = 0
    world.step()
    world.step(timedelta(seconds=open_tick.OUTAGE_S))
    assert (world.child.job.attempt, world.child.job.base) == (2, 1)
    world.child.begin().finish(State.FAILED, "The metadata is away")
    world.child.returncode = scheduled_run.UNAVAILABLE
    world.step()
    world.step(timedelta(seconds=open_tick.OUTAGE_S))
    assert (world.child.job.attempt, world.child.job.base) == (3, 2)
    for attempt in (3, 4):
        world.child.begin().finish(State.FAILED, "Trainer failed")
        world.step()
        world.step(timedelta(seconds=1))
        assert world.child.job.attempt == min(attempt + 1, 4)

    assert world.outcomes == {1: "failed"}
    (record,) = list_missed(world.records, "p")
    assert record.end.why == "Trainer failed (attempt 2 of 2)"


def test_what_waits_for_another_chance_makes_way_for_the_next_tick(tmp_path):
    """It has failed; nothing runs, so nothing is overrun."""
    world = World(tmp_path, retry=Retry(times=1, backoff_s=200 * 60.0, limit_s=1e6))
    world.at(1)
    world.child.begin().finish(State.FAILED, "Trainer failed")
    world.at(1, 1)

    world.at(2)

    assert world.outcomes == {1: "failed", 2: "open"}


def test_what_found_no_metadata_makes_way_for_the_next_tick_too(tmp_path):
    """Under either policy; that it could not begin is the reason."""
    for policy in OverrunPolicy:
        world = World(tmp_path / policy.value, overrun=policy)
        world.at(1, 59, 59)
        world.child.returncode = scheduled_run.UNAVAILABLE
        world.step()
        world.at(2)

        assert world.outcomes == {1: "failed", 2: "open"}
        (record,) = list_missed(world.records, "p")
        assert record.end.why == "it could not begin; not retried, since the next tick has come"


def test_a_pipeline_that_another_took_first_is_waited_for(world):
    """Somebody began a run between the decision and the start; the tick comes after it, and is not lost."""
    world.at(1)
    held = lease.acquire(world.records, "p", "a run", clock=world.clock)
    world.child.returncode = scheduled_run.HELD
    world.at(1, 1)
    assert len(world.children) == 1

    held.release(closed=True)
    world.at(1, 2)

    assert len(world.children) == 2
    world.child.begin().finish()
    world.at(1, 3)
    assert world.outcomes == {1: "ran"}


def test_ticks_in_a_pause_are_missed_and_nobody_is_told(world):
    """Also those of a pause that has ended since."""
    world.step()
    pause_schedule(world.records, "p", who="ann", why="new disks", now=world.now, until=MIDNIGHT + 2.5 * HOUR)
    world.at(1)

    world.at(2, 45)
    world.at(3)

    assert world.outcomes == {1: "missed", 2: "missed", 3: "open"}
    assert world.told == []
    assert [e.end.why for e in list_missed(world.records, "p")] == ["paused by ann: new disks"] * 2


@pytest.mark.parametrize("away", [50 * HOUR, 300 * HOUR, 300 * 24 * HOUR])
def test_a_long_pause_is_as_quiet_as_a_short_one(world, away):
    """The tick that stands for the older ones names the pause too."""
    pause_schedule(world.records, "p", who="ann", why="disks", now=world.now)

    world.step(away)

    missed = list_missed(world.records, "p")
    assert all(each.end.why.startswith("paused by ann: disks") for each in missed)
    assert world.told == []


def test_ticks_that_were_missed_before_a_pause_are_told(world):
    """They have a tick of their own that stands for them, and it does not blame the pause."""
    pause_schedule(world.records, "p", who="ann", why="disks", now=world.now + 100 * HOUR)

    world.step(300 * HOUR)

    before, within, *_ = list_missed(world.records, "p")
    assert before.end.why.startswith("it had not run when the schedule was paused by ann: disks; 100 ticks from ")
    assert within.end.why.startswith("paused by ann: disks; 100 ticks from ")
    assert world.told == [("missed", "p: 100 ticks missed")]


def test_a_tick_for_which_another_stands_is_said_to_be_missed(world):
    """It came, and nobody took it, for it was summed up: it is no tick that the schedule did not have."""
    begin = world.now

    world.step(300 * HOUR)

    known = read_schedule(world.records, "p")
    every = explain_ticks(world.records, known.timetable, known, begin, world.now)
    summary = list_missed(world.records, "p")[0].tick
    assert {each.outcome for each in every[:-1]} == {"missed"}
    assert every[0].why.startswith(f"{summary.name} stands for it: 200 ticks from ")
    assert len(format_past_ticks(every, known.timetable, Calendar.DAY).splitlines()) == 1 + 1 + 1 + 100


def test_a_run_that_stands_still_is_told_once(tmp_path):
    """No execution and no output for `stall_after`."""
    world = World(tmp_path, stall_after=timedelta(minutes=10))
    world.at(1)
    world.child.begin()

    for minute in (1, 5, 12, 13, 30):
        world.at(1, minute)

    assert [kind for kind, _ in world.told] == ["stall"]


def test_a_stopped_scheduler_ends_its_runs(world):
    """Their ticks have failed for that reason, and can be made good."""
    world.at(1)
    world.child.begin()

    world.watched.stop("the scheduler was stopped")
    assert world.child.terminated
    world.child.finish(State.CANCELED, "stopped by SIGTERM")
    world.step(until=None)

    (record,) = list_missed(world.records, "p")
    assert (record.end.outcome, record.end.why) == (TickOutcome.FAILED, "the scheduler was stopped")


def test_a_stopped_scheduler_ends_the_runs_that_it_has_adopted(world):
    """A run that an earlier scheduler began is no child; a process of its own stops it, and the tick has ended."""
    world.at(1)
    running = world.child.begin()
    world.die()
    world.at(1, 1)

    world.watched.stop("the scheduler was stopped")
    assert world.watched.ready(world.now, world.monotonic)
    world.step(until=None)
    assert (world.child.job.close, world.child.job.closed_by) == (1, "the scheduler: the scheduler was stopped")
    assert not world.child.job.spare_living
    assert world.watched.has_runs
    running.finish(State.CANCELED, "stopped by the scheduler: the scheduler was stopped")
    world.child.returncode = 0
    world.step(until=None)

    (record,) = list_missed(world.records, "p")
    assert (record.end.outcome, record.end.why) == (TickOutcome.FAILED, "the scheduler was stopped")
    assert not world.watched.has_runs


def test_an_adopted_run_elsewhere_is_left_to_the_next_scheduler(world):
    """It could not be stopped from here; its tick stays open, and this scheduler does not wait for it."""
    world.at(1)
    world.child.begin()
    world.die()
    world.at(1, 1)
    world.watched.stop("the scheduler was stopped")
    world.step(until=None)
    world.child.returncode = 1
    world.step(until=None)

    assert world.outcomes == {1: "open"}
    assert not world.watched.has_runs


def test_a_scheduler_that_lets_runs_finish_waits_for_those_it_has_adopted(world):
    """They are its runs as any other."""
    world.at(1)
    running = world.child.begin()
    world.die()
    world.at(1, 1)
    world.step(until=None)
    assert world.watched.has_runs

    running.finish()
    world.step(timedelta(seconds=2), until=None)

    assert world.outcomes == {1: "ran"}
    assert not world.watched.has_runs


def test_a_run_that_a_person_ended_for_a_backfill_was_killed_for_it(tmp_path):
    """It is not retried; who and what for is recorded, and alerted as an overrun is."""
    world = World(tmp_path, retry=Retry(times=3, backoff_s=1.0))
    world.at(1)
    run = world.child.begin()
    by = "backfill p/3 (--kill by ann@host)"
    mark_overrun(world.records, "p", run.job.tick, OverrunCause(by=by))
    run.finish(State.CANCELED, f"stopped by {by}")

    world.at(1, 5)

    (record,) = list_missed(world.records, "p")
    assert (record.end.outcome, record.end.why) == (TickOutcome.KILLED, f"ended for {by}")
    assert world.told == [("overrun", f"p overran: p/1 was killed after 0.0 s for {by}")]


def test_a_run_that_will_not_stop_is_ended_by_a_process_of_its_own(world):
    """Which proves that nothing of it is left; the scheduler waits for nobody."""
    world.at(1)
    stubborn = world.child.begin()
    world.watched.stop("the scheduler was stopped")

    world.watched.kill(world.records)
    world.watched.kill(world.records)

    assert [c.job.close for c in world.children] == [None, 1]
    assert not stubborn.killed


def test_what_had_not_begun_is_left_to_the_next_scheduler(world):
    """Nothing was done, so nothing is lost."""
    world.at(1)
    world.watched.stop("the scheduler was stopped")
    world.child.returncode = -15
    world.step(until=None)

    world.die()
    world.at(1, 1)

    assert world.outcomes == {1: "open"}
    assert len(world.children) == 2


def test_a_run_whose_scheduler_died_is_followed_to_its_end(world):
    """It goes on meanwhile; whoever takes it over sees how it ends."""
    world.at(1)
    running = world.child.begin()
    world.die()
    world.at(1, 1)
    assert len(world.children) == 1

    running.finish()
    world.at(1, 2)

    assert world.outcomes == {1: "ran"}


def test_an_end_that_a_dead_scheduler_could_not_tell_is_told(world):
    """The alert comes from the next."""
    world.at(1)
    world.child.begin().finish(State.FAILED, "Trainer failed")
    entry = read_tick(world.records, "p", "2026-03-01T01:00Z")
    ending = TickEnd(outcome=TickOutcome.FAILED, why="Trainer failed", run=1)
    end_tick(world.records, entry, ending, now=world.now)

    world.die()
    world.at(1, 2)

    assert [kind for kind, _ in world.told] == ["failure"]


def test_an_end_that_the_outbox_could_not_keep_is_told_later(world, monkeypatch):
    """The disk was full."""
    world.at(1)
    world.child.begin().finish(State.FAILED, "Trainer failed")
    monkeypatch.setattr(outbox, "put", lambda place, told, *, spool: False)
    world.at(1, 2)
    monkeypatch.undo()

    world.at(1, 4)

    assert [kind for kind, _ in world.told] == ["failure"]
    assert list_unsettled(world.records, "p") == []


def test_a_second_chance_ends_nobody_else(tmp_path):
    """What began after the tick is waited for, also where the first attempt had ended what it overran."""
    world = World(tmp_path, overrun=OverrunPolicy.KILL_AND_RUN, retry=Retry(times=1, backoff_s=60.0))
    world.at(1)
    world.child.begin()
    world.at(2)
    world.children[0].finish(State.CANCELED, "stopped by `spanwise stop`")
    world.child.begin().finish(State.FAILED, "Trainer failed")
    world.at(2, 1)
    held = lease.acquire(world.records, "p", "a run", clock=world.clock)
    world.at(2, 3)
    assert len(world.children) == 2

    held.release(closed=True)
    world.at(2, 4)

    assert not world.child.job.end_others


def test_a_run_whose_controller_died_is_put_right(world, monkeypatch):
    """A process of its own does it; then the tick has failed."""
    world.at(1)
    dead = world.child.begin()
    dead.returncode = -9
    monkeypatch.setattr(process, "is_alive", lambda who: False if who == dead.lease.who else None)

    world.at(1, 1)
    assert world.child.job.close == 1
    assert world.child.job.spare_living
    ended = replace(dead.run, state=State.FAILED, error="abandoned: its controller died", ended=world.now)
    world.records.update_run(ended)
    world.child.returncode = 0
    world.at(1, 2)

    assert world.outcomes == {1: "failed"}
    assert len(world.children) == 2


def test_a_tick_that_comes_while_a_dead_run_is_closed_is_not_skipped_for_it(tmp_path, monkeypatch):
    """Nothing of that run goes on; the tick waits for the moment that it takes to record its end."""
    for policy in OverrunPolicy:
        world = World(tmp_path / policy.value, overrun=policy)
        world.at(1)
        dead = world.child.begin()
        dead.returncode = -9
        monkeypatch.setattr(process, "is_alive", lambda who, dead=dead: False if who == dead.lease.who else None)

        world.at(2)
        assert world.child.job.close == 1
        dead.finish(State.FAILED, "abandoned: its controller died")
        world.child.returncode = 0
        world.at(2, 0, 5)

        assert world.outcomes == {1: "failed", 2: "open"}
        assert [(c.job.tick, c.job.end_others) for c in world.children[2:]] == [("2026-03-01T02:00Z", False)]
        monkeypatch.undo()


def cause_of(tick):
    """That for which a run is ended for a tick, as the run of that tick records it."""
    return OverrunCause(by=describe_overrun(tick), tick=tick)


class Died(BaseException):
    """The scheduler was killed."""


class Mortal:
    """A store whose user is killed at the n-th write, before or after it has landed."""

    def __init__(self, store, at, *, landed):
        self.store, self.left, self.landed = store, at, landed

    def __getattr__(self, name):
        verb = getattr(self.store, name)
        if name not in ("claim", "amend", "begin_run", "update_run"):
            return verb

        def mortal(*arguments):
            self.left -= 1
            if not self.left and not self.landed:
                raise Died
            result = verb(*arguments)
            if not self.left:
                raise Died
            return result

        return mortal


@pytest.mark.parametrize("policy", OverrunPolicy)
@pytest.mark.parametrize("landed", [False, True])
def test_killed_at_any_write_it_leaves_each_tick_with_one_outcome(tmp_path, policy, landed):
    """Between any two writes of three hours with a failure, an overrun and a missed tick."""
    for at in range(1, 200):
        world = World(tmp_path / str(at), overrun=policy, retry=Retry(times=1, backoff_s=60.0))
        world.step()
        world.store = Mortal(world.records, at, landed=landed)
        try:
            lived(world)
        except Died:
            world.die()
        else:
            assert at > 10, "it was hardly killed at all"
            return
        recovered(world)

        assert "open" not in world.outcomes.values(), f"killed at write {at}"
        ran = [r.cause for r in world.records.runs("p") if r.state is State.COMPLETE]
        assert len(ran) == len(set(ran)), f"killed at write {at}"
        assert {1, 2, 3} <= world.outcomes.keys(), f"killed at write {at}"
        assert list_unsettled(world.records, "p") == [], f"killed at write {at}"
    raise AssertionError("it never came to its end")


def lived(world):
    world.at(1)
    world.child.begin().finish(State.FAILED, "Trainer failed")
    world.at(1, 1)
    world.at(1, 3)
    world.child.begin()
    world.at(2)
    advance(world)
    world.at(2, 5)
    advance(world)
    world.at(4, 10)
    advance(world)
    world.at(4, 20)


def recovered(world):
    """The next scheduler goes on, and what is left of the runs comes to its end."""
    for minute in range(30, 58):
        world.at(4, minute)
        advance(world)


def advance(world):
    """What the processes that are left do: old ones end, the newest begins and ends."""
    for child in world.children:
        if child.run is not None and not child.run.state.ended:
            later = any(c.job.end_others and c.returncode is None for c in world.children if c is not child)
            if later:
                child.finish(State.CANCELED, "stopped by `spanwise stop`")
            else:
                child.finish()
    for child in world.children:
        if child.run is None and child.returncode is None:
            for other in world.records.runs("p"):
                if child.job.end_others and other.cause != child.job.tick:
                    mark_overrun(world.records, "p", other.cause, cause_of(child.job.tick))
            child.begin()
            if child.run is not None:
                child.finish()


def test_a_scheduler_elsewhere_that_lives_keeps_its_ticks(world):
    """Until it is known to be dead nobody adopts them."""
    world.at(1)
    world.child.begin()
    other = read_scheduler(world.records, world.me.number)
    world.records.amend(heartbeat._claim(replace(other, who=Identity("elsewhere/0/0", 1, 1))))
    world.open()

    world.at(1, 5)

    assert world.watched.open == {}


def test_runs_that_take_too_much_of_the_interval_are_told_once(world):
    """Before they overrun; and once that they end in time again, also by a scheduler that came later."""
    for hour in range(1, 13):
        world.at(hour)
        world.child.begin()
        world.at(hour, 55)
        world.child.finish()
        world.at(hour, 56)
        if hour == 10:
            world.die()
    told = world.told

    world.terms["cron"] = "0 */12 * * *"
    world.die()
    world.at(24)
    world.child.begin().finish()
    world.at(24, 1)

    assert [kind for kind, _ in told] == ["forecast"]
    assert told[0][1].startswith("p will overrun: a run takes up to 55 min 00 s of the 1 h 00 min between two ticks")
    assert world.told[-1] == ("recovery", "p recovered: runs end in time")
