"""Saves, as a dispatcher is asked about them: by who starts one, and by the workers that write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import BaseModel, Field

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.saves import state as saves
from spanwise.pipelines.input.service.saves.state import SaveRecord
from spanwise.pipelines.input.service.wire.requests import Name, Number, Request, Text

if TYPE_CHECKING:
    from spanwise.pipelines.input.service.dispatcher.state import State

Answer: TypeAlias = tuple[dict[str, Any], bytes]
Action: TypeAlias = tuple[type[BaseModel], Callable[[Any, bytes], Answer]]

MOST_SHARDS = 10_000
ERROR_LETTERS = 9_000


class OfSave(Request):
    save: Name


class StartSave(OfSave):
    dataset: Name
    path: Text
    fingerprint: Name
    compression: Literal["auto", "none", "lz4", "zstd"]
    shards: Annotated[int, Field(gt=0, le=MOST_SHARDS)]
    seed: Number


class NextShard(OfSave):
    worker: Name


class KeepShard(OfSave):
    worker: Name
    shard: Number
    chunks: Annotated[tuple[tuple[Name, Number, Number, Number, Name], ...], Field(max_length=MOST_SHARDS)]


class FailSave(OfSave):
    error: Text


class Change(Protocol):
    """`DispatchServer._change`: decides on records, and comes back when they are noted."""

    def __call__(self, decide: Callable[[State], Sequence[SaveRecord]], *, news: bool = True) -> object: ...


class Saving:
    """The requests about saves; an unknown save is one that is over."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self.actions: dict[str, Action] = {
            "start_save": (StartSave, self._start),
            "next_shard": (NextShard, self._next),
            "keep_shard": (KeepShard, self._keep),
            "fail_save": (FailSave, self._fail),
            "end_save": (OfSave, self._end),
            "look_save": (OfSave, self._look),
        }

    def _start(self, request: StartSave, _: bytes) -> Answer:
        def decide(state: State) -> list[SaveRecord]:
            if request.dataset not in state.datasets:
                raise ServiceError(f"dataset {request.dataset!r} is not registered with this dispatcher.")
            return [] if request.save in state.saves.going else [saves.StartSave(**request.model_dump())]

        self._change(decide)
        return {}, b""

    def _next(self, request: NextShard, _: bytes) -> Answer:
        answer: dict[str, Any] = {"do": "end"}

        def decide(state: State) -> list[SaveRecord]:
            save = state.saves.going.get(request.save)
            if save is None:
                return []
            found = saves.next_of(save, request.worker) if request.worker in state.workers else saves.Wait()
            answer.update(asdict(found), do=type(found).__name__.lower())
            if isinstance(found, saves.Write) and found.shard not in save.writing:
                return [saves.TakeShard(save=request.save, shard=found.shard, worker=request.worker)]
            return []

        self._change(decide, news=False)
        return answer, b""

    def _keep(self, request: KeepShard, _: bytes) -> Answer:
        kept = False

        def decide(state: State) -> list[SaveRecord]:
            nonlocal kept
            save = state.saves.going.get(request.save)
            if save is None or save.error:
                return []
            kept = save.written.get(request.shard) == request.chunks  # asked again, since no answer has come
            if kept or save.writing.get(request.shard) != request.worker:
                return []
            kept = True
            return [saves.KeepShard(save=request.save, shard=request.shard, chunks=request.chunks)]

        self._change(decide, news=False)
        return {"kept": kept}, b""

    def _fail(self, request: FailSave, _: bytes) -> Answer:
        def decide(state: State) -> list[SaveRecord]:
            save = state.saves.going.get(request.save)
            if save is None or save.error:
                return []
            return [saves.FailSave(save=request.save, error=request.error or "no reason was given")]

        self._change(decide, news=False)
        return {}, b""

    def _end(self, request: OfSave, _: bytes) -> Answer:
        self._change(
            lambda state: [saves.EndSave(save=request.save)] if request.save in state.saves.going else [], news=False
        )
        return {}, b""

    def _look(self, request: OfSave, _: bytes) -> Answer:
        found: dict[str, Any] = {}

        def decide(state: State) -> list[SaveRecord]:
            save = state.saves.going.get(request.save)
            found.update(going=save is not None, written=len(save.written) if save is not None else 0)
            return []

        self._change(decide, news=False)
        return found, b""
