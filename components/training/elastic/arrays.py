"""Named arrays as bytes, on the wire and in a file: a layout says what they are, their values follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from spanwise.orchestrator.errors import ServiceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays: TypeAlias = "Mapping[str, NDArray[Any]]"
"""Parameters or gradients, by name."""

Layout: TypeAlias = Sequence[tuple[str, str, Sequence[int]]]
"""Name, dtype and shape of each array."""

_KINDS = "biufc"  # numbers: what pickle would have to bring, nobody brings


def packed(arrays: Mapping[str, object]) -> tuple[Layout, bytes]:
    """The arrays as bytes, and the layout by which they are found there.

    Raises:
        ServiceError: one is no array of numbers.
    """
    import numpy as np

    found = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    for name, array in found.items():
        if array.dtype.kind not in _KINDS:
            raise ServiceError(
                f"{name!r} is {array.dtype}, and only numbers can be sent: give NumPy arrays of numbers by name."
            )
    layout = [(name, array.dtype.str, array.shape) for name, array in found.items()]
    return layout, b"".join(array.tobytes() for array in found.values())


def unpacked(layout: Layout, content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays, which cannot be written to.

    Raises:
        ServiceError: the bytes are not what the layout says.
    """
    import numpy as np

    arrays, at = {}, 0
    for name, dtype, shape in layout:
        try:
            kind = np.dtype(dtype)
        except TypeError as error:
            raise ServiceError(f"an array of {dtype!r:.40} was refused: there is no such dtype.") from error
        count = int(np.prod([int(each) for each in shape], dtype=np.int64))
        if kind.kind not in _KINDS or count < 0 or at + count * kind.itemsize > len(content):
            raise ServiceError(
                f"an array of {dtype!r:.40} and shape {tuple(shape)} was refused: that is not what came."
            )
        arrays[name] = np.frombuffer(content, kind, count, at).reshape(tuple(shape))
        at += count * kind.itemsize
    if at != len(content):
        raise ServiceError(f"{len(content)} bytes came for arrays of {at}.")
    return arrays
