"""Descriptors: which piece of which file, and how a text file is to be understood. Reads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from orchestrator.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

Format = Literal["csv", "tsv", "jsonl", "parquet", "arrow"]

#: How a missing value is written in a text file.
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
}

#: The compressions of a text file, by the ending of its name.
COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How text files are written, and how large the pieces are that they are read in."""

    delimiter: str | None = None  #: of CSV; None: a comma for .csv, a tab for .tsv
    null_values: tuple[str, ...] = NULL_VALUES  #: texts that stand for a missing value
    encoding: str = "utf-8"  #: any name Python's codecs know
    column_names: tuple[str, ...] = ()  #: for CSV files without a header line
    block_bytes: int = 8 << 20  #: text parsed at once; bounds the memory of a worker
    part_bytes: int = 64 << 20  #: about how much input becomes one part file


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A piece of a file. `start` and `stop` count bytes (text), row groups (Parquet) or record batches (Arrow)."""

    path: str  #: of the file
    format: Format  #: how to read it
    start: int  #: the first unit; of a compressed or transcoded text, in the decoded text
    stop: int | None  #: one after the last unit; None: to the end
    first_line: int  #: text: the line number of `start`; otherwise the number of its first row; counted from 1
    size_bytes: int  #: about how much input this is, to make parts of even size
    names: tuple[str, ...] = ()  #: CSV: the file's columns in the order in which they stand


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """What is known of a file before its rows are read."""

    names: tuple[str, ...]  #: its columns; empty for JSON lines, which name them row by row
    types: tuple[pa.DataType, ...] | None  #: their types, when the file itself says them
    descriptors: tuple[Descriptor, ...]  #: its pieces, in order; together the whole file


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
    stem = path
    if Path(path).suffix.lower() in COMPRESSIONS:
        stem = str(Path(path).with_suffix(""))
    ending = Path(stem).suffix.lower()
    found = _BY_ENDING.get(ending)
    if found is None or (stem != path and found in ("parquet", "arrow")):
        known = ", ".join(_BY_ENDING)
        raise ParameterError(
            f"{path}: the name does not tell the format. Known endings are {known}; those of text may be followed by "
            f"{' or '.join(COMPRESSIONS)}. Or name the format: format='csv', 'tsv', 'jsonl', 'parquet' or 'arrow'."
        )
    return found
