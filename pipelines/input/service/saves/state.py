"""Saves: which shards of a snapshot are written, and which worker writes one. Pure; a part of the dispatcher's state.

A save ends twice: when all shards are written or one has failed, and then when a worker has told the snapshot's folder.
So a dispatcher or worker that dies between the two leaves nothing undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Chunk: TypeAlias = tuple[str, int, int, int, str]
"""A finished file: its name, elements before it in the shard, elements, bytes, checksum."""


@dataclass(frozen=True, kw_only=True)
class StartSave:
    save: str  #: its id: that of the run in the snapshot's folder
    dataset: str
    path: str  #: of the snapshot, as workers reach it
    fingerprint: str
    compression: str
    shards: int
    seed: int  #: of what the dataset leaves to chance


@dataclass(frozen=True, kw_only=True)
class TakeShard:
    save: str
    shard: int
    worker: str


@dataclass(frozen=True, kw_only=True)
class KeepShard:
    """A shard is written, in these files."""

    save: str
    shard: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class FailSave:
    save: str
    error: str


@dataclass(frozen=True, kw_only=True)
class EndSave:
    """The snapshot's folder says what became of it."""

    save: str


SaveRecord: TypeAlias = StartSave | TakeShard | KeepShard | FailSave | EndSave


@dataclass(slots=True)
class Save:
    made: StartSave
    writing: dict[int, str] = field(default_factory=dict)  #: shards, and the workers that write them
    written: dict[int, tuple[Chunk, ...]] = field(default_factory=dict)
    error: str = ""

    @property
    def is_written(self) -> bool:
        return len(self.written) == self.made.shards


class Saves:
    """The saves that go on, by their ids. Changed by `apply` and `lose` alone."""

    def __init__(self) -> None:
        self.going: dict[str, Save] = {}

    def apply(self, record: SaveRecord) -> None:
        match record:
            case StartSave(save=save):
                self.going[save] = Save(record)
            case TakeShard(save=save, shard=shard, worker=worker):
                self.going[save].writing[shard] = worker
            case KeepShard(save=save, shard=shard, chunks=chunks):
                self.going[save].writing.pop(shard, None)
                self.going[save].written[shard] = chunks
            case FailSave(save=save, error=error):
                self.going[save].error = error
            case EndSave(save=save):
                del self.going[save]

    def lose(self, worker: str) -> None:
        """What a worker was writing that is gone, another one writes."""
        for save in self.going.values():
            save.writing = {shard: writer for shard, writer in save.writing.items() if writer != worker}

    def records(self) -> Iterator[SaveRecord]:
        """Records that make the same again."""
        for name, save in self.going.items():
            yield save.made
            for shard, chunks in save.written.items():
                yield KeepShard(save=name, shard=shard, chunks=chunks)
            for shard, worker in save.writing.items():
                yield TakeShard(save=name, shard=shard, worker=worker)
            if save.error:
                yield FailSave(save=name, error=save.error)


@dataclass(frozen=True)
class Write:
    shard: int


@dataclass(frozen=True)
class Commit:
    """All is written: the folder is to be told which files make the snapshot, in this order."""

    chunks: tuple[tuple[int, Chunk], ...]  #: each with its shard


@dataclass(frozen=True)
class GiveUp:
    """The folder is to be told why there will be no snapshot."""

    error: str


@dataclass(frozen=True)
class Wait:
    """Others write what is left."""


Next: TypeAlias = Write | Commit | GiveUp | Wait


def next_of(save: Save, worker: str) -> Next:
    """What a worker is to do next. One that asks again, since no answer has come, is told the same."""
    if save.error:
        return GiveUp(save.error)
    if save.is_written:
        return Commit(tuple((shard, chunk) for shard in sorted(save.written) for chunk in save.written[shard]))
    for shard, writer in save.writing.items():
        if writer == worker:
            return Write(shard)
    for shard in range(save.made.shards):
        if shard not in save.written and shard not in save.writing:
            return Write(shard)
    return Wait()
