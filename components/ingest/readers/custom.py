"""A reader of the user's own: a function from the path of a file to its rows, as Arrow batches or tables."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.readers.descriptor import Descriptor, Dialect, FileLayout, ReadAs, Rejected

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.pipelines.input.readers.column import Column

RowReader: TypeAlias = Callable[[str], Iterable[object]]
"""Gives the rows of a file as `pyarrow.RecordBatch` or `pyarrow.Table`, all with the columns and types of the first."""

_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class FunctionReader:
    """The function in the form that every format has. A file is one piece; it is not read ahead of its first batch."""

    function: RowReader  #: the user's

    def describe(self, path: str, fmt: ReadAs, dialect: Dialect) -> FileLayout:
        """The columns and types of the first batch.

        Raises:
            UnreadableInput: the function fails, gives nothing, or gives something else than batches and tables.
        """
        from spanwise.pipelines.input.readers.stored_types import stored_type

        del dialect
        first = next(self._batches(path), None)
        if first is None:
            raise UnreadableInput(
                f"{path}: the reader {self._name} gives nothing for it. For a file without rows it gives an empty "
                "table, which has the columns: yield pa.table({...}, schema=...)"
            )
        size = Path(path).stat().st_size
        return FileLayout(
            names=tuple(first.schema.names),
            types=tuple(stored_type(field.type) for field in first.schema),
            descriptors=(Descriptor(path=path, format=fmt, start=0, stop=None, first_line=1, size_bytes=size),),
        )

    def infer(
        self, descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
    ) -> dict[str, pa.DataType]:
        """The types of the first batch."""
        del blocks
        layout = self.describe(descriptor.path, descriptor.format, dialect)
        types = zip(layout.names, layout.types or (), strict=True)
        return {name: type_ for name, type_ in types if name not in known}

    def read(
        self,
        descriptor: Descriptor,
        dialect: Dialect,
        columns: Sequence[Column],
        reject: Callable[[Rejected], None],
    ) -> Iterator[pa.RecordBatch]:
        """The rows as `columns`.

        Raises:
            Misfit: a value does not fit a type that is the previous span's.
            UnreadableInput: the function fails, or gives a batch that is not like its first.
        """
        from spanwise.pipelines.input.readers.columns import fit

        del dialect
        row = descriptor.first_line
        for batch in self._batches(descriptor.path):
            yield fit(batch, columns, descriptor, row, reject)
            row += batch.num_rows

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """The batches of the function, of one schema; an error of its own shows its own lines."""
        import pyarrow as pa

        schema: pa.Schema | None = None
        for item in self._call_function(path):
            if not isinstance(item, pa.RecordBatch | pa.Table):
                raise UnreadableInput(
                    f"{path}: the reader {self._name} gives {type(item).__name__} {_short(item)}; it must give "
                    "pyarrow.RecordBatch or pyarrow.Table: yield pa.table({'column': [...]})"
                )
            if schema is None:
                schema = item.schema
            self._check_alike(path, schema, item.schema)
            batches = [item] if isinstance(item, pa.RecordBatch) else item.to_batches(max_chunksize=_BATCH_ROWS)
            yield from batches or [pa.RecordBatch.from_pylist([], schema=item.schema)]

    def _call_function(self, path: str) -> Iterator[object]:
        try:
            given = self.function(path)
            # a table's own iterator would give its columns
            yield from [given] if hasattr(given, "num_rows") else given
        except UnreadableInput:
            raise
        except Exception as error:
            raise UnreadableInput(
                f"{path}: the reader {self._name} failed with {type(error).__name__}: {error}\n{_user_lines(error)}"
            ) from error

    def _check_alike(self, path: str, first: pa.Schema, other: pa.Schema) -> None:
        import pyarrow as pa

        if len(set(other.names)) < len(other.names):
            repeated = min(name for name in other.names if other.names.count(name) > 1)
            raise UnreadableInput(f"{path}: the reader {self._name} gives two columns called '{repeated}'.")
        if set(other.names) != set(first.names):
            odd = min(set(other.names) ^ set(first.names))
            raise UnreadableInput(
                f"{path}: the reader {self._name} gives the column '{odd}' in some batches and not in others."
            )
        for field in first:
            found = other.field(field.name).type
            if found != field.type and not pa.types.is_null(found):
                raise UnreadableInput(
                    f"{path}: the reader {self._name} gives the column '{field.name}' as {field.type} first and as "
                    f"{found} later. Give all batches one schema: pa.table(..., schema=SCHEMA)"
                )


def _user_lines(error: BaseException) -> str:
    """The traceback without our own frames around the user's code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != _HERE]
    return "".join(traceback.format_list(frames)).rstrip()


_HERE = inspect.getfile(FunctionReader)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."  # noqa: PLR2004 -- one line
