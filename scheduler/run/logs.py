"""Logs of a run: what its nodes have printed, each to a file of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import as_document
from spanwise.scheduler.ledger.holder import is_left_open
from spanwise.scheduler.run.progress import Tail

POLL_S = 0.2
ARCHIVE_POLL_S = 1.0  # each look at the log of another machine is a request


@dataclass(frozen=True, kw_only=True)
class NodeLog:
    """The log of one attempt at one node."""

    node: str
    attempt: int
    file: str
    lines: tuple[str, ...]


def read_logs(store: Store, run: Run, node: str | None) -> list[NodeLog]:
    """The logs of a run, in the order in which its nodes began; reused nodes have none.

    Raises:
        NotRecorded: the run has no such node, or the node has no log because it was not executed.
    """
    executions = _executions(store, run, node)
    logs = [
        NodeLog(node=e.node, attempt=e.attempt, file=e.log, lines=tuple(Tail(Path(e.log), store.archive).rest()))
        for e in executions
        if e.log and (Path(e.log).is_file() or _is_archived(store, e.log))
    ]
    if node is not None and not logs:
        last = executions[-1]
        why = f": {last.reason}" if last.reason else ""
        raise NotRecorded(
            f"{node} of {run.name} has no log; it is {last.state.value}{why}. See:  spanwise show {run.name}"
        )
    return logs


def format_logs(logs: Sequence[NodeLog]) -> str:
    """Logs as text, each under the name of its node; a single log without it."""
    if not logs:
        return "No node of this run has printed anything."
    if len(logs) == 1:
        return "\n".join(logs[0].lines)
    heads = (f"== {log.node}" + (f", attempt {log.attempt}" if log.attempt > 1 else "") for log in logs)
    return "\n".join("\n".join([head, *log.lines]) for head, log in zip(heads, logs, strict=True))


def logs_document(logs: Sequence[NodeLog]) -> list[Value]:
    """Logs for programs."""
    return [as_document(log) for log in logs]


def follow_logs(store: Store, run: Run, node: str | None) -> Iterator[str]:
    """Yields lines as they are printed, until the run has ended or its controller is gone."""
    tails: dict[int, Tail] = {}
    while True:
        recorded = store.run(run.pipeline, run.number)  # read first, so that no line after it is missed
        over = recorded.state.ended or is_left_open(store, recorded)
        for execution in _executions(store, run, node, may_start=not over):
            if execution.log:
                tail = tails.setdefault(execution.id, Tail(Path(execution.log), store.archive))
                prefix = "" if node is not None else f"{execution.node} | "
                lines = tail.rest() if over else tail.lines()
                yield from (f"{prefix}{line}" for line in lines)
        if over:
            return
        time.sleep(POLL_S if store.archive is None else ARCHIVE_POLL_S)


def _is_archived(store: Store, log: str) -> bool:
    return store.archive is not None and bool(store.archive.read_log(log, most_bytes=1))


def _executions(store: Store, run: Run, node: str | None, *, may_start: bool = False) -> list[Execution]:
    executions = store.executions(run)
    chosen = [e for e in executions if node in (None, e.node)]
    if node is not None and not chosen and not (may_start and node in run.nodes):
        there = ", ".join(dict.fromkeys(e.node for e in executions)) or "none yet"
        raise NotRecorded(f"Run {run.name} has no {node!r}; its nodes so far: {there}.")
    return chosen
