"""Counts, sums, means, extremes and quantiles. Nulls, NaN and infinities are passed over.

The accumulating is that of the statistics (`statistics.accumulators`), imported only where rows are analyzed: where a
graph is applied, its values are all there is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import polars as pl

from spanwise.components.transform.analyzers.analyzer import Analyzer, is_number
from spanwise.components.transform.analyzers.plain import Plain

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa

    from spanwise.components.statistics import accumulators
    from spanwise.components.statistics.accumulators import Accumulator

Number: TypeAlias = "int | float"

S = TypeVar("S", bound="Accumulator")


def merged(states: Sequence[S]) -> S:
    """The accumulators of all parts as one, in their order."""
    return functools.reduce(lambda mine, other: mine.merge(other), states)


def arrow(values: pl.Series) -> pa.Array[Any]:
    """The numbers as accumulators take them; a column without any value counts as one of doubles."""
    return values.cast(pl.Float64 if values.dtype == pl.Null else values.dtype).rechunk().to_arrow()


class _OfNumbers:
    def refusal(self, *types: pl.DataType) -> str | None:
        return None if is_number(types[0]) else f"it analyzes numbers, not {types[0]}; cast them first"


@dataclass(frozen=True)
class Count(Analyzer[int]):
    """How many values there are that are not null."""

    def accumulate(self, *values: pl.Series) -> int:
        return len(values[0]) - values[0].null_count()

    def merge(self, states: Sequence[int]) -> int:
        return sum(states)

    def finish(self, state: int) -> Plain:
        return state


@dataclass(frozen=True)
class Moments(_OfNumbers, Analyzer["accumulators.Moments"]):
    """Mean and standard deviation (of the population); both None if there is nothing."""

    def accumulate(self, *values: pl.Series) -> accumulators.Moments:
        from spanwise.components.statistics.accumulators import Moments as Accumulated

        return Accumulated.accumulate(arrow(values[0]))

    def merge(self, states: Sequence[accumulators.Moments]) -> accumulators.Moments:
        return merged(states)

    def finish(self, state: accumulators.Moments) -> Plain:
        if not state.count:
            return {"mean": None, "standard_deviation": None}
        return {"mean": state.mean, "standard_deviation": state.std}

    def pack(self, state: accumulators.Moments) -> bytes:
        from spanwise.components.statistics.accumulators import to_bytes

        return to_bytes(state)

    def unpack(self, raw: bytes) -> accumulators.Moments:
        from spanwise.components.statistics.accumulators import Moments as Accumulated
        from spanwise.components.statistics.accumulators import from_bytes

        return from_bytes(Accumulated, raw)


@dataclass(frozen=True)
class Total(_OfNumbers, Analyzer[Number]):
    """The sum; of whole numbers it is exact, however large."""

    def accumulate(self, *values: pl.Series) -> Number:
        (found,) = values
        if found.dtype.is_integer() or found.dtype in (pl.Boolean, pl.Null):
            return int(found.cast(pl.Int128).sum())
        return math.fsum(finite(found))

    def merge(self, states: Sequence[Number]) -> Number:
        return sum(states) if all(isinstance(each, int) for each in states) else math.fsum(states)

    def finish(self, state: Number) -> Plain:
        return state


@dataclass(frozen=True)
class Extremes(Analyzer["list[Plain]"]):
    """The smallest and the largest value: of numbers, times or texts; both None if there is nothing."""

    def refusal(self, *types: pl.DataType) -> str | None:
        (type_,) = types
        if getattr(type_, "time_unit", None) == "ns":
            return f"values are kept to the microsecond, and it is {type_}; cast it first: .dt.cast_time_unit('us')"
        if is_number(type_) or type_ in (pl.Date, pl.String) or type_.is_temporal():
            return None
        return f"smallest and largest are of numbers, times or texts, not of {type_}; cast it first"

    def accumulate(self, *values: pl.Series) -> list[Plain]:
        (found,) = values
        if found.dtype.is_float():
            found = finite(found)
        return [cast("Plain", found.min()), cast("Plain", found.max())]

    def merge(self, states: Sequence[list[Plain]]) -> list[Plain]:
        known = [state for state in states if state[0] is not None]
        if not known:
            return [None, None]
        # of one type that has an order, which mypy cannot see
        return [min(low for low, _ in known), max(high for _, high in known)]  # type: ignore[type-var]

    def finish(self, state: list[Plain]) -> Plain:
        return {"minimum": state[0], "maximum": state[1]}


class _Summarizing(_OfNumbers, Analyzer["accumulators.Quantiles"]):
    """Quantiles from a summary of bounded size; how far a rank can be off: `statistics.accumulators.quantiles`."""

    def accumulate(self, *values: pl.Series) -> accumulators.Quantiles:
        from spanwise.components.statistics.accumulators import Quantiles

        return Quantiles.accumulate(arrow(values[0]))

    def merge(self, states: Sequence[accumulators.Quantiles]) -> accumulators.Quantiles:
        return merged(states)

    def pack(self, state: accumulators.Quantiles) -> bytes:
        from spanwise.components.statistics.accumulators import to_bytes

        return to_bytes(state)

    def unpack(self, raw: bytes) -> accumulators.Quantiles:
        from spanwise.components.statistics.accumulators import Quantiles, from_bytes

        return from_bytes(Quantiles, raw)


@dataclass(frozen=True)
class Boundaries(_Summarizing):
    """What divides the values into `buckets` groups of equal size: ascending, fewer where many values are equal."""

    finishing = ("buckets",)

    buckets: int  #: how many groups

    def finish(self, state: accumulators.Quantiles) -> Plain:
        return sorted(set(state.boundaries(self.buckets).tolist())) if state.count else []


@dataclass(frozen=True)
class Quantile(_Summarizing):
    """The smallest value that at least the share `at` of all values does not exceed; None if there is nothing."""

    finishing = ("at",)

    at: float  #: from 0 to 1

    def finish(self, state: accumulators.Quantiles) -> Plain:
        return float(state.quantiles([self.at])[0]) if state.count else None


def finite(values: pl.Series) -> pl.Series:
    """The values as doubles, without nulls, NaN and infinities."""
    doubles = values.cast(pl.Float64).drop_nulls()
    return doubles.filter(doubles.is_finite())
