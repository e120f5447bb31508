"""Selection: some rows of a batch, in any order.

`RecordBatch.take` and `filter` of pyarrow (25.0.1) give wrong values for a column of fixed-size lists of fixed-size
lists, a tensor of two axes and more, that lies behind the start of its memory, as every slice does. Such columns go
another way here, which is also faster; `tests/pipelines/input/test_selection.py` says when it is no longer needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, TypeAlias

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import ElementSpec, Table

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


Condition: TypeAlias = "pc.Expression | Conditions"


@dataclass(frozen=True)
class Conditions:
    """Conditions that are asked one after another: `b != 0` may keep `a / b > 1` from dividing by zero."""

    parts: tuple[pc.Expression, ...]

    def __repr__(self) -> str:
        return ", then ".join(map(str, self.parts))


def both_conditions(first: Condition, second: Condition) -> Conditions:
    return Conditions(parts_of_condition(first) + parts_of_condition(second))


def parts_of_condition(condition: Condition) -> tuple[pc.Expression, ...]:
    return condition.parts if isinstance(condition, Conditions) else (condition,)


def whole_condition(condition: Condition) -> pc.Expression:
    """The condition as one: for what asks where it can hold, and does not evaluate it."""
    return reduce(and_, parts_of_condition(condition))


def take_rows(batch: pa.RecordBatch, places: Any) -> pa.RecordBatch:
    """The rows at these places, an array of whole numbers, in that order."""
    import pyarrow as pa

    tensors = _tensors(batch.schema)
    if not tensors:
        return batch.take(places)
    columns = [
        take_values(column, places) if at in tensors else column.take(pa.array(places))
        for at, column in enumerate(batch.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def filter_rows(batch: pa.RecordBatch, condition: Any) -> pa.RecordBatch:
    """The rows for which a mask, or a condition, is true; null counts as false."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(condition, Conditions):
        return reduce(filter_rows, condition.parts, batch)
    mask = evaluate(batch, condition) if isinstance(condition, pc.Expression) else condition
    if not pa.types.is_boolean(mask.type) or len(mask) != batch.num_rows or not _tensors(batch.schema):
        return batch.filter(mask)
    return take_rows(batch, np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)))


def evaluate(rows: pa.RecordBatch | pa.Table, expression: pc.Expression) -> Any:
    """The value of an expression for each row.

    Raises:
        ArrowException: it names other columns, or its functions do not take their types.
    """
    import pyarrow as pa
    from pyarrow import acero

    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]), [source])
    return project.to_table(use_threads=False)["value"].combine_chunks()


def take_values(column: pa.Array[Any], places: Any) -> Any:
    """The values of a column at these places."""
    import pyarrow as pa

    type_ = column.type
    if not _has_tensor(type_):
        return column.take(pa.array(places))
    if isinstance(column, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(type_, take_values(column.storage, places))
    if isinstance(column, pa.StructArray):
        parts = [take_values(column.field(at), places) for at in range(type_.num_fields)]
        gone = column.is_null().to_numpy(zero_copy_only=False)[places]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=pa.array(gone) if gone.any() else None)
    sizes, flat = _flatten(column)
    width = _width_bytes(flat.type)
    count = math.prod(sizes)  # values of a tensor
    if flat.null_count or not width or not flat or len(flat) != len(column) * count:
        return pa.concat_arrays([column, column.slice(0, 0)]).take(pa.array(places))  # a copy that begins at 0
    content = flat.buffers()[1].slice(flat.offset * width)
    cells = pa.Array.from_buffers(pa.binary(count * width), len(column), [None, content]).take(pa.array(places))
    made: Any = pa.Array.from_buffers(flat.type, len(places) * count, cells.buffers(), offset=cells.offset * count)
    for size in reversed(sizes):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    return made if made.type == type_ else made.cast(type_)  # which differs in the names of fields


def _flatten(column: Any) -> tuple[list[int], Any]:
    """The sizes of a tensor's axes, and its values in a row."""
    import pyarrow as pa

    sizes = []
    while pa.types.is_fixed_size_list(column.type) and not column.null_count:
        sizes.append(column.type.list_size)
        column = column.flatten()
    return sizes, column


def _width_bytes(type_: Any) -> int:
    """How many bytes a value takes; 0 if that differs, or is none."""
    import pyarrow as pa

    if not (pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_)):
        return 0
    return 0 if type_.bit_width % 8 else type_.bit_width // 8


def _tensors(schema: pa.Schema) -> frozenset[int]:
    """Which columns hold tensors."""
    return frozenset(at for at, type_ in enumerate(schema.types) if _has_tensor(type_))


@lru_cache(maxsize=1024)
def _has_tensor(type_: Any) -> bool:
    """Whether there are fixed-size lists of fixed-size lists anywhere in it."""
    import pyarrow as pa

    if isinstance(type_, pa.BaseExtensionType):
        return isinstance(type_, pa.FixedShapeTensorType) or _has_tensor(type_.storage_type)
    if isinstance(type_, pa.DictionaryType):
        return _has_tensor(type_.value_type)
    nested = [type_.field(at).type for at in range(type_.num_fields)]
    if pa.types.is_fixed_size_list(type_) and pa.types.is_fixed_size_list(nested[0]):
        return True
    return any(map(_has_tensor, nested))


def check_selectable(op: str, spec: ElementSpec) -> None:
    """Refuses columns of which Arrow cannot select rows.

    Raises:
        DatasetError: names the column and its type.
    """
    if not isinstance(spec, Table) or spec.schema is None:
        return
    for name, type_ in zip(spec.schema.names, spec.schema.types, strict=True):
        if not _is_selectable(type_):
            raise DatasetError(
                f"{op}: column {name!r} is of the type {type_}, of which Arrow cannot select rows. Cast it to another "
                f"type, such as string or the type of its values."
            )


@lru_cache(maxsize=1024)
def _is_selectable(type_: Any) -> bool:
    import pyarrow as pa

    try:
        pa.nulls(1, type_).take(pa.array([0]))
    except pa.ArrowNotImplementedError:
        return False
    return True
