"""Taint: which models learned from one version of a span, where they serve, and what replaces them. Reads only.

Artifacts that hold rows or were learned from rows pass taint on: examples, statistics, transform graphs, models, and
every user-defined type. Artifacts that only describe data or models (an evaluation, a schema) are tainted but pass
nothing on.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact, Model, PushedModel
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import NotRecorded, StorageError, UsageError
from spanwise.orchestrator.history import find_parts, identity_of, versions_of
from spanwise.orchestrator.lineage import JUDGEMENTS, Direction, Lineage, Step, passes_rows, walk
from spanwise.orchestrator.making import find_making
from spanwise.orchestrator.node_history import find_newest_successes, find_renamed
from spanwise.orchestrator.renewal import current_without_span
from spanwise.orchestrator.run import Execution, Run, format_source
from spanwise.orchestrator.serving import (
    PointedVersion,
    Push,
    find_place,
    highest_version,
    last_pushes,
    read_pointed,
    read_record,
)
from spanwise.orchestrator.storage import is_object_url
from spanwise.orchestrator.store import Address, Store, number_of
from spanwise.orchestrator.verdict import find_origins_of_many
from spanwise.scheduler.formatting import (
    Document,
    format_count,
    format_size,
    format_span,
    format_spans,
    format_table,
    run_calendar,
    span_document,
)
from spanwise.scheduler.inspect import records
from spanwise.scheduler.inspect.artifact_pages import PageFinder

log = logging.getLogger("spanwise.inspect")

_NEAREST = 5  # how many spans to name when one does not exist


@dataclass(frozen=True, kw_only=True)
class ModelPush:
    """One push of a model, or of what was made of it without reading rows."""

    artifact: Artifact
    destination: str  #: the folder of versions, or how the pusher names the place
    serves: bool  #: the destination serves this push now


@dataclass(frozen=True, kw_only=True)
class TaintedModel:
    """A model that learned from the wrong data."""

    model: Artifact
    run: str  #: the run that trained it
    bases: tuple[str, ...] = ()  #: names of tainted models that it was warm-started from
    origins: tuple[str, ...] = ()  #: names of tainted models that it was made of, as an export or an ensemble is
    directly: bool = False  #: it read the wrong data itself
    replay: bool = False  #: a replay trained it, which no other run reads
    pushes: tuple[ModelPush, ...] = ()  #: also of what was made of it

    @property
    def serves(self) -> bool:
        return any(push.serves for push in self.pushes)


@dataclass(frozen=True, kw_only=True)
class TaintReport:
    """What learned from wrong data, and how to replace it."""

    pipeline: str
    span: int
    calendar: Calendar
    published: tuple[Artifact, ...]  #: all versions of the span, oldest first
    wrong: tuple[Artifact, ...]  #: the versions that are wrong
    models: tuple[TaintedModel, ...]  #: oldest first
    others: tuple[Artifact, ...]  #: other artifacts made from it: examples, statistics, evaluations, …
    corrected: bool  #: every wrong version has a newer one
    reached: bool  #: the newest window of a node that trains still contains the span, or may
    through: tuple[int, ...]  #: other spans that the window contains, made from it through the choice of a resolver
    outlived: bool  #: the newest model of each node that trained these is not tainted
    backfill: str  #: the command that trains without the wrong data
    target: str  #: the span in it, `SPAN` or `NODE=SPAN`
    typed: tuple[str, ...]  #: the arguments in it, "name=value"

    @property
    def serving(self) -> tuple[TaintedModel, ...]:
        """The models that serve now."""
        return tuple(tainted for tainted in self.models if tainted.serves)


def split_span(store: Store, pipeline: str, text: str) -> tuple[str, str, Calendar]:
    """The node of a span that was typed, empty where none was named, the span, and the calendar that it is in.

    That is the calendar of the node; without one, that of the newest run, or of another node that ingests, if it fits.

    Raises:
        UsageError: no recent run has ingested a span by a node of this name.
    """
    node, _, label = text.rpartition("=")
    mine = run_calendar(_newest_run(store, pipeline))
    channels = _ingesting_channels(store, pipeline)
    theirs = [address for address in channels if node in ("", address.node)]
    if not theirs:
        each = " ".join(f"--span {address.node}={mine.example}" for address in channels)
        write = f" Write one of:  {each}" if each else ""
        raise UsageError(f"--span {text}: no recent run of {pipeline!r} has ingested a span by {node!r}.{write}")
    found = _recorded_calendars(store, theirs)
    known = [mine, *(found - {mine})] if not node or mine in found or not found else list(found)
    return node, label, next((calendar for calendar in known if _fits(label, calendar)), known[0])


def _recorded_calendars(store: Store, channels: Iterable[Address]) -> set[Calendar]:
    """The calendars of the newest spans of channels."""
    newest = [(address, span) for address in channels if (span := next(store.spans(address), None)) is not None]
    found = [artifact for address, span in newest for artifact in versions_of(store, address, span, None)]
    return {records.artifact_calendar(artifact, Calendar.NUMBER) for artifact in found} - {Calendar.NUMBER}


def _fits(text: str, calendar: Calendar) -> bool:
    with contextlib.suppress(UsageError):
        calendar.parse(text)
        return True
    return False


def trace_taint(
    store: Store,
    pipeline: str,
    span: int,
    *,
    node: str = "",
    version: int | None = None,
    source: str = "",
    calendar: Calendar | None = None,
) -> TaintReport:
    """Finds what learned from a version of a span; without `version`, from every superseded one, or else the newest.

    The newest is meant while no newer version has come: that is when people ask what a bad span has reached.

    With `node`, only what this node has published is meant: several may have published the same span, even in the same
    version. Where the pattern has no versions, `version` is the number of the publication. `source` is the pipeline's
    file, by default that of its newest run.

    Raises:
        NotRecorded: nothing was published for the span, or it has no such version.
    """
    newest = _newest_run(store, pipeline)
    calendar = calendar or run_calendar(newest)
    channels = _group_channels(store, pipeline)
    theirs = {now: names for now, names in channels.items() if not node or node in {each.node for each in names}}
    published_by = {
        now: [a for each in names for a in versions_of(store, each, span, calendar)] for now, names in theirs.items()
    }
    versions = {now: found for now, found in published_by.items() if found}
    if not versions:
        raise NotRecorded(_missing_span_message(store, pipeline, itertools.chain(*theirs.values()), span, calendar))
    published = sorted(itertools.chain(*versions.values()), key=lambda a: a.id)
    superseded = [a for found in versions.values() for a in _superseded(store, found)]
    if version is None:
        wrong = superseded or published  # all are publications of the one newest version
    else:
        fitting = [a for a in published if number_of_version(a) == version]
        wrong = [a for a in fitting if _address(a).node == node] or fitting  # before those of its other names
        if not wrong:
            there = ", ".join(dict.fromkeys(_version_text(a) for a in published))
            raise NotRecorded(f"Span {format_span(span, calendar)} has no version {version}; it has {there}.")
    lineage = walk(store, wrong, Direction.DOWN, carries=passes_rows)
    models = tuple(_models(store, lineage))
    mine = {a.id for a in wrong} | {tainted.model.id for tainted in models}
    successors = _find_successors(store, lineage, models)
    asked = [channels[address] for address in versions]
    reached = _in_newest_window(store, asked, span, models, successors, calendar)
    through = _find_made_through(store, lineage, span, models, successors, calendar, [*itertools.chain(*asked)])
    newest_spans = (next(_spans(store, address, calendar), span) for address in versions)
    target = span if reached is not False or through else min(newest_spans)
    file = source or format_source(newest.source) or f"{pipeline}.py"
    typed = [word for argument in newest.typed for word in ("--param", argument)]
    force = ["--force"] if reached is None or through else []  # or it would be left out if no window contains it
    alone = next(iter(versions)).node if len(versions) == 1 < len(channels) else ""  # others may not have this span
    label = "..".join(format_span(each, calendar) for each in sorted({target, *through[-1:]}))
    again = f"{alone}={label}" if alone else label
    options = _options_through(store, itertools.chain(*asked), target, through)
    return TaintReport(
        pipeline=pipeline,
        span=span,
        calendar=calendar,
        published=tuple(published),
        wrong=tuple(sorted(wrong, key=lambda a: a.id)),
        models=models,
        others=tuple(sorted((a for a in lineage.artifacts.values() if a.id not in mine), key=lambda a: a.id)),
        corrected={a.id for a in wrong} <= {a.id for a in superseded},
        reached=reached is not False,
        through=through,
        outlived=_are_outlived(store, models, successors),
        backfill=shlex.join(["spanwise", "backfill", file, *typed, "--span", again, *options, *force]),
        target=again,
        typed=newest.typed,
    )


def _newest_run(store: Store, pipeline: str) -> Run:
    """The newest run as people run the pipeline: not a replay, nor a push by name."""
    ordinary = (run for run in store.runs(pipeline) if run.ordinary)
    return next(ordinary, None) or next(store.runs(pipeline))


def _are_outlived(store: Store, models: Sequence[TaintedModel], successors: Mapping[Address, Address]) -> bool:
    """Whether the current model of each node is none of these; what a replay has trained is nobody's current model."""
    tainted = {each.model.id for each in models}
    addresses = {_address(each.model) for each in models if not each.replay} - successors.keys()
    return all(next(current_without_span(store, address)).id not in tainted for address in addresses)


def _find_successors(store: Store, lineage: Lineage, models: Iterable[TaintedModel]) -> dict[Address, Address]:
    """The channels of these models that others have succeeded, as where a node was renamed, each with that other one.

    That is seen where a node which read models of the one reads those of the other now, in a run without the one.
    """
    reads: dict[Address, dict[str, int]] = defaultdict(dict)  # by channel and node, the last execution that read one
    for tainted in models:
        mine = (step.execution for step in lineage.readers(tainted.model.id) if not step.execution.replay)
        reads[_address(tainted.model)].update((execution.node, execution.id) for execution in mine)
    newest = {pipeline: find_newest_successes(store, pipeline) for pipeline in {each.pipeline for each in reads}}
    return {
        address: found
        for address, last in reads.items()
        for node, before in last.items()
        if node in newest[address.pipeline]
        if (found := _find_successor(store, address, before, newest[address.pipeline][node])) is not None
    }


def _find_successor(store: Store, address: Address, before: int, now: Execution) -> Address | None:
    """The channel whose models a node reads now in the place of those of a channel that it read before."""
    if now.id == before or address.node in store.run(now.pipeline, now.run).nodes:
        return None
    read = store.execution(now.id).inputs
    for key, models in store.execution(before).inputs.items():
        others = [_address(a) for a in read.get(key, ()) if a.is_a(Model)]
        if others and address not in others and any(_address(a) == address for a in models):
            return others[0]
    return None


def _ingesting_channels(store: Store, pipeline: str) -> list[Address]:
    """The channels on which data is ingested: their artifacts have a span and no inputs.

    That is seen in the newest success of each node of recent runs, and of these alone the artifacts are read.
    """
    found = (store.execution(each.id) for each in find_newest_successes(store, pipeline).values())
    return [
        Address(pipeline, execution.node, key)
        for execution in found
        if not any(execution.inputs.values())
        for key, made in execution.outputs.items()
        if any(a.properties.get("span") is not None and not a.is_a(*JUDGEMENTS) for a in made)
    ]


def _group_channels(store: Store, pipeline: str) -> dict[Address, list[Address]]:
    """The same channels by their names now, each with all that it had, the oldest first, as the node was renamed."""
    channels, renamed = _ingesting_channels(store, pipeline), find_renamed(store, pipeline)
    groups: dict[Address, list[Address]] = {}
    for address in channels:
        now = replace(address, node=renamed.get(address.node, address.node))
        groups.setdefault(now if now in channels else address, []).insert(0, address)
    return groups


def _superseded(store: Store, versions: Sequence[Artifact]) -> list[Artifact]:
    """Those that are not current. The same version published again, as when its files were gone, supersedes nothing."""
    current = {identity_of(a) for found in find_parts(store, [versions]) for a in found}
    return [a for a in versions if identity_of(a) not in current]


def number_of_version(artifact: Artifact) -> int:
    """Its version; where the pattern has none, the number of its publication."""
    version = artifact.properties.get("version")
    return version if isinstance(version, int) else number_of(artifact.name)


def _spans(store: Store, address: Address, calendar: Calendar) -> Iterator[int]:
    """The published spans of this calendar, highest first."""
    return (span for span in store.spans(address) if versions_of(store, address, span, calendar))


def _missing_span_message(
    store: Store, pipeline: str, channels: Iterable[Address], span: int, calendar: Calendar
) -> str:
    there = sorted({s for address in channels for s in _spans(store, address, calendar)}, key=lambda s: abs(s - span))
    near = ", ".join(format_span(s, calendar) for s in sorted(there[:_NEAREST]))
    return f"{pipeline!r} has published nothing for span {format_span(span, calendar)}. " + (
        f"Nearest: {near}." if near else "None of its recent runs has published any span."
    )


def _models(store: Store, found: Lineage) -> Iterator[TaintedModel]:
    models = sorted((a for a in found.artifacts.values() if a.is_a(Model)), key=lambda a: a.id)
    origins = find_origins_of_many(store, models, found.artifacts.values())
    pushes = _list_pushes(store, found, origins)
    for model in models:
        step = found.producer(model.id)
        if step is None:
            continue  # the wrong artifact itself
        read = [found.artifacts[i] for i in step.inputs]
        base = model.properties.get("base")
        yield TaintedModel(
            model=model,
            run=_run(step),
            bases=tuple(a.name for a in read if a.is_a(Model) and a.name == base),
            origins=tuple(a.name for a in read if a.is_a(Model) and a.name != base),
            directly=any(not a.is_a(Model) for a in read),
            replay=step.execution.replay,
            pushes=tuple(pushes[model.name]),
        )


def _list_pushes(store: Store, found: Lineage, origins: Mapping[str, Sequence[Artifact]]) -> dict[str, list[ModelPush]]:
    """By the name of a model, its pushes and those of what was made of it, the oldest first."""
    served, pushes = _ServedModels(store), defaultdict(list)
    by_name = {a.name: a for a in found.artifacts.values()}
    for artifact in sorted(found.artifacts.values(), key=lambda a: a.id):
        model = by_name.get(str(artifact.properties.get("model")))
        if artifact.is_a(PushedModel) and artifact.properties.get("pushed") and model is not None:
            serves = served.serves(artifact, model)
            push = ModelPush(artifact=artifact, destination=_destination(artifact), serves=serves)
            for each in (model, *origins.get(model.name, ())):
                pushes[each.name].append(push)
    return pushes


def _run(step: Step) -> str:
    return f"{step.execution.pipeline}/{step.execution.run}"


class _ServedModels:
    """What each destination serves: the highest version in its folder, or what its pointer in object storage says.

    A destination that cannot be seen from here serves the last push, of whichever Pusher. One whose folder is gone,
    while the folder that held it is here, serves nothing. Each destination is read once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, Path | None] = {}
        self._pointed: dict[str, PointedVersion | None] = {}
        self._last: dict[str, dict[str, Push]] = {}  # by pipeline and place

    def serves(self, push: Artifact, model: Artifact) -> bool:
        destination = _destination(push)
        if push.properties.get("pushed_version") and is_object_url(destination):
            pointed = self._read_pointed(destination)
            if pointed is not None:
                mine = str(push.properties.get("pushed_destination"))
                return str(pointed.place) == mine or pointed.content == model.content
        if push.properties.get("pushed_version") and Path(destination).is_dir():
            if destination not in self._seen:
                self._seen[destination] = highest_version(Path(destination))
            served = self._seen[destination]
            mine = str(push.properties.get("pushed_destination"))
            return served is not None and (str(served) == mine or read_record(served, "content") == model.content)
        if push.properties.get("pushed_version") and Path(destination).is_absolute() and _is_gone(Path(destination)):
            return False
        last = self._last_push(_address(push).pipeline, destination)
        return last is not None and last.model == model.name

    def _read_pointed(self, destination: str) -> PointedVersion | None:
        if destination not in self._pointed:
            try:
                self._pointed[destination] = read_pointed(destination)
            except StorageError as error:
                log.warning("destination-unseen", extra={"destination": destination, "reason": str(error)})
                self._pointed[destination] = None
        return self._pointed[destination]

    def _last_push(self, pipeline: str, destination: str) -> Push | None:
        if pipeline not in self._last:
            self._last[pipeline] = {push.place: push for push in last_pushes(self._store, pipeline)}
        return self._last[pipeline].get(destination)


def _is_gone(destination: Path) -> bool:
    """Whether the folder that held it is here, so that it would be seen if it were there."""
    return destination.parent.is_dir()


def _address(artifact: Artifact) -> Address:
    return Address(*artifact.name.split("/")[:3])


def _destination(push: Artifact) -> str:
    """The folder of versions that was pushed to, or how the Pusher names the place."""
    return find_place(str(push.properties.get("pushed_destination") or ""), _address(push).node)


def _in_newest_window(
    store: Store,
    channels: Collection[Sequence[Address]],
    span: int,
    models: Sequence[TaintedModel],
    successors: Mapping[Address, Address],
    calendar: Calendar,
) -> bool | None:
    """Whether the newest window of a node that trains contains the span; None where that is not known.

    The nodes are those that trained the models which read the span, or their successors. Replays count only where no
    other run did.
    """
    read = [tainted for tainted in models if tainted.directly]
    trained = [tainted for tainted in read if not tainted.replay] or read
    addresses = {_address(tainted.model) for tainted in trained}
    current = [next(current_without_span(store, each)) for each in {successors.get(a, a) for a in addresses}]
    found = {_window_contains(store, names, span, model, calendar) for names in channels for model in current}
    return True if True in found else None if None in found or not found else False


def _find_made_through(
    store: Store,
    lineage: Lineage,
    span: int,
    models: Sequence[TaintedModel],
    successors: Mapping[Address, Address],
    calendar: Calendar,
    ingested: Collection[Address],
) -> tuple[int, ...]:
    """The other spans of which the newest window reads what was made from this one, by a run that ingested them.

    Such a run has chosen this span, as that of the day before; one that joins this span with another ingests both.
    """
    steps = [step for tainted in models if (step := lineage.producer(tainted.model.id)) is not None]
    read = {_address(lineage.artifacts[number]) for step in steps for number in step.inputs}
    made = {
        (_address(artifact), other)
        for artifact in lineage.artifacts.values()
        if _address(artifact) in read
        if isinstance(other := artifact.properties.get("span"), int) and other != span
        if records.artifact_calendar(artifact, calendar) is calendar
    }
    found = set()
    for address, other in made:
        current = versions_of(store, address, other, calendar)[-1]
        making = find_making(store, current)
        given = [a for each in ingested if each.node in making for a in making[each.node].outputs.get(each.key, ())]
        if current.id not in lineage.artifacts or all(a.properties.get("span") != other for a in given):
            continue
        if _in_newest_window(store, [[address]], other, models, successors, calendar) is not False:
            found.add(other)
    return tuple(sorted(found))


def _options_through(store: Store, ingested: Iterable[Address], first: int, through: Sequence[int]) -> list[str]:
    """The options of a backfill that makes these spans again before it trains."""
    if not through:
        return []
    there = {span for address in ingested for span in range(first, through[-1] + 1) if store.of_span(address, span)}
    return ["--train-once", *(["--skip-absent"] if len(there) <= through[-1] - first else [])]


def _window_contains(
    store: Store, names: Sequence[Address], span: int, model: Artifact, calendar: Calendar
) -> bool | None:
    """Whether a window as wide as that of this model contains the span now; None where its width is not known.

    It reaches as far back from the newest span, or has as many spans, which differs where a window leaves some out and
    where it passes over gaps. One that held all spans which there were may be wider. A window reads what is published
    under the last of the names; the model may have read what was under others.
    """
    learned = model.as_kind(Model).spans
    there = list(itertools.islice(_spans(store, names[-1], calendar), len(learned or ())))
    if not learned or not there:
        return None
    ever = heapq.merge(*(_spans(store, address, calendar) for address in names), reverse=True)
    earlier = (s for s in ever if any(_was_published(store, address, s, model) for address in names))
    newest_then = next(earlier, there[0])
    if span in there or span >= there[0] - (newest_then - min(learned)):
        return True
    return False if any(s < min(learned) for s in earlier) else None


def _was_published(store: Store, address: Address, span: int, before: Artifact) -> bool:
    return any(a.id < before.id for a in store.of_span(address, span))


def format_taint(found: TaintReport, *, whole: bool = False) -> str:
    """The report as text; `whole` also lists the other artifacts."""
    span = format_span(found.span, found.calendar)
    wrong = ", ".join(dict.fromkeys(_published_text(a, found) for a in found.wrong))
    lines = [f"Span {span} of {found.pipeline!r} was published as {_format_versions(found)}."]
    if not found.models:
        lines.append(f"No model learned from {wrong}.")
    else:
        lines += [f"{format_count(len(found.models), 'model')} learned from {wrong}:", "", _format_models(found)]
    if whole and found.others:
        rows = ((a.name, a.kind, format_size(a.size_bytes), a.uri) for a in found.others)
        lines += ["", "Other artifacts made from it:", "", format_table(("ARTIFACT", "TYPE", "SIZE", "WHERE"), rows)]
    elif found.others:
        lines += ["", f"{format_count(len(found.others), 'other artifact')} made from it; list them with --all."]
    return "\n".join([*lines, "", *_format_remedy(found, span)]) if found.models else "\n".join(lines)


def taint_document(found: TaintReport) -> Document:
    """The report for programs."""
    wrong, pages = {a.id for a in found.wrong}, PageFinder()
    return {
        "pipeline": found.pipeline,
        **span_document(found.span, found.calendar),
        "published": [
            {**records.artifact_document(a, found.calendar, pages), "asked_about": a.id in wrong}
            for a in found.published
        ],
        "models": [
            {
                **records.artifact_document(tainted.model, found.calendar, pages),
                "run": tainted.run,
                "directly": tainted.directly,
                "bases": list(tainted.bases),
                "origins": list(tainted.origins),
                "pushes": [
                    {"destination": p.destination, "version": p.artifact.properties.get("pushed_version"),
                     "artifact": p.artifact.name, "serves": p.serves}
                    for p in tainted.pushes
                ],
                "serves": tainted.serves,
            }
            for tainted in found.models
        ],
        "serving": [tainted.model.name for tainted in found.serving],
        "others": records.artifact_documents(found.others, found.calendar, pages),
        "corrected": found.corrected,
        "in_newest_window": found.reached,
        "through": [format_span(each, found.calendar) for each in found.through],
        "outlived": found.outlived,
        "backfill": found.backfill,
    }  # fmt: skip


def _format_versions(found: TaintReport) -> str:
    wrong = {a.id for a in found.wrong}
    return ", ".join(f"{_published_text(a, found)}{' (wrong)' if a.id in wrong else ''}" for a in found.published)


def _published_text(artifact: Artifact, found: TaintReport) -> str:
    """A version, after the node that published it where several have published the span."""
    several = len({_address(a).node for a in found.published}) > 1
    return f"{_address(artifact).node} {_version_text(artifact)}" if several else _version_text(artifact)


def _version_text(artifact: Artifact) -> str:
    version = artifact.properties.get("version")
    return f"v{version}" if isinstance(version, int) else f"publication {number_of(artifact.name)}"


def _format_models(found: TaintReport) -> str:
    rows = (
        (
            tainted.model.name,
            tainted.run,
            " and ".join(_how_learned(tainted)),
            ", ".join(dict.fromkeys(p.destination for p in tainted.pushes)) or "not pushed",
            "yes" if tainted.serves else "no",
        )
        for tainted in found.models
    )
    return format_table(("MODEL", "RUN", "LEARNED", "PUSHED TO", "SERVES NOW"), rows)


def _how_learned(tainted: TaintedModel) -> Iterator[str]:
    if tainted.directly:
        yield "directly"
    for name in (*tainted.bases, *tainted.origins):
        yield f"from {name}"


def _format_remedy(found: TaintReport, span: str) -> Iterator[str]:
    serving = [t.model.name for t in found.serving]
    where = sorted({p.destination for t in found.serving for p in t.pushes if p.serves})
    if serving:
        yield f"{', '.join(serving)} {'serves' if len(serving) == 1 else 'serve'} now, in {', '.join(where)}."
    else:
        yield "None of them serves now."
        if found.outlived:
            yield "The newest model learned without it."
            return
    if found.through:
        others = format_spans(found.through, found.calendar)
        yield f"The newest window reads what was made from {span} for {others}, which has to be made again too."
    if not found.corrected:
        yield f"No newer version of {span} was ingested yet. Add a corrected version next to it, and then:"
    if not found.reached and not found.through:
        warm = any(tainted.bases for tainted in found.models)
        yield f"The newest window no longer contains {span}" + (
            ": models were warm-started from tainted ones, which a backfill is not." if warm else "."
        )
    yield f"{'Replace' if serving else 'Train'} {'it' if serving else 'without it'}:  {found.backfill}"
