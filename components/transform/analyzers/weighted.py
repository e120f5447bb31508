"""Weighted analyzers: means, quantiles and terms of rows of which each counts by its weight, the second expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from spanwise.components.deferred_polars import pl
from spanwise.components.transform.analyzers.analyzer import Analyzer, is_number
from spanwise.components.transform.analyzers.numbers import refuse_others
from spanwise.components.transform.analyzers.plain import Plain
from spanwise.components.transform.analyzers.terms import refuse_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from spanwise.components.statistics.accumulators import WeightedQuantiles, WeightedTerms
    from spanwise.components.statistics.weighted import WeightedStatistics

S = TypeVar("S", "WeightedQuantiles", "WeightedStatistics", "WeightedTerms")


class WeightedAnalyzer(Analyzer[S]):
    """An analyzer of values and weights. Accumulators are imported only where rows are analyzed."""

    def refusal(self, *types: pl.DataType) -> str | None:
        if not is_number(types[1]):
            return f"weights are numbers, not {types[1]}; cast them first"
        return self.refuse_values(types[0])

    def refuse_values(self, type_: pl.DataType) -> str | None:
        """Why values of this type cannot be analyzed; None if they can."""
        return refuse_others(type_)

    def merge(self, states: Sequence[S]) -> S:
        found = states[0]
        for state in states[1:]:
            found = found.merge(state)
        return found

    def pack(self, state: S) -> bytes:
        from spanwise.components.statistics.accumulators import to_bytes

        return to_bytes(state)  # type: ignore[arg-type]  # it has a state; how it is accumulated differs


@dataclass(frozen=True)
class WeightedMeanAndDeviation(WeightedAnalyzer["WeightedStatistics"]):
    """Mean and standard deviation (of the population) of weighted numbers; both None if nothing has weight."""

    def accumulate(self, *values: pl.Series) -> WeightedStatistics:
        from spanwise.components.statistics.weighted import WeightedStatistics

        return WeightedStatistics.accumulate_numbers(*_numbers(*values))

    def unpack(self, raw: bytes) -> WeightedStatistics:
        from spanwise.components.statistics.weighted import WeightedStatistics

        return _unpack(WeightedStatistics, raw)

    def finish(self, state: WeightedStatistics) -> Plain:
        if not state.counted:
            return {"mean": None, "standard_deviation": None}
        return {"mean": state.mean, "standard_deviation": state.std}


class WeightedQuantileAnalyzer(WeightedAnalyzer["WeightedQuantiles"]):
    """Quantiles from a summary of bounded size; how far a rank can be off: `statistics.accumulators.weights`."""

    def accumulate(self, *values: pl.Series) -> WeightedQuantiles:
        from spanwise.components.statistics.accumulators import WeightedQuantiles

        return WeightedQuantiles.accumulate(*_numbers(*values))

    def unpack(self, raw: bytes) -> WeightedQuantiles:
        from spanwise.components.statistics.accumulators import WeightedQuantiles

        return _unpack(WeightedQuantiles, raw)


@dataclass(frozen=True)
class WeightedBoundaries(WeightedQuantileAnalyzer):
    """The ascending boundaries of `buckets` groups of equal weight; fewer where many values are equal."""

    finishing: ClassVar[tuple[str, ...]] = ("buckets",)

    buckets: int  #: number of groups

    def finish(self, state: WeightedQuantiles) -> Plain:
        return sorted(set(state.boundaries(self.buckets).tolist())) if state.total else []


@dataclass(frozen=True)
class WeightedQuantile(WeightedQuantileAnalyzer):
    """The smallest number up to which at least the share `at` of the weight lies; None if nothing has weight."""

    finishing: ClassVar[tuple[str, ...]] = ("at",)

    at: float  #: from 0 to 1

    def finish(self, state: WeightedQuantiles) -> Plain:
        return float(state.quantiles([self.at])[0]) if state.total else None


@dataclass(frozen=True)
class HeaviestTerms(WeightedAnalyzer["WeightedTerms"]):
    """The values as text, the heaviest first, those of equal weight by their bytes."""

    finishing: ClassVar[tuple[str, ...]] = ("top_k", "min_count")

    top_k: int | None = None  #: at most this many
    min_count: float = 1  #: less weight in all spans together leaves a term out

    def refuse_values(self, type_: pl.DataType) -> str | None:
        return refuse_terms(type_)

    def accumulate(self, *values: pl.Series) -> WeightedTerms:
        from spanwise.components.statistics.accumulators import WeightedTerms

        terms, weights = values
        return WeightedTerms.accumulate(terms.cast(pl.String).rechunk().to_arrow(), _weights(weights), most=None)

    def unpack(self, raw: bytes) -> WeightedTerms:
        from spanwise.components.statistics.accumulators import WeightedTerms

        return _unpack(WeightedTerms, raw)

    def finish(self, state: WeightedTerms) -> Plain:
        return [term.value for term in state.top(self.top_k, at_least=self.min_count)]


def _unpack(kind: type[S], raw: bytes) -> S:
    from spanwise.components.statistics.accumulators import from_bytes

    return from_bytes(kind, raw)  # type: ignore[type-var]  # as above


def _numbers(values: pl.Series, weights: pl.Series) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The numbers that are not null, as doubles, and their weights."""
    there = values.is_not_null().to_numpy()
    return values.cast(pl.Float64).drop_nulls().to_numpy(), _weights(weights)[there]


def _weights(weights: pl.Series) -> NDArray[Any]:
    """The weights as doubles.

    Raises:
        ValueError: one is missing, negative or not finite.
    """
    # 0.7 of 32 bits is 0.699999988079071, which is less than a least weight of 0.7
    doubles = (weights.cast(pl.String) if weights.dtype == pl.Float32 else weights).cast(pl.Float64)
    if doubles.null_count():
        raise ValueError("a weight is missing; weights are finite numbers that are not negative")
    odd = doubles.filter(~(doubles.is_finite() & (doubles >= 0)))
    if len(odd):
        raise ValueError(f"a weight is {odd[0]:g}; weights are finite numbers that are not negative")
    return doubles.to_numpy()
