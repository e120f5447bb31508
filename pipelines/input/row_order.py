"""Row order: whether values that pandas has numbered are those of the rows beside which they would stand.

All else stands by position. An index of other numbers, of texts or of several levels says nothing of an order.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import parts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


def find_other_order(values: object, given: object = None) -> str | None:
    """What values are, and what to return instead, if they have the rows in another order; None if they have not.

    Rows are numbered from 0, or as in the frame of which the table was made that the user's function was `given`.
    """
    import numpy as np

    index = _find_index(values)
    if index is None:
        index = _find_stored_index(values)
    if index is None:
        return None
    own = _find_stored_index(given)
    return _describe_other(values, index, [*([] if own is None else [own]), np.arange(len(index))])


def refuse_mixed_orders(element: object) -> None:
    """Refuses a structure of which one part has the rows in another order than another part.

    Raises:
        DatasetError: says which part.
    """
    if "pandas" not in sys.modules or not _may_have_index(element):  # nearly all elements, each of which is asked
        return
    import numpy as np

    parts = [(label, leaf, _find_index(leaf)) for label, leaf in _leaves("", element)]
    if all(index is None for *_, index in parts):
        return
    orders = [np.arange(len(leaf)) for _, leaf, index in parts if index is None and _has_rows(leaf)]
    for label, leaf, index in parts:
        if index is not None:
            other = _describe_other(leaf, index, orders)
            if other is not None:
                raise DatasetError(f"{label!r} is {other}")
            orders.append(index)


def _may_have_index(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_may_have_index, value.values()))
    if isinstance(value, tuple):
        return any(map(_may_have_index, value))
    return _kind_may_have_index(type(value))  # type: ignore[arg-type]  # a type can be hashed


@functools.lru_cache(maxsize=256)
def _kind_may_have_index(kind: type[Any]) -> bool:
    """Whether an object of this type is one of pandas, or may hold one."""
    return hasattr(kind, "to_numpy") or hasattr(kind, "__dataclass_fields__")


def _leaves(label: str, value: object) -> Iterator[tuple[str, Any]]:
    taken = parts_of(value)
    if taken is None:
        yield label, value
    else:
        names, parts = taken
        for name, part in zip(names or map(str, range(len(parts))), parts, strict=True):
            yield from _leaves(name, part)


def _has_rows(leaf: object) -> bool:
    return hasattr(leaf, "__len__") and not isinstance(leaf, str | bytes) and getattr(leaf, "ndim", 1) > 0


def _find_index(values: object) -> NDArray[Any] | None:
    """The whole numbers that a Series or a frame has as its index."""
    index = getattr(values, "index", None) if hasattr(values, "to_numpy") else None
    return None if index is None or callable(index) else _whole_numbers(index)


def _find_stored_index(table: object) -> NDArray[Any] | None:
    """Those of the frame of which a table was made: a column of it or, if they are a range, in its metadata alone."""
    import pyarrow as pa

    if not isinstance(table, pa.RecordBatch | pa.Table):
        return None
    named = (table.schema.pandas_metadata or {}).get("index_columns") or []
    if len(named) != 1:
        return None
    (stored,) = named
    if not isinstance(stored, dict):
        column = table.schema.get_field_index(stored)
        return None if column < 0 else _whole_numbers(table.column(column))
    numbers = range(stored["start"], stored["stop"], stored["step"])
    return _whole_numbers(numbers) if len(numbers) == table.num_rows else None  # of more rows: these are some of them


def _whole_numbers(index: Any) -> NDArray[Any] | None:
    import numpy as np

    numbers = np.asarray(index)
    return numbers if numbers.dtype.kind in "iu" and numbers.ndim == 1 else None


def _describe_other(values: object, index: NDArray[Any], orders: Sequence[NDArray[Any]]) -> str | None:
    """What values are, if their index is in none of these orders and has the numbers of one of them."""
    import numpy as np

    if any(np.array_equal(index, order) for order in orders):
        return None
    numbers = np.sort(index)
    order = next((order for order in orders if np.array_equal(np.sort(order), numbers)), None)
    if order is None:
        return None
    is_sorted = np.array_equal(order, numbers)
    call, which = ("sort_index()", "") if is_sorted else ("reindex(index)", " with the index of the rows")
    if hasattr(values, "to_numpy"):
        repairs = f"values.{call}{which}, or values.to_numpy()"
    else:
        repairs = f"pyarrow.Table.from_pandas(frame.{call}){which}, or the table of frame.reset_index(drop=True)"
    return (
        f"a {type(values).__qualname__} of pandas whose index is not in the order of the rows: return {repairs} if the "
        "values are in the order of the rows."
    )
