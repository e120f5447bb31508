"""Descriptors: which piece of which file, and how a text file is to be understood. Reads nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from spanwise.orchestrator.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

Format = Literal["csv", "tsv", "jsonl", "parquet", "arrow", "avro", "tfrecord"]
ReadAs: TypeAlias = "Format | Literal['custom']"
"""How a piece is read: as one of the formats, or by a function of the user's."""

#: How a missing value is written in a text file, in columns of anything but text.
NULL_VALUES = ("", "NA", "NaN", "null", "NULL", "N/A")

_BY_ENDING: Mapping[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".avro": "avro",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}

#: As TensorFlow and TFX number the shards of a file: `data_tfrecord-00000-of-00001`, `train.tfrecord-00003-of-00010`.
_SHARD = re.compile(r"[._]tfrecords?-\d+-of-\d+$")

#: The compressions of a text file, by the ending of its name.
COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
#: The compressions that another format may be wrapped in.
_WRAPPINGS: Mapping[str, tuple[Format, ...]] = {
    ".gz": ("csv", "tsv", "jsonl", "tfrecord"),
    ".zst": ("csv", "tsv", "jsonl"),
    ".bz2": ("csv", "tsv", "jsonl"),
    ".lz4": ("csv", "tsv", "jsonl"),
    ".zlib": ("tfrecord",),
}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How files that do not say it themselves are written, and how large the pieces are that they are read in."""

    delimiter: str | None = None  #: of CSV; None: a comma for .csv, a tab for .tsv
    #: texts that stand for a missing value, in all columns or by column; None: in a column of text an empty field
    #: without quotes, in any other NULL_VALUES
    null_values: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None = None
    encoding: str = "utf-8"  #: any name Python's codecs know
    column_names: tuple[str, ...] = ()  #: for CSV files without a header line
    bytes_as_text: bool = True  #: TFRecord: a feature of bytes is text if all its values in the span are UTF-8
    block_bytes: int = 8 << 20  #: text parsed at once; bounds the memory of a worker
    part_bytes: int = 64 << 20  #: about how much input becomes one part file

    def __post_init__(self) -> None:
        """Refuses what no file can be.

        Raises:
            ParameterError: a column is named twice.
        """
        repeated = sorted({name for name in self.column_names if self.column_names.count(name) > 1})
        if repeated:
            raise ParameterError(f"column_names: two columns are named '{repeated[0]}'. Name one otherwise.")

    def check_null_values(self, path: str, names: Sequence[str]) -> None:
        """Refuses names of columns that a file does not have.

        Raises:
            ParameterError: `null_values` has one.
        """
        asked = self.null_values
        unknown = [name for name in asked if name not in names] if isinstance(asked, Mapping) else []
        if unknown:
            raise ParameterError(f"null_values: {path} has no column '{unknown[0]}'; it has: {', '.join(names)}.")

    def piece_bytes(self, size: int) -> int:
        """How many bytes a piece has of a file of so many: all the same, so that those who share them end together."""
        return -(-size // -(-size // self.part_bytes))


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A piece of a file. `start` and `stop` count row groups (Parquet), record batches (Arrow), or else bytes."""

    path: str  #: of the file
    format: ReadAs  #: how to read it
    start: int  #: the first unit; of a compressed or transcoded text, in the decoded text
    stop: int | None  #: one after the last unit; None: to the end
    first_line: int  #: text: the line number of `start`; otherwise the number of its first row; counted from 1
    size_bytes: int  #: about how much input this is, to make parts of even size
    names: tuple[str, ...] = ()  #: CSV: the file's columns in the order in which they stand
    absent: tuple[tuple[str, object], ...] = ()  #: Avro: columns that only other files have, and their defaults


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """What is known of a file before its rows are read."""

    names: tuple[str, ...]  #: its columns; empty for JSON lines, which name them row by row
    types: tuple[pa.DataType, ...] | None  #: their types, when the file itself says them
    descriptors: tuple[Descriptor, ...]  #: its pieces, in order; together the whole file
    defaults: tuple[tuple[str, object], ...] = ()  #: Avro: columns that files of an older schema may lack


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A row that could not be read."""

    path: str  #: of the file
    line: int  #: of the file, or the row's number in Parquet and Arrow; counted from 1
    reason: str  #: what was wanted and what was found
    text: str  #: the row as it stands


def format_of(path: str) -> Format:
    """The format that a file's name tells.

    Raises:
        ParameterError: the ending is not one of a known format.
    """
    ending, wrapping = _ending(path), None
    if Path(path).suffix.lower() in _WRAPPINGS:
        wrapping = Path(path).suffix.lower()
        ending = _ending(str(Path(path).with_suffix("")))
    found: Format | None = _BY_ENDING.get(ending)
    if found is None or (wrapping is not None and found not in _WRAPPINGS[wrapping]):
        known = ", ".join(_BY_ENDING)
        raise ParameterError(
            f"{path}: the name does not tell the format. Known endings are {known}; those of text may be followed by "
            f"{', '.join(COMPRESSIONS)}, those of TFRecord by .gz or .zlib. Or name the format: format='csv', 'tsv', "
            "'jsonl', 'parquet', 'arrow', 'avro' or 'tfrecord'. What is of none of these, a function of yours can "
            "read: reader=my_reader."
        )
    return found


def _ending(path: str) -> str:
    return ".tfrecord" if _SHARD.search(path.lower()) else Path(path).suffix.lower()
