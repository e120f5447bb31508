"""More than two parts: each with a clock of its own, each on the newest run that completed the part before it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ScheduleError
from spanwise.orchestrator.run import State
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_keys, list_schedules, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.project.load import load
from spanwise.scheduler.schedule.division import Part, PartStart, division_of
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.part import check_parts, completed_parts, ends_of_part, nodes_behind, select_part
from spanwise.scheduler.schedule.schedule import Schedule, timetables_of
from spanwise.scheduler.schedule.schedule_key import part_of
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import OverrunPolicy, Timetable
from tests.scheduler.backfill import conftest as lake
from tests.scheduler.backfill.conftest import World
from tests.scheduler.schedule.test_part import Clocked, nodes, outcomes, ticks

world = lake.world

THREE = """
from spanwise import Part, Schedule, days_before

thrice = Schedule(
    days, span=days_before(1),
    parts={"ingest": "0 2 * * *", "train": "0 3 */2 * *", "push": Part("0 4 * * *", at="Push")},
)
"""
GATE = """
from spanwise import Gate, Refused


class Check(Gate):
    def run(self, examples: Input[Examples]) -> None:
        if "bad" in (examples.path / "rows").read_text():
            raise Refused("bad rows")

"""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def clocked(world: World) -> Iterator[Clocked]:
    """At 01:30 of 4 May; the gate is real, and history begins at 3 May."""
    text = (world.folder / "days.py").read_text()
    before, _, after = text.partition("class Check(Component):")
    text = before + GATE.lstrip() + "\n\nclass Train(Component)" + after.partition("class Train(Component)")[2] + THREE
    (world.folder / "days.py").write_text(text)
    world.rewrite('RollingWindow(ingest["examples"]', 'RollingWindow(check["examples"]')
    world.rewrite('since="2024-05-01", after=[check]', 'since="2024-05-03"')
    made = Clocked(world)
    yield made
    made.cron.close()


def pass_to(clocked: Clocked, day: int, hour: int) -> None:
    """Lets time pass to shortly after a full hour of May: hour by hour in the mornings, when the parts are due."""
    until = datetime(2024, 5, day, hour, 1, tzinfo=UTC)
    while clocked.now < until:
        step = HOUR if clocked.now.hour < 5 else 20 * HOUR
        clocked.turn(min(step, until - clocked.now))
        clocked.settle()


@pytest.mark.slow
def test_each_part_reads_the_newest_run_of_the_part_before(world: World, clocked: Clocked) -> None:
    """What was ingested since does not hold up the push, nor is it in what is pushed; the next model is."""
    world.arrive(3)
    world.arrive(4)
    world.arrive(5)
    clocked.settle()

    pass_to(clocked, 5, 5)  # ingests 3 and 4; trains on the 5th, after 4
    pass_to(clocked, 6, 5)  # ingests 5; trains nothing; pushes the model of the 5th again

    ran = [(nodes(run), run.base, run.state) for run in world.runs()]
    ingest, train, push = ["Ingest", "Check"], ["RollingWindow", "Train"], ["Push"]
    assert [each[0] for each in ran if each[2] is State.COMPLETE] == [ingest, ingest, train, push, ingest, push]
    trained = next(run.number for run in world.runs() if nodes(run) == train)
    assert [run.base for run in world.runs() if nodes(run) == push and run.state is State.COMPLETE] == [trained] * 2
    assert "2024-05-04 v1" in world.serving
    assert "2024-05-05" not in world.serving
    assert outcomes(world, "days:push") == [TickOutcome.FAILED, TickOutcome.RAN, TickOutcome.RAN]
    early = ticks(world, "days:push")[0].end
    assert early is not None
    assert "(RollingWindow, Train), and no run has. Wait for that part" in early.why


@pytest.mark.slow
def test_a_part_does_not_read_what_a_refused_span_was_learned_into(world: World, clocked: Clocked) -> None:
    """Between the clocks of training and pushing a person refuses the span: the push says so; a new model is pushed."""
    world.arrive(3)
    world.arrive(4)
    clocked.settle()
    pass_to(clocked, 5, 3)
    assert world("refuse", "days.py", "--span", "2024-05-04", "--because", "the sensor drifted")[0] == 0

    pass_to(clocked, 5, 4)

    assert not (world.folder / "serving.json").exists()
    end = ticks(world, "days:push")[-1].end
    assert end is not None
    assert end.outcome is TickOutcome.FAILED
    assert "RollingWindow chose 2024-05-04 v1, which does not count any more: refused by" in end.why
    assert "spanwise run" in end.why
    assert "--from RollingWindow" in end.why


@pytest.mark.slow
def test_a_part_reads_no_run_that_failed_in_the_part_before(world: World, clocked: Clocked) -> None:
    """The newest that completed it is read, and the push says which."""
    world.arrive(3)
    world.arrive(4)
    world.arrive(5)
    world.arrive(6)
    clocked.settle()
    pass_to(clocked, 5, 5)
    served = world.serving
    world.rewrite("fail: bool = False", "fail: bool = True")

    pass_to(clocked, 7, 5)  # the training of the 7th fails

    assert outcomes(world, "days:train")[-1] is TickOutcome.FAILED
    assert outcomes(world, "days:push")[-1] is TickOutcome.RAN
    assert world.serving == served


@pytest.mark.slow
def test_a_run_of_everything_closes_what_each_part_has_missed(world: World, clocked: Clocked) -> None:
    """The push of a morning without a model is recovered by the next run that pushes, and only then."""
    clocked.settle()
    pass_to(clocked, 4, 5)
    assert outcomes(world, "days:push") == [TickOutcome.FAILED]
    world.arrive(3)
    assert world("run", "days.py", "--span", "2024-05-03", "--to", "Train")[0] == 0
    assert "days:push: 1 missed tick" in world("schedule", "missed", "days")[1]

    assert world("run", "days.py", "--span", "2024-05-03")[0] == 0

    assert world("schedule", "missed", "days")[0] == 0


def test_parts_are_listed_from_the_metadata_and_replaced_by_others(world: World, clocked: Clocked) -> None:
    """Commands that have only the metadata find all; those that the file has no more are over."""
    clocked.settle()
    with world.store() as store:
        assert list_keys(store, "days") == ["days:ingest", "days:train", "days:push"]

    world.rewrite(', "push": Part("0 4 * * *", at="Push")', "")
    again = Clocked(world)
    again.settle()
    again.cron.close()

    with world.store() as store:
        assert sorted(list_schedules(store)) == ["days:ingest", "days:train"]


def test_what_a_part_missed_whose_node_is_gone_is_recovered_by_the_command_that_is_printed(world: World) -> None:
    """Its schedule is over, and the one of the file has another name now: a run of the whole pipeline closes the tick."""
    at = datetime(2024, 5, 4, 4, tzinfo=UTC)
    world.arrive(1)
    tick = Tick(at=at, name="2024-05-04T04:00", wall=at, span=None, part="push")
    parts = {"ingest": "0 2 * * *", "train": "0 3 * * *", "push": Part("0 4 * * *", at="Push")}
    older = Schedule(parts=parts, span=days_before(1))
    with world.store() as store:
        for table in timetables_of(older, "days"):
            put_schedule(store, ScheduleRecord(timetable=table, since=at, source="days.py:thrice", calendar="day"))
        claim_tick(store, "days:push", tick, holder=1, now=at, end=TickEnd(outcome=TickOutcome.MISSED))
        daily = Timetable("days", cron="0 3 * * *", span=days_before(1))
        put_schedule(store, ScheduleRecord(timetable=daily, since=at, source="days.py:daily", calendar="day"))
    world.rewrite("push = Push(model", 'push = Push(name="Deploy", model')
    with (world.folder / "days.py").open("a") as file:
        file.write('\nfrom spanwise import Schedule\n\ndaily = Schedule(days, cron="0 3 * * *")\n')

    assert "  spanwise run days.py:daily\n" in world("schedule", "missed", "days")[1]
    code, _, err = world("run", "days.py:daily")

    assert (code, err) == (0, err)
    assert world("schedule", "missed", "days")[0] == 0


def test_the_command_that_recovers_a_part_does_the_work_of_this_part_alone(world: World) -> None:
    """The others have clocks of their own: what no tick asked for is neither ingested nor trained on nor pushed."""
    (world.folder / "days.py").write_text((world.folder / "days.py").read_text() + THREE)
    for day in (1, 2, 3):
        world.arrive(day)
    assert world("run", "days.py", "--span", "2024-05-01")[0] == 0
    pipeline, at = load("days.py").pipeline, datetime(2024, 5, 3, 4, tzinfo=UTC)
    thrice = Schedule(
        parts={"ingest": "0 2 * * *", "train": "0 3 * * *", "push": Part("0 4 * * *", at="Push")}, span=days_before(1)
    )
    with world.store() as store:
        for table in timetables_of(thrice, "days"):
            part = part_of(table.pipeline)
            first, last = ends_of_part(pipeline, part, table.division)
            known = ScheduleRecord(timetable=table, since=at, source="days.py:thrice", calendar="day")
            put_schedule(store, replace(known, first=first, last=last))
            span = Calendar.DAY.parse("2024-05-02") if part == "ingest" else None
            tick = Tick(at=at, name="2024-05-03T04:00", wall=at, span=span, part=part)
            claim_tick(store, table.pipeline, tick, holder=1, now=at, end=TickEnd(outcome=TickOutcome.MISSED))

    commands = {}
    for part in ("ingest", "train", "push"):
        _, out, _ = world("schedule", "missed", f"days:{part}")
        commands[part] = next(line.strip() for line in out.splitlines() if line.startswith("  spanwise "))
        code, _, err = world(*commands[part].split()[1:])
        assert (code, err) == (0, err)
        assert world("schedule", "missed", f"days:{part}")[0] == 0

    assert commands == {
        "ingest": "spanwise run days.py:thrice --span 2024-05-02 --to Check",
        "train": "spanwise run days.py:thrice --from RollingWindow --to Train",
        "push": "spanwise run days.py:thrice",  # alone, it would be refused where spans have been ingested since
    }
    assert [nodes(run) for run in world.runs()[1:3]] == [["Ingest", "Check"], ["RollingWindow", "Train"]]


def test_a_part_has_terms_of_its_own() -> None:
    """Its zone and its policies; those that it does not name are the schedule's."""
    berlin = Part("0 9 * * 1", at="Push", zone="Europe/Berlin", overrun=OverrunPolicy.KILL_AND_RUN)
    made = Schedule(
        parts={"ingest": "@hourly", "train": "@daily", "push": berlin}, zone="America/New_York", span=days_before(1)
    )

    ingest, train, push = timetables_of(made, "p")

    assert [t.zone for t in (ingest, train, push)] == ["America/New_York", "America/New_York", "Europe/Berlin"]
    assert [t.overrun for t in (train, push)] == [OverrunPolicy.ALLOW_TO_COMPLETE, OverrunPolicy.KILL_AND_RUN]
    assert [t.span for t in (ingest, train, push)] == [days_before(1), None, None]
    assert not push.warnings


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"ingest": "@hourly", "data": Part("@daily", at="Push")}, "'data' cannot name a part"),
        ({"ingest": Part("@hourly", at="Push"), "train": "@daily"}, "is the first part and begins where the pipeline does"),
        ({"ingest": "@hourly", "train": 5}, "write a cron expression, or a Part"),
        ({"ingest": "@hourly", "train": Part("@daily", crom="x")}, "not 'crom'"),
        ({"ingest": "@hourly", "train": Part("@daily", zone="Nowhere")}, "zone 'Nowhere'"),
    ],
)  # fmt: skip
def test_what_no_pipeline_can_be_divided_into_is_refused_when_the_schedule_is_made(
    parts: dict[str, str | Part], said: str
) -> None:
    """Each with what would do."""
    with pytest.raises(ScheduleError, match=said):
        Schedule(parts=parts, span=days_before(1))


@pytest.mark.parametrize(
    ("starts", "said"),
    [
        ({"train": (), "push": ("Pusher",)}, "no node 'Pusher'. Did you mean Push"),
        ({"push": ("Push",), "train": ()}, "the part 'push' has no node"),
        ({"check": ("Check",), "train": ()}, "'check' begins at Check, which works on the span of its run"),
        ({"all": ("Ingest",)}, "leaves Ingest behind it"),
    ],
)
def test_what_this_pipeline_cannot_be_divided_into_is_refused(
    world: World, starts: dict[str, tuple[str, ...]], said: str
) -> None:
    """No part may be empty, skip spans, or ingest after another."""
    pipeline = load("days.py").pipeline

    with pytest.raises(ScheduleError, match=said):
        check_parts(pipeline, (PartStart("ingest"), *(PartStart(name, at) for name, at in starts.items())))


@pytest.mark.parametrize("argument", ['seen=check["report"]', "after=[check]"])
def test_a_part_that_reads_two_others_is_refused(world: World, argument: str) -> None:
    """What two parts made by clocks of their own need not belong together; no more is a check of one for the other."""
    world.rewrite(
        "def run(self, model: Input[Model], report",
        "def run(self, model: Input[Model], seen: Input[Report | None], report",
    )
    world.rewrite('Push(model=train["model"]', f'Push(model=train["model"], {argument}')
    pipeline = load("days.py").pipeline

    with pytest.raises(
        ScheduleError, match="The part 'push' needs Check of 'ingest', but the part before it is 'train'"
    ):
        check_parts(pipeline, (PartStart("ingest"), PartStart("train"), PartStart("push", ("Push",))))


def test_every_node_belongs_to_one_part(world: World) -> None:
    """The last at or after which it comes; a run completes the parts of which it has done all."""
    pipeline = load(str(Path("days.py"))).pipeline
    division = division_of({"ingest": "", "train": "", "push": Part("", at="Push")})

    chosen = {name: select_part(pipeline, name, division) for name in ("ingest", "train", "push")}

    assert {name: part.run for name, part in chosen.items() if part is not None} == {
        "ingest": ("Ingest", "Check"), "train": ("RollingWindow", "Train"), "push": ("Push",),
    }  # fmt: skip
    assert nodes_behind(pipeline, "push", division) == ("RollingWindow", "Train")
    assert nodes_behind(pipeline, "train", division) == ()
    assert completed_parts(pipeline, ("RollingWindow", "Train"), division) == {"train"}
    assert completed_parts(pipeline, ("Push",), division) == {"push"}
    gone = division_of({"ingest": "", "train": "", "push": Part("", at="Deploy")})
    assert completed_parts(pipeline, pipeline.order, gone) == {"", "ingest", "train", "push"}
    assert completed_parts(pipeline, ("Push",), gone) == frozenset()
