"""Which missed ticks a complete run has done the work of."""

from spanwise.orchestrator import Calendar, Component, Examples, Output, Pipeline, Run
from spanwise.scheduler.run.tick_recovery import leading_spans

DAY = Calendar.DAY.parse("2026-03-03")


class Days(Component):
    calendar = Calendar.DAY

    def available(self, spans=None):  # type: ignore[no-untyped-def]
        return {}

    def run(self, examples: Output[Examples]) -> None: ...


def test_the_span_of_a_run_is_that_of_the_node_by_which_ticks_are_named() -> None:
    """Another node counts in days as well, and its day was never one of the leading node."""
    both = Pipeline("p", [Days(name="Clicks"), Days(name="Prices")])

    def span(span: int | None, **spans: str) -> list[int]:
        return leading_spans(both, Run(pipeline="p", span=span, calendar="day", spans=spans))

    assert span(DAY) == [DAY]
    assert span(DAY, Clicks="2026-03-03", Prices="2026-03-01") == [DAY]
    assert span(DAY, Prices="2026-03-03") == []
    assert span(None) == []
