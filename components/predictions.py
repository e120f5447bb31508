"""Predictions: checks the results of a user's functions and converts them to numbers or columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spanwise.orchestrator.errors import DatasetError, ParameterError
from spanwise.pipelines.input.exact_columns import refuse_cut
from spanwise.pipelines.input.readers.stored_types import find_missing_fixed_list
from spanwise.pipelines.input.row_order import find_other_order
from spanwise.pipelines.input.stacking import find_rounded

_LARGEST: Final = 2**63 - 1  #: signed whole number
Floats: TypeAlias = NDArray[np.float64]


def scores(values: object, rows: int, given: pa.Table | None = None, *, cuts: Iterable[float] = ()) -> Floats:
    """The result of `predict_fn`, called with the table `given`, as one number for each row; nulls become NaN.

    What equals one of the `cuts` in its own type is that cut: 0.3 in 32 bits is 0.30000001192092896.

    Raises:
        ParameterError: it has another number of values, or values that are not numbers.
    """
    array = _one_per_row("predict_fn", values, rows, given)
    found = _floats("predict_fn", array)
    if array.dtype.kind == "f" and array.dtype != np.float64:
        for cut in sorted(cuts, reverse=True):
            found[np.isfinite(found) & (array == np.asarray(cut).astype(array.dtype))] = cut
    return found


def labels(label: str | Callable[..., object], table: pa.Table) -> Floats:
    """The labels of a table as numbers, NaN for missing ones; `label` is a column or a function of the table.

    Raises:
        ParameterError: there is not one number for each row.
    """
    if not isinstance(label, str):
        return _vector("label", label(table), len(table), table)
    return _vector(f"label {label!r}", table.column(label), len(table))


def weights(column: str, table: pa.Table) -> Floats:
    """The weights of the rows of a table.

    Raises:
        ParameterError: one is missing, negative or not finite.
    """
    found = _vector(f"weight {column!r}", table.column(column), len(table))
    odd = found[~(np.isfinite(found) & (found >= 0))]
    if odd.size:
        raise ParameterError(f"the weight {column!r} has the value {odd[0]:g}; weights are finite and not negative.")
    return found


def classes(label: str | Callable[..., object], table: pa.Table, names: Sequence[str | int]) -> Floats:
    """The labels of a table as indices of classes, NaN for missing ones.

    Raises:
        ParameterError: a label is not one of the classes.
    """
    made = table.column(label) if isinstance(label, str) else label(table)
    refuse_other_order("label", made, table)
    if isinstance(made, pa.ChunkedArray | pa.Array):
        found = made.to_pylist()
    else:  # NumPy's own choice for a list would round large numbers beside NaN, and cut texts
        found = _without_na(np.asanyarray(made, object if isinstance(made, list | tuple) else None)).tolist()
    if not isinstance(found, list) or len(found) != len(table):
        raise ParameterError(f"label returned {found!r:.60} for {len(table)} rows; expected one class for each row.")
    places: dict[object, float] = {name: float(place) for place, name in enumerate(names)}
    indices = np.full(len(found), np.nan)
    for row, value in enumerate(found):
        if value is None or value != value:  # noqa: PLR0124  NaN
            continue
        if not isinstance(value, Hashable) or value not in places:
            raise ParameterError(f"the label {value!r} is not one of the classes: {', '.join(map(repr, names))}.")
        indices[row] = places[value]
    return indices


def chances(values: object, rows: int, classes: Sequence[str | int], given: pa.Table | None = None) -> Floats:
    """The result of `predict_fn`, called with the table `given`, as one number for each row and class.

    Columns that are named as the classes are theirs; those of an array, or with numbers for names, are in order.

    Raises:
        ParameterError: it has another number of values, values that are not numbers, or columns of unknown classes.
    """
    refuse_other_order("predict_fn", values, given)
    array = _as_array(values)
    if array.shape != (rows, len(classes)):
        raise ParameterError(
            f"predict_fn returned an array of shape {array.shape} for {rows} rows and {len(classes)} classes; expected "
            "one number for each row and class, for example model.predict_proba(x), in the order of classes."
        )
    return _floats("predict_fn", array[:, _places_of_classes(values, classes)])


def _places_of_classes(values: object, classes: Sequence[str | int]) -> list[int]:
    """The column of each class.

    Raises:
        ParameterError: the names of the columns say something, but not this.
    """
    in_order = list(range(len(classes)))
    named = values.schema.names if isinstance(values, pa.RecordBatch | pa.Table) else getattr(values, "columns", None)
    if named is None:
        return in_order
    columns, wanted = [str(name) for name in named], [str(name) for name in classes]
    if columns == wanted:
        return in_order
    numbers = [str(place) for place in in_order]
    if columns != numbers and sorted(columns) == sorted(wanted) and len(set(wanted)) == len(wanted):
        return [columns.index(name) for name in wanted]
    prefix = columns[0].removesuffix("0")
    is_numbered = columns == [prefix + number for number in numbers]
    # numbers say nothing, unless they may be those of classes in another order
    if not any(columns) or (is_numbered and (wanted == numbers or sorted(wanted) != sorted(numbers))):
        return in_order
    raise ParameterError(
        f"predict_fn returned the columns {', '.join(map(repr, columns))} for the classes "
        f"{', '.join(map(repr, classes))}, so it is unknown which column is of which class; name them as the classes, "
        "or return an array without names, such as model.predict_proba(x), in the order of classes."
    )


def columns(
    values: object, rows: int, name: str, given: pa.Table | None = None
) -> dict[str, pa.Array[pa.Scalar[pa.DataType]]]:
    """The result of `predict_fn` as columns: an array is named `name`; a mapping or a table has its own names.

    An array with several numbers for each row becomes a column of lists. `given` is the table that `predict_fn` got.

    Raises:
        ParameterError: it has another number of values, or no columns.
    """
    if hasattr(values, "columns") and hasattr(values, "to_numpy"):  # NumPy would make lists of it, without names
        raise ParameterError(
            f"predict_fn returned a {type(values).__qualname__} of {type(values).__module__.partition('.')[0]}; return "
            "a pyarrow table: frame.to_arrow() of Polars, pyarrow.Table.from_pandas(frame, preserve_index=False)."
        )
    if isinstance(values, pa.RecordBatch | pa.Table):
        refuse_other_order("predict_fn", values, given)
        named: list[tuple[object, object]] = list(zip(values.schema.names, values.columns, strict=True))
    else:
        named = list(values.items()) if isinstance(values, Mapping) else [(name, values)]
    if not named:
        raise ParameterError(f"predict_fn returned no columns for {rows} rows; expected one at least.")
    found: dict[str, pa.Array[pa.Scalar[pa.DataType]]] = {}
    for key, value in named:
        if str(key) in found:
            raise ParameterError(f"predict_fn returned two columns called {str(key)!r}; rename one of them.")
        found[str(key)] = _column(str(key), value, rows, given)
    return found


def _column(name: str, values: object, rows: int, given: pa.Table | None) -> pa.Array[pa.Scalar[pa.DataType]]:
    if isinstance(values, pa.ChunkedArray):
        array: pa.Array[pa.Scalar[pa.DataType]] = values.combine_chunks()
    elif isinstance(values, pa.Array):
        array = values
    else:
        refuse_other_order("predict_fn", values, given)
        try:
            array = _to_arrow(name, values, rows)
        except (pa.ArrowException, DatasetError, OverflowError, TypeError, ValueError) as error:
            why = str(error).removesuffix(".")
            raise ParameterError(f"predict_fn returned {name!r} as {values!r:.80}, not a column: {why}.") from error
    if len(array) != rows:
        raise ParameterError(
            f"predict_fn returned {len(array)} values of {name!r} for {rows} rows; expected one for each."
        )
    missing = find_missing_fixed_list(array)
    if missing is not None:
        raise ParameterError(
            f"predict_fn returned no list of {name!r} for row {missing}, and Parquet cannot store that where all lists "
            "have one length; return lists of any length."
        )
    return array


def _to_arrow(name: str, values: Any, rows: int) -> pa.Array[pa.Scalar[pa.DataType]]:
    array: pa.Array[pa.Scalar[pa.DataType]]
    if _has_types_of_its_own(values):
        array = values.to_arrow() if hasattr(values, "to_arrow") else pa.array(values)
        array = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
        return array.cast(pa.string()) if pa.types.is_large_string(array.type) else array
    found = np.asanyarray(values)  # a masked array stays one: what is masked is missing
    if isinstance(values, Sequence):
        found = _exact_numbers(found, values)
    has_one = found.shape == (rows, 1)
    if isinstance(values, Sequence) and found.dtype.kind in "SU" and found.ndim:
        # NumPy has cut zeros off their ends, and made text of numbers beside text
        array = pa.array([each[0] for each in values] if has_one else list(values))
    else:
        found = found[:, 0] if has_one else found
        array = pa.array(found if found.ndim == 1 else found.tolist() if np.ma.isMaskedArray(found) else list(found))
        if found.dtype.kind == "O":  # Arrow would cut the hours off a moment beside a date
            refuse_cut(name, found.tolist(), array.type)
    return array


def _exact_numbers(found: NDArray[Any], values: Sequence[Any]) -> NDArray[Any]:
    """What NumPy has made of lists; unsigned numbers where it has rounded them, or made objects of them.

    Raises:
        ValueError: no type holds all of them.
    """
    if found.dtype.kind != "O" and find_rounded(found, values) is None:
        return found
    objects = np.array(values, object)
    is_missing = np.array([each is None for each in objects.flat]).reshape(objects.shape)
    there = objects[~is_missing].tolist()
    is_whole = all(isinstance(each, int | np.integer) for each in there)
    if found.dtype.kind == "O" and not (is_whole and any(each > _LARGEST for each in there)):
        return found
    if not is_whole or min(there) < 0 or max(there) > 2 * _LARGEST + 1:
        raise ValueError(
            "no type holds all these numbers exactly; return them as texts, or whole numbers and others as two columns"
        )
    objects[is_missing] = 0
    numbers = objects.astype(np.uint64)
    return np.ma.MaskedArray(numbers, is_missing) if is_missing.any() else numbers


def _has_types_of_its_own(values: object) -> bool:
    """Whether it is a Series of Polars or an extension type of pandas.

    NumPy has no whole numbers beside missing ones, no zones and no fields.
    """
    if hasattr(values, "to_arrow"):
        return True
    of_pandas = type(values).__module__.partition(".")[0] == "pandas"
    return of_pandas and not isinstance(getattr(values, "dtype", None), np.dtype)


def _vector(what: str, values: object, rows: int, given: pa.Table | None = None) -> Floats:
    return _floats(what, _one_per_row(what, values, rows, given))


def _one_per_row(what: str, values: object, rows: int, given: pa.Table | None) -> NDArray[np.generic]:
    if isinstance(values, pa.ChunkedArray | pa.Array):
        values = _to_numpy(what, values)
    if values is None:
        raise ParameterError(f"{what} returned None for {rows} rows; expected one number for each row.")
    refuse_other_order(what, values, given)
    array = _as_array(values)
    if array.shape == (rows, 1):
        array = array[:, 0]
    if array.shape != (rows,):
        raise ParameterError(
            f"{what} returned an array of shape {array.shape} for {rows} rows; expected one number for each row, "
            "for example model.predict_proba(x)[:, 1]."
        )
    return array


def refuse_other_order(what: str, values: object, given: object = None) -> None:
    """Refuses a Series or a frame of pandas, or its table, with the numbers of the rows as index in another order.

    `given` is the table that the function received, which may have an index of its own.

    Raises:
        ParameterError: the values are of other rows than those beside which they would stand.
    """
    if (other := find_other_order(values, given)) is not None:
        raise ParameterError(f"{what} returned {other}")


def _as_array(values: object) -> NDArray[np.generic]:
    """An array, in which what a masked array masks is None, or NaN beside floats."""
    if isinstance(values, pa.Table | pa.RecordBatch):
        values = np.column_stack([_to_numpy("predict_fn", column) for column in values.columns] or [np.empty(0)])
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind == "f":
        return values.filled(np.nan)
    if isinstance(values, np.ma.MaskedArray):
        found: NDArray[np.object_] = values.data.astype(object)
        found[np.ma.getmaskarray(values)] = None
        return found
    return _without_na(np.asarray(values))


def _without_na(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """An array with None for the NA of pandas, which is not even equal to itself."""
    pandas = sys.modules.get("pandas")
    if pandas is None or array.dtype.kind != "O" or not array.ndim or isinstance(array, np.ma.MaskedArray):
        return array
    found: NDArray[np.object_] = np.frompyfunc(lambda each: None if each is pandas.NA else each, 1, 1)(array)
    return found


def _floats(what: str, array: NDArray[np.generic]) -> Floats:
    if array.dtype.kind in "mM":  # as a number, a missing one is -2^63
        raise _refuse_times(what, array.dtype)
    if array.dtype.kind == "c":  # as a number, it has no imaginary part
        raise ParameterError(f"{what} returned {array.dtype}; expected numbers that are not complex.")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"{what} returned {array.dtype} values such as {array.flat[0]!r}; expected numbers. "
            "Use a function as label that returns numbers, or set classes=(…)."
        ) from error


def _refuse_times(what: str, type_: object) -> ParameterError:
    return ParameterError(
        f"{what} returned {type_}; expected numbers. What number a time is depends on its unit: return numbers of "
        "a unit that you choose, such as seconds. A label may be a function of the table."
    )


def _to_numpy(
    what: str, values: pa.ChunkedArray[pa.Scalar[pa.DataType]] | pa.Array[pa.Scalar[pa.DataType]]
) -> NDArray[np.generic]:
    if isinstance(values.type, pa.DictionaryType):  # NumPy would get another category where one is missing
        values = values.cast(values.type.value_type)
    if pa.types.is_temporal(values.type):
        raise _refuse_times(what, values.type)
    if pa.types.is_nested(values.type):
        raise ParameterError(f"{what} returned {values.type}; expected one number for each row.")
    if _is_number(values.type):
        values = values.cast(pa.float64(), safe=False)  # the nearest doubles, also of numbers beyond 2^53
    return values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()


def _is_number(type_: pa.DataType) -> bool:
    return pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_null(type_)
