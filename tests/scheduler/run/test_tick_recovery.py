"""Which missed ticks a complete run has done the work of."""

from spanwise.orchestrator import Calendar, Component, Examples, Output, Pipeline, Run, State
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.run.tick_recovery import AskedSpans

DAY = Calendar.DAY.parse("2026-03-03")


class Days(Component):
    calendar = Calendar.DAY

    def available(self, spans=None):  # type: ignore[no-untyped-def]
        return {}

    def run(self, examples: Output[Examples]) -> None: ...


def test_the_span_of_a_run_is_that_of_the_node_by_which_ticks_are_named() -> None:
    """Another node counts in days as well, and its day was never one of the leading node."""
    both = Pipeline("p", [Days(name="Clicks"), Days(name="Prices")])

    def asked(span: int | None, **spans: str) -> AskedSpans:
        nodes = tuple(spans) or both.order
        run = Run(pipeline="p", span=span, calendar="day", spans=spans, nodes=nodes, state=State.COMPLETE)
        return AskedSpans(MemoryStore(), both, run)

    assert asked(DAY).leading == {DAY}
    assert asked(DAY, Clicks="2026-03-03", Prices="2026-03-01").leading == {DAY}
    assert asked(DAY, Prices="2026-03-03").leading == set()
    assert asked(None).leading == set()
    assert asked(DAY).by_node == {"Clicks": {DAY}, "Prices": {DAY}}
    assert asked(DAY, Prices="2026-03-03").by_node == {"Prices": {DAY}}
