"""The parameters of a job: their version, and the gradients collected for the next one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.components.training.elastic.arrays import Arrays
from spanwise.orchestrator.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The gradient of one batch."""

    worker: str
    rows: int  #: of the batch, which are its weight
    gradient: Arrays


class Parameters:
    """Parameters with a new version after every `grads_to_wait` gradients.

    A gradient computed on an older version is accepted if that is at most `max_staleness` versions behind; otherwise
    it is refused, and the worker computes it again.
    """

    def __init__(
        self,
        values: Arrays,
        apply: Callable[[Arrays, Arrays], Arrays] | None,
        *,
        grads_to_wait: int = 1,
        max_staleness: int | None = None,
        version: int = 0,
        waiting: Sequence[Contribution] = (),
    ) -> None:
        self.values = freeze(values)
        self.version = version
        self.waiting = list(waiting)  #: contributions to the next version
        self._apply = apply
        self._grads_to_wait = grads_to_wait
        self._max_staleness = max_staleness

    def offer(self, contribution: Contribution, version: int) -> bool:
        """Accepts a gradient that was computed on a version; False if that version is too old."""
        if self._max_staleness is not None and self.version - version > self._max_staleness:
            return False
        self.waiting.append(contribution)
        return True

    def advance(self, active: AbstractSet[str]) -> bool:
        """Applies the waiting gradients if there are enough, or if every active worker has contributed one.

        So no worker waits for one that is gone or has nothing to do.
        """
        contributors = {each.worker for each in self.waiting}
        if not self.waiting or (len(self.waiting) < self._grads_to_wait and not active <= contributors):
            return False
        assert self._apply is not None, "a job with gradients has apply"
        values = self._apply(self.values, mean(self.waiting))
        if set(values) != set(self.values):
            raise ParameterError(
                f"apply returned the parameters {_names(values)} for {_names(self.values)}: return all of them."
            )
        self.values, self.version, self.waiting = freeze(values), self.version + 1, []
        return True


def mean(contributions: Sequence[Contribution]) -> Arrays:
    """The mean gradient over all rows; a single gradient is returned unchanged.

    Raises:
        ParameterError: the gradients have different names.
    """
    import numpy as np

    first, *others = contributions
    for other in others:
        if set(other.gradient) != set(first.gradient):
            raise ParameterError(
                f"gradient returned {_names(first.gradient)} for one batch and {_names(other.gradient)} for another: "
                f"return the same names each time."
            )
    if not others:
        return first.gradient
    rows = sum(each.rows for each in contributions)

    def mean_of(name: str) -> NDArray[Any]:
        kept = np.result_type(*(each.gradient[name] for each in contributions))
        wide = np.result_type(kept, np.float64)  # whole numbers and half floats times many rows would overflow
        total: NDArray[Any] = sum(each.gradient[name].astype(wide) * each.rows for each in contributions)  # type: ignore[assignment]
        return np.asarray(total / rows, kept if kept.kind in "fc" else wide)

    return {name: mean_of(name) for name in first.gradient}


def freeze(arrays: Arrays) -> Arrays:
    """Read-only copies of the arrays: who returned them may write to their memory, as frameworks do in each step."""
    import numpy as np

    copies = {}
    for name, value in arrays.items():
        copies[name] = np.array(value)
        copies[name].flags.writeable = False
    return copies


def _names(arrays: Arrays) -> str:
    return ", ".join(map(repr, sorted(arrays))) or "none"
