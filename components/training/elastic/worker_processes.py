"""The crew: processes of one program on this machine, started, watched, and started again when they die."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

GRACE_S: Final = 5.0
"""Between the end of the work and killing who has not ended by itself."""

_log = logging.getLogger("spanwise.elastic")


@dataclass(frozen=True)
class Member:
    """One process in one place of the crew."""

    name: str  #: unique; `worker 1`, and its successors `worker 1 (2)`
    place: int
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class Gone:
    """A member that has ended."""

    name: str
    place: int
    status: int  #: 0, its exit code, or less than 0 for the signal that killed it

    @property
    def how(self) -> str:
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with exit code {self.status}"


class Crew:
    """Processes that run `program` in a fresh interpreter, each given its own bytes on its input.

    A fork would take along the locks of Arrow's and Flight's threads, but not the threads. To be used by the main
    thread: the kernel kills them when the thread that started them ends.
    """

    def __init__(self, program: str, input_of: Callable[[str, int], bytes]) -> None:
        """`input_of` makes what a member is given, of its name and place; `program` may name `parent`, a process."""
        self._program = program
        self._input_of = input_of
        self._lives: dict[int, int] = {}
        self.members: list[Member] = []  #: that live, as far as is known

    def start(self, place: int) -> Member:
        """One more process in a place."""
        life = self._lives[place] = self._lives.get(place, 0) + 1
        name = f"worker {place + 1}" + (f" ({life})" if life > 1 else "")
        program = f"import sys; sys.path[:] = {sys.path!r}; parent = {os.getpid()}; {self._program}"
        started = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        member = Member(name, place, started)
        self.members.append(member)
        assert started.stdin is not None, "it was asked for"
        try:
            with started.stdin as line:
                line.write(self._input_of(name, place))
        except BrokenPipeError:
            _log.warning("elastic-worker-died-at-once", extra={"worker": name})
        return member

    def gone(self, wait_s: float = 0.0) -> list[Gone]:
        """Those that have ended since this was last asked; who waits, waits for the first of those that live."""
        if wait_s and self.members:
            with suppress(subprocess.TimeoutExpired):
                self.members[0].process.wait(wait_s)
        ended = [member for member in self.members if member.process.poll() is not None]
        self.members = [member for member in self.members if member not in ended]
        return [Gone(member.name, member.place, member.process.returncode) for member in ended]

    def end(self, grace_s: float = 0.0) -> None:
        """Waits for all of them, and kills those that are left after the grace."""
        for member in self.members:
            try:
                member.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
        self.members = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
