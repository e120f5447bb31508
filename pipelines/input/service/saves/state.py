"""The state of saves: which shards of a snapshot are written, and by whom. Pure; part of the dispatcher's state.

A save ends in two steps: when all shards are written or one has failed, and when a worker has recorded this in the
snapshot's folder. So a dispatcher or worker that dies between the two leaves nothing undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from spanwise.pipelines.input.service.wire.requests import (
    AbandonSave,
    CommitSave,
    EndSave,
    FailSave,
    KeepShard,
    SaveStep,
    StartSave,
    WaitForWriters,
    WriteShard,
)


@dataclass(frozen=True, kw_only=True)
class TakeShard:
    """A worker has begun to write a shard."""

    save: str
    shard: int
    worker: str


SaveRecord: TypeAlias = StartSave | TakeShard | KeepShard | FailSave | EndSave


@dataclass(slots=True)
class RunningSave:
    start: StartSave
    writers: dict[int, str] = field(default_factory=dict)  #: the worker that writes a shard
    written: dict[int, KeepShard] = field(default_factory=dict)  #: by shard
    error: str = ""

    @property
    def is_written(self) -> bool:
        return len(self.written) == self.start.shards


class RunningSaves:
    """The saves that have not ended, by id. Changed by `apply` and `remove_worker` alone."""

    def __init__(self) -> None:
        self.by_id: dict[str, RunningSave] = {}

    def apply(self, record: SaveRecord) -> None:
        match record:
            case StartSave(save=save):
                self.by_id[save] = RunningSave(record)
            case TakeShard(save=save, shard=shard, worker=worker):
                self.by_id[save].writers[shard] = worker
            case KeepShard(save=save, shard=shard):
                self.by_id[save].writers.pop(shard, None)
                self.by_id[save].written[shard] = record
            case FailSave(save=save, error=error):
                self.by_id[save].error = error
            case EndSave(save=save):
                del self.by_id[save]

    def remove_worker(self, worker: str) -> None:
        """Leaves the shards of a lost worker to others."""
        for save in self.by_id.values():
            save.writers = {shard: writer for shard, writer in save.writers.items() if writer != worker}

    def records(self) -> Iterator[SaveRecord]:
        """Records that lead to this state."""
        for name, save in self.by_id.items():
            yield save.start
            yield from save.written.values()
            for shard, worker in save.writers.items():
                yield TakeShard(save=name, shard=shard, worker=worker)
            if save.error:
                yield FailSave(save=name, error=save.error)


def next_step(save: RunningSave, worker: str) -> SaveStep:
    """What a worker is to do next. A worker that asks again, since it got no answer, gets the same one."""
    if save.error:
        return AbandonSave(error=save.error)
    if save.is_written:
        return CommitSave(chunks=tuple(chunk for shard in sorted(save.written) for chunk in save.written[shard].chunks))
    for shard, writer in save.writers.items():
        if writer == worker:
            return WriteShard(shard=shard)
    for shard in range(save.start.shards):
        if shard not in save.written and shard not in save.writers:
            return WriteShard(shard=shard)
    return WaitForWriters()
