"""Preprocessing: the vocabulary of preprocessing functions.

The function gets columns and returns features, all of them Polars expressions. What a feature needs to know of all
rows, it gets from `analyze`. Nothing here needs the orchestrator or Beam, since the same functions run where a model is
served.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from spanwise.components.deferred_polars import pl
from spanwise.components.transform.analyzers import (
    Analyzer,
    Boundaries,
    Count,
    Extremes,
    HeaviestTerms,
    MeanAndDeviation,
    NumberRange,
    Plain,
    PreprocessingError,
    Quantile,
    Terms,
    Total,
    WeightedBoundaries,
    WeightedMeanAndDeviation,
    WeightedQuantile,
)
from spanwise.components.transform.trace import Columns, Use, analyze, literal

__all__ = [
    "Analyzer",
    "Columns",
    "Plain",
    "PreprocessingError",
    "analyze",
    "bucketize",
    "count",
    "cross",
    "hash_buckets",
    "impute_mean",
    "maximum",
    "mean",
    "minimum",
    "one_hot",
    "quantile",
    "scale_to_0_1",
    "scale_to_z_score",
    "standard_deviation",
    "total",
    "vocabulary",
]


def _analyze_extreme(name: str, expression: pl.Expr) -> pl.Expr:
    def use(value: Plain) -> pl.Expr:
        return _typed(cast("dict[str, Plain]", value)[name], None)

    return analyze(Extremes(), expression, use=use)


def _typed(value: Plain, type_: type[pl.DataType] | None) -> pl.Expr:
    return pl.lit(None, dtype=type_) if value is None else literal("", value)


# --- single values, learned from all rows


def count(expression: pl.Expr) -> pl.Expr:
    """The number of values that are not null."""
    return analyze(Count(), expression)


# With `weight`, an expression of finite numbers that are not negative, each row counts by its weight.


def mean(expression: pl.Expr, *, weight: pl.Expr | None = None) -> pl.Expr:
    """The mean, without nulls, NaN and infinities; null if there are no other values."""
    return _analyze_moments(expression, weight, lambda found: _typed(found["mean"], pl.Float64))


def standard_deviation(expression: pl.Expr, *, weight: pl.Expr | None = None) -> pl.Expr:
    """That of the population, without nulls, NaN and infinities; null if there are no other values."""
    return _analyze_moments(expression, weight, lambda found: _typed(found["standard_deviation"], pl.Float64))


def _analyze_moments(
    expression: pl.Expr, weight: pl.Expr | None, use: Callable[[dict[str, float | None]], pl.Expr]
) -> pl.Expr:
    def used(value: Plain) -> pl.Expr:
        return use(cast("dict[str, float | None]", value))

    if weight is None:
        return analyze(MeanAndDeviation(), expression, use=used)
    return analyze(WeightedMeanAndDeviation(), expression, weight, use=used)


def total(expression: pl.Expr) -> pl.Expr:
    """The sum, without nulls, NaN and infinities; of whole numbers it does not overflow."""
    return analyze(Total(), expression)


def minimum(expression: pl.Expr) -> pl.Expr:
    """The smallest number, time or text."""
    return _analyze_extreme("minimum", expression)


def maximum(expression: pl.Expr) -> pl.Expr:
    """The largest number, time or text."""
    return _analyze_extreme("maximum", expression)


def quantile(expression: pl.Expr, at: float, *, weight: pl.Expr | None = None) -> pl.Expr:
    """The smallest value that at least the share `at` does not exceed, by a summary: exact up to 1,023 values."""
    if not 0 <= at <= 1:
        raise PreprocessingError(f"quantile: at is a share from 0 to 1, not {at!r}.")
    use = partial(_typed, type_=pl.Float64)
    if weight is not None:
        return analyze(WeightedQuantile(float(at)), expression, weight, use=use)
    return analyze(Quantile(float(at)), expression, use=use)


# --- features made of these


def scale_to_z_score(expression: pl.Expr, *, weight: pl.Expr | None = None) -> pl.Expr:
    """The distance from the mean in standard deviations. Where all values are equal, the bare distance.

    Null stays null and NaN NaN. Null everywhere if there was nothing to learn from.
    """

    def use(found: dict[str, float | None]) -> pl.Expr:
        centred = expression.cast(pl.Float64) - _typed(found["mean"], pl.Float64)
        return centred / pl.lit(found["standard_deviation"] or 1.0, dtype=pl.Float64)

    return _analyze_moments(expression, weight, use)


def scale_to_0_1(expression: pl.Expr) -> pl.Expr:
    """From 0 at the smallest to 1, but for rounding, at the largest value seen; later values may lie outside.

    Where all values are equal, the bare distance from them. Null stays null and NaN NaN.
    """

    def use(value: Plain) -> pl.Expr:
        found = cast("dict[str, float | None]", value)
        low, high = found["minimum"], found["maximum"]
        if low is None or high is None:
            return expression.cast(pl.Float64) * pl.lit(None, dtype=pl.Float64)
        width = float(high) - float(low)
        return (expression.cast(pl.Float64) - pl.lit(float(low))) / pl.lit(width or 1.0)

    return analyze(NumberRange(), expression, use=use)


def bucketize(expression: pl.Expr, buckets: int, *, weight: pl.Expr | None = None) -> pl.Expr:
    """The number of the group, from 0, when the values are cut into `buckets` groups of equal size (Int32).

    A value on a boundary belongs to the group below it. Fewer groups where many values are equal. Null and NaN become
    null.
    """
    if buckets < 2:  # noqa: PLR2004
        raise PreprocessingError(f"bucketize: there are at least 2 buckets, not {buckets!r}.")

    def use(value: Plain) -> pl.Expr:
        boundaries = pl.Series(cast("list[float]", value), dtype=pl.Float64)
        number = expression.cast(pl.Float64)
        found = pl.lit(boundaries).search_sorted(number, side="left").cast(pl.Int32)
        return pl.when(number.is_nan() | number.is_null()).then(None).otherwise(found)

    if weight is not None:
        return analyze(WeightedBoundaries(buckets), expression, weight, use=use)
    return analyze(Boundaries(buckets), expression, use=use)


def vocabulary(
    expression: pl.Expr,
    *,
    top_k: int | None = None,
    min_count: float = 1,
    out_of_vocabulary: int = 1,
    weight: pl.Expr | None = None,
) -> pl.Expr:
    """The number of the term, the most frequent being 0 (Int32); null stays null.

    What is not among the terms gets one of `out_of_vocabulary` numbers above theirs, chosen by hash; null if 0. With
    `weight` the heaviest term is 0, and `min_count` is the least weight.
    """
    _check_vocabulary(top_k, min_count, out_of_vocabulary, weight)

    def use(found: Plain) -> pl.Expr:
        return _number_terms(expression, cast("list[str]", found), out_of_vocabulary)

    return _analyze_terms(expression, top_k, min_count, weight, use)


def _analyze_terms(
    expression: pl.Expr, top_k: int | None, min_count: float, weight: pl.Expr | None, use: Use
) -> pl.Expr:
    if weight is None:
        return analyze(Terms(top_k=top_k, min_count=int(min_count)), expression, use=use)
    return analyze(HeaviestTerms(top_k=top_k, min_count=min_count), expression, weight, use=use)


def one_hot(
    expression: pl.Expr,
    *,
    top_k: int | None = None,
    min_count: float = 1,
    out_of_vocabulary: int = 1,
    weight: pl.Expr | None = None,
) -> pl.Expr:
    """One feature that is an array of 0 and 1 (UInt8), as wide as the vocabulary has numbers; null is all 0."""
    _check_vocabulary(top_k, min_count, out_of_vocabulary, weight)

    def use(found: Plain) -> pl.Expr:
        terms = cast("list[str]", found)
        number = _number_terms(expression, terms, out_of_vocabulary)
        width = max(1, len(terms) + out_of_vocabulary)
        return pl.concat_arr([(number == place).fill_null(value=False).cast(pl.UInt8) for place in range(width)])

    return _analyze_terms(expression, top_k, min_count, weight, use)


def _check_vocabulary(
    top_k: int | None, min_count: float, out_of_vocabulary: int, weight: pl.Expr | None = None
) -> None:
    if weight is not None and min_count > 0 and (top_k is None or top_k >= 1) and out_of_vocabulary >= 0:
        return  # a least weight may be any
    whole = float(min_count).is_integer()
    if (top_k is not None and top_k < 1) or min_count < 1 or not whole or out_of_vocabulary < 0:
        raise PreprocessingError(
            "a vocabulary has top_k and min_count of 1 or more and out_of_vocabulary of 0 or more, "
            f"not {top_k!r}, {min_count!r} and {out_of_vocabulary!r}."
        )


def _number_terms(expression: pl.Expr, terms: list[str], out_of_vocabulary: int) -> pl.Expr:
    text = expression.cast(pl.String)
    if out_of_vocabulary > 1:
        other = hash_buckets(text, out_of_vocabulary) + pl.lit(len(terms), dtype=pl.Int32)
    else:
        other = pl.lit(len(terms) if out_of_vocabulary else None, dtype=pl.Int32)
    old = pl.Series(terms, dtype=pl.String)
    new = pl.Series(range(len(terms)), dtype=pl.Int32)
    found = text.replace_strict(old, new, default=other, return_dtype=pl.Int32)
    return pl.when(text.is_null()).then(None).otherwise(found)


def hash_buckets(expression: pl.Expr, buckets: int) -> pl.Expr:
    """A number below `buckets` from a hash of the value (Int32), the same on every machine and in every version.

    Nothing is analyzed. Null stays null. The recipe is in `spanwise.components.row_hash`.
    """
    if not 1 <= buckets < 2**31:
        raise PreprocessingError(f"hash_buckets: there are 1 to {2**31 - 1} buckets, not {buckets!r}.")
    return expression.map_batches(partial(_hash_series, buckets), return_dtype=pl.Int32, is_elementwise=True)


def _hash_series(buckets: int, values: pl.Series) -> pl.Series:
    import numpy as np

    from spanwise.components.row_hash import hash_values

    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    array = values.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    numbers = (hash_values(array) % np.uint64(buckets)).astype(np.int32)
    found = pl.Series(values.name, numbers, dtype=pl.Int32)
    return found if not values.null_count() else found.set(values.is_null(), None)


def cross(*expressions: pl.Expr, buckets: int | None = None) -> pl.Expr:
    """The combination of several values as one text, or as one of `buckets` hash numbers; null if one is null.

    The values stand in the text as they are written, with a control character between them: pass it to `vocabulary`.
    """
    if len(expressions) < 2:  # noqa: PLR2004
        raise PreprocessingError("cross combines two expressions or more.")
    text = pl.concat_str([each.cast(pl.String) for each in expressions], separator="\x1f")
    return text if buckets is None else hash_buckets(text, buckets)


def impute_mean(expression: pl.Expr, *, weight: pl.Expr | None = None) -> pl.Expr:
    """The value as a double, with the mean in the place of null and NaN."""

    def use(found: dict[str, float | None]) -> pl.Expr:
        return expression.cast(pl.Float64).fill_nan(None).fill_null(_typed(found["mean"], pl.Float64))

    return _analyze_moments(expression, weight, use)
