"""Parts: a pipeline that ingests and trains by clocks of their own; real pipelines, real children, a clock we move."""

import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import Component, Examples, Gate, Input, Model, Output, Pipeline, Report, State, past
from spanwise.orchestrator.errors import ScheduleError
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.run import Run
from spanwise.resolvers import Fixed, Latest, RollingWindow
from spanwise.scheduler.alerts import alert
from spanwise.scheduler.daemon import scheduled_run
from spanwise.scheduler.daemon.loop import SchedulerLoop
from spanwise.scheduler.daemon.metrics import SchedulerMetrics
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.pauses import current_pause, pause_schedule
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_schedules, put_schedule
from spanwise.scheduler.ledger.ticks import TickRecord, list_ticks
from spanwise.scheduler.project import settings
from spanwise.scheduler.project.load import load
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.part import (
    check_parts,
    completed_parts,
    nodes_behind,
    part_nodes,
    select_part,
    train_nodes,
)
from spanwise.scheduler.schedule.schedule import Schedule, rule_of, timetables_of
from spanwise.scheduler.schedule.schedule_key import INGEST, TRAIN
from spanwise.scheduler.schedule.span_rule import days_before, hours_before
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.backfill import conftest as lake
from tests.scheduler.backfill.conftest import World

world = lake.world

SOON_S = 300.0  # on a machine that does other things too
MORNING = datetime(2024, 5, 4, 2, 30, tzinfo=UTC)
BOTH = {"ingest": "0 * * * *", "train": "0 3 * * *"}
SCHEDULE = """
from spanwise.scheduler import Schedule, days_before

apart = Schedule(days, parts={"ingest": "0 2 * * *", "train": "0 3 * * *"}, span=days_before(1))
"""


class Clocked:
    """A scheduler in this process, whose clock stands until the test moves it; the runs are real."""

    def __init__(self, world: World) -> None:
        self.now, self.monotonic = MORNING - timedelta(hours=1), 1000.0
        self.jobs: list[scheduled_run.ScheduledJob] = []
        known = settings.read(root=world.folder / ".spanwise")
        clock = Clock(now=lambda: self.now, monotonic=lambda: self.monotonic)
        services = SchedulerServices(root=known.root, config=None, site=alert.local_site(), start=self._start)
        self.metrics = SchedulerMetrics(known.root)
        files = [str(world.folder / "days.py")]
        self.cron = SchedulerLoop(files, known, clock=clock, services=services, metrics=self.metrics)

    def _start(self, job: scheduled_run.ScheduledJob) -> subprocess.Popen[bytes]:
        self.jobs.append(job)
        return scheduled_run.start(job)

    def turn(self, by: timedelta = timedelta(0)) -> None:
        self.now += by
        self.monotonic += by.total_seconds()
        self.cron.turn()

    def settle(self) -> None:
        """Turns until nothing is left to do, while time passes for the scheduler as it does for its runs."""
        began = before = time.monotonic()
        while before < began + SOON_S:
            passed, before = time.monotonic() - before, time.monotonic()
            self.turn(timedelta(seconds=passed))
            if not (self.cron.files.loading or self.cron.files.described) and not any(
                one.busy or not one.looked_at for one in self.cron.schedulers.values()
            ):
                return
            time.sleep(0.02)  # until a real process has come further
        raise AssertionError("it never came to rest")


@pytest.fixture
def clocked(world: World) -> Iterator[Clocked]:
    with (world.folder / "days.py").open("a") as file:
        file.write(SCHEDULE)
    world.rewrite('since="2024-05-01"', 'since="2024-05-03"')
    made = Clocked(world)
    yield made
    made.cron.close()


def ticks(world: World, line: str) -> list[TickRecord]:
    with world.store() as store:
        return list(list_ticks(store, line))[::-1]


def outcomes(world: World, line: str) -> list[TickOutcome | None]:
    return [None if entry.end is None else entry.end.outcome for entry in ticks(world, line)]


def hold_runs(world: World) -> Callable[[], None]:
    """From now on runs ingest nothing until what is returned is called."""
    go = world.folder / "go"
    world.rewrite("time.sleep(work_s)", f"while not Path({str(go)!r}).exists(): time.sleep(0.02)")
    return go.touch


def nodes(run: Run) -> list[str]:
    return list(run.nodes)


@pytest.mark.slow
def test_each_part_runs_by_its_own_clock(world: World, clocked: Clocked) -> None:
    """What ingests, for the span of its tick; what trains, on what was published; each with one outcome."""
    world.arrive(3)
    clocked.settle()

    clocked.turn(timedelta(hours=1))
    clocked.settle()
    clocked.turn(timedelta(hours=1))
    clocked.settle()

    ingest, train = world.runs()
    assert (nodes(ingest), ingest.cause, ingest.state) == (
        ["Ingest", "Check"],
        "ingest 2024-05-04T02:00",
        State.COMPLETE,
    )
    assert nodes(train) == ["RollingWindow", "Train", "Push"]
    assert (train.span, train.base) == (None, ingest.number)
    assert "2024-05-03 v1" in world.serving
    assert outcomes(world, "days:ingest") == outcomes(world, "days:train") == [TickOutcome.RAN]
    page = clocked.metrics.page("text/plain")[0].decode()
    for line in ("days:ingest", "days:train"):
        assert f'spanwise_ticks_total{{outcome="ran",pipeline="{line}"}} 1.0' in page


@pytest.mark.slow
def test_a_tick_waits_for_the_run_of_the_other_part(world: World, clocked: Clocked) -> None:
    """It is no overrun: once the other has ended, it runs."""
    go = hold_runs(world)
    world.arrive(3)
    clocked.settle()

    clocked.turn(timedelta(hours=1))
    while not (world.folder / ".spanwise" / "days" / "1").is_dir() and not world.runs():
        time.sleep(0.02)
    clocked.turn(timedelta(hours=1))
    assert outcomes(world, "days:train") == [None]
    go()
    clocked.settle()

    assert outcomes(world, "days:ingest") == outcomes(world, "days:train") == [TickOutcome.RAN]
    assert [nodes(run)[0] for run in world.runs()] == ["Ingest", "RollingWindow"]


@pytest.mark.slow
def test_a_tick_overruns_a_run_of_its_own_part(world: World, clocked: Clocked) -> None:
    """As its policy says: the next day's is skipped, while the other part's waits."""
    go = hold_runs(world)
    world.arrive(3)
    clocked.settle()

    clocked.turn(timedelta(hours=1))
    while not world.runs():
        time.sleep(0.02)
    clocked.turn(timedelta(days=1))
    go()
    clocked.settle()

    assert outcomes(world, "days:ingest") == [TickOutcome.RAN, TickOutcome.SKIPPED]
    assert TickOutcome.SKIPPED not in outcomes(world, "days:train")


@pytest.mark.slow
def test_a_pause_holds_for_both(world: World, clocked: Clocked) -> None:
    """It is one of the pipeline."""
    clocked.settle()
    with world.store() as store:
        pause_schedule(store, "days", who="ann", why="new disks", now=clocked.now)

    clocked.turn(timedelta(hours=2))
    clocked.settle()

    assert outcomes(world, "days:ingest") == outcomes(world, "days:train") == [TickOutcome.MISSED]
    assert world.runs() == []


@pytest.mark.slow
def test_a_tick_of_the_whole_is_tried_again_though_the_schedule_is_by_parts_since(
    world: World, clocked: Clocked
) -> None:
    """Its first attempt found no data; the next one runs what the tick was taken for."""
    by_parts = 'parts={"ingest": "0 2 * * *", "train": "0 3 * * *"}'
    whole = 'cron="0 2 * * *", retry=Retry(times=1, backoff_s=600)'
    world.rewrite("from spanwise.scheduler import Schedule", "from spanwise import Retry, Schedule")
    world.rewrite(by_parts, whole)
    clocked.settle()
    clocked.turn(timedelta(hours=1))
    watched = clocked.cron.schedulers["days"]
    while not any(tick.awaits_retry for tick in watched.open.values()):
        clocked.turn()
        time.sleep(0.02)

    world.rewrite(whole, by_parts)
    world.arrive(3)
    clocked.turn(timedelta(minutes=11))
    clocked.settle()

    assert outcomes(world, "days") == [TickOutcome.RAN]
    assert [nodes(run)[-1] for run in world.runs()] == ["Push", "Push"]


def test_a_pause_of_one_part_is_refused(world: World, clocked: Clocked) -> None:
    """The ticks of the others would be missed without an alert; nor is one part resumed alone."""
    clocked.settle()

    code, _, err = world("schedule", "pause", "days:train", "--because", "new disks")
    assert code == 2
    assert "A pause holds for all parts of 'days': give days in place of days:train." in err
    assert world("schedule", "pause", "days", "--because", "new disks")[0] == 0
    code, _, err = world("schedule", "resume", "days:train")

    assert code == 2
    assert "give days in place of days:train" in err
    with world.store() as store:
        assert current_pause(store, "days", clocked.now) is not None


@pytest.mark.slow
def test_what_a_part_has_missed_is_made_good_by_a_run_that_reaches_its_end(world: World, clocked: Clocked) -> None:
    """A whole run of the span does for both."""
    clocked.settle()
    clocked.turn(timedelta(hours=1))
    clocked.settle()
    assert outcomes(world, "days:ingest") == [TickOutcome.FAILED]
    code, out, _ = world("schedule", "missed", "days")
    assert code == 1
    assert "days:ingest: 1 missed tick needs backfilling" in out

    world.arrive(3)
    assert world("backfill", "days.py", "--missed")[0] == 0

    assert world("schedule", "missed", "days")[0] == 0


def test_commands_name_the_part(world: World, clocked: Clocked) -> None:
    """Whether they read the file or the metadata."""
    clocked.settle()

    assert "days:ingest\n" in world("schedule", "next", "days.py")[1]
    assert [line.partition(": ")[0] for line in world("schedule", "check", "days")[1].splitlines()] == [
        "days:ingest",
        "days:train",
    ]
    status = world("schedule", "status", "days")[1]
    assert status.index("days:ingest") < status.index("days:train")
    assert "days:ingest" in world("schedule", "ticks", "days")[1]
    simulated = world(
        "schedule", "simulate", "days.py", "--from", "2024-05-01", "--to", "2024-05-03", "--duration", "1h"
    )[1]
    assert "days:train: '0 3 * * *' in UTC" in simulated


def test_a_schedule_by_parts_takes_the_place_of_one_for_the_whole(world: World, clocked: Clocked) -> None:
    """Else the ticks that no longer come would be overdue for ever."""
    since = MORNING - timedelta(days=2)
    table = Timetable("days", cron="0 5 * * *")
    (world.folder / ".spanwise").mkdir()
    with world.store() as store:
        put_schedule(store, ScheduleRecord(timetable=table, since=since))

    clocked.settle()

    with world.store() as store:
        assert list_schedules(store) == ["days:ingest", "days:train"]
        back = put_schedule(store, ScheduleRecord(timetable=table, since=MORNING))
        assert back.since == MORNING
        assert list_schedules(store) == ["days"]


def test_a_span_rule_is_that_of_what_is_ingested() -> None:
    """What trains learns from the newest, unless a rule of its own says otherwise."""
    one = Schedule(parts=BOTH, span=hours_before(1), freshness=timedelta(days=2))
    each = Schedule(parts=BOTH, span={"ingest": hours_before(1), "train": days_before(1)})

    ingest, train = timetables_of(one, "flights")

    assert (ingest.pipeline, ingest.cron, ingest.span) == ("flights:ingest", "0 * * * *", hours_before(1))
    assert (train.pipeline, train.cron, train.span) == ("flights:train", "0 3 * * *", None)
    assert ingest.freshness is None
    assert not train.warnings
    assert rule_of(each, "train") == days_before(1)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"parts": {"ingest": "@hourly", "trian": "@daily"}}, "parts= does not say at which node 'trian' begins"),
        ({"parts": {"ingest": "@hourly"}}, "needs two parts or more"),
        ({"parts": BOTH, "cron": "@daily"}, "and parts= exclude each other"),
        (
            {"parts": BOTH, "span": {"ingest": days_before(1), "whole": days_before(1)}},
            "span= takes ingest and train, not 'whole'",
        ),
        ({"cron": "@daily", "span": {"ingest": days_before(1)}}, "is for a schedule with parts="),
        ({"parts": {"ingest": "@hourly", "train": "61 * * * *"}}, "the minute is '61'"),
    ],
)
def test_parts_that_cannot_mean_anything_are_refused_when_the_schedule_is_made(
    terms: dict[str, object], said: str
) -> None:
    """With what would do."""
    with pytest.raises(ScheduleError, match=said.replace("'", ".")):
        Schedule(**terms)  # type: ignore[arg-type]


def test_a_pipeline_in_one_piece_has_no_parts(world: World) -> None:
    """The file is refused when it is loaded, and told what it lacks."""
    (world.folder / "one.py").write_text(
        "from spanwise.orchestrator import Component, Output, Pipeline, Report\n"
        "from spanwise.scheduler import Schedule\n"
        "class Work(Component):\n"
        "    def run(self, report: Output[Report]) -> None: ...\n"
        "def one() -> Pipeline:\n"
        "    return Pipeline('one', [Work()])\n"
        "both = Schedule(one, parts={'ingest': '@hourly', 'train': '@daily'})\n"
    )

    code, _, err = world("schedule", "next", "one.py")

    assert code == 2
    assert "parts= needs a pipeline in two parts" in err


def test_a_run_completes_the_parts_of_which_it_has_done_all(world: World) -> None:
    """One that leaves out a node of a part, at its beginning or at its end, completes nothing of it."""
    pipeline = load(str(Path("days.py"))).pipeline
    first, second = (select_part(pipeline, each) for each in (INGEST, TRAIN))
    assert first is not None
    assert second is not None

    assert completed_parts(pipeline, first.run) == {"ingest"}
    assert completed_parts(pipeline, second.run) == {"train"}
    assert completed_parts(pipeline, pipeline.order) == {"", "ingest", "train"}
    assert completed_parts(pipeline, ["Ingest", "Train"]) == frozenset()
    assert completed_parts(pipeline, ["Push"]) == frozenset()
    for part in ("", "ingest", "train"):
        assert part in completed_parts(pipeline, part_nodes(pipeline, part))


class Ingest(Component):
    def run(self, examples: Output[Examples]) -> None: ...


class Judged(Gate):
    def run(self, examples: Input[Examples], other: Input[list[Examples] | None]) -> None: ...


class Compare(Component):
    def run(self, examples: Input[Examples], other: Input[list[Examples]], report: Output[Report]) -> None: ...


class Learn(Component):
    def run(
        self, examples: Input[list[Examples]], others: Input[list[Examples] | None], base: Input[Model | None],
        model: Output[Model],
    ) -> None: ...  # fmt: skip


def test_a_resolver_belongs_to_the_part_that_it_serves() -> None:
    """What trains chooses its fixed range and its base when all spans are there; the baseline of a gate is for each."""
    ingest = Ingest()
    before = Fixed(ingest["examples"], first=1, last=2, name="Before")
    gate = Judged(examples=ingest["examples"], other=before["examples"])
    recent = RollingWindow(gate["examples"], size=2)
    exam, known = (Fixed(gate["examples"], first=1, last=2, name=name) for name in ("Exam", "Known"))
    base = Latest(past("Learn", "model", Model), name="Base")
    others = [exam["examples"], known["examples"]]
    learn = Learn(examples=recent["examples"], others=others, base=base["model"])
    compare = Compare(examples=gate["examples"], other=known["examples"])
    pipeline = Pipeline("p", [ingest, before, known, gate, compare, recent, exam, base, learn])

    check_parts(pipeline)

    assert set(train_nodes(pipeline)) == {"RollingWindow", "Exam", "Base", "Learn"}
    assert nodes_behind(pipeline, TRAIN) == ()
