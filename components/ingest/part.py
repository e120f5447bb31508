"""Ingest parts: what one worker does with a part of a span. It finds the types of its columns, or writes it as Parquet.

A part is a few descriptors; what a worker returns is a short record of the types or files. Failures are values too, so
that the first one in the order of the files is reported whichever worker is the fastest.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from spanwise.components.beam import map_with_user_code
from spanwise.components.ingest.part_files import RejectsFile, SplitFile, rejects_name
from spanwise.components.ingest.readers import reader_of
from spanwise.components.read_ahead import read_ahead
from spanwise.components.row_hash import buckets, hash_rows
from spanwise.orchestrator.errors import SpanwiseError
from spanwise.pipelines.input.readers.column import Misfit, join_all, written
from spanwise.pipelines.input.selection import filter_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from spanwise.components.ingest.plan import IngestPlan, PartFile
    from spanwise.components.ingest.readers import Descriptor, Dialect, FormatReader, Rejected
    from spanwise.pipelines.input.readers.column import Column

Result = TypeVar("Result")
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class InputPart:
    """Consecutive pieces of one input split, which become one file in each output split."""

    split: str  #: the input split
    index: int  #: among the parts of this split; the number in the file's name
    descriptors: tuple[Descriptor, ...]  #: in input order


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a worker must know to find the types of a part."""

    dialect: Dialect  #: how text is written
    known: frozenset[str]  #: columns whose types are settled
    reader: FormatReader | None = None  #: the user's own
    renamed: Mapping[str, str] = field(default_factory=dict)  #: as of the plan


@dataclass(frozen=True, kw_only=True)
class PartTypes:
    """The types of a part, or why it could not be read."""

    types: dict[str, pa.DataType] = field(default_factory=dict)  #: of each column that was looked at
    error: SpanwiseError | None = None


@dataclass(frozen=True, kw_only=True)
class PartWriter:
    """What a worker must know to write a part."""

    dialect: Dialect  #: how text is written
    columns: tuple[Column, ...]  #: of the input; all but the dropped ones are written, in this order
    destination: str  #: the folder of the splits
    rejects: str | None  #: the folder of the rejected rows; None: such a row is an error
    from_query: bool = False  #: as of the plan
    ratios: tuple[tuple[str, int], ...]  #: output splits and weights; empty: the output split is the input split
    split_key: tuple[str, ...]  #: columns that choose the output split; empty: the whole row
    reader: FormatReader | None = None  #: the user's own
    renamed: Mapping[str, str] = field(default_factory=dict)  #: as of the plan
    sources: Mapping[str, str] = field(default_factory=dict)  #: copy -> the URL it is of


@dataclass(frozen=True, kw_only=True)
class WrittenPart:
    """The files of a part, or why they could not be written."""

    files: tuple[PartFile, ...] = ()  #: one in each output split
    rejected: int = 0  #: rows that were set aside
    examples: tuple[Rejected, ...] = ()  #: the first of them
    error: SpanwiseError | None = None  #: why the part cannot be read
    misfit: Misfit | None = None  #: the column whose type does not hold all its values


def divide(split: str, descriptors: Sequence[Descriptor], part_bytes: int) -> list[InputPart]:
    """Divides a split into parts of about `part_bytes`; at least one part, even if it is empty."""
    groups: list[list[Descriptor]] = [[]]
    size = 0
    for descriptor in descriptors:
        if groups[-1] and size + descriptor.size_bytes > part_bytes:
            groups.append([])
            size = 0
        groups[-1].append(descriptor)
        size += descriptor.size_bytes
    return [InputPart(split=split, index=index, descriptors=tuple(group)) for index, group in enumerate(groups)]


def map_parts(
    plan: IngestPlan, value: Value, work: Callable[[Value, InputPart], Result], parts: Sequence[InputPart]
) -> list[Result]:
    """Does the work on every part with the plan's runner; the results are in the order of the parts.

    `value` is what a worker must know. It may hold a reader of the user's own.
    """
    return map_with_user_code(value, work, parts, beam=plan.beam, scratch=Path(plan.destination))


def survey_part(survey: Survey, part: InputPart) -> PartTypes:
    """Finds the narrowest type of each column over the whole part."""
    types: dict[str, pa.DataType] = {}
    try:
        for descriptor in part.descriptors:
            reader = reader_of(descriptor.format, survey.reader, survey.renamed)
            types = join_all(types, reader.infer(descriptor, survey.dialect, survey.known, None))
    except SpanwiseError as error:
        return PartTypes(error=error)
    return PartTypes(types=types)


def write_part(writer: PartWriter, part: InputPart) -> WrittenPart:
    """Writes the rows of the part, in input order, to one file in each output split.

    Each file appears under its name when it is whole, so a second try of the same part does no harm.
    """
    schema = pa.schema([(column.name, column.type) for column in written(writer.columns)])
    splits = [name for name, _ in writer.ratios] or [part.split]
    weights = [weight for _, weight in writer.ratios]
    rejects = RejectsFile(
        writer.rejects, rejects_name(part.split, part.index), writer.sources, from_query=writer.from_query
    )
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(SplitFile(writer.destination, split, part.index, schema)) for split in splits]
            stack.enter_context(rejects)
            batches = _read(part, writer, rejects)
            # a reader of the user's own stays in the thread that it knows
            for read in batches if writer.reader is not None else stack.enter_context(read_ahead(batches)):
                batch = read.select(schema.names)
                if len(files) == 1:
                    files[0].add(batch)
                    continue
                chosen = buckets(hash_rows(batch, writer.split_key), weights)
                for number, file in enumerate(files):
                    file.add(filter_rows(batch, pa.array(chosen == number)))
    except SpanwiseError as error:
        return WrittenPart(error=error)
    except Misfit as misfit:
        return WrittenPart(misfit=Misfit(misfit.column, misfit.where))
    return WrittenPart(
        files=tuple(file.report() for file in files), rejected=rejects.count, examples=tuple(rejects.examples)
    )


def _read(part: InputPart, writer: PartWriter, rejects: RejectsFile) -> Generator[pa.RecordBatch, None, None]:
    for descriptor in part.descriptors:
        reader = reader_of(descriptor.format, writer.reader, writer.renamed)
        yield from reader.read(descriptor, writer.dialect, writer.columns, rejects.add)
