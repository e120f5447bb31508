"""Answers: what the columns of a query's answer are stored as, and values of a database that have no other form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.pipelines.input.readers.nested import inside_lists
from spanwise.pipelines.input.readers.stored_types import obstacle, store, stored_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_ROWS = 1 << 16

#: Types of PostgreSQL that its driver hands on as numbers of another meaning.
_DISGUISED = {"money": "numeric", "oid": "bigint", "regclass": "text", "regproc": "text", "regtype": "text"}
#: The first day and instant that PostgreSQL has. As the driver hands them on, its infinities lie before them, and so
#: does, wrapped around, an instant after the last that Arrow has.
_FIRST_DAY, _FIRST_MICROSECOND = -2_440_588, -2_440_588 * 86_400_000_000
_INFINITIES = -(2**63) + 946_684_800_000_000 - np.arange(2)
_DAY_MICROSECONDS = 86_400_000_000


def answer_schema(schema: pa.Schema, who: str) -> pa.Schema:
    """The names and types to store: JSON and exact numbers are text, a UUID is 16 bytes.

    Raises:
        ParameterError: two columns have one name.
        UnreadableInput: a column is of a type that has no form in Arrow or Parquet, or a composite type of PostgreSQL.
    """
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise ParameterError(f"{who} gives two columns called '{repeated[0]}'; name one otherwise: AS {repeated[0]}_2")
    for field in schema:
        named = (field.metadata or {}).get(b"POSTGRESQL:type", b"").decode()
        plain = named.removeprefix("_")
        array = "[]" if plain != named else ""
        cast_to = _DISGUISED.get(plain, "text")
        converted = f'"{field.name}"::{cast_to}{array}'
        hurdle = obstacle(field.type)
        if plain in _DISGUISED:
            hurdle = f"is of type {plain}{array}, which the driver gives as a plain number"
        elif named and pa.types.is_nested(_element_type(field.type)):
            hurdle = f"is of type {plain}{array}, and what is inside its values is not checked"
            converted = f'to_json("{field.name}")::text'
        if hurdle is not None:
            raise UnreadableInput(
                f"{who}: column '{field.name}' {hurdle}. Convert it in the query: "
                f'{converted} AS "{field.name}", or CAST(… AS {cast_to}).'
            )
    return pa.schema([(field.name, stored_type(field.type)) for field in schema])


def _element_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_list(type_) else type_


def rebatch(reader: Iterable[pa.RecordBatch], schema: pa.Schema, who: str) -> Iterator[pa.RecordBatch]:
    """The rows in batches of one size: how the database hands them on must not show in the files.

    Raises:
        UnreadableInput: a date, instant or time that only the database has, such as infinity.
    """
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in reader:
        for name, array in zip(schema.names, batch.columns, strict=True):
            _check_times(array, name, who)
        rest = pa.RecordBatch.from_arrays([store(column) for column in batch.columns], schema=schema)
        while count + rest.num_rows >= BATCH_ROWS:
            waiting.append(rest.slice(0, BATCH_ROWS - count))
            rest = rest.slice(BATCH_ROWS - count)
            yield _concat(waiting, schema)
            waiting, count = [], 0
        if rest.num_rows:
            waiting.append(rest)
            count += rest.num_rows
    if waiting:
        yield _concat(waiting, schema)


def drop_dimensions(reader: pa.RecordBatchReader, arrays: Sequence[str], who: str) -> pa.RecordBatchReader:
    """The answer without its last columns, which say for each of `arrays` whether a value has several dimensions.

    Raises:
        UnreadableInput: while it is read, of such a value.
    """
    count = len(reader.schema) - len(arrays)
    schema = pa.schema(list(reader.schema)[:count])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            for name, several in zip(arrays, batch.columns[count:], strict=True):
                if pc.any(several).as_py():
                    raise UnreadableInput(
                        f"{who}: column '{name}' has an array of several dimensions, which the driver would flatten. "
                        f'Convert it in the query: array_to_json("{name}")::text AS "{name}".'
                    )
            yield pa.RecordBatch.from_arrays(batch.columns[:count], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _check_times(array: pa.Array[Any], name: str, who: str) -> None:
    kind = array.type
    if pa.types.is_list(kind):
        _check_times(inside_lists(array)[0][0], name, who)
    elif kind == pa.date32() and (_numbers(array, pa.int32()) < _FIRST_DAY).any():
        raise _infinite_error(name, "date", who)
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        wrapped = (numbers := _numbers(array))[numbers < _FIRST_MICROSECOND]
        if np.isin(wrapped, _INFINITIES).any():
            raise _infinite_error(name, "timestamp", who)
        if wrapped.size:
            raise UnreadableInput(
                f"{who}: column '{name}' has a timestamp after the year 294246, which Arrow does not have. Convert it "
                f'in the query: "{name}"::text AS "{name}".'
            )
    elif kind == pa.time64("us") and (_numbers(array) >= _DAY_MICROSECONDS).any():
        raise UnreadableInput(
            f"{who}: column '{name}' has the time 24:00, which no other system has. Convert it in the query: "
            f"NULLIF(\"{name}\", '24:00')."
        )


def _infinite_error(name: str, kind: str, who: str) -> UnreadableInput:
    return UnreadableInput(
        f"{who}: column '{name}' has an infinite {kind}, which no other system has. Say in the query what it means: "
        f'CASE WHEN isfinite("{name}") THEN "{name}" END AS "{name}" makes it a missing value.'
    )


def _numbers(array: pa.Array[Any], type_: pa.DataType | None = None) -> NDArray[np.int64]:
    given = cast("Any", pc.cast(array, type_ or pa.int64()))
    numbers: NDArray[np.int64] = given.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _concat(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return whole
