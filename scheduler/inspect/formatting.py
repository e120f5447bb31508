"""How records are shown: as text for people, times in their zone, and as documents for programs, times in UTC. Pure."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TypeAlias

from spanwise.orchestrator.artifact import Artifact, Value
from spanwise.orchestrator.component import Channel, Component, Node, Resolver, defaulted, shown
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution, Run, as_typed
from spanwise.orchestrator.span import Calendar, ranges
from spanwise.scheduler.inspect import artifact_summary

Document: TypeAlias = dict[str, Value]

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\x00-\x08\x0b-\x1f\x7f]")
_ERROR_WIDTH = 60
_VALUE_WIDTH = 90  # of a parameter, an artifact's words, a list of artifacts
_MANY_PARTS = 6  # of what an artifact tells
_MINUTE_S, _HOUR_S = 60, 3600
_KILO = 1000


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns side by side, as wide as they need to be; the last is not padded."""
    lines = [list(headers), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    shown_lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in shown_lines)


def plain(text: str) -> str:
    """The text in one line, without colours, cursor movements and other control characters."""
    return _CONTROL.sub("", text.replace("\t", "    ")).replace("\n", " ").strip()


def uncontrolled(text: str) -> str:
    """The text with its lines, without control characters; of what was overwritten in a line, what was left."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(_CONTROL.sub("", line) for line in lines)


def at(moment: datetime | None, zone: tzinfo | None = None) -> str:
    """A moment with its zone; `zone` None is where the reader is."""
    return "-" if moment is None else f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def iso(moment: datetime | None) -> str | None:
    """A moment for programs: ISO 8601, UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat()


def seconds(record: Run | Execution, now: datetime | None = None) -> float | None:
    """How long it took, or has taken until `now`; None when that is not known."""
    end = record.ended or now
    return None if record.started is None or end is None else max(0.0, (end - record.started).total_seconds())


def took(length_s: float | None) -> str:
    """A length of time: `0.4 s`, `3 min 20 s`, `2 h 05 min`."""
    if length_s is None:
        return "-"
    if length_s < _MINUTE_S:
        return f"{length_s:.1f} s"
    whole = round(length_s)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02} min"


def size(size_bytes: int) -> str:
    """A size: `12 B`, `3.4 kB`, `1.2 GB`."""
    amount, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < _KILO:
            break
        amount, unit = amount / _KILO, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def counted(count: int, what: str) -> str:
    """`1 model`, `3 models`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def calendar_of(run: Run) -> Calendar:
    """How the spans of a run are shown."""
    return Calendar.called(run.calendar)


def label(span: object, calendar: Calendar) -> str:
    """A span as people write it; `-` for none."""
    return calendar.label(span) if isinstance(span, int) else "-"


def artifact_label(artifact: Artifact, calendar: Calendar) -> str:
    """What an artifact is, in few words: its span and version, else its name."""
    span, version = artifact.properties.get("span"), artifact.properties.get("version")
    if not isinstance(span, int):
        return artifact.name
    edition = f" v{version}" if isinstance(version, int) else ""
    return f"{label(span, _own(artifact, calendar))}{edition} ({artifact.name})"


def artifacts_label(found: Sequence[Artifact], calendar: Calendar, *, whole: bool = False) -> str:
    """What several artifacts are: each by its span, version and name, or many of them, but for `whole`, by span."""
    editions = [(a.properties.get("span"), a.properties.get("version")) for a in found]
    spans = [(s, v if isinstance(v, int) else None) for s, v in editions if isinstance(s, int)]
    if whole or len(found) <= 1 or len(spans) < len(found):
        return ", ".join(artifact_label(a, calendar) for a in found) or "nothing"
    return ranges(spans, _own(found[0], calendar))


def recorded_text(name: str, text: str, calendar: Calendar, *, whole: bool = False) -> str:
    """A recorded parameter; unless `whole`, without what is null in it, and cut short."""
    try:
        value = json.loads(text)
    except ValueError:
        return plain(text)
    if name == "span" and isinstance(value, int):
        return calendar.label(value)
    return plain(text) if whole else _cut(plain(json.dumps(_told(value), ensure_ascii=False)))


def _told(value: object) -> object:
    """A value without the parts that say nothing."""
    if isinstance(value, Mapping):
        return {name: _told(part) for name, part in value.items() if part is not None}
    return [_told(part) for part in value] if isinstance(value, list) else value


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE_WIDTH else f"{text[: _VALUE_WIDTH - 1]}…"


def _own(artifact: Artifact, otherwise: Calendar) -> Calendar:
    said = artifact.properties.get("calendar")
    return otherwise if said is None else Calendar.called(said)


# Runs


def runs(found: Sequence[Run], *, now: datetime, zone: tzinfo | None = None) -> str:
    """A table of runs."""
    rows = (
        (
            run.name,
            label(run.span, calendar_of(run)),
            run.trigger.value,
            run.state.value,
            at(run.started, zone),
            took(seconds(run, now)),
            _short(run.error or ""),
        )
        for run in found
    )
    return table(("RUN", "SPAN", "TRIGGER", "STATE", "STARTED", "TOOK", "ERROR"), rows)


def run(
    record: Run, executions: Sequence[Execution], *, now: datetime, zone: tzinfo | None = None, whole: bool = False
) -> str:
    """One run and its nodes; `whole` with all that is known of them: defaults too, and nothing cut short."""
    calendar = calendar_of(record)
    facts = {
        "run": record.name,
        "state": record.state.value + (f": {record.error}" if record.error else ""),
        **({"verdict": said} if (said := artifact_summary.verdict(record, executions)) else {}),
        "span": label(record.span, calendar) if record.span is not None else "none asked for",
        "trigger": record.trigger.value,
        "started": at(record.started, zone),
        "took": took(seconds(record, now)),
        "source": as_typed(record.source) or "-",
        "parameters": ", ".join(f"{n}={v}" for n, v in record.parameters.items()) or "-",
        "nodes": ", ".join(record.nodes),
    }
    if record.as_of is not None:
        facts["as of"] = at(record.as_of, zone)
    if record.base is not None:
        facts["base run"] = f"{record.pipeline}/{record.base}"
    facts["controller"] = f"pid {record.pid} on {record.host}"
    width = max(map(len, facts))
    head = "\n".join(f"{name.ljust(width)}  {value}" for name, value in facts.items())
    return "\n\n".join([head, *(execution(e, calendar, now=now, whole=whole) for e in executions)])


def execution(record: Execution, calendar: Calendar, *, now: datetime, whole: bool = False) -> str:
    """One execution: why it was done, what it took, read and made, and what that tells."""
    kind = "" if record.component in ("", record.node) else f" ({record.component})"
    attempt = f", attempt {record.attempt}" if record.attempt > 1 else ""
    reason = plain(record.reason or "")
    if record.chosen:
        lines = [f"{record.node}{kind} {reason}"]
    else:
        state = "reused" if record.reused is not None else record.state.value
        lines = [f"{record.node}{kind}: {state}{attempt}, {took(seconds(record, now))}"]
        lines += [f"  why         {reason}"] if reason else []
    lines += [
        f"  parameter   {name} = {recorded_text(name, text, calendar, whole=whole)}"
        for name, text in record.parameters.items()
        if whole or name not in record.defaults
    ]
    lines += [
        f"  input       {name}: {artifacts_label(found, calendar, whole=whole)}"
        for name, found in record.inputs.items()
        if found or whole
    ]
    for name, found in record.outputs.items():
        if record.chosen and not whole:
            continue  # what it read is what it chose
        lines.append(f"  output      {name}: {artifacts_label(found, calendar, whole=whole)}")
        for artifact in found:
            parts = artifact_summary.told(artifact, calendar)
            more = f" … and {len(parts) - _MANY_PARTS} more" if len(parts) > _MANY_PARTS and not whole else ""
            shown_parts = parts if whole else parts[:_MANY_PARTS]
            lines += [f"              {plain(', '.join(shown_parts))}{more}"] if parts and not record.chosen else []
    if record.error:
        lines += [f"  {text}" for text in uncontrolled(record.error).splitlines()]
        lines.append(f"  log         {record.log}")
    return "\n".join(lines)


def run_document(record: Run) -> Document:
    """A run for programs."""
    return {
        "run": record.name,
        "pipeline": record.pipeline,
        "number": record.number,
        **span_document(record.span, calendar_of(record)),
        "trigger": record.trigger.value,
        "state": record.state.value,
        "started": iso(record.started),
        "ended": iso(record.ended),
        "took_s": seconds(record),
        "error": record.error,
        "as_of": iso(record.as_of),
        "base": record.base,
        "nodes": list(record.nodes),
        "parameters": dict(record.parameters),
        "source": record.source,
        "host": record.host,
        "pid": record.pid,
    }


def execution_document(record: Execution, calendar: Calendar) -> Document:
    """An execution for programs."""
    return {
        "id": record.id,
        "node": record.node,
        "component": record.component,
        "attempt": record.attempt,
        "state": record.state.value,
        "started": iso(record.started),
        "ended": iso(record.ended),
        "took_s": seconds(record),
        "reason": record.reason,
        "reused": record.reused,
        "error": record.error,
        "log": record.log,
        "parameters": dict(record.parameters),
        "inputs": {n: [artifact_document(a, calendar) for a in found] for n, found in record.inputs.items()},
        "outputs": {n: [artifact_document(a, calendar) for a in found] for n, found in record.outputs.items()},
    }


# Artifacts


def artifacts(found: Sequence[Artifact], calendars: Mapping[str, Calendar], *, zone: tzinfo | None = None) -> str:
    """A table of artifacts; `calendars` says how each pipeline shows its spans."""
    rows = (
        (
            artifact.name,
            artifact.kind,
            label(artifact.properties.get("span"), _own(artifact, _of_pipeline(artifact, calendars))),
            _version(artifact),
            size(artifact.size_bytes),
            at(artifact.created, zone),
            artifact.uri,
        )
        for artifact in found
    )
    return table(("ARTIFACT", "TYPE", "SPAN", "VERSION", "SIZE", "PUBLISHED", "WHERE"), rows)


def artifact_document(artifact: Artifact, calendar: Calendar) -> Document:
    """An artifact for programs."""
    span = artifact.properties.get("span")
    return {
        "id": artifact.id,
        "name": artifact.name,
        "type": artifact.kind,
        **span_document(span if isinstance(span, int) else None, _own(artifact, calendar)),
        "version": artifact.properties.get("version"),
        "created": iso(artifact.created),
        "uri": artifact.uri,
        "size_bytes": artifact.size_bytes,
        "properties": dict(sorted(artifact.properties.items())),  # a store gives them in no order
    }


def json_text(document: object) -> str:
    """A document as JSON, in ASCII so that it passes any terminal. NaN and infinities, which JSON lacks, are null."""
    return json.dumps(_sayable(document), indent=2, allow_nan=False)


def _sayable(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _sayable(part) for name, part in value.items()}
    return [_sayable(part) for part in value] if isinstance(value, list | tuple) else value


def span_document(span: int | None, calendar: Calendar) -> Document:
    """A span for programs: as the number it is, and as people write it."""
    return {"span": span, "span_label": None if span is None else calendar.label(span)}


def _of_pipeline(artifact: Artifact, calendars: Mapping[str, Calendar]) -> Calendar:
    return calendars.get(artifact.name.partition("/")[0], Calendar.NUMBER)


def _version(artifact: Artifact) -> str:
    version = artifact.properties.get("version")
    return "-" if version is None else str(version)


def _short(text: str) -> str:
    line = plain(text)
    return line if len(line) <= _ERROR_WIDTH else f"{line[: _ERROR_WIDTH - 1]}…"


# Pipelines


def pipeline(made: Pipeline, parameters: Mapping[str, object], *, whole: bool = False) -> str:
    """The nodes of a pipeline in the order in which they run, with what each reads, makes and takes.

    `whole` names also what is not connected and what is left at its default.
    """
    given = f" ({', '.join(f'{n}={v!r}' for n, v in parameters.items())})" if parameters else ""
    lines = [f"{made.name}: {len(made.nodes)} nodes{given}"]
    for number, node in enumerate(made, 1):
        lines.append(f"{number:>3}  {node.name}" + ("" if type(node).__name__ == node.name else f" ({_class(node)})"))
        lines += [
            f"       reads  {name} <- {', '.join(map(repr, channels)) or 'nothing'}"
            for name, channels in node.inputs.items()
            if channels or whole
        ]
        verb = "makes" if isinstance(node, Component) else "picks"
        lines += [f"       {verb}  {name}: {_promise(channel)}" for name, channel in node.outputs.items()]
        left = () if whole else defaulted(node)
        lines += [
            f"       takes  {name} = {value_text(value) if whole else _cut(brief(value))}"
            for name, value in node.parameters.items()
            if name not in left
        ]
        lines += [f"       after  {other.name}" for other in node.after]
    return "\n".join(lines)


def pipeline_document(made: Pipeline, parameters: Mapping[str, object]) -> Document:
    """A pipeline for programs."""
    return {
        "pipeline": made.name,
        "parameters": {n: value_text(v) for n, v in parameters.items()},
        "nodes": [
            {
                "name": node.name,
                "component": _class(node),
                "resolver": isinstance(node, Resolver),
                "inputs": {n: [{"node": c.node, "key": c.key} for c in cs] for n, cs in node.inputs.items()},
                "after": [other.name for other in node.after],
                "outputs": {n: c.kind.kind for n, c in node.outputs.items()},
                "parameters": {n: value_text(v) for n, v in node.parameters.items()},
            }
            for node in made
        ],
    }


def _promise(channel: Channel) -> str:
    kind = channel.kind.kind
    return f"list of {kind}" if channel.many else f"{kind} or nothing" if channel.optional else kind


def value_text(value: object) -> str:
    """A parameter's value; functions and classes by name."""
    if isinstance(value, type):
        return shown(value)
    return getattr(value, "__name__", None) or repr(value)


def brief(value: object) -> str:
    """A parameter's value, of records what is not left at its default."""
    if isinstance(value, type):
        return shown(value)
    if dataclasses.is_dataclass(value):
        named = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        given = [n for n, v in named.items() if repr(v) != repr(_default(value, n))]
        return f"{type(value).__name__}({', '.join(f'{n}={brief(named[n])}' for n in given)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{n!r}: {brief(v)}' for n, v in value.items())}}}"
    if type(value) is list or type(value) is tuple:
        parts = ", ".join(map(brief, value))
        comma = "," * (len(value) == 1)
        return f"[{parts}]" if type(value) is list else f"({parts}{comma})"
    return value_text(value)


def _default(record: object, name: str) -> object:
    return type(record).__dataclass_fields__[name].default  # type: ignore[attr-defined]  # its caller has asked


def _class(node: Node) -> str:
    return type(node).__name__


# The end of a run


def ended(record: Run, executions: Mapping[str, Execution], skipped: Sequence[str]) -> str:
    """One line that says what became of a run."""
    states = [e.state for e in executions.values()]
    reused = sum(e.reused is not None for e in executions.values())  # a resolver's choice is nobody's work
    done = sum(s.succeeded for s in states)
    parts = [f"{done} of {done + len(skipped) + sum(not s.succeeded for s in states)} nodes done"]
    parts += [f"{reused} reused"] if reused else []
    parts += [f"not reached: {', '.join(skipped)}"] if skipped else []
    how = record.state.value + (f" ({record.error})" if record.error else "")
    span = "" if record.span is None else f" of span {label(record.span, calendar_of(record))}"
    return f"Run {record.name}{span}: {how} in {took(seconds(record))}; {', '.join(parts)}."
