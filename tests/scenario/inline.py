"""Nodes in this process and metadata in memory: the doubles that let hundreds of histories run in a minute.

Everything else is the real command line: it parses, loads, resolves, drives, publishes and prints as always.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from spanwise.orchestrator import loose_ends, node_process
from spanwise.orchestrator.job import JobEnded, NodeJob
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.store import MemoryStore, Store


class InlineExecutor:
    """Does the work of a node at once, where `Executor` has a process do it; see there for the methods."""

    mark = 0  # no process carries it
    engine = ""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._ended: list[JobEnded] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(each.id for each in self._ended)

    def has_room(self, node: str) -> bool:
        return True

    def silence_s(self, node: str) -> float:
        return 0.0

    def start(self, job: NodeJob) -> None:
        log = Path(job.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("a") as printed, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                made = node_process._work(self._pipeline, job, _Line())
            self._ended.append(JobEnded(id=job.id, outputs=made))
        except Exception as error:  # noqa: BLE001  as a process of its own reports every error
            self._ended.append(JobEnded(id=job.id, failure=node_process._failure(error, job)))

    def spare(self, node: str) -> None:
        pass

    def wait(self, timeout_s: float) -> list[JobEnded]:
        ended, self._ended = self._ended, []
        return ended

    def stop(self, job: int, why: str, **_: object) -> None:
        pass

    def wake(self) -> None:
        pass

    def sweep(self) -> list[object]:
        return []

    def close(self) -> None:
        pass


class _Line:
    """Where a node asks whether the lease still holds: it does."""

    def send(self, message: object) -> None:
        pass

    def recv(self) -> None:
        return None


def run_inline(monkeypatch: pytest.MonkeyPatch, store: Store | None = None) -> Store:
    """Lets commands run their nodes here, on one store that outlives each of them; returns that store."""
    store = store or MemoryStore()

    @contextlib.contextmanager
    def opened(_settings: object, **_: object) -> Iterator[Store]:
        yield store

    monkeypatch.setattr(loose_ends, "tie_up", lambda spared: None)  # what is open for writing here is the tests' own
    for module in ("run.launch", "backfill.command"):
        monkeypatch.setattr(
            f"spanwise.scheduler.{module}.open_executor", lambda pipeline, _settings: InlineExecutor(pipeline)
        )
    for name in ("open_for_writing", "open_for_reading", "open_to_record"):
        monkeypatch.setattr(f"spanwise.scheduler.project.root.{name}", opened)
    return store
