"""Progress of a run while it runs: a live table on a terminal, plain lines elsewhere.

Each node prints to a log file of its own. The logs of running nodes are followed here, and each line is shown with
the name of its node.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from spanwise.orchestrator.artifact import ArtifactArchive
from spanwise.orchestrator.run import BaseRun, Execution
from spanwise.orchestrator.run_request import Event
from spanwise.scheduler.formatting import (
    create_table,
    elapsed_s,
    format_duration,
    format_span,
    format_time,
    run_calendar,
    single_line,
    strip_control,
)

if TYPE_CHECKING:
    from rich.table import Table

TICK_S = 0.1
"""How often logs are read and the display is drawn."""

_MOST_BYTES = 1 << 20  # of one log at a time, so that a node that prints much does not hold up the display


class Display(Protocol):
    """Where lines and the state of nodes go."""

    def line(self, text: str) -> None:
        """One line of text, which stays."""

    def show_event(self, event: Event) -> None:
        """The run, or a node of it, has changed its state."""

    def show_output(self, node: str, text: str) -> None:
        """A node has printed a line."""

    def tick(self) -> None:
        """`TICK_S` has passed."""

    def close(self) -> None:
        """The run is over."""


@contextlib.contextmanager
def show_progress(display: Display) -> Iterator[Callable[[Event], None]]:
    """Yields an observer of a run that shows its events and its nodes' output on the display."""
    follower = Follower(display)
    warnings = _WarningHandler(display)
    logger = logging.getLogger("spanwise")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(warnings)
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(follower, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield follower.observe
    finally:
        ended.set()
        thread.join()
        display.close()
        logger.removeHandler(warnings)
        logger.propagate = propagate


def _follow(follower: Follower, ended: threading.Event) -> None:
    while not ended.wait(TICK_S):
        follower.poll()


class Follower:
    """Passes events and output on in order: the last lines of a node come before its end."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._logs: dict[str, Tail] = {}  # of running nodes
        self._lock = threading.Lock()

    def observe(self, event: Event) -> None:
        """Passes an event on, after the rest of its node's output."""
        with self._lock:
            if event.what == "node-started" and event.execution is not None:
                self._logs[event.node] = Tail(Path(event.execution.log))
            elif event.node in self._logs and event.what != "node-placed":
                self._show(event.node, self._logs.pop(event.node).rest())
            self._display.show_event(event)

    def poll(self) -> None:
        """Shows what running nodes have printed since the last time."""
        with self._lock:
            for node, tail in self._logs.items():
                self._show(node, tail.lines())
            self._display.tick()

    def _show(self, node: str, lines: list[str]) -> None:
        for text in lines:
            self._display.show_output(node, text)


@dataclass
class Tail:
    """The end of a growing file."""

    file: Path
    archive: ArtifactArchive | None = None  #: has the logs that other machines write
    _read_bytes: int = 0
    _partial: bytes = field(default=b"", repr=False)  # a line without its end

    def lines(self) -> list[str]:
        """The lines completed since the last call, without control characters."""
        new = self._read(self._read_bytes)
        self._read_bytes += len(new)
        *whole, self._partial = (self._partial + new).split(b"\n")
        return [strip_control(line.decode("utf-8", "replace")) for line in whole]

    def _read(self, start: int) -> bytes:
        """Some of the bytes from one on, from the archive if the file is another machine's."""
        try:
            with self.file.open("rb") as log:
                log.seek(start)
                return log.read(_MOST_BYTES)
        except FileNotFoundError:
            return b"" if self.archive is None else self.archive.read_log(str(self.file), start, _MOST_BYTES)

    def rest(self) -> list[str]:
        """All remaining lines, including a last one without its end."""
        remaining = []
        while lines := self.lines():
            remaining += lines
        if self._partial:
            remaining.append(strip_control(self._partial.decode("utf-8", "replace")))
            self._partial = b""
        return remaining


class Lines:
    """Each event and each line of output as a line of text. The run continues when nobody reads them any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def line(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except OSError:  # the reader is gone or the disk is full; the logs and the record are complete
            self._stream = None

    def show_event(self, event: Event) -> None:
        if text := format_event(event):
            self.line(text)

    def show_output(self, node: str, text: str) -> None:
        self.line(f"{node} | {text}")

    def tick(self) -> None:
        return

    def close(self) -> None:
        return


def format_event(event: Event) -> str:
    """An event as a line; empty for one that is not shown."""
    node, execution = event.node, event.execution
    duration = format_duration(elapsed_s(execution)) if execution is not None else ""
    reason = single_line(event.message.partition("\n")[0])  # the rest is in the summary at the end
    lines = {
        "run-started": f"Run {event.run.name} started: {', '.join(event.run.nodes)}",
        "base-run-chosen": _format_base_run(event.base) if event.base is not None else "",
        "abandoned-run-closed": f"Run {event.message} was abandoned and is now closed",
        "node-waiting": f"{node} waits: {reason}",
        "node-started": f"{node} started{_attempt(execution)}",
        "node-placed": f"{node} runs on {event.message}",
        "node-reused": f"{node} {'reused: ' * (not _chosen(execution))}{_reason(execution)}",
        "node-completed": f"{node} complete in {duration}",
        "node-failed": f"{node} failed after {duration}: {reason}",
        "retry-scheduled": f"{node} failed after {duration} and is retried: {reason}",
        "node-canceled": f"{node} canceled after {duration}",
        "node-skipped": f"{node} not reached: an input was not produced",
        "stop-requested": f"Stopping: {event.message}",
    }
    return lines.get(event.what, "")


def _format_base_run(base: BaseRun) -> str:
    assert base.run is not None, "the event says that there is one"
    span = "" if base.span is None else f" of span {format_span(base.span, run_calendar(base.run))}"
    return f"Run {base.run.name}{span} ({format_time(base.run.started)}) supplies {', '.join(base.executions)}"


def _chosen(execution: Execution | None) -> bool:
    return execution is not None and execution.chosen


def _attempt(execution: Execution | None) -> str:
    return f" (attempt {execution.attempt})" if execution is not None and execution.attempt > 1 else ""


def _reason(execution: Execution | None) -> str:
    return single_line(execution.reason or "") if execution is not None else ""


@dataclass
class _NodeState:
    state: str = "waiting"
    since: float | None = None  #: monotonic, while it runs
    took_s: float | None = None
    note: str = ""  #: why it was reused, how it failed, or the last line it printed


class Live:
    """A live table of the nodes below their output."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as Area

        self._console = Console(highlight=False)
        self._nodes: dict[str, _NodeState] = {}
        self._area = Area(console=self._console, auto_refresh=False, transient=False, get_renderable=self._draw)
        self._area.start()

    def line(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text), soft_wrap=True)

    def show_event(self, event: Event) -> None:
        if event.what == "run-started":
            self._nodes = {node: _NodeState() for node in event.run.nodes}
        if event.node:
            self._nodes[event.node] = _node_state(event, time.monotonic())
        elif event.what != "run-ended":
            self.line(format_event(event))
        self._area.refresh()

    def show_output(self, node: str, text: str) -> None:
        self.line(f"{node} | {text}")
        if node in self._nodes:
            self._nodes[node].note = text

    def tick(self) -> None:
        self._area.refresh()

    def close(self) -> None:
        self._area.stop()

    def _draw(self) -> Table:
        return draw_nodes(self._nodes, time.monotonic())


_STYLE = {
    "complete": "green",
    "reused": "cyan",
    "chosen": "cyan",
    "failed": "red",
    "canceled": "yellow",
    "running": "bold",
    "retrying": "yellow",
}
_STATE_WIDTH, _TOOK_WIDTH = len("not reached"), len("59 min 59 s")
_SPIN = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def draw_nodes(nodes: dict[str, _NodeState], now: float) -> Table:
    """The table at a moment of the monotonic clock."""
    from rich.text import Text

    widths = {"NODE": max(map(len, nodes), default=0), "STATE": _STATE_WIDTH, "TOOK": _TOOK_WIDTH}
    table = create_table(("NODE", "STATE", "TOOK", ""), widths=widths)
    table.expand = True
    table.columns[-1].ratio = 1  # takes the width that the others leave
    for name, node in nodes.items():
        spin = f"{_SPIN[int(now / TICK_S) % len(_SPIN)]} " if node.since is not None else ""
        took = format_duration(now - node.since if node.since is not None else node.took_s)
        state = Text(spin + node.state, _STYLE.get(node.state, ""))
        table.add_row(Text(name), state, took, Text(single_line(node.note), "dim"))
    return table


def _node_state(event: Event, now: float) -> _NodeState:
    took_s = elapsed_s(event.execution) if event.execution is not None else None
    state = event.what.removeprefix("node-")
    match state:
        case "started":
            return _NodeState("running", since=now)
        case "reused":
            return _NodeState(
                "chosen" if _chosen(event.execution) else state, took_s=took_s, note=_reason(event.execution)
            )
        case "completed":
            return _NodeState("complete", took_s=took_s)
        case "skipped":
            return _NodeState("not reached")
        case _:
            return _NodeState(state, took_s=took_s, note=event.message.partition("\n")[0])


class _WarningHandler(logging.Handler):
    """Shows the warnings of this program among the other lines."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        facts = [str(getattr(record, name, "")) for name in ("run", "node", "reason")]
        about = ": ".join(filter(None, facts))
        self._display.line(f"warning: {record.getMessage()}" + (f" ({single_line(about)})" if about else ""))
