"""Ingest plans and reports: which files of a span become which Parquet files, and what was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spanwise.orchestrator.beam_settings import HERE, BeamSettings
from spanwise.pipelines.input.readers.descriptor import Dialect, Format, Rejected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spanwise.components.ingest.readers import FormatReader


@dataclass(frozen=True, kw_only=True)
class IngestPlan:
    """What to read, how, and where to write it."""

    files: Mapping[str, tuple[str, ...]]  #: input split -> local paths, sorted
    sources: Mapping[str, str] = field(default_factory=dict)  #: copy -> the URL it is of, for messages and rejects
    stamp: str | None = None  #: of the files when their fingerprint was taken; None: of when the ingest begins
    fingerprint: str | None = None  #: of the files, to tell whether more than a permission changed
    destination: str  #: an empty folder; gets Split-<name>/part-00000.parquet and so on
    rejects: str | None = None  #: a folder for rows that cannot be parsed; None: such a row stops the ingest
    ratios: Mapping[str, int] | None = None  #: output split -> weight; None: the output splits are the input splits
    split_key: tuple[str, ...] = ()  #: columns that are hashed to choose the split; empty: the whole row
    previous: Sequence[tuple[str, str]] | None = None  #: columns and types of the previous span, as in its report
    order: tuple[str, ...] = ()  #: of columns; those of `previous` follow in its order, then others as they come
    types: Mapping[str, str] = field(default_factory=dict)  #: columns whose types are pinned
    dropped: tuple[str, ...] = ()  #: columns to leave out, whether the input has them or not
    renamed: Mapping[str, str] = field(default_factory=dict)  #: input columns that have another name in the examples
    format: Format | None = None  #: None: by the endings of the files' names
    reader: FormatReader | None = None  #: the user's own, instead of a format
    dialect: Dialect = field(default_factory=Dialect)  #: how text files are written, and the sizes of blocks and parts
    from_query: bool = False  #: the rows are a query's answer, and what a message says to change is the query
    beam: BeamSettings = HERE


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """One Parquet file."""

    split: str  #: the output split
    name: str  #: within the folder of the split
    rows: int
    size_bytes: int  #: on disk


@dataclass(frozen=True, kw_only=True)
class IngestReport:
    """What was written."""

    rows: dict[str, int]  #: output split -> rows
    size_bytes: dict[str, int]  #: output split -> bytes on disk
    columns: tuple[tuple[str, str], ...]  #: names and types, in order; the next span's `previous`
    new_columns: tuple[str, ...]  #: that the previous span did not have
    rejected: int  #: rows that were set aside
    reject_examples: tuple[Rejected, ...]  #: the first of them
    files: tuple[PartFile, ...]  #: in order
