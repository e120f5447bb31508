"""Backfills, carried out: what is run, what is learned, what is left after an interruption, and what is said."""

import json
import signal
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.mlmd import open_store
from orchestrator.run import State, Trigger
from orchestrator.span import Calendar
from scheduler import ledger
from scheduler.backfill.record import Stage, find
from scheduler.schedule import Tick
from tests.scheduler.backfill.conftest import World
from tests.scheduler.conftest import start


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


def test_a_failed_day_does_not_stop_the_others(world: World) -> None:
    """The exit code and the end tell; the command that is printed tries again what failed, and that alone."""
    for day, rows in ((1, None), (2, "broken"), (3, None)):
        world.arrive(day, rows=rows)

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01..2024-05-03", "--param", "name=days")

    assert code == 1
    assert world.states() == [("01", State.COMPLETE), ("02", State.FAILED), ("03", State.FAILED)]
    assert "Ingest failed: ValueError: these rows are broken" in out
    assert "Backfill days/1: failed; 1 of 3 spans done, 2 failed." in out
    assert out.splitlines()[-1] == "Try again with what is left:  spanwise backfill --resume days/1"
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
    assert "No model was trained: a span that it was to learn from has failed." in out
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
    child = start("backfill", "days.py", "--span", "2024-05-01..2024-05-04", "--param", "work_s=0.3", cwd=world.folder)
    assert child.stdout is not None
    said = []
    for line in child.stdout:
        said.append(line)
        if line.startswith("Run days/2"):
            break

    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)

    assert (child.returncode, err) == (130, "")
    assert "interrupted by SIGINT" in out
    assert "Go on with what is left:  spanwise backfill --resume days/1" in out
    done = [r for r in world.runs() if r.state is State.COMPLETE]
    assert 2 <= len(done) <= 3
    assert world("backfill", "--resume", "days/1")[0] == 0
    assert sorted(span for span, state in world.states() if state is State.COMPLETE) == ["01", "02", "03", "04"]


# --- beside a schedule


def scheduled(world: World, *, at: datetime) -> None:
    """The metadata knows a schedule of days, whose tick at that moment failed for span 2024-05-02."""
    world.lived(3)
    store = open_store(str(world.folder / ".spanwise" / "metadata.db"))
    ledger.put_schedule(
        store,
        ledger.Scheduled(pipeline="days", timetable={"cron": "@daily"}, since=at - timedelta(days=9), calendar="day"),
    )
    tick = Tick(at=at, name="2024-05-03T03:00", wall=at.replace(tzinfo=None), span=Calendar.DAY.parse("2024-05-02"))
    ending = ledger.Ending(outcome=ledger.Outcome.FAILED, why="it failed")
    assert ledger.claim_tick(store, "days", tick, holder=1, now=at, ending=ending)
    store.close()


def test_missed_days_are_made_good(world: World) -> None:
    """`--missed` is every span whose tick did not run to a good end, once; afterwards there is none."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))

    code, out, _ = world("backfill", "days.py", "--missed")

    assert code == 0
    assert "The schedule of days is paused." in out
    assert "The schedule of days goes on." in out
    assert [r.span for r in world.runs()[3:]] == [Calendar.DAY.parse("2024-05-02")]
    store = open_store(str(world.folder / ".spanwise" / "metadata.db"))
    assert ledger.missed(store, "days") == []
    assert ledger.paused(store, "days", datetime.now(UTC)) is None
    store.close()
    assert world("backfill", "days.py", "--missed")[1] == "Nothing of days is to be backfilled.\n"


def test_a_schedule_that_was_paused_by_somebody_stays_so(world: World) -> None:
    """The end says who paused it, and how to resume it."""
    scheduled(world, at=datetime(2024, 5, 3, 3, tzinfo=UTC))
    store = open_store(str(world.folder / ".spanwise" / "metadata.db"))
    ledger.pause(store, "days", who="ann", why="the lake moves", now=datetime.now(UTC))
    store.close()

    _, out, _ = world("backfill", "days.py", "--missed")

    assert "is still paused: ann paused it: the lake moves. Resume it:  spanwise schedule resume days" in out


@pytest.mark.slow
def test_a_backfill_waits_for_the_run_that_is_going(world: World) -> None:
    """Or, with --kill, ends it; the runs never overlap."""
    world.arrive(1)
    child = start("run", "days.py", "--param", "work_s=60", cwd=world.folder)
    assert child.stdout is not None
    child.stdout.readline()
    ends = threading.Thread(target=lambda: (time.sleep(1.0), child.send_signal(signal.SIGTERM)))
    ends.start()

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01")

    ends.join()
    child.communicate(timeout=60)
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
    child = start("run", "days.py", "--param", "work_s=60", cwd=world.folder)
    assert child.stdout is not None
    child.stdout.readline()

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-01", "--kill")

    child.communicate(timeout=60)
    assert code == 0
    assert "Run days/1 was asked to stop and ended" in out
    assert [state for _, state in world.states()] == [State.CANCELED, State.COMPLETE]


def test_a_backfill_is_found_by_its_pipeline_or_its_name(world: World) -> None:
    """And one that is not there says which are."""
    world.arrive(1)
    world("backfill", "days.py", "--span", "2024-05-01")

    store = open_store(str(world.folder / ".spanwise" / "metadata.db"))
    assert find(store, "days").stage is find(store, "days/1").stage is Stage.COMPLETE
    store.close()
    assert "There is no backfill days/7; its backfills are 1 to 1." in world("backfill", "--resume", "days/7")[2]
    assert "'taxi' was never backfilled here" in world("backfill", "--resume", "taxi")[2]
