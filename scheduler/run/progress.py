"""Progress: what a run is doing, shown while it does it: a live table on a terminal, plain lines elsewhere.

What nodes print goes to a file each; those of running nodes are followed here, and each line is shown under the
name of its node.
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

from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.runner import Event
from spanwise.scheduler.inspect.formatting import plain, seconds, took, uncontrolled

if TYPE_CHECKING:
    from rich.table import Table

TICK_S = 0.1
"""How often logs are looked at and the display is drawn."""

_MOST_BYTES = 1 << 20  # of one log at one look; what a node prints must not hold up what shows it


class Display(Protocol):
    """Where lines and the state of nodes go."""

    def line(self, text: str) -> None:
        """One line of text, which stays."""

    def changed(self, event: Event) -> None:
        """A node has another state."""

    def printed(self, node: str, text: str) -> None:
        """A node has printed a line."""

    def tick(self) -> None:
        """Some time has passed."""

    def close(self) -> None:
        """Nothing more will come."""


@contextlib.contextmanager
def shown(display: Display) -> Iterator[Callable[[Event], None]]:
    """Gives the observer of a run, and follows its nodes' logs until the run is over."""
    follower = Follower(display)
    warnings = _Warnings(display)
    logger = logging.getLogger("spanwise")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(warnings)
    ended = threading.Event()
    thread = threading.Thread(target=_live, args=(follower, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield follower.observe
    finally:
        ended.set()
        thread.join()
        display.close()
        logger.removeHandler(warnings)
        logger.propagate = propagate


def _live(follower: Follower, ended: threading.Event) -> None:
    while not ended.wait(TICK_S):
        follower.look()


class Follower:
    """Passes events and printed lines on in the order in which they belong: a node's last words before its end."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._logs: dict[str, Tail] = {}  # of running nodes
        self._lock = threading.Lock()

    def observe(self, event: Event) -> None:
        """Takes an event of the run."""
        with self._lock:
            if event.what == "node-started" and event.execution is not None:
                self._logs[event.node] = Tail(Path(event.execution.log))
            elif event.node in self._logs:
                self._show(event.node, self._logs.pop(event.node).rest())
            self._display.changed(event)

    def look(self) -> None:
        """Shows what running nodes have printed meanwhile."""
        with self._lock:
            for node, tail in self._logs.items():
                self._show(node, tail.lines())
            self._display.tick()

    def _show(self, node: str, lines: list[str]) -> None:
        for text in lines:
            self._display.printed(node, text)


@dataclass
class Tail:
    """The end of a growing file."""

    file: Path
    _read_bytes: int = 0
    _begun: bytes = field(default=b"", repr=False)  # a line whose end has not come

    def lines(self) -> list[str]:
        """The lines that were completed since the last look, without control characters."""
        try:
            with self.file.open("rb") as log:
                log.seek(self._read_bytes)
                new = log.read(_MOST_BYTES)
        except FileNotFoundError:
            return []
        self._read_bytes += len(new)
        *whole, self._begun = (self._begun + new).split(b"\n")
        return [uncontrolled(line.decode("utf-8", "replace")) for line in whole]

    def rest(self) -> list[str]:
        """All that is left, also a last line without an end."""
        found = []
        while lines := self.lines():
            found += lines
        if self._begun:
            found.append(uncontrolled(self._begun.decode("utf-8", "replace")))
            self._begun = b""
        return found


class Lines:
    """Each event and each printed line as a line of text. When nobody reads them any more, the run goes on unseen."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def line(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except OSError:  # the reader has gone, or the disk behind it is full; the logs and the record have it all
            self._stream = None

    def changed(self, event: Event) -> None:
        text = told(event)
        if text:
            self.line(text)

    def printed(self, node: str, text: str) -> None:
        self.line(f"{node} | {text}")

    def tick(self) -> None:
        return

    def close(self) -> None:
        return


def told(event: Event) -> str:
    """An event in words; empty for one that needs none."""
    node, execution = event.node, event.execution
    length = took(seconds(execution)) if execution is not None else ""
    reason = plain(event.message.partition("\n")[0])  # the lines below it come with the summary
    words = {
        "run-started": f"Run {event.run.name} started: {', '.join(event.run.nodes)}",
        "abandoned-run-closed": f"Run {event.message} was abandoned; it is closed now",
        "node-started": f"{node} started{_attempt(execution)}",
        "node-reused": f"{node} {'reused: ' * (not _chosen(execution))}{_reason(execution)}",
        "node-completed": f"{node} complete in {length}",
        "node-failed": f"{node} failed after {length}: {reason}",
        "node-retrying": f"{node} failed after {length}, and is tried again: {reason}",
        "node-canceled": f"{node} canceled after {length}",
        "node-skipped": f"{node} not reached: what it reads from was not made",
        "run-stopping": f"Stopping, because of {event.message}",
    }
    return words.get(event.what, "")


def _chosen(execution: Execution | None) -> bool:
    return execution is not None and execution.chosen


def _attempt(execution: Execution | None) -> str:
    return f" (attempt {execution.attempt})" if execution is not None and execution.attempt > 1 else ""


def _reason(execution: Execution | None) -> str:
    return plain(execution.reason or "") if execution is not None else ""


@dataclass
class _Row:
    state: str = "waiting"
    since: float | None = None  #: monotonic, while it runs
    took_s: float | None = None
    said: str = ""  #: why it was reused, how it failed, or the last line it printed


class Live:
    """A table of the nodes that is drawn anew, and above it what the nodes print."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as Area

        self._console = Console(highlight=False)
        self._rows: dict[str, _Row] = {}
        self._area = Area(console=self._console, auto_refresh=False, transient=False, get_renderable=self._drawn)
        self._area.start()

    def line(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text), soft_wrap=True)

    def changed(self, event: Event) -> None:
        if event.what == "run-started":
            self._rows = {node: _Row() for node in event.run.nodes}
        if event.node:
            self._rows[event.node] = _row(event, time.monotonic())
        elif event.what != "run-ended":
            self.line(told(event))
        self._area.refresh()

    def printed(self, node: str, text: str) -> None:
        self.line(f"{node} | {text}")
        if node in self._rows:
            self._rows[node].said = text

    def tick(self) -> None:
        self._area.refresh()

    def close(self) -> None:
        self._area.stop()

    def _drawn(self) -> Table:
        return drawn(self._rows, time.monotonic())


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


def drawn(rows: dict[str, _Row], now: float) -> Table:
    """The table at a moment of the monotonic clock."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    for name, width in (("NODE", max(map(len, rows), default=0)), ("STATE", _STATE_WIDTH), ("TOOK", _TOOK_WIDTH)):
        table.add_column(name, no_wrap=True, min_width=width)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)  # gets what the others leave
    for node, row in rows.items():
        spin = f"{_SPIN[int(now / TICK_S) % len(_SPIN)]} " if row.since is not None else ""
        took_s = now - row.since if row.since is not None else row.took_s
        said = plain(row.said)
        table.add_row(Text(node), Text(spin + row.state, _STYLE.get(row.state, "")), took(took_s), Text(said, "dim"))
    return table


def _row(event: Event, now: float) -> _Row:
    took_s = seconds(event.execution) if event.execution is not None else None
    state = event.what.removeprefix("node-")
    match state:
        case "started":
            return _Row("running", since=now)
        case "reused":
            return _Row("chosen" if _chosen(event.execution) else state, took_s=took_s, said=_reason(event.execution))
        case "completed":
            return _Row("complete", took_s=took_s)
        case "skipped":
            return _Row("not reached")
        case _:
            return _Row(state, took_s=took_s, said=event.message.partition("\n")[0])


class _Warnings(logging.Handler):
    """Shows the program's own warnings among the other lines."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        facts = [str(getattr(record, name, "")) for name in ("run", "node", "reason")]
        about = ": ".join(filter(None, facts))
        self._display.line(f"warning: {record.getMessage()}" + (f" ({plain(about)})" if about else ""))
