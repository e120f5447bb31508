"""Backfills, carried out: what is run, what is learned, what is left after an interruption, and what is said."""

import json
import shlex
import shutil
import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.stop_request import request_stop
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.backfill.command import _find_passed_ticks
from spanwise.scheduler.backfill.execution import _PausedSchedule, catch_stop_signals
from spanwise.scheduler.backfill.record import Backfill, BackfillStage, find_backfill
from spanwise.scheduler.daemon import scheduled_run
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.ledger.missed import MissedTicks, list_missed
from spanwise.scheduler.ledger.pauses import current_pause, extend_pause, list_pauses, pause_schedule, resume_schedule
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import TickRecord, claim_tick, read_overrun
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.backfill.conftest import World
from tests.scheduler.conftest import start_warm

DAILY = Timetable("days", cron="0 3 * * *", span=days_before(1))


def learned(world: World) -> list[str]:
    return sorted(json.loads(world.serving)["learned"])


def test_a_corrected_day_is_replaced_in_the_model_in_service(world: World) -> None:
    """Day 6 with day 5 corrected learns from 4 to 6, from scratch."""
    world.lived(6)
    world.arrive(5, version=2)

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-05")

    assert code == 0
    assert learned(world) == ["2024-05-04 v1", "2024-05-05 v2", "2024-05-06 v1"]
    assert json.loads(world.serving)["from_scratch"] is True
    assert (world.runs()[-1].trigger, world.runs()[-1].cause) == (Trigger.BACKFILL, "backfill days/1")
    assert out.splitlines()[-1] == "Backfill days/1: complete; 1 of 1 spans done."


def test_a_warm_start_has_to_be_asked_for(world: World) -> None:
    """Then the run is like any other."""
    world.lived(1)
    world("backfill", "days.py", "--span", "2024-05-01", "--warm-start")

    assert world.runs()[-1].from_scratch is False


@pytest.mark.parametrize("words", [(), ("--parallel", "3")])
def test_three_corrected_days_make_one_model(world: World, words: tuple[str, ...]) -> None:
    """RFC: "The second portion … only needs to run once for updating the model after all Spans are updated"."""
    world.lived(6)
    for day in (4, 5, 6):
        world.arrive(day, version=2)

    code, out, _ = world("backfill", "days.py", "--stale", "--train-once", *words)

    assert code == 0
    assert learned(world) == ["2024-05-04 v2", "2024-05-05 v2", "2024-05-06 v2"]
    made = world.runs()[6:]
    assert sorted((r.span is None, len(r.nodes)) for r in made) == [(False, 2), (False, 2), (False, 2), (True, 3)]
    assert len({r.token for r in made}) == 1, "one lease from the first to the last"
    assert out.splitlines()[-1] == "Backfill days/1: complete; 3 of 3 spans done, trained."


def test_a_clock_behind_that_of_an_earlier_run_makes_no_parallel_backfill(world: World) -> None:
    """Its runs see what there was when it began, by this clock: what the earlier run made would be missing in silence."""
    world.lived(2)
    ended = datetime.now(UTC) + timedelta(minutes=2)
    with world.store() as store:
        store.update_run(replace(world.runs()[-1], ended=ended))
    words = ("backfill", "days.py", "--span", "2024-05-01..2024-05-02", "--train-once", "--force")

    code, _, err = world(*words, "--parallel", "2")

    assert code == 2
    assert "By the clock of this host, run 2 of 'days' ends in the future" in err
    assert len(world.runs()) == 2
    assert world(*words)[0] == 0, "one after the other, each run sees all that there is"


def test_a_failed_day_does_not_stop_the_others(world: World) -> None:
    """The exit code and the end tell; the command that is printed tries again what failed, and that alone."""
    for day, rows in ((1, None), (2, "broken"), (3, None)):
        world.arrive(day, rows=rows)

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01..2024-05-03", "--param", "name=days")

    assert code == 1
    assert world.states() == [("01", State.COMPLETE), ("02", State.FAILED), ("03", State.FAILED)]
    assert "Ingest failed: ValueError: these rows are broken" in out
    assert "Backfill days/1: failed; 1 of 3 spans done, 2 failed." in out
    assert out.splitlines()[-1] == "Once the causes are fixed, retry it:  spanwise backfill --resume days/1"
    (world.folder / "data" / "2024-05-02" / "v1" / "rows").write_text("mended")
    code, out, _ = world("backfill", "--resume", "days/1")
    assert code == 0
    assert world.states()[3:] == [("02", State.COMPLETE), ("03", State.COMPLETE)]
    assert learned(world) == ["2024-05-01 v1", "2024-05-02 v1", "2024-05-03 v1"]
    code, _, err = world("backfill", "--resume", "days/1")
    assert (code, "is complete" in err) == (2, True)


def test_fail_fast_begins_no_other(world: World) -> None:
    """What was not begun is told as left."""
    for day, rows in ((1, "broken"), (2, None), (3, None)):
        world.arrive(day, rows=rows)

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01..2024-05-03", "--fail-fast")

    assert code == 1
    assert len(world.runs()) == 1
    assert "0 of 3 spans done, 1 failed, 2 left." in out


def test_no_model_is_trained_when_a_day_has_failed(world: World) -> None:
    """It would learn from the old version of the day that was to be mended."""
    world.lived(2)
    world.arrive(1, version=2)
    world.arrive(2, version=2, rows="broken")
    before = world.serving

    code, out, _ = world("backfill", "days.py", "--stale", "--train-once")

    assert code == 1
    assert "No model was trained because a span that it needs has failed." in out
    assert world.serving == before
    (world.folder / "data" / "2024-05-02" / "v2" / "rows").write_text("mended")
    assert world("backfill", "--resume", "days")[0] == 0
    assert learned(world) == ["2024-05-01 v2", "2024-05-02 v2"]


def test_the_result_can_be_read_by_programs(world: World) -> None:
    """One document on stdout."""
    world.arrive(1)
    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01", "--json")

    said = json.loads(out)
    assert (code, said["stage"], [s["span_label"] for s in said["done"]]) == (0, "complete", ["2024-05-01"])


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(world: World) -> None:
    """Exit 130; going on does what was not done, and nothing twice."""
    for day in range(1, 5):
        world.arrive(day)
    child = start_warm(
        "backfill", "days.py", "--span", "2024-05-01..2024-05-04", "--param", "work_s=0.3", cwd=world.folder
    )
    assert child.stdout is not None
    said = []
    for line in child.stdout:
        said.append(line)
        if line.startswith("Run days/2"):
            break

    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)

    assert (child.returncode, err) == (130, "")
    assert "interrupted by SIGINT" in out
    assert "Resume it:  spanwise backfill --resume days/1" in out
    done = [r for r in world.runs() if r.state is State.COMPLETE]
    assert 2 <= len(done) <= 3
    assert world("backfill", "--resume", "days/1")[0] == 0
    assert sorted(span for span, state in world.states() if state is State.COMPLETE) == ["01", "02", "03", "04"]


# --- going on


@pytest.fixture
def failed(world: World) -> World:
    """A backfill of two days with one model: the second day is broken."""
    for day, rows in ((1, None), (2, "broken")):
        world.arrive(day, rows=rows)
    assert world("backfill", "days.py", "--span", "2024-05-01..2024-05-02", "--train-once", "--parallel", "2")[0] == 1
    return world


def test_what_is_left_can_be_seen_before_it_is_done(failed: World) -> None:
    """`--resume --dry-run` says how it stands and what would be run, and runs nothing."""
    code, out, _ = failed("backfill", "--resume", "days/1", "--dry-run")

    assert code == 0
    assert out.splitlines() == [
        "Backfill days/1: failed; 1 of 2 spans done, 1 failed, not trained.",
        "To run before training: 2024-05-02",
        "Once at the end: RollingWindow, Train, Push",
    ]
    assert len(failed.runs()) == 2
    assert json.loads(failed("backfill", "--resume", "days/1", "--dry-run", "--json")[1])["stage"] == "failed"


@pytest.mark.parametrize("word", ["--train-once", "--force", "--skip-absent", "--warm-start"])
def test_a_backfill_that_goes_on_is_not_planned_anew(failed: World, word: str) -> None:
    """What would have to be planned otherwise is refused, not passed over."""
    code, _, err = failed("backfill", "--resume", "days/1", word)

    assert code == 2
    assert word in err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[ingest, check, recent, train, push]", "[ingest, check, recent, train]", "it no longer has Push"),
        ("Pipeline(name, [", "Pipeline('weeks', [", "it defines 'weeks'"),
        (
            "train, push])",
            "train, push, Push(model=train['model'], serving='second', name='Second')])",
            "Second would now run once",
        ),
        (
            "train, push])",
            "train, push, Check(examples=ingest['examples'], name='Also')])",
            "Also has not run for the completed spans",
        ),
        (
            "class Check(Component):",
            "class Check(Component):\n    cacheable = False\n",
            "Check act outside the metadata",
        ),
    ],
)
def test_a_backfill_whose_pipeline_has_changed_its_parts_does_not_go_on(
    failed: World, old: str, new: str, says: str
) -> None:
    """The new node would run with each span, side by side: nobody has planned that."""
    failed.rewrite(old, new)

    code, _, err = failed("backfill", "--resume", "days/1")

    assert code == 2
    assert says in err
    assert len(failed.runs()) == 2


def test_a_backfill_goes_on_with_fixed_code(failed: World) -> None:
    """Of nodes that still have their places, whatever else has changed."""
    failed.rewrite('if said == "broken":', 'if said == "":')

    assert failed("backfill", "--resume", "days/1")[0] == 0
    assert learned(failed) == ["2024-05-01 v1", "2024-05-02 v1"]


def test_an_argument_that_is_fixed_stays_so(world: World) -> None:
    """It is recorded with the backfill and with its runs, for whoever goes on after that."""
    world.arrive(1)
    assert world("backfill", "days.py", "--span", "2024-05-01", "--param", "fail=true")[0] == 1

    assert world("backfill", "--resume", "days/1", "--param", "fail=false")[0] == 0

    assert world.runs()[-1].typed == ("fail=true", "fail=false")


def test_a_day_that_has_vanished_fails_and_the_rest_is_planned_anew(failed: World) -> None:
    """It is told again and again; a new plan leaves it out, and ingests nothing twice."""
    shutil.rmtree(failed.folder / "data" / "2024-05-02")

    code, out, _ = failed("backfill", "--resume", "days/1")

    assert code == 1
    assert "Ingest failed: no 2024-05-02" in out
    span = ("--span", "2024-05-01..2024-05-02")
    assert failed("backfill", "days.py", *span, "--skip-absent", "--train-once")[0] == 0
    assert learned(failed) == ["2024-05-01 v1"]


def test_a_signal_is_noted_unless_it_was_to_be_ignored() -> None:
    """Under nohup, SIGHUP ends nothing; afterwards every signal is what it was."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_stop_signals() as by:
            signal.raise_signal(signal.SIGHUP)
            assert by.name == ""
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert by.name == "SIGTERM"
            with pytest.raises(KeyboardInterrupt):
                by.sleep(60.0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_run_that_is_stopped_from_another_machine_stops_the_backfill(world: World) -> None:
    """`spanwise stop` there is a claim here, which the run sees: the days after it are not begun."""
    world.arrive(1)
    world.arrive(2)
    child = start_warm(
        "backfill", "days.py", "--span", "2024-05-01..2024-05-02", "--param", "work_s=60", cwd=world.folder
    )
    assert child.stdout is not None
    while "started" not in child.stdout.readline():
        assert child.poll() is None
    with world.store() as store:
        request_stop(store, Run(pipeline="days", number=1), "`spanwise stop` of ann@host")

    out, _ = child.communicate(timeout=300)

    assert child.returncode == 1
    assert "Backfill days/1: interrupted by `spanwise stop` of ann@host; 0 of 2 spans done, 2 left." in out
    assert "Resume it:  spanwise backfill --resume days/1" in out
    assert world.states() == [("01", State.CANCELED)]


# --- beside a schedule


def scheduled(world: World, *, at: datetime) -> None:
    """The metadata knows a schedule of days, whose tick at that moment failed for span 2024-05-02."""
    world.lived(3)
    tick = Tick(at=at, name="2024-05-03T03:00", wall=at.replace(tzinfo=None), span=Calendar.DAY.parse("2024-05-02"))
    ending = TickEnd(outcome=TickOutcome.FAILED, why="it failed")
    known = ScheduleRecord(timetable=DAILY, since=at - timedelta(days=9), source="days.py", calendar="day")
    with world.store() as store:
        put_schedule(store, known)
        assert claim_tick(store, "days", tick, holder=1, now=at, end=ending)


def test_missed_days_are_made_good(world: World) -> None:
    """`--missed` is every span whose tick did not run to a good end, once; afterwards there is none."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))

    code, out, _ = world("backfill", "days.py", "--missed")

    assert code == 0
    assert "The schedule of days is paused." in out
    assert "The schedule of days is resumed." in out
    assert [r.span for r in world.runs()[3:]] == [Calendar.DAY.parse("2024-05-02")]
    with world.store() as store:
        assert list_missed(store, "days") == []
        assert current_pause(store, "days", datetime.now(UTC)) is None
    assert world("backfill", "days.py", "--missed")[1] == "days needs no backfill.\n"


def test_missed_ticks_without_a_span_are_named_with_what_recovers_them(world: World) -> None:
    """As those of a part that trains on the newest: no backfill does, and it does not say that nothing is needed."""
    world.lived(3)
    at = datetime(2024, 5, 4, 4, tzinfo=UTC)
    table = Timetable("days:train", cron="0 4 * * *", division=HALVES)
    tick = Tick(at=at, name="2024-05-04T04:00", wall=at.replace(tzinfo=None), span=None, part="train")
    with world.store() as store:
        put_schedule(store, ScheduleRecord(timetable=table, since=at, source="days.py", calendar="day"))
        claim_tick(store, "days:train", tick, holder=1, now=at, end=TickEnd(outcome=TickOutcome.MISSED))

    code, out, _ = world("backfill", "days.py", "--missed")
    planned = world("backfill", "days.py", "--missed", "--dry-run")[1]
    document = json.loads(world("backfill", "days.py", "--missed", "--json")[1])

    assert code == 1
    assert (
        out
        == planned
        == (
            "days has no span to backfill.\n1 missed tick has no span. A run on the newest data recovers it:\n"
            "  spanwise run days.py\n"
        )
    )
    assert document["runs"] == ["spanwise run days.py"]
    assert world("run", "days.py")[0] == 0
    assert world("backfill", "days.py", "--missed")[:2] == (0, "days needs no backfill.\n")


def test_a_schedule_that_was_paused_by_somebody_stays_so(world: World) -> None:
    """The end says who paused it, and how to resume it."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))
    with world.store() as store:
        pause_schedule(store, "days", who="ann", why="the lake moves", now=datetime.now(UTC))

    _, out, _ = world("backfill", "days.py", "--missed")

    assert "is still paused: ann paused it: the lake moves. Resume it:  spanwise schedule resume days" in out


@pytest.mark.parametrize("ends_by_itself", [True, False])
def test_a_pause_of_somebody_that_ends_during_a_backfill_is_continued(ends_by_itself: bool) -> None:
    """No tick comes in between, which would be skipped or end the run of the backfill; who resumes it, resumes it."""
    now = datetime.now(UTC)
    until = now + timedelta(hours=1)
    store = MemoryStore()
    put_schedule(store, ScheduleRecord(timetable=DAILY, since=now, calendar="day"))
    pause_schedule(store, "days", who="ann", why="new disks", now=now, until=until)
    planned = SimpleNamespace(pipeline="days", cause="backfill days/1")
    pause = _PausedSchedule(planned, SimpleNamespace(store=store, notify=print))

    waits = [pause.look(now), pause.look(until - timedelta(seconds=32))]
    assert waits == [60, 30]
    assert current_pause(store, "days", now).who == "ann"
    if not ends_by_itself:
        resume_schedule(store, "days", who="ann", now=now)
    pause.look(until - timedelta(seconds=1))
    pause.look(until + timedelta(minutes=9))

    held = current_pause(store, "days", until + timedelta(minutes=15))
    assert (held and held.who) == ("backfill days/1" if ends_by_itself else None)
    explained = [each.who for each in list_pauses(store, "days", since=now)]
    assert explained == (["ann", "backfill days/1"] if ends_by_itself else [])


def test_a_backfill_that_is_resumed_names_the_ticks_that_were_lost_before(world: World) -> None:
    """Those that were due while an earlier process worked at it, until they are recovered."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))
    (world.folder / "data" / "2024-05-03" / "v1" / "rows").write_text("broken")
    world.arrive(3, version=2, rows="broken")
    assert world("backfill", "days.py", "--span", "2024-05-03")[0] == 1
    with world.store() as store:
        begun = find_backfill(store, "days").began
        ended = TickEnd(outcome=TickOutcome.SKIPPED, why="the run before it had not ended")
        lost = Tick(
            at=begun + timedelta(microseconds=1), name="lost", wall=begun, span=Calendar.DAY.parse("2024-05-01")
        )
        assert claim_tick(store, "days", lost, holder=1, now=begun, end=ended)
    (world.folder / "data" / "2024-05-03" / "v2" / "rows").write_text("mended")

    code, out, _ = world("backfill", "--resume", "days/1")

    assert code == 0
    assert "Ticks that were due in the meantime: lost (skipped)" in out
    assert "Backfill them:  spanwise backfill days.py --missed" in out


@pytest.mark.slow
def test_a_backfill_waits_for_the_run_that_is_going(world: World) -> None:
    """Or, with --kill, ends it; the runs never overlap."""
    world.arrive(1)
    child = start_warm("run", "days.py", "--param", "work_s=60", cwd=world.folder)
    assert child.stdout is not None
    child.stdout.readline()
    ends = threading.Timer(1.0, child.send_signal, [signal.SIGTERM])
    ends.start()

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01")

    ends.join()
    child.communicate(timeout=300)
    assert code == 0
    assert "Waiting: run 1 of 'days' is still going" in out
    first, second = world.runs()
    assert first.ended is not None
    assert second.started is not None
    assert first.ended <= second.started


@pytest.mark.slow
def test_a_backfill_ends_the_run_that_is_going_when_told_to(world: World) -> None:
    """The run is recorded as canceled."""
    world.arrive(1)
    child = start_warm("run", "days.py", "--param", "work_s=60", cwd=world.folder)
    assert child.stdout is not None
    child.stdout.readline()

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01", "--kill")

    child.communicate(timeout=300)
    assert code == 0
    assert "Run days/1 ended" in out
    assert [state for _, state in world.states()] == [State.CANCELED, State.COMPLETE]
    assert (world.runs()[0].error or "").startswith("stopped by backfill days/1 (--kill by ")


@pytest.mark.slow
def test_a_scheduled_run_that_a_backfill_ends_was_killed_for_it(world: World) -> None:
    """Its tick knows who and what for, so that it is neither retried nor called a failure."""
    world.arrive(1)
    world.rewrite("work_s: float = 0.0", "work_s: float = 60.0")
    at, span = datetime(2024, 5, 2, 3, tzinfo=UTC), Calendar.DAY.parse("2024-05-01")
    root = world.folder / ".spanwise"
    root.mkdir()
    with world.store() as store:
        put_schedule(store, ScheduleRecord(timetable=DAILY, since=at - timedelta(days=1), calendar="day"))
        tick = Tick(at=at, name="2024-05-02T03:00", wall=at, span=span)
        assert claim_tick(store, "days", tick, holder=1, now=at)
    source = f"{world.folder / 'days.py'}:days"
    job = ScheduledJob(source=source, pipeline="days", tick=tick.name, span=span, attempt=1, root=str(root))
    child = scheduled_run.start(job)
    while not world.runs():
        assert child.poll() is None

    code, _, err = world("backfill", "days.py", "--span", "2024-05-01", "--kill", "--param", "work_s=0")

    child.wait(300)
    assert code == 0, err
    with world.store() as store:
        cause = read_overrun(store, "days", tick.name)
    assert cause is not None
    assert cause.by.startswith("backfill days/1 (--kill by ")
    assert world.runs()[0].error == f"stopped by {cause.by}"


def test_a_backfill_is_found_by_its_pipeline_or_its_name(world: World) -> None:
    """And one that is not there says which are."""
    world.arrive(1)
    world("backfill", "days.py", "--span", "2024-05-01")

    with world.store() as store:
        assert find_backfill(store, "days").stage is find_backfill(store, "days/1").stage is BackfillStage.COMPLETE
    assert "There is no backfill days/7; its backfills are 1 to 1." in world("backfill", "--resume", "days/7")[2]
    assert "'taxi' was never backfilled here" in world("backfill", "--resume", "taxi")[2]


def test_a_tick_is_made_good_also_by_a_backfill_that_ended_before_it_could_say_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is complete; going on notes what it has made good, and runs nothing."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))

    def locked(*_: object, **__: object) -> list[TickRecord]:
        raise StoreUnavailable("The metadata are locked.")

    with monkeypatch.context() as patched:
        patched.setattr(MissedTicks, "recover", locked)
        code, out, err = world("backfill", "days.py", "--missed", "--root", ".spanwise")
    assert code == 1
    assert "The metadata are locked.\nResume it:  spanwise backfill --resume days/1 --root .spanwise" in err
    assert "The schedule of days is resumed." in out

    assert world("backfill", "--resume", "days/1")[0] == 0

    assert len(world.runs()) == 4
    with world.store() as store:
        assert list_missed(store, "days") == []


def test_the_pause_of_a_backfill_that_has_died_ends_with_the_next(world: World) -> None:
    """It is not taken for a person's, and does not run out while the next goes on."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))
    with world.store() as store:
        now = datetime.now(UTC)
        pause_schedule(store, "days", who="backfill days/7", why="", now=now, until=now + timedelta(minutes=9))

    _, out, _ = world("backfill", "days.py", "--missed")

    assert "The schedule of days is resumed." in out
    assert "is still paused" not in out
    with world.store() as store:
        assert current_pause(store, "days", datetime.now(UTC)) is None
        (_, ours) = list_pauses(store, "days", since=now)
        assert (ours.who, ours.resumed_by) == ("backfill days/1", "backfill days/1")


def test_ticks_that_passed_are_told_whether_or_not_a_scheduler_has_looked(world: World) -> None:
    """One that fell into the pause is missed in any case; one that was taken is what it came to."""
    at = datetime(2024, 5, 3, 3, tzinfo=UTC)
    scheduled(world, at=at)
    with world.store() as store:
        pause = pause_schedule(store, "days", who="backfill days/1", why="", now=at + timedelta(hours=1))
        extend_pause(store, "days", pause, until=at + timedelta(days=2, hours=1))

        backfill = Backfill(
            pipeline="days",
            source="",
            typed=(),
            calendar="day",
            spans=(),
            train=(),
            parallel=1,
            from_scratch=True,
            began=at,
            after_run=0,
        )
        passed = _find_passed_ticks(store, backfill, at)

    assert [(p.tick, p.outcome) for p in passed[:4]] == [
        ("2024-05-03T03:00", "failed"),
        ("2024-05-04T03:00", "missed"),
        ("2024-05-05T03:00", "missed"),
        ("2024-05-06T03:00", "waiting"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_whoever_waits_for_a_run_on_another_machine_may_stop_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    """It is told what is waited for, and where; nothing was run, and the schedule goes on."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))
    with world.store() as store, monkeypatch.context() as elsewhere:
        elsewhere.setattr(process, "machine", lambda: "elsewhere/0/0")
        held = lease.acquire(store, "days", "run 4")
        held.start_heartbeat(0, lambda: None)
        child = start_warm("backfill", "days.py", "--missed", cwd=world.folder)
        assert child.stdout is not None
        said = ""
        while "Waiting" not in said:
            said = child.stdout.readline()
        child.send_signal(number)
        out, err = child.communicate(timeout=300)
        held.release()
        paused = current_pause(store, "days", datetime.now(UTC))

    assert "run 4 of 'days' is still going" in said
    assert "on elsewhere" in said
    assert (child.returncode, err, paused) == (code, "", None)
    assert out.splitlines() == [
        "The schedule of days is resumed.",
        f"Backfill days/1: interrupted by {number.name}; 0 of 1 spans done, 1 left.",
        "Resume it:  spanwise backfill --resume days/1",
    ]
    assert len(world.runs()) == 3


@pytest.mark.slow
def test_a_backfill_goes_on_when_nobody_reads_what_it_says(world: World) -> None:
    """As when a terminal was closed, or a pager was left."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))
    child = start_warm("backfill", "days.py", "--missed", cwd=world.folder)
    assert child.stdout is not None
    child.stdout.readline()

    child.stdout.close()

    child.wait(timeout=300)
    assert child.stderr is not None
    assert child.stderr.read() == ""
    child.stderr.close()
    with world.store() as store:
        assert find_backfill(store, "days").stage is BackfillStage.COMPLETE
        assert current_pause(store, "days", datetime.now(UTC)) is None


@pytest.fixture
def refused(world: World) -> tuple[World, str]:
    """A parallel backfill of three days, one of which a gate has refused, and what was printed."""
    world.rewrite("class Check(Component):", "class Check(Gate):")
    world.rewrite("import Calendar,", "import Gate, Refused, Calendar,")
    world.rewrite(
        '(report.path / "text").write_text((examples.path / "rows").read_text())',
        'if (examples.path / "rows").read_text() == "few": raise Refused("too few")',
    )
    world.rewrite('RollingWindow(ingest["examples"]', 'RollingWindow(check["examples"]')
    for day, rows in [(1, None), (2, None), (3, "few")]:
        world.arrive(day, rows=rows)
    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01..2024-05-03", "--train-once", "--parallel", "2")
    assert code == 1
    return world, out


def printed(out: str, before: str) -> list[str]:
    """The command that follows these words, as a person would paste it."""
    (line,) = [line.partition(before)[2] for line in out.splitlines() if before in line]
    return shlex.split(line.replace("TEXT", "checked").removeprefix("spanwise "))


def test_a_person_may_accept_what_a_parallel_backfill_was_refused(refused: tuple[World, str]) -> None:
    """Its runs see no other run, but what people have said since it began: resumed, it trains with the day."""
    world, out = refused
    assert world(*printed(out, "Or accept the span as it is:  "))[0] == 0

    code, _, _ = world(*printed(out, "Once the causes are fixed, retry it:  "))

    assert code == 0
    assert learned(world) == ["2024-05-01 v1", "2024-05-02 v1", "2024-05-03 v1"]


def test_a_day_that_a_parallel_backfill_was_refused_may_be_corrected(refused: tuple[World, str]) -> None:
    """The command that is printed ingests the new version for all later runs; it is no replay."""
    world, out = refused
    world.arrive(3, version=2)
    assert world(*printed(out, "Correct the data and run its new version:  "))[0] == 0
    assert not world.runs()[-1].replay

    assert world("run", "days.py", "--from", "RollingWindow")[0] == 0

    assert learned(world) == ["2024-05-01 v1", "2024-05-02 v1", "2024-05-03 v2"]


@pytest.mark.slow
def test_two_backfills_take_turns_and_the_last_resumes_the_schedule(world: World) -> None:
    """The second finds it paused by the first, and pauses it itself once it has the pipeline."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))
    first = start_warm("backfill", "days.py", "--missed", "--param", "work_s=2", cwd=world.folder)
    assert first.stdout is not None
    while "started" not in first.stdout.readline():
        assert first.poll() is None

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01", "--force")

    first.communicate(timeout=300)
    assert (code, first.returncode) == (0, 0)
    lines = out.splitlines()
    assert lines.index("The schedule of days is paused.") > next(n for n, t in enumerate(lines) if "Waiting" in t)
    assert "The schedule of days is resumed." in lines
    assert "still paused" not in out
    with world.store() as store:
        assert current_pause(store, "days", datetime.now(UTC)) is None
    *_, one, two = world.runs()
    assert one.ended is not None
    assert two.started is not None
    assert one.ended <= two.started


@pytest.mark.slow
def test_a_pause_that_somebody_makes_meanwhile_is_left_to_them(world: World) -> None:
    """The end says that it holds."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))
    child = start_warm("backfill", "days.py", "--missed", "--param", "work_s=2", cwd=world.folder)
    assert child.stdout is not None
    while "started" not in child.stdout.readline():
        assert child.poll() is None
    with world.store() as store:
        pause_schedule(store, "days", who="ann", why="the lake moves", now=datetime.now(UTC))

    out, _ = child.communicate(timeout=300)

    assert child.returncode == 0
    assert "is still paused: ann paused it: the lake moves. Resume it:  spanwise schedule resume days" in out


def test_a_backfill_that_goes_on_after_a_newer_run_trains_on_the_newest_window(world: World) -> None:
    """Its training had failed; meanwhile the next day was run. Its model does not take that day out of service."""
    world.lived(4)
    for day in (3, 4):
        world.arrive(day, version=2)
    world.rewrite("fail: bool = False", "fail: bool = True")
    assert world("backfill", "days.py", "--span", "2024-05-03..2024-05-04", "--train-once")[0] == 1
    world.rewrite("fail: bool = True", "fail: bool = False")
    world.arrive(5)
    assert world("run", "days.py", "--span", "2024-05-05")[0] == 0

    code, out, err = world("backfill", "--resume", "days/1")

    assert code == 0, out + err
    assert "2 of 2 spans done, trained" in out
    assert all(each in world.serving for each in ("2024-05-03 v2", "2024-05-04 v2", "2024-05-05 v1"))
    assert '"from_scratch": true' in world.serving


def begin_broken(world: World) -> str:
    """A backfill whose second span fails; what mends it is an argument."""
    world.arrive(1)
    world.arrive(2, rows="broken")
    assert world("backfill", "days.py", "--span", "2024-05-01..2024-05-02")[0] == 1
    (world.folder / "data" / "2024-05-02" / "v1" / "rows").write_text("2 v1")
    return "days/1"


def test_a_backfill_is_not_continued_in_another_folder(
    world: World, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read that folder's data; the command that goes to its own is printed."""
    name = begin_broken(world)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    root = str(world.folder / ".spanwise")

    code, _, said = world("backfill", "--resume", name, "--root", root)

    assert code == 2
    assert f"Backfill {name} began in {world.folder}" in said
    assert f"  cd {world.folder} && spanwise backfill --resume {name} --root {root}" in said


def test_a_backfill_of_a_project_that_was_moved_continues_where_it_is_now(
    world: World, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file and its folder have moved along."""
    name = begin_broken(world)
    moved = world.folder.rename(tmp_path_factory.mktemp("moved") / "project")
    monkeypatch.chdir(moved)

    code, out, err = world("backfill", "--resume", name)

    assert code == 0, out + err
    assert "2 of 2 spans done" in out
