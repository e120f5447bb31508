"""Named arrays as bytes, on the wire and in files: a layout describes them, and their values follow each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from spanwise.orchestrator.errors import ServiceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays: TypeAlias = "Mapping[str, NDArray[Any]]"
"""Parameters or gradients, by name."""

Layout: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, dtype and shape of each array."""

_KINDS = "biufc"  # numbers only: objects would need pickle


def pack(arrays: Mapping[str, object]) -> tuple[Layout, bytes]:
    """The layout of the arrays, and their values as bytes.

    Raises:
        ServiceError: one is not an array of numbers.
    """
    import numpy as np

    contiguous = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    for name, array in contiguous.items():
        if array.dtype.kind not in _KINDS:
            raise ServiceError(
                f"{name!r} is {array.dtype}, and only numbers can be sent: return NumPy arrays of numbers by name."
            )
    layout = tuple((name, array.dtype.str, array.shape) for name, array in contiguous.items())
    return layout, b"".join(array.tobytes() for array in contiguous.values())


def unpack(layout: Iterable[tuple[str, str, Sequence[int]]], content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays, read-only.

    Raises:
        ServiceError: the bytes do not match the layout.
    """
    import numpy as np

    arrays, at = {}, 0
    for name, dtype, shape in layout:
        try:
            kind = np.dtype(dtype)
        except TypeError as error:
            raise ServiceError(f"refused an array of {dtype!r:.40}: there is no such dtype.") from error
        count = int(np.prod([int(each) for each in shape], dtype=np.int64))
        if kind.kind not in _KINDS or count < 0 or at + count * kind.itemsize > len(content):
            raise ServiceError(f"refused an array of {dtype!r:.40} and shape {tuple(shape)}: its bytes do not match.")
        arrays[name] = np.frombuffer(content, kind, count, at).reshape(tuple(shape))
        at += count * kind.itemsize
    if at != len(content):
        raise ServiceError(f"expected {at} bytes of arrays and received {len(content)}.")
    return arrays
