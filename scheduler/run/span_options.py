"""Span options: what `--span`, `--at` and `--exclude` mean for a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.span_resolver import SpanExcluder, is_window
from spanwise.scheduler.project.span_sources import CountedSource, leading_calendar, list_span_sources


@dataclass(frozen=True, kw_only=True)
class RequestedSpans:
    """The spans that a run is to ingest."""

    leading: int | None = None  #: of the first source; None: the newest there is
    calendar: Calendar  #: of the leading one
    by_node: Mapping[str, str] = field(default_factory=dict)  #: labels, where sources have spans of their own


def parse_spans(texts: Sequence[str], pipeline: Pipeline, selection: Selection | None = None) -> RequestedSpans:
    """Parses the spans of a run: `SPAN` for all that ingest, or `NODE=SPAN` for each.

    Raises:
        UsageError: one is not a span of its node, a node is named twice, not at all or does not run, or one span is
            given to nodes that use different calendars.
    """
    nodes = pipeline.order if selection is None else selection.run
    sources = list_span_sources(pipeline)
    running = {source.node: source for source in sources if source.node in nodes}
    named = dict(_split(text) for text in texts if "=" in text)
    plain = [text for text in texts if "=" not in text]
    if ranges := [text for text in texts if ".." in text]:
        raise UsageError(
            f"--span {ranges[0]} is a range, and a run ingests one span. For each span of a range:  "
            f"spanwise backfill FILE --span {plain[0] if plain else 'A..B'}"
        )
    if len(plain) > 1 or len(plain) + len(named) != len(texts) or (plain and named):
        raise UsageError(f"--span {' --span '.join(texts)}: name each node once. {_example(sources)}")
    if plain:
        return _parse_plain(plain[0], pipeline, list(running.values()) or sources)
    for node, text in named.items():
        if node not in running:
            why = "is not run here" if any(node == source.node for source in sources) else "does not ingest spans"
            raise UsageError(f"--span {node}={text}: {node} {why}. {_example(list(running.values()))}")
    if named and (lacking := [node for node in running if node not in named]):
        raise UsageError(
            f"--span names no span for {', '.join(lacking)}. Name each node that ingests. "
            f"{_example(list(running.values()))}"
        )
    parsed = {node: parse_span(named[node], source.calendar) for node, source in running.items() if node in named}
    if not parsed:
        return RequestedSpans(calendar=leading_calendar(pipeline))
    first = next(iter(parsed))
    labels = {node: running[node].calendar.label(span) for node, span in parsed.items()}
    return RequestedSpans(
        leading=parsed[first], calendar=running[first].calendar, by_node=labels if len(sources) > 1 else {}
    )


def _parse_plain(text: str, pipeline: Pipeline, sources: Sequence[CountedSource]) -> RequestedSpans:
    """One span for all sources."""
    calendars = {source.calendar for source in sources}
    if len(calendars) > 1:
        raise UsageError(f"--span {text}: the nodes that ingest use different calendars. {_example(sources)}")
    calendar = calendars.pop() if calendars else leading_calendar(pipeline)
    span = parse_span(text, calendar)
    without = [n for n in pipeline if hasattr(n, "available") and not getattr(n, "takes_span", True)]
    each = {source.node: calendar.label(span) for source in sources} if sources and without else {}
    return RequestedSpans(leading=span, calendar=calendar, by_node=each)


def _split(text: str) -> tuple[str, str]:
    node, _, span = text.rpartition("=")
    return node, span


def _example(sources: Sequence[CountedSource]) -> str:
    if not sources:
        return "No node that runs ingests spans."
    each = " ".join(f"--span {source.node}={source.calendar.example}" for source in sources)
    return f"Write for example:  {each}"


def parse_span(text: str, calendar: Calendar) -> int:
    """Parses a span from the command line.

    Raises:
        UsageError: it is not a span; or spans are dates and it is a number that was probably meant otherwise.
    """
    span = calendar.parse(text)
    label = calendar.label(span)
    if not calendar.is_likely(span) and label != text.strip():
        raise UsageError(
            f"{text} is {label} here, because numbers count {calendar.value}s from {calendar.label(0)}. "
            f"{calendar.hint}\nIf you mean that {calendar.value}, write {label}"
        )
    return span


def parse_end(text: str, pipeline: Pipeline) -> int:
    """Parses the span at which windows are to end.

    Raises:
        UsageError: it is not a span of the windows, or they use different calendars.
    """
    calendars = {node.calendar for node in pipeline if is_window(node) and isinstance(node, SpanExcluder)}
    if len(calendars) > 1:
        raise UsageError(
            f"--at {text}: the windows of {pipeline.name!r} use different calendars, so no single span ends them all."
        )
    return parse_span(text, calendars.pop() if calendars else leading_calendar(pipeline))


def parse_exclusions(texts: Sequence[str], pipeline: Pipeline, selection: Selection | None = None) -> tuple[str, ...]:
    """Parses the spans that windows are to leave out: `SPAN`, `A..B`, or either for one node, `NODE=SPAN`.

    Raises:
        UsageError: one is not a span of the windows that it is for, or no such window is run.
    """
    run = pipeline.order if selection is None else selection.run
    windows = {name: node for name in run if isinstance(node := pipeline.nodes[name], SpanExcluder)}
    for text in texts:
        name, equals, label = text.rpartition("=")
        if equals and name not in windows:
            known = f"; nodes that do: {', '.join(windows)}" if windows else ""
            raise UsageError(f"--exclude {text}: no node {name!r} that this run executes chooses among spans{known}.")
        if not windows:
            raise UsageError(f"--exclude {text} has no effect: no node that this run executes chooses among spans.")
        calendars = {windows[n].calendar for n in ([name] if equals else windows)}
        if len(calendars) > 1:
            each = " ".join(f"--exclude {n}=…" for n in windows)
            raise UsageError(
                f"--exclude {text}: windows of this pipeline use different calendars; name the node: {each}"
            )
        calendars.pop().parse_range(label)
    return tuple(texts)
