"""Arrow columns as NumPy arrays, and arrays as columns again.

What a column becomes depends on its type and on whether it has nulls here, never on its values otherwise: floats have
NaN for null; numbers, booleans and times a masked array; strings and all else an object array with None. Lists of one
length make one more axis, other lists a `Ragged`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import ElementSpec, Ragged, Sparse, Table, build, freeze, parts_of
from spanwise.pipelines.input.exact_columns import exact_column, refuse_cut, refuse_cut_cast
from spanwise.pipelines.input.row_order import find_other_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray


def as_arrays(batch: pa.RecordBatch) -> dict[str, Any]:
    """The columns by name; read-only, and without copying where the types allow it."""
    return {name: as_array(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def as_array(column: Any) -> Any:  # noqa: PLR0911  one line per kind of type
    """One `pyarrow.Array`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    type_ = column.type
    if pa.types.is_dictionary(type_):
        return as_array(column.dictionary_decode())
    if isinstance(type_, pa.BaseExtensionType):
        return _as_extension(column)
    if pa.types.is_run_end_encoded(type_):
        return as_array(pc.run_end_decode(column))  # type: ignore[attr-defined]  # the stubs are older
    if pa.types.is_fixed_size_list(type_):
        return _as_axis(column)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _as_ragged(column, column.offsets.to_numpy(zero_copy_only=False))
    if pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_):  # Arrow's cast to lists loses values
        return _as_ragged(column)
    if pa.types.is_struct(type_) or pa.types.is_map(type_):  # NumPy converts integers next to a null to floats
        return _as_objects(column)
    if pa.types.is_time(type_) or pa.types.is_interval(type_):  # of which NumPy knows nothing
        return _as_objects(column)
    if pa.types.is_primitive(type_) and column.null_count and not pa.types.is_floating(type_):
        return _as_masked(column)
    return freeze(column.to_numpy(zero_copy_only=False))


def _as_objects(column: Any) -> Any:
    import numpy as np

    from spanwise.pipelines.input.arrow_tensors import python_values

    return freeze(np.fromiter(python_values(column), object, len(column)))


def _as_masked(column: Any) -> Any:
    """Numbers, truth values and times; 0 stands where one is missing."""
    import numpy as np
    import pyarrow as pa

    mask = column.is_null().to_numpy(zero_copy_only=False)
    whole = pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    values = np.array(whole.to_numpy(zero_copy_only=False))
    values[mask] = np.zeros(1, values.dtype)[0]
    return _masked(values, mask)


def _masked(values: NDArray[Any], mask: NDArray[Any]) -> Any:
    from spanwise.pipelines.input.nullable import NullableArray

    return freeze(NullableArray(values, mask))


def _as_axis(column: Any) -> Any:
    """Lists of one length, as one more axis; what is missing is missing as in a column without this axis."""
    import numpy as np

    rows, size = len(column), column.type.list_size
    inner = as_array(column.values.slice(column.offset * size, rows * size))
    if isinstance(inner, Ragged):
        lengths = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, size)
        return freeze(Ragged(as_array(column.flatten()), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)))
    inner = inner.reshape(rows, size, *inner.shape[1:])
    if not column.null_count:
        return inner
    gone = column.is_null().to_numpy(zero_copy_only=False)
    if inner.dtype.kind == "f" and not isinstance(inner, np.ma.MaskedArray):
        return freeze(np.where(gone.reshape(rows, *[1] * (inner.ndim - 1)), inner.dtype.type(np.nan), inner))
    values, mask = np.array(np.ma.getdata(inner)), np.array(np.ma.getmaskarray(inner))
    if values.dtype.kind == "O":
        values[gone] = None
        return freeze(values)
    values[gone], mask[gone] = np.zeros(1, values.dtype)[0], True
    return _masked(values, mask)


def _as_ragged(column: Any, offsets: NDArray[Any] | None = None) -> Ragged:
    import numpy as np

    if offsets is None or column.null_count:  # the values of a null list belong to nobody
        offsets = np.concatenate([[0], np.cumsum(np.asarray(column.value_lengths().fill_null(0)))])
    offsets = offsets.astype(np.int64)
    ragged: Ragged = freeze(Ragged(as_array(column.flatten()), offsets - offsets[0]))
    return ragged


def _as_extension(column: Any) -> Any:
    """Tensors of Arrow's with their axes, others as what they are stored as.

    Arrow's own `to_numpy_ndarray` shows what lies below a null, and is wrong where three axes or more change places.
    """
    import pyarrow as pa

    type_, stored = column.type, as_array(column.storage)
    if isinstance(type_, pa.Bool8Type):
        return freeze(stored != 0)
    if not isinstance(type_, pa.FixedShapeTensorType):
        return stored
    axes = type_.permutation or range(len(type_.shape))
    tensors = stored.reshape(len(column), *type_.shape)
    return freeze(tensors.transpose(0, *(axis + 1 for axis in axes)))


def convert_arrays(element: Any, sink: str = "", like: Any = None) -> Any:
    """An element for libraries that know arrays only: RecordBatches as dicts of arrays, sparse arrays in full.

    Lists of numbers are arrays too; an empty one is of what lists hold at its place in `like`.

    Raises:
        DatasetError: no array has the shape of a list, or holds its numbers.
    """
    import pyarrow as pa

    if isinstance(element, pa.RecordBatch):
        element = as_arrays(element)
    if isinstance(element, Sparse):
        return element.dense()
    if type(element) is list:
        return _as_numbers(element, sink, like)
    taken = parts_of(element)
    if taken is None:
        return element
    names, parts = taken
    known = like if isinstance(like, dict) else {}
    labels = names or map(str, range(len(parts)))
    made = [convert_arrays(part, sink, known.get(label)) for label, part in zip(labels, parts, strict=True)]
    return build(type(element), names, made)


def _as_numbers(values: list[Any], sink: str, like: Any) -> Any:
    """A list of numbers as an array; one of other things as it is."""
    import numpy as np

    from spanwise.pipelines.input.stacking import leaf_arrays

    try:
        (array,) = leaf_arrays([values], "", like)
    except DatasetError as error:
        text = str(error).removeprefix("elements: ")
        raise DatasetError(
            f"{sink}: {text} Pad the lists in it with map(…); batch(n) of rows needs no padding."
        ) from error
    if array.dtype.kind in "biufc":
        return array
    if array.size and array.dtype.kind == "O" and all(isinstance(item, int | float | np.number) for item in array.flat):
        raise DatasetError(
            f"{sink}: no type of numbers holds all of {values!r:.80} exactly. Convert them first, with map(…)."
        )
    return values


def examples_of(spec: ElementSpec) -> Any:
    """For `convert_arrays`: one thing of what the lists in rows hold, by column and, in structs, by field."""
    return _examples(spec.schema) if isinstance(spec, Table) and spec.schema is not None else None


def _examples(fields: Any) -> Any:
    import pyarrow as pa

    def example(type_: Any) -> Any:
        if hasattr(type_, "value_field"):
            return example(type_.value_type)
        if pa.types.is_struct(type_):
            return _examples(type_)
        kinds = ((False, pa.types.is_boolean), (0, pa.types.is_integer), (0.0, pa.types.is_floating))
        return next((number for number, is_kind in kinds if is_kind(type_)), "")

    return {field.name: example(field.type) for field in fields}


def refuse_missing(sink: str, kind: str, leaf: Any) -> None:
    """Refuses an array with missing values for what has no place for them.

    Raises:
        DatasetError: says how to fill them.
    """
    import numpy as np

    if isinstance(leaf, np.ma.MaskedArray) and np.ma.getmaskarray(leaf).any():
        raise DatasetError(
            f"{sink}: values are missing in an array of {leaf.dtype}, and a {kind} cannot say so. Fill them first: "
            f"map(lambda array: array.filled(0)), or leave these elements out."
        )


def as_column(values: Any, type_: pa.DataType | None = None) -> Any:  # noqa: PLR0911  one line per kind of values
    """An array as a `pyarrow.Array`; nothing but a mask makes nulls of floats."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, Ragged):
        return pa.LargeListArray.from_arrays(pa.array(values.offsets, pa.int64()), as_column(values.values))
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _as_lists(values)
    if type_ is not None and _is_typed(values, type_):
        return _cast(as_column(values), type_)
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, type_, mask=np.ma.getmaskarray(values))
    if hasattr(values, "columns"):
        raise DatasetError(f"must return a column of values, not a {type(values).__name__}: return one of its columns.")
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise DatasetError(f"must return a column of values, not {values!r:.80} of type {type(values).__name__}.")
    return pa.array(values, type_)


def _is_typed(values: Any, type_: pa.DataType) -> bool:
    """Whether an array has a type of its own, of which Arrow may make less. Times of NumPy's are UTC in any zone."""
    import numpy as np
    import pyarrow as pa

    kind = values.dtype.kind if isinstance(values, np.ndarray) else ""
    return kind in set("biufmM") and not (kind == "M" and pa.types.is_timestamp(type_))


def _as_lists(values: NDArray[Any]) -> Any:
    """An array of several axes as lists of one length; one that is missing as a whole is null."""
    import numpy as np
    import pyarrow as pa

    rows, size = values.shape[:2]
    inner = as_column(values.reshape(rows * size, *values.shape[2:]))
    if not size:  # Arrow's own function would divide by it
        return pa.Array.from_buffers(pa.list_(inner.type, 0), rows, [None], children=[inner])
    if not isinstance(values, np.ma.MaskedArray) or not values.size:
        return pa.FixedSizeListArray.from_arrays(inner, size)
    gone: Any = np.ma.getmaskarray(values).reshape(rows, -1).all(axis=1)
    return pa.FixedSizeListArray.from_arrays(inner, size, mask=pa.array(gone) if gone.any() else None)


def as_mask(result: object, block: pa.RecordBatch) -> Any:
    """The result of a condition on a block, as a column.

    Raises:
        DatasetError: it is no column, or has the rows in another order.
    """
    _refuse_other_order("", result, block)
    return as_column(result)


def as_batch(
    result: object, given: Mapping[str, Any], block: pa.RecordBatch, schema: pa.Schema | None
) -> pa.RecordBatch:
    """The result of a function of a block, as a RecordBatch.

    An array that is one of those in `given` becomes the block's own column, so that nulls and types survive.

    Raises:
        DatasetError: it is neither a batch nor a dict of columns, or the columns have other lengths or types, or the
            rows in another order.
    """
    import pyarrow as pa

    _refuse_other_order("", result, block)
    if isinstance(result, pa.Table):
        result = result.combine_chunks().to_batches()[0] if result.num_rows else None
    if isinstance(result, pa.RecordBatch):
        return result if schema is None or result.schema.equals(schema) else cast(result, schema)
    if not isinstance(result, dict):
        raise DatasetError(f"must return a RecordBatch, a Table or a dict of arrays, not {type(result).__name__}.")
    for name, values in result.items():
        _refuse_other_order(f"column {name!r} as ", values, block)
    columns = {
        name: _original(name, block.column(name), values)
        if name in given and values is given[name]
        else as_column(values, schema.field(name).type if schema is not None and name in schema.names else None)
        for name, values in result.items()
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DatasetError(f"must return columns of one length, not {lengths}.")
    for name, values in result.items():
        if schema is not None and name in schema.names and _are_objects(values):
            refuse_cut(name, list(values), schema.field(name).type)
    made: pa.RecordBatch = pa.RecordBatch.from_pydict(columns)
    return made if schema is None or made.schema.equals(schema) else cast(made, schema)


def _refuse_other_order(where: str, values: object, block: pa.RecordBatch) -> None:
    if (other := find_other_order(values, block)) is not None:
        raise DatasetError(f"returned {where}{other}")


def _are_objects(values: Any) -> bool:
    """Whether a column is made of Python's values, which Arrow cuts to a type."""
    import numpy as np

    return isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.dtype.kind == "O")


def _original(name: str, column: pa.Array[Any], values: Any) -> Any:
    """The column of an array that came back; dicts in it may have been changed, so these are read again."""
    from spanwise.pipelines.input.arrow_tensors import python_values

    if not _holds_dicts(column.type):
        return column
    cells = _cells(column, values)
    # `==` takes 1 and True for one, and two moments of the hour that comes twice in autumn
    return column if repr(cells) == repr(python_values(column)) else exact_column(name, cells, column.type)


def _holds_dicts(type_: Any) -> bool:
    """Whether arrays of the type have dicts in them, at whatever depth of lists."""
    import pyarrow as pa

    if pa.types.is_map(type_) or pa.types.is_struct(type_):
        return True
    return hasattr(type_, "value_field") and _holds_dicts(type_.value_type)


def _cells(column: Any, values: Any) -> list[Any]:
    """An array that was made of the column as Python's values, in which lists are missing where they are there."""
    import pyarrow as pa

    if isinstance(values, Ragged):
        items, ends = _cells(column.flatten(), values.values), values.offsets.tolist()
        lists: list[Any] = [items[start:stop] for start, stop in pairwise(ends)]
    elif pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        inner = column.values.slice(column.offset * size, len(column) * size)
        items = _cells(inner, values.reshape(len(inner), *values.shape[2:]))
        lists = [items[at * size : (at + 1) * size] for at in range(len(column))]
    else:
        return values.tolist()  # type: ignore[no-any-return]
    return [each if there else None for each, there in zip(lists, column.is_valid().to_pylist(), strict=True)]


def cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the columns and types of the schema.

    Raises:
        DatasetError: it has other columns, or values that do not fit the types.
    """
    import pyarrow as pa

    if set(batch.schema.names) != set(schema.names):
        raise DatasetError(f"must return the columns {', '.join(schema.names)}, not {', '.join(batch.schema.names)}.")
    try:
        return pa.RecordBatch.from_arrays([_cast(batch.column(each.name), each.type) for each in schema], schema=schema)
    except pa.ArrowException as error:
        raise DatasetError(f"must return columns that fit the schema: {error}.") from error


def _cast(column: Any, type_: pa.DataType) -> Any:
    """The column as another type.

    Raises:
        ArrowInvalid: a value does not survive.
    """
    made = column.cast(type_)
    if made.type != column.type:
        refuse_cut_cast(column, made)
    return made
