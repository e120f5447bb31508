"""A save on a worker: a thread that writes one shard after the other, and tells the snapshot's folder how it ended."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from spanwise.orchestrator.errors import ServiceError, SpanwiseError
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.iterator import DatasetIterator
from spanwise.pipelines.input.op import Op, Options, mixed
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.service.dispatcher import sharding
from spanwise.pipelines.input.service.saves.handler import ERROR_LETTERS
from spanwise.pipelines.input.service.saves.state import StartSave
from spanwise.pipelines.input.service.wire.connection import Connection, Unreachable
from spanwise.pipelines.input.service.worker.task import Stopped
from spanwise.pipelines.input.snapshot.encoding import encoding_of
from spanwise.pipelines.input.snapshot.folder import Folder
from spanwise.pipelines.input.snapshot.state import ChunkRecord
from spanwise.pipelines.input.snapshot.storage import files_at
from spanwise.pipelines.input.snapshot.use import SnapshotUse
from spanwise.pipelines.input.snapshot.writing import SplitWriter

_RETRY_S: Final = 0.1

_log = logging.getLogger(__name__)


class Saver:
    """Writes shards of one save until there are none left; `graph` gives the dataset as it was registered."""

    def __init__(
        self, save: StartSave, worker: str, dispatcher: Connection, graph: Callable[[str], tuple[Op, Options]]
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
    def _folder(self) -> Folder:
        return Folder(files_at(self._save.path), self._save.fingerprint)

    def _run(self) -> None:
        try:
            while self._act(self._ask("next_shard", worker=self._worker)):
                pass
        except Stopped:
            return
        except ServiceError:
            _log.exception("service-save-refused")

    def _ask(self, kind: str, **more: object) -> Any:
        """The dispatcher's answer; asks until there is one."""
        while not self._stopped.is_set():
            try:
                return self._dispatcher.call(kind, {"save": self._save.save, **more})[0]
            except Unreachable:
                self._stopped.wait(_RETRY_S)
        raise Stopped

    def _act(self, told: Any) -> bool:
        """Does what it was told; False if there is nothing more to do."""
        try:
            match told["do"]:
                case "write":
                    self._write(told["shard"])
                case "commit":
                    self._commit([_record(shard, *chunk) for shard, chunk in told["chunks"]])
                case "giveup":
                    self._give_up(told["error"])
                case "wait":
                    self._stopped.wait(_RETRY_S)
                case _:
                    return False
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, who saves has to hear of it
            _log.warning("service-save-failed", extra={"snapshot": self._save.path, "reason": str(error)})
            words = str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}"
            self._ask("fail_save", error=words[:ERROR_LETTERS])
        return True

    # A shard.

    def _write(self, shard: int) -> None:
        with self._folder.using(self._save.save):
            chunks = self._written(shard)
        told = [[each.file, each.first, each.elements, each.size_bytes, each.checksum] for each in chunks]
        if not self._ask("keep_shard", worker=self._worker, shard=shard, chunks=told)["kept"]:
            self._remove({each.file for each in chunks})

    def _written(self, shard: int) -> list[ChunkRecord]:
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
                    mark=secrets.token_hex(4),  # another worker that was given the shard may be at it still
                )
                with elements:
                    for piece in elements:
                        if self._stopped.is_set():
                            raise Stopped
                        writer.add(piece)
                        if writer.is_full:
                            writer.seal()
            return [] if writer is None else writer.finish()
        finally:
            if writer is not None:
                writer.close()

    def _passes(self, shard: int) -> Iterator[tuple[DatasetIterator, Op]]:
        """A pass over each split of a shard."""
        save = self._save
        op, options = self._graph(save.dataset)
        planned = sharding.planned(op, options)
        for number, part in sharding.of_save(planned, save.shards, shard):
            seed = mixed(save.seed if options.seed is None else options.seed, number)
            alone = options.autotune and save.shards == 1
            how = replace(options, seed=seed, optimize=False, autotune=alone, deterministic=True)
            yield DatasetIterator(part, how, 0, blocks=in_rows(part), dataset=Dataset), part

    def _remove(self, files: set[str]) -> None:
        for file in files:
            self._folder.files.remove(f"{self._folder.fingerprint}/{self._save.save}/{file}")

    # The end.

    def _commit(self, chunks: list[ChunkRecord]) -> None:
        """Makes what was written the snapshot. Who does it once more, does nothing."""
        run = self._folder.look().pending
        whole = None if run is None else replace(run, complete=True, chunks=tuple(chunks), splits=self._save.shards)
        if whole is None or whole.run_id != self._save.save or not self._folder.commit(whole, over=False):
            raise ServiceError("another run has taken its place.")
        self._remove(set(self._folder.chunk_files(self._save.save)) - {each.file for each in chunks})
        self._ask("end_save")

    def _give_up(self, error: str) -> None:
        try:
            self._folder.fail(self._save.save, error)
        except (OSError, SpanwiseError) as failure:
            _log.warning("service-save-unmarked", extra={"snapshot": self._save.path, "reason": str(failure)})
        self._ask("end_save")


def _record(shard: int, file: str, first: int, elements: int, size_bytes: int, checksum: str) -> ChunkRecord:
    return ChunkRecord(file=file, split=shard, first=first, elements=elements, size_bytes=size_bytes, checksum=checksum)
