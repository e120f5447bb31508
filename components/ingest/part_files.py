"""Files that one worker writes of a part: a Parquet file in each output split, and its rejected rows."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

from spanwise.components.ingest.plan import PartFile
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.readers.columns import rejection_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from spanwise.components.ingest.readers import Rejected

#: Rows in a row group: large enough for fast columns, small enough to be held for every split at once.
GROUP_ROWS = 1 << 16
#: Wide rows make shorter groups.
GROUP_BYTES = 64 << 20
#: Longer groups are written before more rows are read, so that two of them are not held at once.
HELD_BYTES = 16 << 20
#: How many rejected rows a report shows.
EXAMPLES = 10


def rejects_name(split: str, index: int) -> str:
    """The file that holds the rejected rows of a part, until those of all parts are joined."""
    return f".{split}-{index:05d}.jsonl"


class DraftFile:
    """A file that is whole when it appears under its name, and leaves nothing behind when it fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._draft = path.with_name(path.name + ".tmp")

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._open(self._draft)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
            self._close()
            if kind is None:
                self._draft.replace(self.path)
        finally:
            self._draft.unlink(missing_ok=True)

    def _open(self, path: Path) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        """Writes what is left."""

    def _close(self) -> None:
        raise NotImplementedError


class SplitFile(DraftFile):
    """One Parquet file, in row groups whose sizes do not depend on the batches that come in.

    A thread of its own writes a row group while the rows of the next one come in.
    """

    def __init__(self, destination: str, split: str, index: int, schema: pa.Schema) -> None:
        self._split = split
        self._name = f"part-{index:05d}.parquet"
        super().__init__(Path(destination, f"Split-{split}", self._name))
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._written: Future[None] | None = None

    def report(self) -> PartFile:
        return PartFile(split=self._split, name=self._name, rows=self._rows, size_bytes=self.path.stat().st_size)

    def add(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            taken = batch.slice(0, GROUP_ROWS - self._waiting_rows)
            self._waiting.append(taken)
            self._waiting_rows += taken.num_rows
            self._waiting_bytes += taken.nbytes
            batch = batch.slice(taken.num_rows)
            if self._waiting_rows == GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
                self._write_group()

    def _write_group(self) -> None:
        self._await_group()
        self._written = self._thread.submit(self._encode, self._waiting)
        if self._waiting_bytes > HELD_BYTES:
            self._await_group()
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _encode(self, batches: Sequence[pa.RecordBatch]) -> None:
        # one chunk a column: the bytes on disk must not show how the rows came in
        table = pa.Table.from_batches(batches, self._schema).combine_chunks()
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def _await_group(self) -> None:
        """Waits for the row group that is being written, and raises what that raised."""
        if self._written is not None:
            self._written.result()

    def _open(self, path: Path) -> None:
        try:
            self._writer = pa.parquet.ParquetWriter(path, self._schema, compression="zstd", write_page_checksum=True)
        except pa.ArrowNotImplementedError as error:
            raise UnreadableInput(f"the input has a column that Parquet cannot store: {error}") from error
        self._thread = ThreadPoolExecutor(1, "write-split")

    def _finish(self) -> None:
        if self._waiting:
            self._write_group()
        self._await_group()

    def _close(self) -> None:
        self._thread.shutdown()
        self._writer.close()


class RejectsFile(DraftFile):
    """The rejected rows of a part; without a folder the first one stops the ingest."""

    def __init__(self, folder: str | None, name: str, sources: Mapping[str, str], *, from_query: bool) -> None:
        super().__init__(Path(folder or "", name))
        self._folder = folder
        self._sources = sources
        self._from_query = from_query
        self.count = 0
        self.examples: list[Rejected] = []

    def __enter__(self) -> Self:
        return self if self._folder is None else super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            super().__exit__(kind, error, trace)

    def add(self, rejected: Rejected) -> None:
        rejected = replace(rejected, path=self._sources.get(rejected.path, rejected.path))
        if self._folder is None:
            raise rejection_error(rejected, from_query=self._from_query)
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(rejected)
        row = {"file": rejected.path, "line": rejected.line, "reason": rejected.reason, "text": rejected.text}
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _open(self, path: Path) -> None:
        # what UTF-8 cannot write, in the name of a file, becomes an escape of JSON
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")

    def _close(self) -> None:
        self._file.close()
