"""A worker's part in a save: a thread that writes one shard after the other and records in the folder how it ended."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final

from spanwise.orchestrator.errors import ServiceError, SpanwiseError, UnreadableInput
from spanwise.pipelines.input.graph.fingerprint import digest_files
from spanwise.pipelines.input.iterator import DatasetIterator
from spanwise.pipelines.input.op import Op, mix_seed
from spanwise.pipelines.input.ops.cache import with_own_caches
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.service.sharding.splits import plan_graph, share_seeds, splits_of_shard
from spanwise.pipelines.input.service.wire.connection import CallCanceled
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.requests import (
    AbandonSave,
    CommitSave,
    EndSave,
    FailSave,
    KeepShard,
    LeaveSave,
    NextShard,
    SaveStep,
    StartSave,
    WaitForWriters,
    WriteShard,
)
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph
from spanwise.pipelines.input.snapshot.encoding import encoding_of
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.split_writer import SplitWriter
from spanwise.pipelines.input.snapshot.state import ChunkRecord
from spanwise.pipelines.input.snapshot.storage import files_at
from spanwise.pipelines.input.snapshot.use import SnapshotUse
from spanwise.pipelines.input.snapshot.writing import input_seed

_RETRY_S: Final = 0.1
_ERROR_LETTERS: Final = 9_000

_log = logging.getLogger("spanwise.service.saves")


class Saver:
    """Writes shards of one save until none are left; `graph` returns a registered dataset."""

    def __init__(
        self, save: StartSave, worker: str, dispatcher: DispatcherConnection, graph: Callable[[str], ShippedGraph]
    ) -> None:
        self._save = save
        self._worker = worker
        self._dispatcher = dispatcher
        self._graph = graph
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="service-save", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    @cached_property
    def _folder(self) -> SnapshotFolder:
        return SnapshotFolder(files_at(self._save.path), self._save.fingerprint)

    def _run(self) -> None:
        request = NextShard(save=self._save.save, worker=self._worker)
        try:
            while True:
                answer, _ = self._dispatcher.ask_until_answered(request, self._stopped)
                if isinstance(answer.step, LeaveSave):
                    return
                self._try(answer.step)
        except CallCanceled:
            return
        except ServiceError:
            _log.exception("save-refused")

    def _try(self, step: SaveStep) -> None:
        try:
            self._perform(step)
        except CallCanceled:
            raise
        except Exception as error:  # noqa: BLE001  any error must reach whoever waits for the save
            _log.warning("save-failed", extra={"snapshot": self._save.path, "reason": str(error)})
            text = str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}"
            failure = FailSave(save=self._save.save, error=text[:_ERROR_LETTERS] or "unknown error")
            self._dispatcher.ask_until_answered(failure, self._stopped)

    def _perform(self, step: SaveStep) -> None:
        match step:
            case WriteShard(shard=shard):
                self._write(shard)
            case CommitSave(chunks=chunks):
                self._commit(chunks)
            case AbandonSave(error=error):
                self._abandon(error)
            case WaitForWriters():
                self._stopped.wait(_RETRY_S)

    # A shard.

    def _write(self, shard: int) -> None:
        with self._folder.mark_used(self._save.save):
            chunks = self._write_chunks(shard)
        request = KeepShard(save=self._save.save, worker=self._worker, shard=shard, chunks=tuple(chunks))
        answer, _ = self._dispatcher.ask_until_answered(request, self._stopped)
        if not answer.kept:
            self._remove(each.file for each in chunks)

    def _write_chunks(self, shard: int) -> list[ChunkRecord]:
        writer: SplitWriter | None = None
        try:
            for elements, op in self._passes(shard):
                writer = writer or SplitWriter(
                    self._folder,
                    self._save.save,
                    encoding_of(op.spec),
                    SnapshotUse(path=self._save.path),
                    split=shard,
                    compression=self._save.compression,
                    mark=secrets.token_hex(4),  # another worker may still write the same shard
                )
                with elements:
                    for piece in elements:
                        if self._stopped.is_set():
                            raise CallCanceled
                        writer.add(piece)
                        if writer.is_full:
                            writer.seal()
            return [] if writer is None else writer.finish()
        finally:
            if writer is not None:
                writer.close()

    def _passes(self, shard: int) -> Iterator[tuple[DatasetIterator, Op]]:
        """A pass over each split of a shard; in the order of a pass that writes the snapshot, if they have a seed."""
        save = self._save
        graph = self._graph(save.dataset)
        options = graph.options
        shared = save.seed if options.seed is None else input_seed(options.seed)
        whole, is_one = plan_graph(graph.op, options), save.shards == 1
        for number, part in splits_of_shard(whole if is_one else share_seeds(whole, shared), save.shards, shard):
            seed = shared if is_one else mix_seed(shared, number)
            autotune = options.autotune and is_one
            settings = replace(options, seed=seed, optimize=False, autotune=autotune, deterministic=True)
            yield DatasetIterator(with_own_caches(part), settings, 0, blocks=in_rows(part), dataset=graph.flow), part

    def _remove(self, files: Iterable[str]) -> None:
        for file in files:
            self._folder.files.remove(f"{self._folder.fingerprint}/{self._save.save}/{file}")

    # The end.

    def _commit(self, chunks: tuple[ChunkRecord, ...]) -> None:
        """Makes what was written the snapshot. Committing it again changes nothing."""
        run = self._folder.look().pending
        if run is not None and run.files != digest_files(self._graph(self._save.dataset).op):
            raise UnreadableInput(
                "a source file changed while it was read, so nothing was saved: rows of two states of it may be in it. "
                "Create the dataset again and save it when its files no longer change."
            )
        final = None if run is None else replace(run, complete=True, chunks=chunks, splits=self._save.shards)
        if final is None or final.run_id != self._save.save or not self._folder.commit(final, over=False):
            raise ServiceError("another run has taken its place.")
        self._remove(set(self._folder.chunk_files(self._save.save)) - {each.file for each in chunks})
        self._end()

    def _abandon(self, error: str) -> None:
        try:
            self._folder.fail(self._save.save, error)
        except (OSError, SpanwiseError) as failure:
            _log.warning("save-failure-unrecorded", extra={"snapshot": self._save.path, "reason": str(failure)})
        self._end()

    def _end(self) -> None:
        self._dispatcher.ask_until_answered(EndSave(save=self._save.save), self._stopped)
