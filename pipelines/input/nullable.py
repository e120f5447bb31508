"""Columns of numbers with nulls: masked arrays that stay masked also where NumPy's own functions join them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_TWINS: Final = {
    getattr(np, name): getattr(np.ma, name)
    for name in ("append", "column_stack", "concatenate", "dstack", "hstack", "stack", "vstack", "where")
}
"""Functions of NumPy's that would show the zeros below a mask, and those that do not."""


class NullableArray(np.ma.MaskedArray[Any, Any]):
    """A masked array; `np.column_stack` and the like keep its mask."""

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in _TWINS:
            return _TWINS[function](*args, **kwargs)
        return super().__array_function__(function, types, args, kwargs)
