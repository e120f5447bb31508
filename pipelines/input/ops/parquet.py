"""Rows of Parquet files: only the columns that are needed, only the row groups in which a condition can hold."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from spanwise.orchestrator.errors import DatasetError, UnreadableInput
from spanwise.pipelines.input.call import block_error
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.files import (
    PartStream,
    Paths,
    conform,
    list_files,
    locate,
    refuse_other_columns,
    unify_schemas,
)
from spanwise.pipelines.input.op import Count, Knob, Op, Opening, Stream, mix_seed
from spanwise.pipelines.input.ops.filter import check_condition, columns_of
from spanwise.pipelines.input.selection import Condition, filter_rows, whole_condition

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

_MOST_FLOATS: Final = 3
"""Columns of floats in a condition by which row groups are left out: each doubles the number of proofs."""

_JUDGED: Final = frozenset({"invert", "is_valid", "is_null", "is_in"})
"""The functions that Arrow judges rightly by statistics, as are comparisons, `and` and `or`; not so a cast."""


@dataclass(frozen=True)
class ParquetRowGroup:
    """A row group: where it is and how large."""

    path: str
    number: int
    rows: int
    size_bytes: int  #: before compression, of all columns
    file_rows: int  #: of all its row groups
    file_columns: frozenset[str] = frozenset()  #: that its file had


@dataclass(frozen=True, kw_only=True, eq=False)
class Parquet(Op):
    paths: tuple[str, ...]
    groups: tuple[ParquetRowGroup, ...] = field(repr=False)
    schema: pa.Schema = field(repr=False)  #: of all files together
    columns: tuple[str, ...] | None = None  #: those that are read; None for all of them
    filter: Condition | None = None  #: a condition on columns, which need not be among those
    shuffle: bool = False  #: whether the row groups come in another order each time
    seed: int | None = None
    places: slice | None = None  #: of such an order: which are given; None for all

    def __post_init__(self) -> None:
        for name in self.columns or ():
            if name not in self.schema.names:
                names = ", ".join(self.schema.names)
                raise DatasetError(f"from_parquet(columns={name!r}): no such column. The columns are {names}.")
        if self.columns == ():
            raise DatasetError("from_parquet(columns=[]): expected at least one column.")
        if self.filter is not None:
            check_condition(self.filter, self.schema)

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of its rows."""
        import pyarrow as pa

        names = self.schema.names if self.columns is None else self.columns
        return pa.schema([self.schema.field(name) for name in names])

    @property
    def spec(self) -> Spec:
        return Table(self.row_schema)

    @property
    def cardinality(self) -> Count:
        is_known = self.filter is None and self.places is None
        return sum(group.rows for group in self.groups) if is_known else None

    def open(self, opening: Opening) -> Stream:
        order = None
        if self.shuffle:
            import numpy as np

            generator = np.random.Generator(np.random.PCG64(mix_seed(self.seed or 0, *opening.epoch)))
            order = generator.permutation(len(self.groups))[self.places or slice(None)].tolist()
        reader = ParquetReader(self, opening.block)

        def count_rows(part: int) -> int:
            return self.groups[part].rows

        return PartStream(len(self.groups), reader.read, reader.finish, reader.name, order, count_rows)


def parquet(
    paths: Paths,
    columns: tuple[str, ...] | None,
    condition: pc.Expression | None,
    *,
    shuffle: bool,
    seed: int | None,
) -> Parquet:
    """The op, with what the files' footers say.

    Raises:
        DatasetError: there is no such file or column.
        UnreadableInput: a file is not Parquet, or is damaged.
        ColumnsChanged: two files have different types for one column.
    """
    files = list_files("from_parquet", paths)
    found = [(path, *read_footer(path)) for path in files]
    return Parquet(
        paths=files,
        groups=tuple(group for _, _, groups in found for group in groups),
        schema=unify_schemas("from_parquet", ((path, schema) for path, schema, _ in found)),
        columns=columns,
        filter=condition,
        shuffle=shuffle,
        seed=seed,
    )


def read_footer(path: str, stored: BinaryIO | None = None) -> tuple[pa.Schema, list[ParquetRowGroup]]:
    """The columns of a file, and its row groups that have rows; of `stored`, if it is not at its path yet.

    Raises:
        UnreadableInput: there is none, it is not Parquet, or is damaged.
    """
    with open_parquet(path, stored) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        total, names = sum(group.num_rows for group in groups), frozenset(file.schema_arrow.names)
        return file.schema_arrow, [
            ParquetRowGroup(path, number, group.num_rows, group.total_byte_size, total, names)
            for number, group in enumerate(groups)
            if group.num_rows
        ]


def open_parquet(path: str, stored: BinaryIO | None = None) -> pq.ParquetFile:
    """An open file.

    Raises:
        UnreadableInput: there is none, it is not Parquet, or is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if stored is not None:
            return pq.ParquetFile(stored)
        filesystem, name = locate(path)
        return pq.ParquetFile(name, filesystem=filesystem, pre_buffer=True, page_checksum_verification=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # of a damaged name
        raise UnreadableInput(f"{path}: cannot be read as Parquet ({error}).") from error


def _refuse_other_rows(group: ParquetRowGroup, file: pq.ParquetFile) -> None:
    """Row groups are read by their numbers, so those of another file would be left out, or missing, in silence."""
    footer = file.metadata
    is_there = footer.num_rows == group.file_rows and group.number < footer.num_row_groups
    if is_there and footer.row_group(group.number).num_rows == group.rows:
        return
    raise UnreadableInput(
        f"{group.path} was replaced after the dataset was made: it had {group.file_rows:,} rows then, and has "
        f"{footer.num_rows:,} now, or cuts them otherwise. Make the dataset again."
    )


def _groups_by_statistics(
    condition: Condition, missing: Sequence[pa.Field[Any]], name: str, filesystem: FileSystem
) -> set[int]:
    """The row groups of a file in which a condition can hold if these columns are NaN and no others."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import dataset

    known: pc.Expression | None = None
    for column in missing:
        is_nan = pc.field(column.name) == pa.scalar(math.nan, column.type)
        known = is_nan if known is None else known & is_nan
    fragment: Any = dataset.ParquetFileFormat().make_fragment(name, filesystem, partition_expression=known)
    return {group.id for part in fragment.split_by_row_group(whole_condition(condition)) for group in part.row_groups}


def _is_judged(condition: Condition, types: Sequence[pa.DataType]) -> bool:
    """Whether Arrow judges a condition on columns of these types rightly by statistics."""
    import pyarrow as pa

    if any(map(pa.types.is_nested, types)):
        return False
    judged = _JUDGED
    if any(map(pa.types.is_floating, types)):
        judged -= {"is_in"}  # statistics write a zero as -0.0, which is in no list with 0.0
    if any(map(pa.types.is_dictionary, types)):
        judged -= {"is_null", "is_valid"}  # it takes nulls throughout for a value
    text = str(whole_condition(condition))
    has_nan = re.search(r"\bnan\b", text) is not None  # it takes a bound of statistics for less than a NaN
    return not has_nan and judged.issuperset(re.findall(r"(\w+)\(", text))


class ParquetReader:
    """Reads row groups, one file open at a time."""

    def __init__(self, op: Parquet, block: Knob) -> None:
        self._op = op
        self._block = block
        self._schema = op.row_schema
        needed = () if op.filter is None else columns_of(op.filter, op.schema)
        names = [name for name in op.schema.names if name in self._schema.names or name in needed]
        import pyarrow as pa

        self._read: pa.Schema = pa.schema([op.schema.field(name) for name in names])
        self._needed = frozenset(needed)
        self._path = ""
        self._number = 0  # of the row group
        self._file: pq.ParquetFile | None = None
        self._wanted: frozenset[int] | None = None  # the row groups of the file in which the condition can hold

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        group = self._op.groups[part]
        if group.path != self._path:
            file = open_parquet(group.path)
            _refuse_other_rows(group, file)
            refuse_other_columns(group.path, file.schema_arrow, self._read, group.file_columns)
            self._file, self._path, self._wanted = file, group.path, self._possible_groups(group.path, file)
        elif self._file is not None:
            _refuse_other_rows(group, self._file)
        if self._file is None or (self._wanted is not None and group.number not in self._wanted):
            return iter(())
        self._number = group.number
        there = [name for name in self._read.names if name in self._file.schema_arrow.names]
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            self._block.value, row_groups=[group.number], columns=there
        )
        return batches

    def _possible_groups(self, path: str, file: pq.ParquetFile) -> frozenset[int] | None:
        """By the statistics of the file; None for all of them.

        Statistics pass over NaN, for which a condition such as `x != 1` holds. So a row group is left out only if the
        condition cannot hold there whichever of the columns of floats are NaN.
        """
        import pyarrow as pa

        condition, there = self._op.filter, {each.name: each.type for each in file.schema_arrow}
        needed = [self._op.schema.field(name) for name in self._needed]
        if condition is None or any(there.get(each.name) != each.type for each in needed):
            return None
        floats = [each for each in needed if pa.types.is_floating(each.type)]
        if len(floats) > _MOST_FLOATS or not _is_judged(condition, [each.type for each in needed]):
            return None
        filesystem, name = locate(path)
        found: set[int] = set()
        try:
            for count in range(len(floats) + 1):
                for missing in itertools.combinations(floats, count):
                    found |= _groups_by_statistics(condition, missing, name, filesystem)
        except pa.ArrowException:  # statistics are not converted as rows are: `isin` with times of another zone
            return None
        return frozenset(found)

    def finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        rows = conform(batch, self._read)
        if self._op.filter is not None:
            try:
                rows = filter_rows(rows, self._op.filter)
            except pa.ArrowException as error:
                where = f"row group {self._number} of {self._path}"
                raise block_error("filter", self._op.filter, where, error) from error
        return rows if self._read.names == self._schema.names else rows.select(self._schema.names)

    def name(self, part: int) -> str:
        return self._op.groups[part].path
