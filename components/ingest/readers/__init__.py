"""Readers: how the rows of a file become Arrow record batches, in pieces that can be read apart from each other.

Each format is a module with the three functions of `FormatReader`. A piece of a file is a `Descriptor`; it is small,
can be pickled, and is what travels between workers. The rows themselves never do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from spanwise.pipelines.input.readers.descriptor import (
    Descriptor,
    Dialect,
    FileLayout,
    Format,
    ReadAs,
    Rejected,
    format_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from spanwise.pipelines.input.readers.column import Column

__all__ = [
    "Descriptor",
    "Dialect",
    "FileLayout",
    "Format",
    "FormatReader",
    "ReadAs",
    "Rejected",
    "format_of",
    "reader_of",
]

_MODULES: dict[Format, str] = {
    "csv": "spanwise.pipelines.input.readers.delimited",
    "tsv": "spanwise.pipelines.input.readers.delimited",
    "jsonl": "spanwise.pipelines.input.readers.json_lines",
    "parquet": "spanwise.components.ingest.readers.parquet",
    "arrow": "spanwise.components.ingest.readers.arrow_ipc",
    "avro": "spanwise.components.ingest.readers.avro",
    "tfrecord": "spanwise.pipelines.input.readers.tf_record",
}


class FormatReader(Protocol):
    """What a format's module offers."""

    def describe(self, path: str, fmt: Format, dialect: Dialect) -> FileLayout:
        """The columns of a file, as far as it names them itself, and the pieces it can be read in."""

    def infer(
        self, descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
    ) -> dict[str, pa.DataType]:
        """The narrowest type of each column that is not in `known`, over the piece or its first `blocks` blocks."""

    def read(
        self,
        descriptor: Descriptor,
        dialect: Dialect,
        columns: Sequence[Column],
        reject: Callable[[Rejected], None],
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the piece in input order, as `columns`. A row that cannot be read goes to `reject`."""


def reader_of(fmt: ReadAs, own: FormatReader | None = None, renamed: Mapping[str, str] | None = None) -> FormatReader:
    """The module that reads a format, imported only when a file of that format is read; `own` is the user's reader.

    `renamed` gives columns of the input other names.
    """
    if renamed:
        from spanwise.components.ingest.readers.renaming import RenamingReader

        return RenamingReader(names=renamed, own=own)
    if fmt == "custom":
        assert own is not None, "only a plan with a reader of its own makes such pieces"
        return own
    return cast("FormatReader", import_module(_MODULES[fmt]))
