"""Which missed ticks a complete run has done the work of."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spanwise.orchestrator import Calendar, Component, Examples, Input, Output, Pipeline, Run, State
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.store import MemoryStore
from spanwise.resolvers import RollingWindow
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.run.tick_recovery import AskedSpans, recover_ticks
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable

DAY = Calendar.DAY.parse("2026-03-03")


class Days(Component):
    calendar = Calendar.DAY

    def available(self, spans=None):  # type: ignore[no-untyped-def]
        return {}

    def run(self, examples: Output[Examples]) -> None: ...


class Learn(Component):
    def run(self, examples: Input[list[Examples]]) -> None: ...


def test_the_span_of_a_run_is_that_of_the_node_by_which_ticks_are_named() -> None:
    """Another node counts in days as well, and its day was never one of the leading node."""
    both = Pipeline("p", [Days(name="Clicks"), Days(name="Prices")])

    def asked(span: int | None, **spans: str) -> tuple[list[int], dict[str, list[int]]]:
        nodes = tuple(spans) or both.order
        run = Run(pipeline="p", span=span, calendar="day", spans=spans, nodes=nodes, state=State.COMPLETE)
        found = AskedSpans(MemoryStore(), both, run)
        return list(found.leading), {node: list(runs) for node, runs in found.by_node.items()}

    assert asked(DAY) == ([DAY], {"Clicks": [DAY], "Prices": [DAY]})
    assert asked(DAY, Clicks="2026-03-03", Prices="2026-03-01")[0] == [DAY]
    assert asked(DAY, Prices="2026-03-03") == ([], {"Prices": [DAY]})
    assert asked(None)[0] == []


NOON = datetime(2026, 3, 3, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DONE = State.COMPLETE
TRAIN = ("Window", "Learn")


class History:
    """A ledger of a pipeline in two parts, whose clock the test sets."""

    def __init__(self) -> None:
        self.now = NOON
        self.store = MemoryStore(lambda: self.now)
        ingest = Days(name="Ingest")
        window = RollingWindow(ingest.outputs["examples"], size=2, name="Window")
        self.pipeline = Pipeline("p", [ingest, window, Learn(examples=window["examples"])])
        for part in ("ingest", "train"):
            table = Timetable(f"p:{part}", cron="@daily", division=HALVES)
            put_schedule(self.store, ScheduleRecord(timetable=table, since=NOON - MINUTE))
        self.asked = AskedSpans(self.store, self.pipeline)

    def skip(self, part: str, span: int | None = None) -> None:
        """A tick that comes now, and runs nothing."""
        self.now += MINUTE
        tick = Tick(at=self.now, name=f"{self.now:%H:%M}", wall=self.now, span=span, part=part)
        end = TickEnd(outcome=TickOutcome.SKIPPED)
        assert claim_tick(self.store, f"p:{part}", tick, holder=1, now=self.now, end=end) is not None

    def begin(self, *nodes: str, **terms: Any) -> Run:
        self.now += MINUTE
        return self.store.begin_run(Run(pipeline="p", nodes=nodes, **terms))

    def end(self, run: Run, state: State = DONE) -> Run:
        ended = replace(run, state=state)
        self.store.update_run(ended)
        if state is DONE:
            self.asked.add(ended)
            recover_ticks(self.store, self.pipeline, ended, self.asked, "/nowhere")
        return ended

    def resume(self, run: Run, *nodes: str) -> Run:
        return self.begin(*nodes, trigger=Trigger.RESUME, cause=run.name, base=run.number, span=run.span)

    def missed(self) -> list[str]:
        return [record.key for key in ("p:ingest", "p:train") for record in list_missed(self.store, key)]


@pytest.fixture
def history() -> History:
    return History()


def test_a_run_that_began_before_a_tick_does_not_recover_it(history: History) -> None:
    """A tick is skipped for a run that has chosen its window: what has come since waits for the next run."""
    early = history.begin(*TRAIN)
    history.skip("train")
    history.end(early)
    assert history.missed() == ["p:train"]

    history.end(history.begin(*TRAIN))

    assert history.missed() == []


def test_a_run_that_ingested_a_span_before_its_tick_does_not_recover_it(history: History) -> None:
    """At its tick, the span was to be complete; the run that trains on it later has not ingested it again."""
    early = history.begin("Ingest", span=DAY)
    history.skip("ingest", DAY)
    history.skip("train")
    history.end(early)

    history.end(history.begin(*TRAIN))
    assert history.missed() == ["p:ingest"]

    history.end(history.begin("Ingest", span=DAY))
    assert history.missed() == []


def test_a_tick_that_is_recorded_as_missed_while_a_later_run_goes_on_is_recovered_by_it(history: History) -> None:
    """As when a scheduler starts after a person has."""
    run = history.begin(*TRAIN)
    at = history.now - MINUTE
    tick = Tick(at=at, name=f"{at:%H:%M}", wall=at, span=None, part="train")
    claim_tick(history.store, "p:train", tick, holder=1, now=history.now, end=TickEnd(outcome=TickOutcome.MISSED))

    history.end(run)

    assert history.missed() == []


@pytest.mark.parametrize(
    ("left", "missed"), [(("Learn",), ["p:train"]), (TRAIN, [])], ids=["the training", "all of the part"]
)
def test_a_resumed_run_recovers_a_tick_that_came_since_if_it_does_all_of_its_part(
    history: History, left: tuple[str, ...], missed: list[str]
) -> None:
    """A window that was chosen before the tick is not the one that the tick was to read."""
    failed = history.end(history.begin(*TRAIN), State.FAILED)
    history.skip("train")

    history.end(history.resume(failed, *left))

    assert history.missed() == missed


def test_what_a_resumed_run_continues_counts_if_it_began_after_the_tick(history: History) -> None:
    """As the run of the tick itself does, which failed."""
    history.skip("train")
    failed = history.end(history.begin(*TRAIN), State.FAILED)

    history.end(history.resume(failed, "Learn"))

    assert history.missed() == []


def test_a_backfill_recovers_no_tick_that_came_after_it_had_run_its_span(history: History) -> None:
    """Though it trains after that, on all spans that it has ingested."""
    cause = {"trigger": Trigger.BACKFILL, "cause": "backfill 1"}
    first = history.end(history.begin("Ingest", span=DAY, **cause))
    history.skip("ingest", DAY)
    last = history.end(history.begin("Ingest", span=DAY + 1, **cause))
    history.end(history.begin(*TRAIN, base=last.number, **cause))
    assert history.missed() == ["p:ingest"]

    history.end(history.begin("Ingest", span=first.span, **cause))
    assert history.missed() == []
