"""JAX's view of a dataset: elements whose leaves are JAX arrays, placed on devices ahead of their use. Needs jax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import convert_arrays, examples_of, refuse_missing
from spanwise.pipelines.input.element import Ragged, each_leaf
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.lookahead import Lookahead
from spanwise.pipelines.input.op import State

Placement: TypeAlias = "Any | Callable[[Any], Any]"
"""A device or sharding for all leaves, or a function of a leaf that returns one."""

_NARROWED: Final = {"int64": np.int32, "uint64": np.uint32, "float64": np.float32, "complex128": np.complex64}


class JaxArrays:
    """An iterable of elements whose leaves are JAX arrays; each pass is the dataset's next one."""

    def __init__(self, dataset: Flow, sharding: Placement | None, prefetch: int) -> None:
        self._dataset = dataset
        self._sharding = sharding
        self._prefetch = prefetch

    def __iter__(self) -> JaxIterator:
        return self.iterator()

    def iterator(self, *, epoch: int | None = None) -> JaxIterator:
        """One pass; `epoch` names it."""
        elements = self._dataset.iterator(epoch=epoch)
        return JaxIterator(elements, self._sharding, self._prefetch, examples_of(self._dataset.spec))


class JaxIterator(Iterator[Any]):
    """One pass. Its state does not count what was placed on devices and not given yet."""

    def __init__(self, elements: Any, sharding: Placement | None, prefetch: int, like: Any = None) -> None:
        self._sharding = sharding
        self._like = like  # what is in empty lists
        self._ahead = Lookahead(elements, self._convert, prefetch)

    def _convert(self, element: Any) -> Any:
        return each_leaf(self._place, convert_arrays(element, "to_jax", self._like))

    def __next__(self) -> Any:
        return next(self._ahead)

    def _place(self, leaf: Any) -> Any:
        if isinstance(leaf, Ragged):
            return [self._place(row) for row in leaf]
        if isinstance(leaf, list):  # of no numbers
            return leaf
        refuse_missing("to_jax", "array of JAX", leaf)
        array = np.asarray(leaf)
        if array.dtype.kind not in "biufc":
            return leaf
        if not array.dtype.isnative:  # JAX has no others
            array = array.astype(array.dtype.newbyteorder("="))
        _refuse_truncation(array)
        # JAX may go on using the memory of an array on a CPU: that is safe for those that nobody writes to
        array = jnp.array(array, copy=True) if array.flags.writeable else array
        where = self._sharding(leaf) if callable(self._sharding) else self._sharding
        if isinstance(where, jax.sharding.Sharding) and not where.is_fully_addressable:
            return jax.make_array_from_process_local_data(where, array)
        return jax.device_put(array, where)

    def state(self) -> State:
        """Where it stands: see `DatasetIterator.state`."""
        return self._ahead.state()

    def restore(self, state: State) -> Self:
        """Continues where the iterator stood that returned the state."""
        self._ahead.elements.restore(state)
        return self

    def commit(self, state: State | None = None) -> None:
        """Counts the elements before a state as used: see `DatasetIterator.commit`."""
        self._ahead.elements.commit(state)

    def close(self) -> None:
        """Ends the pass."""
        self._ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._ahead.close()
        else:
            self._ahead.elements.__exit__(kind, error, trace)


def _refuse_truncation(array: Any) -> None:
    """Refuses numbers that JAX would cut to 32 bits: whole ones that do not fit, others that would become infinite.

    Raises:
        DatasetError: says how to switch that off.
    """
    narrow = _NARROWED.get(array.dtype.name)
    if narrow is None or not array.size or jax.config.jax_enable_x64:
        return
    if array.dtype.kind in "iu":
        bounds = np.iinfo(narrow)
        lost = [each for each in (array.max(), array.min()) if not bounds.min <= each <= bounds.max]
    else:
        with np.errstate(over="ignore"):
            lost = array[np.isfinite(array) & ~np.isfinite(array.astype(narrow))].tolist()
    if lost:
        raise DatasetError(
            f"to_jax: JAX cuts {array.dtype} to 32 bits, and {lost[0]} does not fit. Let it use 64: "
            f"jax.config.update('jax_enable_x64', True)"
        )
