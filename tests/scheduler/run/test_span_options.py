"""What `--exclude` and `--at` mean for a pipeline whose resolvers count in different calendars."""

import pytest

from spanwise.orchestrator import Calendar, Component, Examples, Output, Pipeline
from spanwise.orchestrator.errors import UsageError
from spanwise.resolvers import Fixed, RollingWindow
from spanwise.scheduler.run.span_options import parse_end, parse_exclusions


class Ingest(Component):
    def __init__(self, calendar: Calendar, name: str) -> None:
        super().__init__(name=name)
        self.calendar = calendar

    def run(self, examples: Output[Examples]) -> None: ...


def both() -> Pipeline:
    clicks, prices = Ingest(Calendar.DAY, "clicks"), Ingest(Calendar.MONTH, "prices")
    days = RollingWindow(clicks["examples"], size=2, name="days")
    months = Fixed(prices["examples"], first="2026-10", last="2026-11", name="months")
    named = Fixed(prices["examples"], artifact="both/prices/examples/681/1", name="named")
    return Pipeline("both", [clicks, prices, days, months, named])


def test_a_fixed_range_leaves_out_what_is_named_for_it() -> None:
    """By its own name or, as a window of another calendar, not by a span that names no node."""
    assert parse_exclusions(["months=2026-10", "days=2026-11-20"], both()) == ("months=2026-10", "days=2026-11-20")
    with pytest.raises(UsageError, match="use different calendars; name the node: --exclude days=… --exclude months=…"):
        parse_exclusions(["2026-11-20"], both())


def test_an_artifact_that_is_named_has_no_span_to_leave_out() -> None:
    """The exclusion would have no effect, so it is refused."""
    with pytest.raises(UsageError, match="no node 'named' that this run executes chooses among spans"):
        parse_exclusions(["named=2026-10"], both())


def test_windows_end_at_a_span_beside_a_fixed_range_of_another_calendar() -> None:
    """The range ends where it ends."""
    assert parse_end("2026-11-20", both()) == Calendar.DAY.parse("2026-11-20")
