"""Missed ticks whose spans nothing reads any more."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from spanwise.orchestrator import Calendar, Pipeline
from spanwise.orchestrator.store import MemoryStore
from spanwise.resolvers import Fixed, RollingWindow
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.run.superseded import close_superseded
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.inspect.test_window_forecast import Ingest, Learn, SameWeekday
from tests.scheduler.records import DAY, begun, ended, examples, published

THREE = datetime(2013, 1, 6, 3, tzinfo=UTC)


@pytest.mark.parametrize(("also", "closed"), [("", True), ("fixed", False), ("unexplained", False)])
def test_a_tick_is_not_superseded_while_anything_that_is_learned_from_may_read_its_span(
    tmp_path: Path, also: str, closed: bool
) -> None:
    """A fixed range beside the window reads it, or a resolver that cannot say which spans it wants may."""
    store = MemoryStore()
    for span in (DAY + 8, DAY + 9):
        run = begun(store, span=span)
        published(store, run, "Ingest", outputs={"examples": examples(span)})
        ended(store, run)
    ingest = Ingest()
    window = RollingWindow(ingest["examples"], size=2)
    fixed, same = Fixed(ingest["examples"], first=DAY, last=DAY), SameWeekday(ingest["examples"])
    more = {"fixed": [fixed], "unexplained": [same]}.get(also, [])
    learn = Learn(examples=window["examples"], others=[each["examples"] for each in more] or None)
    tick = Tick(at=THREE, name="2013-01-06T03:00", wall=THREE, span=DAY, part="")
    put_schedule(store, ScheduleRecord(timetable=Timetable(pipeline="flights", cron="0 3 * * *"), since=THREE))
    claim_tick(store, "flights", tick, holder=1, now=THREE, end=TickEnd(outcome=TickOutcome.MISSED))

    pipeline = Pipeline("flights", [ingest, window, *more, learn])
    found = close_superseded(store, pipeline, Calendar.DAY, tmp_path, run=None)

    assert [each.tick.name for each in found] == ([tick.name] if closed else [])
