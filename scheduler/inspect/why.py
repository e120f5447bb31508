"""Why a node of a run was executed or reused, and which parts of its cache key had changed since. Reads only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.fingerprint import CacheKey
from spanwise.orchestrator.generation import find_supplied
from spanwise.orchestrator.parameter_record import is_same_parameter
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import Document, as_document, format_time, run_calendar, single_line
from spanwise.scheduler.inspect import find, records

LOOK_BACK = 200
"""How many earlier runs are searched for one that has executed the node."""

_VERBS = {
    State.RUNNING: "is running",
    State.COMPLETE: "was executed",
    State.CACHED: "was reused",
    State.FAILED: "failed",
    State.CANCELED: "was canceled",
}
_FUNCTION = re.compile(r'"[\w.]+:(?:.*\.)?(\w+|<lambda>)"')  # how a function or class is recorded: by module and name


@dataclass(frozen=True, kw_only=True)
class KeyChange:
    """One part of a cache key that has changed."""

    kind: str  #: parameter, content, code, input, library or node
    name: str
    before: str | None = None  #: None where it was absent or cannot be shown
    after: str | None = None

    def __str__(self) -> str:
        what = (
            f"{self.kind} of {self.name}" if self.kind in ("code", "content") else f"{self.kind} {self.name}".rstrip()
        )
        if self.before is None and self.after is None:
            return f"{what} changed"
        return f"{what}: {self.before or 'none'} -> {self.after or 'none'}"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a node was executed or reused."""

    execution: Execution
    calendar: Calendar
    before: Execution | None = (
        None  #: the earlier execution that it is compared with; None when there is none, or nothing to compare
    )
    changes: tuple[KeyChange, ...] = ()


def explain(store: Store, run: Run, node: str) -> Explanation:
    """Explains the last attempt at a node of a run.

    It is compared with the newest earlier run that succeeded at the node; if none did, with the newest that tried.
    What a base run has supplied is compared as it was executed there. An ordinary run is compared with ordinary ones.

    Raises:
        NotRecorded: the run has no such node, or has not reached it.
    """
    execution = find.execution(store, run, node)
    earlier = _earlier(store, run, node) if _is_recorded(execution) else None
    calendar = records.execution_calendar(execution, run_calendar(run))
    return Explanation(
        execution=execution,
        calendar=run_calendar(run),
        before=earlier,
        changes=()
        if earlier is None
        else tuple(compare_keys(find_supplied(store, earlier), find_supplied(store, execution), calendar)),
    )


def compare_keys(before: Execution, after: Execution, calendar: Calendar) -> Iterator[KeyChange]:
    """How the cache key of an execution differs from an earlier one; without keys, how its records differ.

    What a base run has supplied has neither: give what it has supplied. Of one that never ended nothing is known.
    """
    if not (_is_recorded(before) and _is_recorded(after)):
        return
    if before.key_parts and after.key_parts:
        one, other = (CacheKey(digest=e.key, parts=e.key_parts) for e in (before, after))
        parts = one.difference(other)
    else:
        parts = tuple(_recorded_difference(before, after))
    for part in parts:
        yield _describe_change(part, before, after, calendar)


def _earlier(store: Store, run: Run, node: str) -> Execution | None:
    tried = None
    for earlier in itertools.islice(store.runs(run.pipeline, before=run.number), LOOK_BACK):
        if run.ordinary and not earlier.ordinary:
            continue
        found = next((e for e in reversed(store.executions(earlier)) if e.node == node), None)
        if found is not None and found.state.succeeded:
            return found
        if found is not None and _is_recorded(found):
            tried = tried or found
    return tried


def _is_recorded(execution: Execution) -> bool:
    """Whether its record has what it was given, which is written when it ends; it may fail before that is known."""
    return bool(execution.state.succeeded or execution.key_parts or execution.parameters or execution.inputs)


def _recorded_difference(before: Execution, after: Execution) -> Iterator[str]:
    for name in sorted({*before.parameters, *after.parameters}):
        if not is_same_parameter(before.parameters.get(name), after.parameters.get(name)):
            yield f"parameter {name}"
    one, other = _names(before), _names(after)
    yield from (f"input {name}" for name in sorted({*one, *other}) if one.get(name) != other.get(name))


def _names(execution: Execution) -> Mapping[str, tuple[str, ...]]:
    return {key: tuple(a.name for a in found) for key, found in execution.inputs.items()}


def _describe_change(part: str, before: Execution, after: Execution, calendar: Calendar) -> KeyChange:
    """One changed part of a key, named as in the pipeline file."""
    kind, _, name = part.partition(" ")
    if kind == "parameter":
        calendars = [records.execution_calendar(e, calendar) for e in (before, after)]
        return _parameter_change(name, before.parameters.get(name), after.parameters.get(name), calendars)
    if kind == "input":
        return _input_change(name, before.inputs.get(name, ()), after.inputs.get(name, ()), calendar)
    if kind == "code":
        return KeyChange(kind="code", name=after.component)
    if kind == "component":
        return KeyChange(kind="node", name=after.node)  # the component was in another pipeline or node
    return KeyChange(kind=kind, name=name, before=before.key_parts.get(part), after=after.key_parts.get(part))


def _parameter_change(name: str, before: str | None, after: str | None, calendars: Sequence[Calendar]) -> KeyChange:
    if not is_same_parameter(before, after):
        texts = [
            None if text is None else records.describe_parameter(name, text, calendar)
            for text, calendar in zip((before, after), calendars, strict=True)
        ]
        if texts[0] == texts[1]:  # both were shortened before the point where they differ
            texts = [before, after]
        return KeyChange(kind="parameter", name=name, before=texts[0], after=texts[1])
    function = _FUNCTION.fullmatch(after or "")
    if function:
        return KeyChange(kind="code", name=f"{function[1]} (parameter {name})")
    return KeyChange(kind="content", name=f"parameter {name}")


def _input_change(name: str, before: Sequence[Artifact], after: Sequence[Artifact], calendar: Calendar) -> KeyChange:
    for texts in (
        [records.describe_artifacts(found, calendar) for found in (before, after)],
        [", ".join(a.name for a in found) for found in (before, after)],
    ):
        if texts[0] != texts[1]:
            return KeyChange(kind="input", name=name, before=texts[0], after=texts[1])
    return KeyChange(kind="input", name=name)


def format_explanation(found: Explanation) -> str:
    """The explanation as text."""
    execution = found.execution
    lines = [f"{execution.node} of {execution.pipeline}/{execution.run} {_describe_end(execution)}."]
    if not _is_recorded(execution):
        return "\n".join([*lines, "What it was given is not recorded, so nothing can be compared."])
    if found.before is None:
        return "\n".join([*lines, "No earlier run has reached it."])
    before = found.before
    since = f"{before.pipeline}/{before.run} ({before.state.value}, {format_time(before.ended)})"
    if found.changes:
        lines.append(f"Changed since {since}:")
        lines += [f"  {change}" for change in found.changes]
    else:
        lines.append(
            f"{'Its key has' if execution.key else 'Its inputs and parameters have'} not changed since {since}."
        )
    return "\n".join(lines)


def _describe_end(execution: Execution) -> str:
    """How the execution ended and why, such as `was reused: same inputs …`."""
    verb = _VERBS[State.CACHED if execution.reused is not None else execution.state]
    if execution.chosen:  # by a resolver, or passed on by a gate that follows a person
        verb = "did no work of its own"
    reason = single_line(execution.reason or "")
    first = single_line((execution.error or "").strip().partition("\n")[0]).removesuffix(".")
    if first and reason:
        return f"was executed ({reason}) and {verb}: {first}"
    return f"{verb}: {first or reason or '-'}"


def explanation_document(found: Explanation) -> Document:
    """The explanation for programs."""
    execution, before = found.execution, found.before
    return {
        "run": f"{execution.pipeline}/{execution.run}",
        **as_document(execution, "node", "attempt", "state", "reason", "reused"),
        "key": execution.key or None,
        "compared_with": None if before is None else before.name,
        "changes": [as_document(change) for change in found.changes],
    }
