"""Runs, executions, artifacts and pipelines as text for people and as documents for programs.

Pure, except that the pages of artifacts are looked up on the disk.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from types import MappingProxyType

from spanwise.orchestrator.artifact import Artifact, Value
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.code_digest import strip_addresses
from spanwise.orchestrator.component import Channel, Component, Node, Resolver, list_defaults
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.placement import Placement
from spanwise.orchestrator.run import Execution, Run, State, format_source
from spanwise.orchestrator.signature import format_annotation
from spanwise.scheduler.formatting import (
    Document,
    as_document,
    elapsed_s,
    format_duration,
    format_run_span,
    format_size,
    format_span,
    format_table,
    format_time,
    iso_time,
    run_calendar,
    shorten,
    single_line,
    span_document,
    strip_control,
)
from spanwise.scheduler.inspect import artifact_summary
from spanwise.scheduler.inspect.artifact_pages import PageFinder

_ERROR_WIDTH = 60
_VALUE_WIDTH = 90  # of a parameter
_MANY_PARTS = 6  # of an artifact's summary


def describe_artifact(artifact: Artifact, calendar: Calendar) -> str:
    """The span, version and name of an artifact; its name alone where it has no span."""
    span, version = artifact.properties.get("span"), artifact.properties.get("version")
    if not isinstance(span, int):
        return artifact.name
    suffix = f" v{version}" if isinstance(version, int) else ""
    return f"{format_span(span, artifact_calendar(artifact, calendar))}{suffix} ({artifact.name})"


def describe_artifacts(found: Sequence[Artifact], calendar: Calendar, *, whole: bool = False) -> str:
    """One artifact, or each with `whole`, by its span, version and name; several by their spans and versions."""
    versions = [(a.properties.get("span"), a.properties.get("version")) for a in found]
    spans = [(s, v if isinstance(v, int) else None) for s, v in versions if isinstance(s, int)]
    if whole or len(found) <= 1 or len(spans) < len(found):
        return ", ".join(describe_artifact(a, calendar) for a in found) or "nothing"
    return format_versions(spans, artifact_calendar(found[0], calendar))


def describe_parameter(name: str, text: str, calendar: Calendar, *, whole: bool = False) -> str:
    """A recorded parameter; unless `whole`, without its null parts and cut to one line."""
    try:
        value = json.loads(text)
    except ValueError:
        return single_line(text)
    if name == "span" and isinstance(value, int):
        return calendar.label(value)
    if whole:
        return single_line(json.dumps(value, ensure_ascii=False))
    return shorten(single_line(json.dumps(_without_nulls(value), ensure_ascii=False)), _VALUE_WIDTH)


def _without_nulls(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def artifact_calendar(artifact: Artifact, default: Calendar) -> Calendar:
    """The calendar that an artifact records for its span, else `default`."""
    recorded = artifact.properties.get("calendar")
    return default if recorded is None else Calendar.from_name(recorded)


def execution_calendar(execution: Execution, default: Calendar) -> Calendar:
    """The calendar that the outputs of an execution record, else `default`."""
    found = (artifact_calendar(a, default) for outputs in execution.outputs.values() for a in outputs)
    return next((calendar for calendar in found if calendar is not default), default)


# Runs


def format_runs(found: Sequence[Run], *, now: datetime, zone: tzinfo | None = None) -> str:
    """A table of runs."""
    rows = (
        (
            run.name,
            format_run_span(run),
            run.trigger.value,
            run.state.value,
            format_time(run.started, zone),
            format_duration(elapsed_s(run, now)),
            shorten(single_line(run.error or ""), _ERROR_WIDTH),
        )
        for run in found
    )
    return format_table(("RUN", "SPAN", "TRIGGER", "STATE", "STARTED", "TOOK", "ERROR"), rows)


def format_run(
    record: Run,
    executions: Sequence[Execution],
    *,
    now: datetime,
    zone: tzinfo | None = None,
    whole: bool = False,
    placements: Mapping[str, Placement] = MappingProxyType({}),
) -> str:
    """One run and its nodes; `whole` adds parameters left at their defaults and shortens nothing.

    `placements` are those of its executions, by name.
    """
    calendar = run_calendar(record)
    facts = {
        "run": record.name,
        "state": record.state.value + (f": {record.error}" if record.error else ""),
        **({"verdict": verdict} if (verdict := artifact_summary.describe_verdict(record, executions)) else {}),
        "span": format_run_span(record, "none requested"),
        "trigger": record.trigger.value,
        "started": format_time(record.started, zone),
        "took": format_duration(elapsed_s(record, now)),
        "source": format_source(record.source) or "-",
        "parameters": ", ".join(f"{n}={v}" for n, v in record.parameters.items()) or "-",
        "nodes": ", ".join(record.nodes),
    }
    if record.exclude:
        facts["excluded"] = ", ".join(record.exclude)
    if record.as_of is not None:
        facts["as of"] = format_time(record.as_of, zone) + (", a replay" if record.replay else "")
    if record.base is not None:
        facts["base run"] = f"{record.pipeline}/{record.base}"
    facts["controller"] = f"pid {record.pid} on {record.host}"
    width = max(map(len, facts))
    head = "\n".join(f"{name.ljust(width)}  {value}" for name, value in facts.items())
    pages = PageFinder()
    shown = [
        format_execution(e, calendar, now=now, whole=whole, placement=placements.get(e.name), pages=pages)
        for e in executions
    ]
    unknown = [f"Pages of artifacts are not shown: {pages.trouble}"] if pages.trouble else []
    return "\n\n".join([head, *shown, *unknown])


def format_execution(
    record: Execution,
    calendar: Calendar,
    *,
    now: datetime,
    whole: bool = False,
    placement: Placement | None = None,
    pages: PageFinder | None = None,
) -> str:
    """One execution: its reason, duration, parameters, inputs and outputs, each output with its summary and pages."""
    pages = pages or PageFinder()
    calendar = execution_calendar(record, calendar)
    kind = "" if record.component in ("", record.node) else f" ({record.component})"
    attempt = f", attempt {record.attempt}" if record.attempt > 1 else ""
    reason = single_line(record.reason or "")
    if record.chosen:
        lines = [f"{record.node}{kind} {reason}"]
    else:
        state = "reused" if record.reused is not None else record.state.value
        lines = [f"{record.node}{kind}: {state}{attempt}, {format_duration(elapsed_s(record, now))}"]
        lines += [f"  why         {reason}"] if reason else []
        if placement is not None:
            lines += [f"  on          {part}" for part in (placement.place, placement.page_url) if part]
    lines += [
        f"  parameter   {name} = {describe_parameter(name, text, calendar, whole=whole)}"
        for name, text in record.parameters.items()
        if whole or name not in record.defaults
    ]
    lines += [
        f"  input       {name}: {describe_artifacts(found, calendar, whole=whole)}"
        for name, found in record.inputs.items()
        if found or whole
    ]
    for name, found in record.outputs.items():
        if record.chosen and not whole:
            continue  # what it read is what it chose
        lines.append(f"  output      {name}: {describe_artifacts(found, calendar, whole=whole)}")
        for artifact in found:
            parts = artifact_summary.summarize_artifact(artifact, calendar)
            more = f" … and {len(parts) - _MANY_PARTS} more" if len(parts) > _MANY_PARTS and not whole else ""
            summary = single_line(", ".join(parts if whole else parts[:_MANY_PARTS]))
            lines += [f"              {summary}{more}"] if parts and not record.chosen else []
            lines += [f"              {page}" for page in pages.find(artifact) or ()]
    if record.error:
        lines += [f"  {text}" for text in strip_control(record.error).splitlines()]
        lines += [f"  log         {record.log}"] if has_log(record) else []
    return "\n".join(lines)


def has_log(record: Execution) -> bool:
    """Whether its code was started, or may have been, so that it has printed something."""
    begun = record.work_started is not None or record.state is State.RUNNING
    return bool(record.log) and (begun or Path(record.log).is_file())


def run_document(record: Run) -> Document:
    """A run for programs."""
    names = (
        "pipeline", "number", "trigger", "state", "started", "ended", "error", "exclude", "as_of", "replay", "base",
        "nodes", "parameters", "source", "host", "pid",
    )  # fmt: skip
    span = span_document(record.span, run_calendar(record))
    return {
        "run": record.name,
        **as_document(record, *names),
        **span,
        "spans": dict(record.spans),
        "took_s": elapsed_s(record),
    }


def execution_document(
    record: Execution, calendar: Calendar, placement: Placement | None = None, *, pages: PageFinder | None = None
) -> Document:
    """An execution for programs; `place` and `page_url` only where an engine has executed it."""
    pages = pages or PageFinder()
    names = (
        "id", "node", "component", "attempt", "state", "started", "work_started", "work_ended", "ended", "reason",
        "reused", "error", "log", "parameters",
    )  # fmt: skip
    return {
        **as_document(record, *names),
        **({} if placement is None else dataclasses.asdict(placement)),
        "took_s": elapsed_s(record),
        "inputs": {n: artifact_documents(found, calendar, pages) for n, found in record.inputs.items()},
        "outputs": {n: artifact_documents(found, calendar, pages) for n, found in record.outputs.items()},
    }


# Artifacts


def format_artifacts(
    found: Sequence[Artifact],
    calendars: Mapping[str, Calendar],
    *,
    zone: tzinfo | None = None,
    verdicts: Mapping[int, str] = MappingProxyType({}),
    collected: Mapping[int, datetime] = MappingProxyType({}),
) -> str:
    """A table of artifacts; `calendars` has the calendar of each pipeline.

    By the ids of artifacts, `verdicts` has what was decided, and `collected` when their files were removed.
    """
    rows = (
        (
            artifact.name,
            artifact.kind,
            format_span(
                artifact.properties.get("span"), artifact_calendar(artifact, _of_pipeline(artifact, calendars))
            ),
            _version(artifact),
            format_size(artifact.size_bytes),
            format_time(artifact.created, zone),
            f"collected {format_time(collected[artifact.id], zone)}" if artifact.id in collected else artifact.uri,
        )
        for artifact in found
    )
    table = format_table(("ARTIFACT", "TYPE", "SPAN", "VERSION", "SIZE", "PUBLISHED", "WHERE"), rows)
    judged = [(artifact.name, verdicts[artifact.id]) for artifact in found if artifact.id in verdicts]
    return f"{table}\n\n{format_table(('JUDGED', 'VERDICT NOW'), judged)}" if judged else table


def artifact_documents(found: Iterable[Artifact], calendar: Calendar, pages: PageFinder | None = None) -> list[Value]:
    """Artifacts for programs."""
    pages = pages or PageFinder()
    return [artifact_document(artifact, calendar, pages) for artifact in found]


def artifact_document(artifact: Artifact, calendar: Calendar, pages: PageFinder | None = None) -> Document:
    """An artifact for programs; `pages` is null where storage does not say which there are."""
    shown = (pages or PageFinder()).find(artifact)
    span = artifact.properties.get("span")
    return {
        "id": artifact.id,
        "name": artifact.name,
        "type": artifact.kind,
        **span_document(span if isinstance(span, int) else None, artifact_calendar(artifact, calendar)),
        "version": artifact.properties.get("version"),
        "created": iso_time(artifact.created),
        "uri": artifact.uri,
        "size_bytes": artifact.size_bytes,
        "pages": None if shown is None else [str(Path(page).absolute()) for page in shown],
        "properties": dict(sorted(artifact.properties.items())),  # a store gives them in no order
    }


def _of_pipeline(artifact: Artifact, calendars: Mapping[str, Calendar]) -> Calendar:
    return calendars.get(artifact.name.partition("/")[0], Calendar.NUMBER)


def _version(artifact: Artifact) -> str:
    version = artifact.properties.get("version")
    return "-" if version is None else str(version)


# Pipelines


def format_pipeline(pipeline: Pipeline, parameters: Mapping[str, object], *, whole: bool = False) -> str:
    """The nodes of a pipeline in execution order, each with its inputs, outputs and parameters.

    `whole` adds inputs that are not connected and parameters left at their defaults.
    """
    arguments = f" ({', '.join(f'{n}={format_value(v)}' for n, v in parameters.items())})" if parameters else ""
    lines = [f"{pipeline.name}: {len(pipeline.nodes)} nodes{arguments}"]
    for number, node in enumerate(pipeline, 1):
        lines.append(f"{number:>3}  {node.name}" + ("" if type(node).__name__ == node.name else f" ({_class(node)})"))
        lines += [
            f"       reads  {name} <- {', '.join(map(repr, channels)) or 'nothing'}"
            for name, channels in node.inputs.items()
            if channels or whole
        ]
        verb = "makes" if isinstance(node, Component) else "picks"
        lines += [f"       {verb}  {name}: {_promise(channel)}" for name, channel in node.outputs.items()]
        omitted = () if whole else list_defaults(node)
        lines += [
            f"       takes  {name} = "
            f"{format_value(value) if whole else shorten(format_value_briefly(value), _VALUE_WIDTH)}"
            for name, value in node.parameters.items()
            if name not in omitted
        ]
        lines += [f"       after  {other.name}" for other in node.after]
    return "\n".join(lines)


def pipeline_document(pipeline: Pipeline, parameters: Mapping[str, object]) -> Document:
    """A pipeline for programs."""
    return {
        "pipeline": pipeline.name,
        "parameters": {n: format_value(v) for n, v in parameters.items()},
        "nodes": [
            {
                "name": node.name,
                "component": _class(node),
                "resolver": isinstance(node, Resolver),
                "inputs": {n: [{"node": c.node, "key": c.key} for c in cs] for n, cs in node.inputs.items()},
                "after": [other.name for other in node.after],
                "outputs": {n: c.kind.kind for n, c in node.outputs.items()},
                "parameters": {n: format_value(v) for n, v in node.parameters.items()},
            }
            for node in pipeline
        ],
    }


def _promise(channel: Channel) -> str:
    kind = channel.kind.kind
    return f"list of {kind}" if channel.many else f"{kind} or nothing" if channel.optional else kind


def format_value(value: object) -> str:
    """A parameter's value; functions and classes by name, other objects without where they are in memory."""
    if isinstance(value, type):
        return format_annotation(value)
    return getattr(value, "__name__", None) or strip_addresses(repr(value))


def format_value_briefly(value: object) -> str:
    """A parameter's value; a record without the fields that have their defaults."""
    if isinstance(value, type):
        return format_annotation(value)
    if dataclasses.is_dataclass(value):
        named = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        changed = [n for n, v in named.items() if repr(v) != repr(_default(value, n))]
        return f"{type(value).__name__}({', '.join(f'{n}={format_value_briefly(named[n])}' for n in changed)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{n!r}: {format_value_briefly(v)}' for n, v in value.items())}}}"
    if type(value) is list or type(value) is tuple:
        parts = ", ".join(map(format_value_briefly, value))
        comma = "," * (len(value) == 1)
        return f"[{parts}]" if type(value) is list else f"({parts}{comma})"
    return format_value(value)


def _default(record: object, name: str) -> object:
    return type(record).__dataclass_fields__[name].default  # type: ignore[attr-defined]  # its caller has checked


def _class(node: Node) -> str:
    return type(node).__name__


# The end of a run


def summarize_run(record: Run, executions: Mapping[str, Execution], skipped: Sequence[str]) -> str:
    """One line about a run that has ended: its state, its duration and its nodes."""
    states = [e.state for e in executions.values()]
    reused = sum(e.reused is not None for e in executions.values())  # a resolver's choice is no work
    done = sum(s.succeeded for s in states)
    parts = [f"{done} of {done + len(skipped) + sum(not s.succeeded for s in states)} nodes done"]
    parts += [f"{reused} reused"] if reused else []
    parts += [f"not reached: {', '.join(skipped)}"] if skipped else []
    how = record.state.value + (f" ({record.error})" if record.error else "")
    span = "" if record.span is None else f" of span {format_run_span(record)}"
    return f"Run {record.name}{span}: {how} in {format_duration(elapsed_s(record))}; {', '.join(parts)}."
