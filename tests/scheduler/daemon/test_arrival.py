"""What has come, when it is due, and what runs for it."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spanwise.components import ExampleGen
from spanwise.orchestrator import Pipeline
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.record import from_plain, to_plain
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.daemon.arrival import (
    Arrival,
    ArrivalRun,
    ArrivalWatch,
    ReadyData,
    decide_arrival,
    describe_awaited,
    find_ready,
    find_untrained,
)
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.project.load import load
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.schedule_key import INGEST, TRAIN, WHOLE
from spanwise.scheduler.schedule.ticks import Tick
from tests.scheduler.backfill import conftest as lake
from tests.scheduler.backfill.conftest import World
from tests.scheduler.inspect.test_window_forecast import Ingest, Learn, SameWeekday
from tests.scheduler.records import DAY, begun, examples, published

world = lake.world
NOW = datetime(2024, 5, 4, tzinfo=UTC)


def came(*spans: int) -> list[Arrival]:
    return [Arrival(span=span, name=f"{span}.v1", in_window=True) for span in spans]


def ready(newest: int, *, divided: bool = True) -> ReadyData:
    return ReadyData(newest=newest, divided=divided, arrivals=())


def entry(part: str, outcome: TickOutcome | None, span: int | None = 5, number: int = 1) -> TickRecord:
    tick = Tick(at=NOW, name=f"{part}{number}", wall=NOW, span=span, part=part)
    ending = None if outcome is None else TickEnd(outcome=outcome, run=number)
    return TickRecord(key="p:data", tick=tick, number=number, taken=NOW, after_run=0, holder=1, attempts=1, end=ending)


@pytest.mark.parametrize(
    ("found", "settling", "awaited"),
    [
        (
            ReadyData(newest=None, divided=True, arrivals=()),
            [],
            "its first span; none has input in every node that ingests",
        ),
        (ready(19846), [], "a span after 2024-05-03, or a newer version of one that a window reads"),
        (ready(19846), [19845, 19846], "2024-05-02 to 2024-05-03 must not have changed for 1 min 00 s"),
        (
            replace(ready(19846), lone={"a": (19847,)}),
            [19846],
            "2024-05-03 must not have changed for 1 min 00 s; a has 2024-05-04, of which other nodes have no input",
        ),
    ],
)
def test_a_watcher_says_what_it_waits_for(found: ReadyData, settling: list[int], awaited: str) -> None:
    """Data that has not settled, the first data, or the next."""
    assert describe_awaited(found, settling, Calendar.DAY, 60.0) == awaited


INGESTED = entry(INGEST, TickOutcome.RAN, number=7)


@pytest.mark.parametrize(
    ("due", "found", "left", "wanted"),
    [
        ([], ready(6), None, None),
        ([6], ready(6), None, ArrivalRun(name="6.v1", part=WHOLE, span=6, from_scratch=False)),
        ([5], ready(6), None, ArrivalRun(name="5.v1", part=WHOLE, span=5, from_scratch=True)),
        ([6, 4, 5], ready(6), None, ArrivalRun(name="4.v1", part=INGEST, span=4, from_scratch=True)),
        ([6, 4], ready(6, divided=False), None, ArrivalRun(name="4.v1", part=WHOLE, span=4, from_scratch=True)),
        ([6], ready(6), INGESTED, ArrivalRun(name="6.v1", part=WHOLE, span=6, from_scratch=True)),
        ([], ready(6), INGESTED, ArrivalRun(name="train.7", part=TRAIN, span=None, from_scratch=True)),
    ],
)
def test_what_runs_next(due: list[int], found: ReadyData, left: TickRecord | None, wanted: ArrivalRun | None) -> None:
    """One span is a run of the whole pipeline; of several, all but the newest are ingested, and one model trained."""
    assert decide_arrival(came(*due), found, left) == wanted


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ([], None),
        ([INGESTED], INGESTED),
        ([entry(WHOLE, TickOutcome.RAN), INGESTED], None),
        ([entry(TRAIN, TickOutcome.FAILED, None), INGESTED], None),
        ([entry(WHOLE, None), INGESTED], None),
        ([entry(WHOLE, TickOutcome.FAILED, 6), INGESTED], INGESTED),
        ([entry(WHOLE, TickOutcome.FAILED, 5), INGESTED], None),
        ([entry(INGEST, TickOutcome.FAILED, 6), INGESTED], INGESTED),
    ],
)
def test_what_was_only_ingested_is_owed_its_training(entries: list[TickRecord], wanted: TickRecord | None) -> None:
    """Until something was trained after it, or its training has failed; a run that failed before it trained is none."""
    assert find_untrained(entries, pending={6}) == wanted


def test_what_changes_has_not_settled() -> None:
    """A mark is settled when it was the same in every look for so long; one that comes back begins anew."""
    settling = ArrivalWatch()
    first, second = came(5)[0], replace(came(5)[0], name="5.v1 other")

    assert settling.select_settled([first], 60, 0) == []
    assert settling.select_settled([second], 60, 59) == []
    assert settling.select_settled([first], 60, 100) == []
    assert settling.select_settled([first], 60, 160) == [first]


def test_a_look_finds_what_is_not_ingested_and_which_of_it_a_window_reads(world: World) -> None:
    """New spans and new versions; what lies ready is known in the words of JSON, too."""
    world.lived(4)
    world.arrive(1, version=2)
    world.arrive(3, version=2)
    world.arrive(5)
    loaded = load("days.py")

    with world.store() as store:
        found = find_ready(loaded.pipeline, loaded.calendar, store)

    assert [(a.name.rpartition(".")[0], a.in_window) for a in found.arrivals] == [
        ("2024-05-01.v2", False),
        ("2024-05-03.v2", True),
        ("2024-05-05.v1", True),
    ]
    assert found.newest == found.arrivals[-1].span
    assert found.divided
    assert from_plain(ReadyData, json.loads(json.dumps(to_plain(found)))) == found


def test_a_span_that_has_yet_to_settle_is_one_that_a_window_reads(world: World) -> None:
    """A window of `skip=1` reads it when the next one has come, so it is not ignored."""
    world.rewrite("size=3,", "size=3, skip=1,")
    world.arrive(1)
    world("run", "days.py", "--span", "2024-05-01")  # its window is still empty
    world.arrive(1, version=2)
    world.arrive(2)
    loaded = load("days.py")

    with world.store() as store:
        found = find_ready(loaded.pipeline, loaded.calendar, store)

    assert [(a.name.rpartition(".")[0], a.in_window) for a in found.arrivals] == [
        ("2024-05-01.v2", True),
        ("2024-05-02.v1", True),
    ]


class Days(Ingest):
    def available(self, spans=None):  # type: ignore[no-untyped-def]
        return {DAY + day: 2 if day == 3 else 1 for day in range(10)}


def test_what_cannot_say_which_spans_it_wants_may_read_each_since_the_first_that_was_ingested() -> None:
    """A late day and a corrected one run; the history before the first run does not, nor does a first look run it all."""
    store, days = MemoryStore(), Days(name="Ingest")
    same = SameWeekday(days["examples"])
    pipeline = Pipeline("flights", [days, same, Learn(examples=same["examples"])])
    first = find_ready(pipeline, Calendar.DAY, store)
    for day in (2, 3, 4, 6, 7, 8):
        published(store, begun(store), "Ingest", outputs={"examples": examples(DAY + day)})

    found = find_ready(pipeline, Calendar.DAY, store)

    assert [a.span - DAY for a in first.arrivals if a.in_window] == [9]
    assert [(a.span - DAY, a.in_window) for a in found.arrivals] == [
        (0, False), (1, False), (3, True), (5, True), (9, True),
    ]  # fmt: skip


def test_the_mark_of_a_span_changes_with_its_files(tmp_path: Path) -> None:
    """With their names, sizes and times; those of other spans do not matter."""
    node = ExampleGen(pattern=f"{tmp_path}/{{SPAN}}/*.csv")
    for span in (1, 2):
        (tmp_path / str(span)).mkdir()
        (tmp_path / str(span) / "a.csv").write_text("x\n1\n")
    marks = [node.mark(1)]

    (tmp_path / "1" / "b.csv").write_text("x\n2\n")
    marks.append(node.mark(1))
    (tmp_path / "1" / "b.csv").write_text("x\n22\n")
    marks.append(node.mark(1))
    os.utime(tmp_path / "1" / "a.csv", ns=(0, 0))
    marks.append(node.mark(1))
    assert len(set(marks)) == 4

    (tmp_path / "2" / "a.csv").write_text("x\n3\n")
    assert node.mark(1) == marks[-1]
