"""Spans that only the file knows; the test answers for the child that would import it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.errors import LoadError
from spanwise.scheduler.daemon import span_lookup
from spanwise.scheduler.daemon.description import ScheduleDescription
from spanwise.scheduler.daemon.span_lookup import AHEAD, SpanLookup
from spanwise.scheduler.ledger.missed import MissedTicks, list_missed
from spanwise.scheduler.ledger.schedule_status import find_schedule
from spanwise.scheduler.ledger.status_formatting import format_missed
from spanwise.scheduler.schedule.due import WALKED
from spanwise.scheduler.schedule.span_rule import CustomSpanRule, SourceRule, hours_before
from spanwise.scheduler.schedule.ticks import Tick, ticks
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.daemon.test_pipeline_scheduler import World

NOON, HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC), timedelta(hours=1)
HOURLY = ScheduleDescription(timetable=Timetable("p", cron="0 * * * *", span=CustomSpanRule("rule")), source="/p.py:p")


@dataclass
class File:
    """A pipeline file with a span rule, and the questions to it that are on their way."""

    offset: int = 0  #: its rule is the hour plus this
    error: str = ""
    nodes: tuple[str, ...] = ()  #: that have a rule each
    asked: list["Request"] = field(default_factory=list)

    def request(self, _source, _config, moments):
        self.asked.append(Request(self, self.offset, self.error, list(moments)))
        return self.asked[-1]


@dataclass
class Request:
    """A question: its answer is what the file said when it was asked."""

    file: File
    offset: int
    error: str
    moments: list[datetime]
    answered: bool = True
    ended: bool = False

    def answer(self):
        if not self.answered:
            return None
        if self.error:
            raise LoadError(self.error)
        spans = {at: at.hour + self.offset for at in self.moments}
        each = {at: {node: span - place for place, node in enumerate(self.file.nodes)} for at, span in spans.items()}
        return [ScheduleDescription(timetable=HOURLY.timetable, source=HOURLY.source, spans=spans, by_node=each)]

    def end(self):
        self.ended = True


@pytest.fixture
def file(monkeypatch):
    made = File()
    monkeypatch.setattr(span_lookup, "DescriptionRequest", made.request)
    return made


def coming(after: datetime) -> Tick:
    return next(ticks(HOURLY.timetable, after))


def look(spans: SpanLookup, due: Tick, *, times: int = 3) -> int | None:
    """The span of a due tick, once all that is asked was answered."""
    known = False
    for _ in range(times):
        known = spans.ask([due], coming(due.at), HOURLY, NOON)
    assert known
    return spans.fill(due, HOURLY).span


def test_spans_are_asked_ahead_of_their_ticks(file):
    """Several at once, so that a tick starts at its moment."""
    spans = SpanLookup(None)

    assert spans.ask([], coming(NOON), HOURLY, NOON)
    assert spans.ask([], coming(NOON), HOURLY, NOON)

    assert [len(each.moments) for each in file.asked] == [AHEAD]
    assert spans.ask([coming(NOON)], coming(NOON + HOUR), HOURLY, NOON)
    assert spans.fill(coming(NOON), HOURLY).span == 13


def test_a_rule_that_was_changed_holds_from_the_next_tick_on(file):
    """Under the same name too: what was asked of the file before is forgotten, also what it has yet to answer."""
    spans = SpanLookup(None)
    assert look(spans, coming(NOON)) == 13
    spans.ask([], coming(NOON + 2 * AHEAD * HOUR), HOURLY, NOON)
    file.asked[-1].answered = False

    file.offset = 100
    spans.clear()

    assert file.asked[-1].ended
    assert look(spans, coming(NOON + HOUR)) == 114


def test_a_file_that_could_not_be_asked_ahead_is_asked_when_the_tick_is_due(file):
    """A machine that was too busy for a minute costs none of the next eight ticks."""
    spans = SpanLookup(None)
    file.error = "p.py was not loaded within 120 s"
    for _ in range(3):
        spans.ask([], coming(NOON), HOURLY, NOON)
    assert len(file.asked) == 1, "it is not asked over and over"
    file.error = ""

    assert look(spans, coming(NOON)) == 13


def test_a_tick_for_which_the_rule_gives_nothing_fails_with_the_reason(file):
    """It was asked when it was due; nothing waits for it."""
    spans = SpanLookup(None)
    file.error = "no"

    assert look(spans, coming(NOON)) is None
    assert spans.missing(coming(NOON), HOURLY) == "no"
    assert len(file.asked) == 1


def test_a_tick_has_the_span_of_the_file_as_it_was_last_loaded(file, tmp_path):
    """Though nothing else of its schedule has changed."""
    world = World(tmp_path, span=CustomSpanRule("rule"))
    world.step()
    world.step()

    file.offset = 100
    world.watched.update(world.watched.description, world.watched.record)
    world.at(1)
    world.at(1, 0, 1)

    assert [(child.job.tick, child.job.span) for child in world.children] == [("2026-03-01T01:00Z", 101)]


@pytest.mark.parametrize("first", [CustomSpanRule("rule"), hours_before(0)])
def test_a_retry_has_the_spans_that_the_file_gave_for_the_first_attempt(file, tmp_path, first):
    """Of each node, as it was when the tick came; whether the rule of the first is the file's own or not."""
    file.nodes = ("clicks", "prices")
    rules = SourceRule("clicks", first), SourceRule("prices", CustomSpanRule("rule"))
    world = World(tmp_path, span=first, sources=rules, retry=Retry(times=1, backoff_s=60.0))
    world.step()
    world.step()
    world.at(1)
    world.child.returncode = 1
    world.at(1, 1)

    file.offset = 100
    world.watched.update(world.watched.description, world.watched.record)
    world.at(1, 3)

    assert [child.job.by_node for child in world.children] == [{"clicks": 1, "prices": 0}] * 2


def test_a_tick_fails_where_the_file_does_not_give_the_span_of_each_node(file, tmp_path):
    """It has that of the first, by a rule that needs no file: no run ingests this for all."""
    file.error = "no"
    rules = SourceRule("clicks", hours_before(0)), SourceRule("prices", CustomSpanRule("rule"))
    world = World(tmp_path, span=rules[0].rule, sources=rules)
    world.step()
    world.at(1)
    world.at(1, 0, 1)

    (lost,) = list_missed(world.records, "p")
    assert world.children == []
    assert (lost.tick.span is not None, lost.end.why) == (True, "its span is not known: no")


def test_the_spans_of_a_long_gap_are_asked_for(file, tmp_path):
    """A run of one of them left the others: those that were summed up counted as ticks for the newest data."""
    world = World(tmp_path, span=CustomSpanRule("rule"))
    world.step()

    for after in (300 * HOUR, HOUR / 60, HOUR / 60):
        world.step(after)

    summary, *listed = list_missed(world.records, "p")
    assert summary.spans == list(range(24))
    assert all(each.tick.span is not None for each in listed)
    MissedTicks(world.records).recover("p", [listed[-1].tick.span], 1, now=NOON)
    assert list_missed(world.records, "p")[0] == summary


@pytest.mark.parametrize("hours", [1, 300, 5000])
def test_a_tick_whose_span_nobody_knows_is_recovered_by_no_run(file, tmp_path, hours):
    """It is not one for the newest data: the rule of the file failed, or so many were missed that it was not asked."""
    file.error = "no" if hours < WALKED else ""
    world = World(tmp_path, span=CustomSpanRule("rule"))
    world.step()

    for after in (hours * HOUR, HOUR / 60, HOUR / 60):
        world.step(after)

    unknown = [each.tick.name for each in list_missed(world.records, "p") if each.tick.span is None]
    MissedTicks(world.records).recover("p", range(-99, 99), 1, now=NOON)
    assert unknown
    assert [each.tick.name for each in list_missed(world.records, "p")] == unknown
    text = format_missed(world.records, [(find_schedule(world.records, "p"), list_missed(world.records, "p"))], ())
    assert "Recover them" not in text
    assert f"No run recovers p@{unknown[0]}" in text
    assert f"spanwise schedule acknowledge p --tick {unknown[0]}" in text
