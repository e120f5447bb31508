"""Parameters: the model of a job, its version, and the gradients that wait to become the next one. Pure."""

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
    rows: int  #: of the batch: what it weighs
    gradient: Arrays


class Parameters:
    """Parameters that become another version with every so many gradients.

    A gradient computed on an older version counts as one of the current version, if it is at most `max_staleness`
    versions behind; else it is refused, and the worker computes it anew.
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
        self.values = frozen(values)
        self.version = version
        self.waiting = list(waiting)  #: contributions to the next version
        self._apply = apply
        self._grads_to_wait = grads_to_wait
        self._max_staleness = max_staleness

    def offer(self, contribution: Contribution, version: int) -> bool:
        """Takes a gradient that was computed on a version; False if that is too old."""
        if self._max_staleness is not None and self.version - version > self._max_staleness:
            return False
        self.waiting.append(contribution)
        return True

    def settle(self, at_work: AbstractSet[str]) -> bool:
        """Makes the next version, if enough gradients are there, or none is to come from those who are at work.

        So nobody waits for a worker that has gone or has nothing to do.
        """
        there = {each.worker for each in self.waiting}
        if not self.waiting or (len(self.waiting) < self._grads_to_wait and not at_work <= there):
            return False
        assert self._apply is not None, "who has gradients can apply them"
        made = self._apply(self.values, mean(self.waiting))
        if set(made) != set(self.values):
            raise ParameterError(
                f"apply gave the parameters {_names(made)}, and was given {_names(self.values)}: give all of them back."
            )
        self.values, self.version, self.waiting = frozen(made), self.version + 1, []
        return True


def mean(contributions: Sequence[Contribution]) -> Arrays:
    """The mean gradient of all the rows; that of a single batch is as it was.

    Raises:
        ParameterError: the gradients have different names.
    """
    first, *others = contributions
    for other in others:
        if set(other.gradient) != set(first.gradient):
            raise ParameterError(
                f"gradient gave {_names(first.gradient)} for one batch and {_names(other.gradient)} for another: "
                f"give the same names each time."
            )
    if not others:
        return first.gradient
    rows = sum(each.rows for each in contributions)

    def of(name: str) -> NDArray[Any]:
        total: NDArray[Any] = sum(each.gradient[name] * each.rows for each in contributions)  # type: ignore[assignment]
        return total / rows

    return {name: of(name) for name in first.gradient}


def frozen(arrays: Arrays) -> Arrays:
    """The same values, which nobody can write to: a version never changes, whoever still reads it."""
    import numpy as np

    found = {}
    for name, value in arrays.items():
        found[name] = np.asarray(value).view()
        found[name].flags.writeable = False
    return found


def _names(arrays: Arrays) -> str:
    return ", ".join(map(repr, sorted(arrays))) or "none"
