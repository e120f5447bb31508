"""Arrow columns as NumPy arrays, and arrays as columns again.

What a column becomes depends on its type and on whether it has nulls here, never on its values otherwise: floats have
NaN for null; numbers, booleans and times a masked array; strings and all else an object array with None. Lists of one
length make an array of two axes, other lists a `Ragged`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


def as_arrays(batch: pa.RecordBatch) -> dict[str, Any]:
    """The columns by name; read-only, and without copying where the types allow it."""
    return {name: as_array(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def as_array(column: Any) -> Any:
    """One `pyarrow.Array`."""
    import numpy as np
    import pyarrow as pa

    type_ = column.type
    if pa.types.is_dictionary(type_):
        return as_array(column.dictionary_decode())
    if pa.types.is_fixed_size_list(type_) and not column.null_count:
        inner = as_array(column.flatten())
        return inner.reshape(len(column), type_.list_size, *inner.shape[1:]) if isinstance(inner, np.ndarray) else inner
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        if column.null_count:  # the values of a null list belong to nobody
            offsets = np.concatenate([[0], np.cumsum(np.asarray(column.value_lengths().fill_null(0)))]).astype(np.int64)
        return Ragged(as_array(column.flatten()), offsets - offsets[0])
    if column.null_count and not pa.types.is_floating(type_) and pa.types.is_primitive(type_):
        mask = column.is_null().to_numpy(zero_copy_only=False)
        filled = column.fill_null(pa.scalar(0, pa.int64()).cast(type_) if not _is_bool(type_) else False)
        return np.ma.MaskedArray(filled.to_numpy(zero_copy_only=False), mask)
    if pa.types.is_struct(type_) or pa.types.is_map(type_):  # NumPy converts integers next to a null to floats
        array = np.fromiter(column.to_pylist(), object, len(column))
    else:
        array = column.to_numpy(zero_copy_only=False)
    array.flags.writeable = False
    return array


def _is_bool(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_boolean(type_))


def as_column(values: Any, type_: pa.DataType | None = None) -> Any:
    """An array as a `pyarrow.Array`; nothing but a mask makes nulls of floats."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, Ragged):
        return pa.LargeListArray.from_arrays(pa.array(values.offsets, pa.int64()), as_column(values.values))
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, type_, mask=np.ma.getmaskarray(values))
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return pa.FixedSizeListArray.from_arrays(as_column(values.reshape(-1, *values.shape[2:])), values.shape[1])
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise DatasetError(f"must return a column of values, not {values!r:.80} of type {type(values).__name__}.")
    return pa.array(values, type_)


def as_batch(
    result: object, given: Mapping[str, Any], block: pa.RecordBatch, schema: pa.Schema | None
) -> pa.RecordBatch:
    """The result of a function of a block, as a RecordBatch.

    An array that is one of those in `given` becomes the block's own column, so that nulls and types survive.

    Raises:
        DatasetError: it is neither a batch nor a dict of columns, or the columns have other lengths or types.
    """
    import pyarrow as pa

    if isinstance(result, pa.Table):
        result = result.combine_chunks().to_batches()[0] if result.num_rows else None
    if isinstance(result, pa.RecordBatch):
        return result if schema is None or result.schema.equals(schema) else cast(result, schema)
    if not isinstance(result, dict):
        raise DatasetError(f"must return a RecordBatch, a Table or a dict of arrays, not {type(result).__name__}.")
    columns = {
        name: block.column(name)
        if name in given and values is given[name]
        else as_column(values, schema.field(name).type if schema is not None and name in schema.names else None)
        for name, values in result.items()
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DatasetError(f"must return columns of one length, not {lengths}.")
    made: pa.RecordBatch = pa.RecordBatch.from_pydict(columns)
    return made if schema is None or made.schema.equals(schema) else cast(made, schema)


def cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the columns and types of the schema.

    Raises:
        DatasetError: it has other columns, or values that do not fit the types.
    """
    import pyarrow as pa

    if set(batch.schema.names) != set(schema.names):
        raise DatasetError(f"must return the columns {', '.join(schema.names)}, not {', '.join(batch.schema.names)}.")
    try:
        return pa.RecordBatch.from_arrays([batch.column(each.name).cast(each.type) for each in schema], schema=schema)
    except pa.ArrowException as error:
        raise DatasetError(f"must return columns that fit the schema: {error}.") from error
