"""Finds the run, pipeline or artifact that a reference on the command line names.

A run is `flights/42`, `flights` for its newest, or `42` when only one pipeline is known.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact, Model
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import NotRecorded, UsageError
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.storage.url import local_path
from spanwise.orchestrator.store import Address, Store
from spanwise.scheduler.formatting import run_calendar
from spanwise.scheduler.inspect.records import artifact_calendar

LOOK_BACK = 20
"""How many recent runs of a pipeline are searched for the channels that it publishes on."""

_DEPTH = 3  # of an execution's folder below the root: PIPELINE/NODE/OUTPUT/NUMBER
_DIGITS = 1000  # of a number that is typed; Python reads some thousand
_KINDS_AMONG = 200  # how many recent artifacts are searched for types


def run(store: Store, reference: str) -> Run:
    """The run that a reference names.

    Raises:
        NotRecorded: there is none; the message names the closest match.
    """
    pipeline, slash, number = reference.rpartition("/")
    if slash and _is_number(number):
        with suppress(NotRecorded):
            return store.run(pipeline, int(number))
    elif (newest := next(store.runs(reference), None)) is not None:
        return newest
    pipelines = store.pipelines()  # all of them, for the message; there may be a thousand
    if not pipelines:
        raise NotRecorded("Nothing has run here yet. Start a run: spanwise run FILE")
    if slash and _is_number(number):
        return store.run(_known(pipelines, pipeline), int(number))
    if _is_number(reference):
        if len(pipelines) > 1:
            choices = ", ".join(f"{name}/{reference}" for name in pipelines)
            raise NotRecorded(f"Run {reference} of which pipeline? Give one of: {choices}")
        return store.run(pipelines[0], int(reference))
    _known(pipelines, reference)
    raise AssertionError(reference)


def requested_run(store: Store, run: Run) -> Run:
    """The run that was asked for: the one that a resumed run continues, or the run itself."""
    while run.trigger is Trigger.RESUME:
        pipeline, _, number = run.cause.rpartition("/")
        run = store.run(pipeline, int(number))
    return run


def pushed_model(executions: Iterable[Execution]) -> Artifact | None:
    """The model that a push by name has pushed; None where it had not got as far."""
    touched = (a for e in executions for a in itertools.chain(*e.inputs.values(), *e.outputs.values()))
    return next((a for a in touched if a.is_a(Model)), None)


def pipeline(store: Store, name: str | None) -> str:
    """The pipeline of that name; without a name, the only one.

    Raises:
        NotRecorded: there is none of that name, or there are several to choose from.
    """
    names = store.pipelines()
    if name is not None:
        return _known(names, name)
    if len(names) != 1:
        raise NotRecorded(f"Which pipeline? Give one of: {', '.join(names)}" if names else "Nothing has run here yet.")
    return names[0]


def pipeline_or_file(
    store: Store, reference: str | None, settings: Mapping[str, Mapping[str, object]]
) -> tuple[str, str]:
    """The pipeline that a reference names, by its name or its file; and the file, empty when a name was given.

    Raises:
        NotRecorded: it has never run, or there is no reference and several pipelines have run.
        LoadError: the file defines no pipeline.
    """
    if reference is None or reference in store.pipelines() or not (".py" in reference or Path(reference).exists()):
        return pipeline(store, reference), ""
    from spanwise.scheduler.project.load import load

    return pipeline(store, load(reference, settings=settings).pipeline.name), reference


def runs(store: Store, pipeline: str | None, limit: int) -> list[Run]:
    """The newest runs of one pipeline, or of all, newest first."""
    names = store.pipelines() if pipeline is None else [pipeline]
    found = [run for name in names for run in itertools.islice(store.runs(name), limit)]
    if not found and pipeline is not None:
        _known(store.pipelines(), pipeline)
    return sorted(found, key=lambda r: (r.started is not None, r.started, r.number), reverse=True)[:limit]


def artifacts(
    store: Store, pipeline: str | None, *, kind: str | None, span: str | None, limit: int
) -> tuple[list[Artifact], dict[str, Calendar]]:
    """The artifacts that were published, newest first, and the calendar of each pipeline.

    Without a span, it reads the newest runs until `limit` is reached. With one, it looks the artifacts up by span on
    the channels of recent runs; it may be one of any of their calendars.

    Raises:
        UsageError: `span` is not a span of any pipeline.
        NotRecorded: there is no such pipeline.
    """
    recorded = store.pipelines()
    names = recorded if pipeline is None else [_known(recorded, pipeline)]
    calendars = {name: run_calendar(run) for name in names if (run := latest(store, name)) is not None}
    if span is not None:
        found = _of_span(store, calendars, span, kind)
    else:
        found = [a for name in names for a in itertools.islice(_published(store, name, kind), limit)]
    return sorted(found, key=lambda a: a.id, reverse=True)[:limit], calendars


def execution(store: Store, run: Run, node: str) -> Execution:
    """The last attempt at a node of a run.

    Raises:
        NotRecorded: the run has no such node, or has not reached it; the message names the closest match.
    """
    executions = store.executions(run)
    found = next((e for e in reversed(executions) if e.node == node), None)
    if found is None:
        nodes = list(dict.fromkeys(e.node for e in executions))
        near = difflib.get_close_matches(node, nodes, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        what = "did not reach" if node in run.nodes else "has no node"
        raise NotRecorded(f"Run {run.name} {what} {node!r}.{meant} It has: {', '.join(nodes) or 'none'}.")
    return found


def artifact(store: Store, reference: str, root: Path) -> Artifact:
    """The artifact that a reference names: by its name, its id, or the path or URL of its folder or of a file in it.

    Raises:
        NotRecorded: there is none; the message names the closest matches.
    """
    if _is_number(reference):
        found = store.artifacts_by_id([int(reference)])
        if not found:
            raise NotRecorded(f"There is no artifact {reference}. List the artifacts: spanwise artifacts")
        return found[0]
    try:
        return store.artifact(reference)
    except NotRecorded:
        if store.archive is not None and reference.startswith(f"{store.archive.url}/"):
            return _artifact_at(store, root.resolve() / reference.removeprefix(f"{store.archive.url}/"), root.resolve())
        place = Path(local_path(reference)).resolve()
        if reference.startswith(("/", ".", "file:")) or place.is_relative_to(root.resolve()):
            return _artifact_at(store, place, root.resolve())
        raise NotRecorded(f"There is no artifact {reference!r}.{_nearest(store, reference)}") from None


def no_artifacts_message(store: Store, pipeline: str | None, kind: str | None) -> str:
    """The message when no artifact matched, with the closest type and the types that recent runs have published."""
    names = store.pipelines() if pipeline is None else [pipeline]
    recent = [a for name in names for a in itertools.islice(_published(store, name, None), _KINDS_AMONG)]
    kinds = sorted({name for a in recent for name in (a.kind, *a.base_kinds)})
    if kind is None or kind in kinds or not kinds:
        return "No such artifact was published here."
    near = difflib.get_close_matches(kind, kinds, n=1) or [k for k in kinds if kind.lower() in k.lower()]
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"No {kind} was published here.{meant} Published types: {', '.join(kinds)}."


def latest(store: Store, pipeline: str) -> Run | None:
    """The newest run of a pipeline, or None."""
    return next(iter(store.runs(pipeline)), None)


def _published(store: Store, pipeline: str, kind: str | None) -> Iterator[Artifact]:
    for record in store.runs(pipeline):
        for execution in reversed(store.executions(record)):
            if execution.state is State.COMPLETE:
                made = (a for key in execution.outputs for a in _made(execution, key))
                yield from (a for a in made if kind is None or a.has_kind(kind))


def _made(execution: Execution, key: str) -> Iterator[Artifact]:
    """The outputs that the execution has published, not those that a gate has passed on."""
    place = f"{Address.of_output(execution, key)}/"
    return (a for a in execution.outputs[key] if a.name.startswith(place))


def _artifact_at(store: Store, place: Path, root: Path) -> Artifact:
    """The artifact of a folder or of a path in it; folders below the root are numbered by execution."""
    parts = place.relative_to(root).parts if place.is_relative_to(root) else ()
    number = parts[_DEPTH] if len(parts) > _DEPTH else ""
    links = store.links(executions=[int(number)]) if _is_number(number) else []
    for found in store.artifacts_by_id([link.artifact for link in links if not link.read]):
        if place.is_relative_to(Path(found.uri).resolve()):
            return found
    raise NotRecorded(
        f"Nothing was published in {place}. Artifacts are in {root}/PIPELINE/NODE/OUTPUT/NUMBER; list them: "
        "spanwise artifacts"
    )


def _nearest(store: Store, name: str) -> str:
    """A hint with the closest names among the artifacts of recent runs."""
    recent = [
        a.name
        for pipeline in store.pipelines()
        for run in itertools.islice(store.runs(pipeline), LOOK_BACK)
        for execution in store.executions(run)
        for a in itertools.chain(*execution.outputs.values())
    ]
    near = difflib.get_close_matches(name, dict.fromkeys(recent), n=3, cutoff=0.4)
    return f" Did you mean {' or '.join(near)}?" if near else " List the artifacts: spanwise artifacts"


def _of_span(store: Store, calendars: Mapping[str, Calendar], text: str, kind: str | None) -> list[Artifact]:
    """The artifacts of a span that was typed, in the calendar of each channel in which it is one."""
    channels = {address: known for name in calendars for address, known in _channels(store, name, calendars[name])}
    counted = dict.fromkeys([*channels.values(), *calendars.values()])
    spans: dict[Calendar, int] = {}
    for calendar in counted:
        with suppress(UsageError):
            spans[calendar] = calendar.parse(text)
    if not spans and counted:
        next(iter(counted)).parse(text)
    return [
        artifact
        for address, calendar in channels.items()
        if calendar in spans
        for artifact in store.of_span(address, spans[calendar])
        if (kind is None or artifact.has_kind(kind)) and artifact_calendar(artifact, calendar) is calendar
    ]


def _channels(store: Store, pipeline: str, default: Calendar) -> Iterator[tuple[Address, Calendar]]:
    """The channels on which recent runs have published or reused artifacts with spans, each with its calendar."""
    for record in itertools.islice(store.runs(pipeline), LOOK_BACK):
        for execution in store.executions(record):
            for key, made in execution.outputs.items():
                found = next((a for a in made if "span" in a.properties), None)
                if found is not None and execution.state.succeeded and not execution.chosen:
                    yield Address.of_output(execution, key), artifact_calendar(found, default)


def _known(pipelines: list[str], name: str) -> str:
    if name in pipelines:
        return name
    near = difflib.get_close_matches(name, pipelines, n=1, cutoff=0.4)
    meant = f" Did you mean {near[0]}?" if near else ""
    there = f" Pipelines: {', '.join(pipelines)}." if pipelines else " Nothing has run here yet."
    raise NotRecorded(f"No pipeline {name!r} has run here.{meant}{there}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS
