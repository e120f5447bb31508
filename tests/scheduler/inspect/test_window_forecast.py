"""Whether anything would read a span if it were ingested."""

from collections.abc import Callable, Sequence

import pytest

from spanwise.orchestrator import (
    Artifact,
    Calendar,
    Channel,
    Component,
    Examples,
    History,
    Input,
    Model,
    Node,
    Output,
    Pipeline,
    Report,
    Resolver,
)
from spanwise.orchestrator.store import MemoryStore
from spanwise.resolvers import Fixed, LatestSpans, Previous, RollingWindow
from spanwise.scheduler.inspect.window_forecast import WindowForecast, is_read
from tests.scheduler.records import DAY, begun, ended, examples, published


class Ingest(Component):
    calendar = Calendar.DAY

    def run(self, examples: Output[Examples]) -> None: ...


class Count(Component):
    def run(self, examples: Input[Examples], before: Input[Examples | None], report: Output[Report]) -> None: ...


class Lag(Component):
    def run(self, examples: Input[Examples], before: Input[Examples | None], lags: Output[Examples]) -> None: ...


class Learn(Component):
    def run(
        self, examples: Input[list[Examples]], others: Input[list[Examples] | None], model: Output[Model]
    ) -> None: ...


class SameWeekday(Resolver):
    """A resolver that cannot say which spans it wants."""

    def __init__(self, source: Channel) -> None:
        super().__init__(source, many=True)

    def resolve(self, history: History) -> Sequence[Artifact]:
        newest = next(history.spans())
        return [a for span in (newest - 7, newest) if (a := history.newest_version(span)) is not None]


def exam(ingest: Node) -> list[Node]:
    window = RollingWindow(ingest["examples"], size=2)
    fixed = Fixed(ingest["examples"], first="2013-01-05", last="2013-01-06")
    return [window, fixed, Learn(examples=window["examples"], others=fixed["examples"])]


def one_artifact(ingest: Node) -> list[Node]:
    window = RollingWindow(ingest["examples"], size=2)
    named = Fixed(ingest["examples"], artifact="flights/Ingest/examples/15710/1")
    return [window, named, Learn(examples=window["examples"]), Count(examples=named["examples"])]


def weekday(ingest: Node) -> list[Node]:
    window, same = RollingWindow(ingest["examples"], size=2), SameWeekday(ingest["examples"])
    return [window, same, Learn(examples=window["examples"], others=same["examples"])]


def drift(ingest: Node) -> list[Node]:
    window, before = RollingWindow(ingest["examples"], size=2), Previous(ingest["examples"])
    count = Count(examples=ingest["examples"], before=before["examples"])
    return [window, before, count, Learn(examples=window["examples"])]


def lag(ingest: Node) -> list[Node]:
    before = Previous(ingest["examples"])
    lags = Lag(examples=ingest["examples"], before=before["examples"])
    window = LatestSpans(lags["lags"], n=2)
    return [before, lags, window, Learn(examples=window["lags"])]


def own_span(ingest: Node) -> list[Node]:
    fixed = Fixed(ingest["examples"], first="2013-01-05", last="2013-01-06")
    return [Learn(examples=ingest["examples"], others=fixed["examples"]), fixed]


@pytest.mark.parametrize(
    ("build", "read"),
    [(exam, {0, 1, 8, 9}), (one_artifact, {8, 9}), (weekday, {0, 1, 2, 8, 9}), (drift, {8, 9})]
    + [(build, {0, 1, 2, 8, 9}) for build in (lag, own_span)],
)
def test_a_span_is_read_unless_every_resolver_that_models_learn_from_says_otherwise(
    build: Callable[[Node], list[Node]], read: set[int]
) -> None:
    """A fixed range reads its spans, and what cannot say what it wants may read any; a baseline of drift is not learned."""
    store = MemoryStore()
    for day in range(10):
        run = begun(store, span=DAY + day)
        published(store, run, "Ingest", outputs={"examples": examples(DAY + day)})
        published(store, run, "Lag", outputs={"lags": examples(DAY + day)})
        ended(store, run)
    ingest = Ingest()
    pipeline = Pipeline("flights", [ingest, *build(ingest)])

    def is_read_if_ingested(span: int) -> bool:
        forecast = WindowForecast(pipeline, store, Calendar.DAY)
        forecast.add(span, {"": None})
        return is_read(span, tuple(forecast.windows()))

    assert {day for day in (0, 1, 2, 8, 9) if is_read_if_ingested(DAY + day)} == read
