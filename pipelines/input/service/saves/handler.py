"""How a dispatcher answers the requests about saves: those of who starts one, and of the workers that write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.saves.state import RunningSaves, SaveRecord, TakeShard, next_step
from spanwise.pipelines.input.service.wire.requests import (
    Acceptance,
    Done,
    EndSave,
    FailSave,
    KeepShard,
    LeaveSave,
    NextShard,
    NextStep,
    PollSave,
    Request,
    SaveProgress,
    SaveStep,
    StartSave,
    WaitForWriters,
    WriteShard,
)
from spanwise.pipelines.input.service.wire.server import Action, Answer

_DONE: Final = (Done(), b"")


class SavesContext(Protocol):
    """What of a dispatcher's state matters to saves."""

    @property
    def datasets(self) -> Mapping[str, object]: ...
    @property
    def workers(self) -> Mapping[str, object]: ...
    @property
    def saves(self) -> RunningSaves: ...


Decide: TypeAlias = Callable[[SavesContext], Sequence[SaveRecord]]


class ApplyChange(Protocol):
    """`DispatchServer.change`: applies the records that a function decides on; returns when they are on disk."""

    def __call__(self, decide: Decide, *, news: bool = True) -> object: ...


class SaveHandler:
    """Answers the requests about saves; a save that it does not know has ended."""

    def __init__(self, change: ApplyChange) -> None:
        self._change = change
        handlers: dict[type[Request[Any]], Callable[[Any, bytes], Answer]] = {
            StartSave: self._start,
            NextShard: self._next,
            KeepShard: self._keep,
            FailSave: self._fail,
            EndSave: self._end,
            PollSave: self._poll,
        }
        self.actions: dict[str, Action] = {kind.kind: (kind, handler) for kind, handler in handlers.items()}

    def _start(self, request: StartSave, _: bytes) -> Answer:
        def decide(state: SavesContext) -> list[SaveRecord]:
            if request.dataset not in state.datasets:
                raise ServiceError(f"dataset {request.dataset!r} is not registered with this dispatcher.")
            return [] if request.save in state.saves.by_id else [request]

        self._change(decide)
        return _DONE

    def _next(self, request: NextShard, _: bytes) -> Answer:
        step: SaveStep = LeaveSave()

        def decide(state: SavesContext) -> list[SaveRecord]:
            nonlocal step
            save = state.saves.by_id.get(request.save)
            if save is None:
                return []
            step = next_step(save, request.worker) if request.worker in state.workers else WaitForWriters()
            if isinstance(step, WriteShard) and step.shard not in save.writers:
                return [TakeShard(save=request.save, shard=step.shard, worker=request.worker)]
            return []

        self._change(decide, news=False)
        return NextStep(step=step), b""

    def _keep(self, request: KeepShard, _: bytes) -> Answer:
        is_kept = False

        def decide(state: SavesContext) -> list[SaveRecord]:
            nonlocal is_kept
            save = state.saves.by_id.get(request.save)
            if save is None or save.error:
                return []
            is_kept = save.written.get(request.shard) == request  # repeated, since the answer got lost
            if is_kept or save.writers.get(request.shard) != request.worker:
                return []
            is_kept = True
            return [request]

        self._change(decide, news=False)
        return Acceptance(kept=is_kept), b""

    def _fail(self, request: FailSave, _: bytes) -> Answer:
        def decide(state: SavesContext) -> list[SaveRecord]:
            save = state.saves.by_id.get(request.save)
            return [] if save is None or save.error else [request]

        self._change(decide, news=False)
        return _DONE

    def _end(self, request: EndSave, _: bytes) -> Answer:
        self._change(lambda state: [request] if request.save in state.saves.by_id else [], news=False)
        return _DONE

    def _poll(self, request: PollSave, _: bytes) -> Answer:
        progress = SaveProgress(going=False, written=0)

        def decide(state: SavesContext) -> list[SaveRecord]:
            nonlocal progress
            save = state.saves.by_id.get(request.save)
            if save is not None:
                progress = SaveProgress(going=True, written=len(save.written))
            return []

        self._change(decide, news=False)
        return progress, b""
