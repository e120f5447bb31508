"""Counts, sums, means, extremes and quantiles. Nulls, NaN and infinities are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, cast

from spanwise.components.deferred_polars import pl
from spanwise.components.transform.analyzers.analyzer import Accumulated, AccumulatorAnalyzer, Analyzer, is_number
from spanwise.components.transform.analyzers.plain import Plain

if TYPE_CHECKING:
    from spanwise.components.statistics.accumulators import Extrema, Moments, Quantiles


def refuse_others(type_: pl.DataType) -> str | None:
    """Why a column of this type has no numbers; None if it has."""
    return None if is_number(type_) else f"it analyzes numbers, not {type_}; cast them first"


class NumberAnalyzer(AccumulatorAnalyzer[Accumulated]):
    """An accumulator of numbers; a column without any value counts as one of doubles."""

    def refusal(self, *types: pl.DataType) -> str | None:
        return refuse_others(types[0])

    def prepare(self, values: pl.Series) -> pl.Series:
        return values.cast(pl.Float64) if values.dtype == pl.Null else values


@dataclass(frozen=True)
class Count(Analyzer[int]):
    """The number of values that are not null; of floats, those that are neither NaN nor infinite."""

    def accumulate(self, *values: pl.Series) -> int:
        (column,) = values
        return len(finite(column)) if column.dtype.is_float() else len(column) - column.null_count()

    def merge(self, states: Sequence[int]) -> int:
        return sum(states)

    def finish(self, state: int) -> Plain:
        return state


@dataclass(frozen=True)
class MeanAndDeviation(NumberAnalyzer["Moments"]):
    """Mean and standard deviation (of the population); both None if there are no values."""

    accumulator = "Moments"

    def finish(self, state: Moments) -> Plain:
        if not state.count:
            return {"mean": None, "standard_deviation": None}
        return {"mean": state.mean, "standard_deviation": state.std}


@dataclass(frozen=True)
class Total(Analyzer["int | str"]):
    """The sum; of whole numbers it is exact, however large, and of others rounded once.

    A state is the sum of whole numbers, or the text of an exact sum of others.
    """

    def refusal(self, *types: pl.DataType) -> str | None:
        return refuse_others(types[0])

    def accumulate(self, *values: pl.Series) -> int | str:
        from spanwise.components.statistics.accumulators import Moments
        from spanwise.components.statistics.accumulators.exact_sums import to_text

        (numbers,) = values
        if numbers.dtype.is_integer() or numbers.dtype in (pl.Boolean, pl.Null):
            return int(numbers.cast(pl.Int128).sum())
        return to_text(Moments.accumulate(finite(numbers).rechunk().to_arrow()).total)

    def merge(self, states: Sequence[int | str]) -> int | str:
        from spanwise.components.statistics.accumulators.exact_sums import from_text, to_text

        whole = [each for each in states if isinstance(each, int)]
        texts = [from_text(each) for each in states if isinstance(each, str)]
        return to_text(sum(texts, start=Fraction(sum(whole)))) if texts else sum(whole)

    def finish(self, state: int | str) -> Plain:
        from spanwise.components.statistics.accumulators.exact_sums import from_text, to_double

        return state if isinstance(state, int) else to_double(from_text(state))


@dataclass(frozen=True)
class Extremes(Analyzer["list[Plain]"]):
    """The smallest and the largest value: of numbers, times or texts; both None if there are no values."""

    def refusal(self, *types: pl.DataType) -> str | None:
        (type_,) = types
        if getattr(type_, "time_unit", None) == "ns":
            return f"values are stored to the microsecond, and it is {type_}; cast it first: .dt.cast_time_unit('us')"
        if is_number(type_) or type_ in (pl.Date, pl.String) or type_.is_temporal():
            return None
        return f"smallest and largest are of numbers, times or texts, not of {type_}; cast it first"

    def accumulate(self, *values: pl.Series) -> list[Plain]:
        (column,) = values
        if column.dtype.is_float():
            column = finite(column)
        if column.dtype == pl.Time and (column.cast(pl.Int64) % 1000 != 0).any():
            raise ValueError("values are stored to the microsecond, and a time has nanoseconds; round it first")
        return [cast("Plain", column.min()), cast("Plain", column.max())]

    def merge(self, states: Sequence[list[Plain]]) -> list[Plain]:
        known = [state for state in states if state[0] is not None]
        if not known:
            return [None, None]
        # of one type that has an order, which mypy cannot see
        lows, highs = zip(*known, strict=True)
        return [min(lows, key=_order), max(highs, key=_order)]  # type: ignore[arg-type]

    def finish(self, state: list[Plain]) -> Plain:
        return {"minimum": state[0], "maximum": state[1]}


def _order(value: Plain) -> Plain:
    """The value as it is compared: Python compares moments of one zone by wall clocks, also when these are set back."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


@dataclass(frozen=True)
class NumberRange(NumberAnalyzer["Extrema"]):
    """The smallest and the largest number; both None if there are no values."""

    accumulator = "Extrema"

    def finish(self, state: Extrema) -> Plain:
        return {"minimum": state.least, "maximum": state.greatest}


class QuantileAnalyzer(NumberAnalyzer["Quantiles"]):
    """Quantiles from a summary of bounded size; how far a rank can be off: `statistics.accumulators.quantiles`."""

    accumulator = "Quantiles"


@dataclass(frozen=True)
class Boundaries(QuantileAnalyzer):
    """The ascending boundaries of `buckets` groups of equal size; fewer where many values are equal."""

    finishing = ("buckets",)

    buckets: int  #: number of groups

    def finish(self, state: Quantiles) -> Plain:
        return sorted(set(state.boundaries(self.buckets).tolist())) if state.count else []


@dataclass(frozen=True)
class Quantile(QuantileAnalyzer):
    """The smallest value that at least the share `at` of all values does not exceed; None if there are no values."""

    finishing = ("at",)

    at: float  #: from 0 to 1

    def finish(self, state: Quantiles) -> Plain:
        return float(state.quantiles([self.at])[0]) if state.count else None


def finite(values: pl.Series) -> pl.Series:
    """The values as doubles, without nulls, NaN and infinities."""
    doubles = values.cast(pl.Float64).drop_nulls()
    return doubles.filter(doubles.is_finite())
