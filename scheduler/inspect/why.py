"""Why a node of a run was done or reused, and what of its cache key had changed since the time before. Reads only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.fingerprint import CacheKey
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.span import Calendar
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import Document, format_time, run_calendar, single_line
from spanwise.scheduler.inspect import find, records

LOOK_BACK = 200
"""How many earlier runs are looked through for one that has done the node."""

_FUNCTION = re.compile(r'"[\w.]+:(?:.*\.)?(\w+|<lambda>)"')  # as a function or class is recorded, by module and name


@dataclass(frozen=True, kw_only=True)
class Change:
    """One part of a cache key that is not as it was, in words."""

    kind: str  #: parameter, content, code, input, library or node
    name: str
    before: str | None = None  #: None where it cannot be shown, or was not there
    after: str | None = None

    def __str__(self) -> str:
        what = f"{self.kind} of {self.name}" if self.kind in ("code", "content") else f"{self.kind} {self.name}"
        if self.before is None and self.after is None:
            return f"{what} changed"
        return f"{what}: {self.before or 'none'} -> {self.after or 'none'}"


@dataclass(frozen=True, kw_only=True)
class Why:
    """The answer."""

    execution: Execution
    calendar: Calendar
    before: Execution | None = None  #: the time before that it is compared with; None when there was none
    changes: tuple[Change, ...] = ()


def why(store: Store, run: Run, node: str) -> Why:
    """Why the last attempt at a node of a run went as it did.

    It is compared with the newest earlier run that has finished the node; where none has, with the newest that tried.

    Raises:
        NotRecorded: the run has no such node, or has not come to it.
    """
    execution = find.execution(store, run, node)
    earlier = _before(store, run, node)
    return Why(
        execution=execution,
        calendar=run_calendar(run),
        before=earlier,
        changes=() if earlier is None else tuple(changes(earlier, execution, run_calendar(run))),
    )


def changes(before: Execution, after: Execution, calendar: Calendar) -> Iterator[Change]:
    """What of the key of an execution differs from that of an earlier one; where one has none, what was recorded."""
    if before.key_parts and after.key_parts:
        one, other = (CacheKey(digest=e.key, parts=e.key_parts) for e in (before, after))
        parts = one.difference(other)
    else:
        parts = tuple(_recorded_difference(before, after))
    for part in parts:
        yield _change(part, before, after, calendar)


def _before(store: Store, run: Run, node: str) -> Execution | None:
    tried = None
    for earlier in itertools.islice(store.runs(run.pipeline, before=run.number), LOOK_BACK):
        found = next((e for e in reversed(store.executions(earlier)) if e.node == node), None)
        if found is not None and found.state.succeeded:
            return found
        tried = tried or found
    return tried


def _recorded_difference(before: Execution, after: Execution) -> Iterator[str]:
    for side, one, other in (
        ("parameter", before.parameters, after.parameters),
        ("input", _names(before), _names(after)),
    ):
        yield from (f"{side} {name}" for name in sorted({*one, *other}) if one.get(name) != other.get(name))


def _names(execution: Execution) -> Mapping[str, tuple[str, ...]]:
    return {key: tuple(a.name for a in found) for key, found in execution.inputs.items()}


def _change(part: str, before: Execution, after: Execution, calendar: Calendar) -> Change:
    """One part of a key in the words of who wrote the pipeline."""
    kind, _, name = part.partition(" ")
    if kind == "parameter":
        return _parameter(name, before.parameters.get(name), after.parameters.get(name), calendar)
    if kind == "input":
        return _input(name, before.inputs.get(name, ()), after.inputs.get(name, ()), calendar)
    if kind == "code":
        return Change(kind="code", name=after.component)
    if kind == "component":
        return Change(kind="node", name=after.node)  # another pipeline or node had the component then
    return Change(kind=kind, name=name, before=before.key_parts.get(part), after=after.key_parts.get(part))


def _parameter(name: str, before: str | None, after: str | None, calendar: Calendar) -> Change:
    if before != after:
        texts = [None if text is None else records.describe_parameter(name, text, calendar) for text in (before, after)]
        if texts[0] == texts[1]:  # both were cut short before they differ
            texts = [before, after]
        return Change(kind="parameter", name=name, before=texts[0], after=texts[1])
    function = _FUNCTION.fullmatch(after or "")
    if function:
        return Change(kind="code", name=f"{function[1]} (parameter {name})")
    return Change(kind="content", name=f"parameter {name}")


def _input(name: str, before: Sequence[Artifact], after: Sequence[Artifact], calendar: Calendar) -> Change:
    for texts in (
        [records.describe_artifacts(found, calendar) for found in (before, after)],
        [", ".join(a.name for a in found) for found in (before, after)],
    ):
        if texts[0] != texts[1]:
            return Change(kind="input", name=name, before=texts[0], after=texts[1])
    return Change(kind="input", name=name)


def told(found: Why) -> str:
    """The answer as text."""
    execution = found.execution
    state = "was reused" if execution.reused is not None else f"is {execution.state.value}"
    if execution.chosen:
        state = "only chooses"
    reason = single_line(execution.reason or "-")
    lines = [f"{execution.node} of {execution.pipeline}/{execution.run} {state}: {reason}."]
    if found.before is None:
        lines.append("No earlier run has come to it.")
        return "\n".join(lines)
    ended = (
        f"{found.before.pipeline}/{found.before.run} ({found.before.state.value}, {format_time(found.before.ended)})"
    )
    if found.changes:
        lines.append(f"Since {ended}:")
        lines += [f"  {change}" for change in found.changes]
    else:
        lines.append(
            f"Since {ended} nothing of {'its key' if execution.key else 'what it reads and takes'} has changed."
        )
    return "\n".join(lines)


def document(found: Why) -> Document:
    """The answer for programs."""
    execution, before = found.execution, found.before
    return {
        "run": f"{execution.pipeline}/{execution.run}",
        "node": execution.node,
        "attempt": execution.attempt,
        "state": execution.state.value,
        "reason": execution.reason,
        "reused": execution.reused,
        "key": execution.key or None,
        "compared_with": None if before is None else before.name,
        "changes": [{"kind": c.kind, "name": c.name, "before": c.before, "after": c.after} for c in found.changes],
    }
