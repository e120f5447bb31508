"""Logs: what the nodes of a run have printed, each in a file of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.run.progress import Tail

POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Log:
    """What one attempt at one node has printed."""

    node: str
    attempt: int
    file: str
    lines: tuple[str, ...]


def logs(store: Store, run: Run, node: str | None) -> list[Log]:
    """The logs of a run, in the order in which its nodes began; nodes that were reused printed nothing.

    Raises:
        NotRecorded: the run has no such node, or it printed nothing because it was not executed.
    """
    executions = _of(store, run, node)
    found = [
        Log(node=e.node, attempt=e.attempt, file=e.log, lines=tuple(Tail(Path(e.log)).rest()))
        for e in executions
        if e.log and Path(e.log).is_file()
    ]
    if node is not None and not found:
        last = executions[-1]
        why = f": {last.reason}" if last.reason else ""
        raise NotRecorded(
            f"{node} of {run.name} has no log; it is {last.state.value}{why}. See:  spanwise show {run.name}"
        )
    return found


def told(found: Sequence[Log]) -> str:
    """Logs as text, each under its name; one alone needs none."""
    if not found:
        return "No node of this run has printed anything."
    if len(found) == 1:
        return "\n".join(found[0].lines)
    heads = (f"== {log.node}" + (f", attempt {log.attempt}" if log.attempt > 1 else "") for log in found)
    return "\n".join("\n".join([head, *log.lines]) for head, log in zip(heads, found, strict=True))


def document(found: Sequence[Log]) -> list[Value]:
    """Logs for programs."""
    return [{"node": log.node, "attempt": log.attempt, "file": log.file, "lines": list(log.lines)} for log in found]


def followed(store: Store, run: Run, node: str | None) -> Iterator[str]:
    """Lines as they are printed, until the run has ended."""
    tails: dict[int, Tail] = {}
    while True:
        over = store.run(run.pipeline, run.number).state.ended  # asked first, so that nothing after it is missed
        for execution in _of(store, run, node, may_come=not over):
            if execution.log:
                tail = tails.setdefault(execution.id, Tail(Path(execution.log)))
                prefix = "" if node is not None else f"{execution.node} | "
                lines = tail.rest() if over else tail.lines()
                yield from (f"{prefix}{line}" for line in lines)
        if over:
            return
        time.sleep(POLL_S)


def _of(store: Store, run: Run, node: str | None, *, may_come: bool = False) -> list[Execution]:
    executions = store.executions(run)
    found = [e for e in executions if node in (None, e.node)]
    if node is not None and not found and not (may_come and node in run.nodes):
        there = ", ".join(dict.fromkeys(e.node for e in executions)) or "none yet"
        raise NotRecorded(f"Run {run.name} has no {node!r}; its nodes so far: {there}.")
    return found
