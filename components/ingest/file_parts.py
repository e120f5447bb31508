"""Parts: what one worker does with one part of a span. It finds the types of its columns, or writes it as Parquet.

A part is a few descriptors; what goes back is a short record of what was found or written. Failures are values too, so
that the first one in the order of the files is reported whichever worker is the fastest.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

from spanwise.components.ingest.readers import reader_of
from spanwise.components.ingest.readers.columns import Misfit, join_all, refusal
from spanwise.components.row_hash import buckets, row_hashes
from spanwise.orchestrator.errors import SpanwiseError, UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from spanwise.components.ingest.readers import Descriptor, Dialect, Reader, Rejected
    from spanwise.components.ingest.readers.columns import Column

#: Rows in a row group: large enough for fast columns, small enough to be held for every split at once.
GROUP_ROWS = 1 << 16
#: Wide rows make shorter groups.
GROUP_BYTES = 64 << 20
#: How many rejected rows a report shows.
EXAMPLES = 10


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive pieces of one input split, which become one file in each output split."""

    split: str  #: the input split
    index: int  #: among the parts of this split; the number in the file's name
    descriptors: tuple[Descriptor, ...]  #: in input order


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a worker must know to find the types of a part."""

    dialect: Dialect  #: how text is written
    known: frozenset[str]  #: columns whose types are settled
    reader: Reader | None = None  #: of the user's own


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What a worker must know to write a part."""

    dialect: Dialect  #: how text is written
    columns: tuple[Column, ...]  #: to be written, in this order
    destination: str  #: the folder of the splits
    rejects: str | None  #: the folder of the rejected rows; None: such a row is an error
    ratios: tuple[tuple[str, int], ...]  #: output splits and weights; empty: the output split is the input split
    split_key: tuple[str, ...]  #: columns that choose the output split; empty: the whole row
    reader: Reader | None = None  #: of the user's own


@dataclass(frozen=True, kw_only=True)
class Found:
    """The types of a part, or why they could not be found."""

    part: Part  #: the part
    types: dict[str, pa.DataType] = field(default_factory=dict)  #: of each column that was looked at
    error: SpanwiseError | None = None  #: why the part cannot be read


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """One Parquet file."""

    split: str  #: the output split
    name: str  #: within the folder of the split
    rows: int  #: how many
    size_bytes: int  #: on disk


@dataclass(frozen=True, kw_only=True)
class Written:
    """The files of a part, or why they could not be written."""

    part: Part  #: the part
    files: tuple[WrittenFile, ...] = ()  #: one in each output split
    rejected: int = 0  #: rows that were set aside
    examples: tuple[Rejected, ...] = ()  #: the first of them
    error: SpanwiseError | None = None  #: why the part cannot be read
    misfit: Misfit | None = None  #: the column whose type does not hold all its values


def survey_part(part: Part, survey: Survey) -> Found:
    """Finds the narrowest type of each column over the whole part."""
    types: dict[str, pa.DataType] = {}
    try:
        for descriptor in part.descriptors:
            reader = reader_of(descriptor.format, survey.reader)
            found = reader.infer(descriptor, survey.dialect, survey.known, None)
            types = join_all(types, found)
    except SpanwiseError as error:
        return Found(part=part, error=error)
    return Found(part=part, types=types)


def write_part(part: Part, writing: Writing) -> Written:
    """Writes the rows of the part, in input order, to one file in each output split.

    Each file appears under its name when it is whole, so a second try of the same part does no harm.
    """
    schema = pa.schema([(column.name, column.type) for column in writing.columns])
    splits = [name for name, _ in writing.ratios] or [part.split]
    weights = [weight for _, weight in writing.ratios]
    rejects = _Rejects(part, writing.rejects)
    try:
        with ExitStack() as stack:
            files = [
                stack.enter_context(_SplitFile(writing.destination, split, part.index, schema)) for split in splits
            ]
            stack.enter_context(rejects)
            for batch in _read(part, writing, rejects):
                if len(files) == 1:
                    files[0].add(batch)
                    continue
                chosen = buckets(row_hashes(batch, writing.split_key), weights)
                for number, file in enumerate(files):
                    file.add(batch.filter(pa.array(chosen == number)))
    except SpanwiseError as error:
        return Written(part=part, error=error)
    except Misfit as misfit:
        return Written(part=part, misfit=Misfit(misfit.column, misfit.where))
    return Written(
        part=part,
        files=tuple(file.written for file in files),
        rejected=rejects.count,
        examples=tuple(rejects.examples),
    )


def rejects_name(part: Part) -> str:
    """The file that holds the rejected rows of a part, until those of all parts are joined."""
    return f".{part.split}-{part.index:05d}.jsonl"


def _read(part: Part, writing: Writing, rejects: _Rejects) -> Iterator[pa.RecordBatch]:
    for descriptor in part.descriptors:
        reader = reader_of(descriptor.format, writing.reader)
        yield from reader.read(descriptor, writing.dialect, writing.columns, rejects.add)


class _Draft:
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


class _SplitFile(_Draft):
    """One Parquet file, in row groups whose sizes do not depend on the batches that come in."""

    def __init__(self, destination: str, split: str, index: int, schema: pa.Schema) -> None:
        self._split = split
        self._name = f"part-{index:05d}.parquet"
        super().__init__(Path(destination, f"Split-{split}", self._name))
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0

    @property
    def written(self) -> WrittenFile:
        return WrittenFile(split=self._split, name=self._name, rows=self._rows, size_bytes=self.path.stat().st_size)

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
        # one chunk a column: the bytes on disk must not show how the rows came in
        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _open(self, path: Path) -> None:
        try:
            self._writer = pa.parquet.ParquetWriter(path, self._schema, compression="zstd")
        except pa.ArrowNotImplementedError as error:
            raise UnreadableInput(f"the input has a column that Parquet cannot hold: {error}") from error

    def _finish(self) -> None:
        if self._waiting:
            self._write_group()

    def _close(self) -> None:
        self._writer.close()


class _Rejects(_Draft):
    """The rejected rows of a part; without a folder the first one stops the ingest."""

    def __init__(self, part: Part, folder: str | None) -> None:
        super().__init__(Path(folder or "", rejects_name(part)))
        self._folder = folder
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
        if self._folder is None:
            raise refusal(rejected)
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(rejected)
        row = {"file": rejected.path, "line": rejected.line, "reason": rejected.reason, "text": rejected.text}
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _open(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def _close(self) -> None:
        self._file.close()


def grouped(split: str, descriptors: Sequence[Descriptor], part_bytes: int) -> list[Part]:
    """Consecutive descriptors as parts of about `part_bytes`; at least one part, even if it is empty."""
    groups: list[list[Descriptor]] = [[]]
    size = 0
    for descriptor in descriptors:
        if groups[-1] and size + descriptor.size_bytes > part_bytes:
            groups.append([])
            size = 0
        groups[-1].append(descriptor)
        size += descriptor.size_bytes
    return [Part(split=split, index=index, descriptors=tuple(group)) for index, group in enumerate(groups)]
