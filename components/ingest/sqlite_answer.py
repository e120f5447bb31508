"""SQLite answers: rows whose values have types of their own, as batches in which each column has one.

SQLite keeps the type with the value, not with the column, so a column's type is known when the last row is. The rows
wait in a file until then, whatever their order: a column of whole numbers is int64, with fractions double, with texts
text, in which a number has all its digits. Nothing else is mixed.
"""

from __future__ import annotations

import marshal
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from spanwise.orchestrator.errors import UnreadableInput

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

_BATCH_ROWS = 1 << 14
_TYPES: dict[frozenset[type], pa.DataType] = {
    frozenset(): pa.null(),
    frozenset({int}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({int, float}): pa.float64(),
    frozenset({str}): pa.string(),
    frozenset({str, int}): pa.string(),
    frozenset({str, float}): pa.string(),
    frozenset({str, int, float}): pa.string(),
    frozenset({bytes}): pa.binary(),
}
_NAMES = {int: "whole numbers", float: "fractions", str: "texts", bytes: "blobs"}


@contextmanager
def read_answer(cursor: sqlite3.Cursor, who: str) -> Iterator[pa.RecordBatchReader]:
    """The rows of a cursor that has executed a query; read them inside the `with`.

    Raises:
        UnreadableInput: a column mixes blobs with something else, or numbers that no double holds with fractions.
    """
    names = [column[0] for column in cursor.description or ()]
    if not names:
        raise UnreadableInput(f"{who}: the query gives no columns; write a SELECT.")
    kinds: list[set[type]] = [set() for _ in names]
    with tempfile.TemporaryFile() as spool:
        while rows := cursor.fetchmany(_BATCH_ROWS):
            columns = [list(column) for column in zip(*rows, strict=True)]
            for kind, values in zip(kinds, columns, strict=True):
                kind.update(map(type, values))
            marshal.dump(columns, spool)
        types = [_type_of(name, kind - {type(None)}, who) for name, kind in zip(names, kinds, strict=True)]
        schema = pa.schema(list(zip(names, types, strict=True)))
        yield pa.RecordBatchReader.from_batches(schema, _batches(spool, schema, who))


def _type_of(name: str, kinds: set[type], who: str) -> pa.DataType:
    found = _TYPES.get(frozenset(kinds))
    if found is None:
        mixed = " and ".join(sorted(_NAMES[kind] for kind in kinds))
        raise UnreadableInput(f"{who}: column '{name}' has {mixed}. Convert it in the query: CAST({name} AS TEXT).")
    return found


def _batches(spool: IO[bytes], schema: pa.Schema, who: str) -> Iterator[pa.RecordBatch]:
    end = spool.tell()
    spool.seek(0)
    while spool.tell() < end:
        columns = marshal.load(spool)  # noqa: S302  this process has written it
        arrays = [_array(values, field, who) for values, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], field: pa.Field[Any], who: str) -> pa.Array[Any]:
    if pa.types.is_string(field.type):
        values = [value if value is None or isinstance(value, str) else repr(value) for value in values]
    try:
        made: pa.Array[Any] = pa.array(values, field.type)
    except pa.ArrowInvalid as error:
        raise UnreadableInput(
            f"{who}: column '{field.name}' has fractions, so it is read as double, and a whole number that no double "
            f"holds ({error}). Convert it in the query: CAST({field.name} AS TEXT)."
        ) from error
    return made
