"""Windows: what each resolver of a pipeline would choose now, span by span, and why. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Resolver
from spanwise.orchestrator.driver import check_given, choose, histories_of
from spanwise.orchestrator.edited_spans import EditedSpans, find_edited_spans
from spanwise.orchestrator.errors import ResolutionError, UsageError
from spanwise.orchestrator.history import History, version_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.span_resolver import SpanExcluder, SpanResolver, WantedSpan, WindowChecker
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import Document, format_table, format_time, strip_control
from spanwise.scheduler.inspect import records
from spanwise.scheduler.inspect.artifact_pages import PageFinder
from spanwise.scheduler.project.load import Loaded


@dataclass(frozen=True, kw_only=True)
class ResolverWindow:
    """What one resolver would choose."""

    node: str
    source: str  #: the channel it chooses from
    parameters: str  #: as set in the pipeline file
    spans: tuple[WantedSpan, ...] = ()
    excluded: tuple[WantedSpan, ...] = ()  #: those that it leaves out by name
    refusal: str = ""  #: why a run would fail there; empty when it would not
    personal: Mapping[str, str] = field(default_factory=dict)  #: by the name of an artifact, the verdict of a person
    edited: tuple[EditedSpans, ...] = ()  #: what was made before an edit of the node that made it


def find_windows(
    loaded: Loaded, store: Store, *, at: int | None, as_of: datetime | None, exclude: tuple[str, ...] = ()
) -> list[ResolverWindow]:
    """The windows of all resolvers of the pipeline that choose by span.

    Raises:
        UsageError: the pipeline has no such resolver.
    """
    run = Run(
        pipeline=loaded.pipeline.name,
        as_of=as_of,
        source=loaded.source,
        calendar=loaded.calendar.value,
        exclude=exclude,
    )
    found = [
        _window(node, node, histories_of(store, run, node, {}, loaded.pipeline.scopes[node.name]), at, loaded.pipeline)
        for node in loaded.pipeline
        if isinstance(node, Resolver) and isinstance(node, SpanResolver)
    ]
    if not found:
        raise UsageError(
            f"Pipeline {loaded.pipeline.name!r} has no node that chooses by span, such as RollingWindow; its nodes: "
            f"{', '.join(loaded.pipeline.order)}."
        )
    return found


def _window(
    node: Resolver, explains: SpanResolver, histories: Mapping[str, History], at: int | None, pipeline: Pipeline
) -> ResolverWindow:
    history = histories[node.source.key]
    given = ", ".join(f"{n}={v}" for n, v in node.parameters.items() if v is not None)
    spans: tuple[WantedSpan, ...] = ()
    refusal = ""
    try:
        spans = tuple(explains.explain(history, at))
        if at is None:
            choose(node, histories)
            check_given(node, explains, history)
        elif isinstance(node, WindowChecker):
            node.refuse(history, spans)
    except ResolutionError as error:
        refusal = str(error)
    chosen = [wanted.chosen for wanted in spans if wanted.chosen is not None]
    return ResolverWindow(
        node=node.name,
        source=repr(node.source),
        parameters=given,
        spans=spans,
        excluded=tuple(node.explain_excluded(history, at)) if isinstance(node, SpanExcluder) else (),
        refusal=refusal,
        personal=_find_personal(history, chosen) if history.gated else {},
        edited=tuple(find_edited_spans(history.store, history.run, pipeline, chosen)),
    )


def _find_personal(history: History, chosen: Iterable[Artifact]) -> dict[str, str]:
    """The verdicts of people on what is chosen."""
    standings = history.judge(chosen)
    return {name: str(standing.personal) for name, standing in standings.items() if standing.personal is not None}


def format_window(window: ResolverWindow) -> str:
    """A window as text."""
    lines = [f"{window.node} chooses from {window.source} ({window.parameters}):"]
    rows = [
        (
            wanted.label,
            "excluded" if wanted in window.excluded else _state(wanted),
            "-" if (newest := _newest(wanted)) is None else _version_text(newest),
            "-" if newest is None else format_time(newest.created),
            "left out by name" if wanted in window.excluded else _why(wanted, window),
        )
        for wanted in sorted((*window.spans, *window.excluded), key=lambda wanted: wanted.span)
    ]
    if rows:
        lines += [
            f"  {line}" for line in format_table(("SPAN", "STATE", "VERSION", "PUBLISHED", "WHY"), rows).splitlines()
        ]
    chosen = [w for w in window.spans if w.chosen is not None]
    if window.spans:
        between = f", {chosen[0].label} to {chosen[-1].label}" if chosen else ""
        lines.append(f"  {len(chosen)} of {len(window.spans)} spans{between}.")
    lines += [f"  {line}" for edited in window.edited for line in edited.way.splitlines()]
    if window.refusal:
        lines += [f"  {line}" for line in f"A run would fail: {strip_control(window.refusal)}".splitlines()]
    if len(lines) == 1:  # one artifact that is named, and no span
        return f"{lines[0].removesuffix(':')}."
    return "\n".join(lines)


def window_document(window: ResolverWindow, calendar: Calendar) -> Document:
    """A window for programs."""
    pages = PageFinder()
    return {
        "node": window.node,
        "source": window.source,
        "refusal": window.refusal or None,
        "excluded": [wanted.label for wanted in window.excluded],
        "spans": [
            {
                "span": wanted.span,
                "span_label": wanted.label,
                "state": _state(wanted),
                "chosen": None if wanted.chosen is None else records.artifact_document(wanted.chosen, calendar, pages),
                "superseded": records.artifact_documents(wanted.superseded, calendar, pages),
                "why": _why(wanted, window),
            }
            for wanted in window.spans
        ],
    }


def _state(wanted: WantedSpan) -> str:
    if wanted.chosen is not None:
        return "read"
    if wanted.withheld is None:
        return "missing"
    if wanted.withheld.unread_by:
        return "not made"
    return "not judged" if wanted.withheld.verdict is None else "refused"


def _newest(wanted: WantedSpan) -> Artifact | None:
    """The version that is read, or would be if it counted."""
    return wanted.withheld.artifact if wanted.withheld is not None else wanted.chosen


def _why(wanted: WantedSpan, window: ResolverWindow) -> str:
    if wanted.withheld is not None:
        return str(wanted.withheld)
    if wanted.chosen is None:
        return "nothing was published for this span"
    said = [window.personal[wanted.chosen.name]] if wanted.chosen.name in window.personal else []
    said += [each.why for each in window.edited if wanted.chosen.id in {a.id for a in each.artifacts}]
    verdict = "".join(f"; {each}" for each in said)
    if not wanted.superseded:
        return f"the only version{verdict}"
    older = ", ".join(map(_version_text, reversed(wanted.superseded)))
    reused = any(a.id > wanted.chosen.id and version_of(a) == version_of(wanted.chosen) for a in wanted.superseded)
    return f"{'reused last' if reused else 'the newest version'}; it supersedes {older}{verdict}"


def _version_text(artifact: Artifact) -> str:
    version = artifact.properties.get("version")
    number = artifact.name.rpartition("/")[2]
    return f"v{version}, publication {number}" if isinstance(version, int) else f"publication {number}"
