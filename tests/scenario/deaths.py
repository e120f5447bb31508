"""Deaths and restores in a history: a command that ends in its middle, and a root that is as it was before.

With the doubles of `inline` a command dies between two calls of its store: from then on the store answers nothing, and
the process that held the lease is gone. Or the store is only away, for one call or until the command ends, with which
the command has to cope.
With real processes it is killed by SIGKILL at a moment drawn by chance.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.store import MemoryStore
from tests.scenario.processes import Marked, kill

Outage = Literal["once", "from then on"]

CALLS = 130  # of the store, in a run that trains on a full window
BUSY_S = 4.0  # of a real run, on a machine that does other things too
DEADLINE_S = 120.0


class Died(BaseException):
    """The process is no more; nothing catches it, and whatever tidies up finds the store gone."""


class MortalStore:
    """A store whose process dies at one of its calls, before or after that call has done its work; or that is away."""

    def __init__(self, store: MemoryStore, calls: int, *, before: bool, end: BaseException, once: bool) -> None:
        self._store, self._left, self._before, self._end, self._once = store, calls, before, end, once

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        return self._mortal(found) if callable(found) else found

    def _mortal(self, call: Callable[..., object]) -> Callable[..., object]:
        def mortal(*arguments: object, **named: object) -> object:
            self._left -= 1
            if (self._left < 0 and not self._once) or (self._left == 0 and self._before):
                raise self._end
            answer = call(*arguments, **named)
            if self._left == 0:
                raise self._end
            return answer

        return mortal


@cache
def dead_process() -> Identity:
    """A process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        return process.identity(child.pid)


class InlineDeaths:
    """Deaths and restores where the metadata are in memory."""

    def __init__(self, folder: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._store, self._monkeypatch = folder, store, monkeypatch
        self._saved: dict[str, object] = {}

    def kill_during(self, call: Callable[[], object], moment: float, *, outage: Outage | None = None) -> None:
        """Calls a command that dies at this moment: from 0, before its first call of the store, to 1.

        In an `outage` it does not die: the store is away from then on, or for one call.
        """
        calls, end = int(moment * 2 * CALLS), Died() if outage is None else StoreUnavailable("The metadata is away.")
        mortal = MortalStore(self._store, 1 + calls // 2, before=bool(calls % 2), end=end, once=outage == "once")

        @contextlib.contextmanager
        def opened(_settings: object, **_: object) -> Iterator[MortalStore]:
            yield mortal

        gone = dead_process()
        with self._monkeypatch.context() as patched:
            for name in ("open_for_writing", "open_for_reading", "open_to_record"):
                patched.setattr(f"spanwise.scheduler.project.root.{name}", opened)
            patched.setattr("spanwise.orchestrator.process.identity", lambda _pid=None: gone)
            with contextlib.suppress(Died):
                call()

    def back_up(self) -> None:
        self._saved = copy.deepcopy({n: v for n, v in vars(self._store).items() if n not in self._locks()})
        copied = self._folder / "backup"
        shutil.rmtree(copied, ignore_errors=True)
        (self._folder / ".spanwise").mkdir(exist_ok=True)  # a run may have died before it wrote a file
        shutil.copytree(self._folder / ".spanwise", copied, symlinks=True)

    def restore(self) -> None:
        vars(self._store).update(copy.deepcopy(self._saved))
        shutil.rmtree(self._folder / ".spanwise")
        shutil.copytree(self._folder / "backup", self._folder / ".spanwise", symlinks=True)

    def _locks(self) -> list[str]:
        return [
            name for name, value in vars(self._store).items() if type(value).__module__ == "_thread" or callable(value)
        ]


class RealDeaths:
    """Deaths and restores of real processes and of ML Metadata on a disk."""

    def __init__(self, folder: Path, spanwise: Callable[..., int]) -> None:
        self._folder, self._spanwise = folder, spanwise

    def kill_during(self, words: list[str], moment: float) -> None:
        """Kills the controller of a command at this moment: from 0, its start, to 1."""
        run = Marked("spanwise", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + moment * BUSY_S
            while time.monotonic() < until and run.process.poll() is None:
                time.sleep(0.01)
            kill(run.pid, signal.SIGKILL)
            run.process.wait(timeout=DEADLINE_S)
            assert run.gone_within(DEADLINE_S) == []
        finally:
            run.end()

    def back_up(self) -> None:
        shutil.rmtree(self._folder / "backup", ignore_errors=True)
        assert self._spanwise("backup", "backup") == 0

    def restore(self) -> None:
        shutil.rmtree(self._folder / ".spanwise")
        assert self._spanwise("restore", "backup") == 0
