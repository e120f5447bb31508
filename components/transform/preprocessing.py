"""Preprocessing: the vocabulary of preprocessing functions, and how a run of one is traced.

The function gets columns and returns features, all of them Polars expressions. What a feature needs to know of all
rows, it gets from `analyze`. The function runs once a phase: a value that is not known yet is a placeholder column,
which shows that an analyzer waits for another; a known value is a literal. Nothing here needs the orchestrator or
Beam, since the same functions run where a model is served.
"""

from __future__ import annotations

import difflib
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TypeAlias, TypeVar, cast

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
from spanwise.components.transform.inner_nulls import drop_inner_nulls

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


class Columns(Mapping[str, "pl.Expr"]):
    """The columns of the examples by name: `columns["distance"]`. The same wherever the function runs."""

    def __init__(self, types: Mapping[str, pl.DataType], unreadable: Mapping[str, str] | None = None) -> None:
        self.types = dict(types)  #: the Polars type of each
        self._unreadable = dict(unreadable or {})

    def __getitem__(self, name: str) -> pl.Expr:
        if name in self.types:
            return pl.col(name)
        if name in self._unreadable:
            raise PreprocessingError(f"column {name!r} is unreadable for Polars: {self._unreadable[name]}.")
        near = difflib.get_close_matches(str(name), self.types, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(list(self.types)[:50])
        raise PreprocessingError(f"the examples have no column {name!r}; they have: {listed}.{meant}")

    def __contains__(self, name: object) -> bool:
        return name in self.types

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)


Preprocessing: TypeAlias = "Callable[[Columns], Mapping[str, pl.Expr]]"

S = TypeVar("S")

Use: TypeAlias = "Callable[[Plain], pl.Expr]"

# --- analyze: where an expression meets what was learned from all rows


@dataclass(frozen=True, kw_only=True)
class AnalyzerCall:
    """An analyzer and the expressions it analyzes."""

    analyzer: Analyzer[object]
    inputs: tuple[pl.Expr, ...]
    key: bytes  #: the same for the same analyzer of the same expressions, within one version of Polars
    roots: tuple[str, ...]  #: columns that the expressions are made of

    @property
    def text(self) -> str:
        """The call as a message shows it."""
        return f"{self.analyzer.label} of {', '.join(map(format_expression, self.inputs))}"


@dataclass(kw_only=True)
class PreprocessingTrace:
    """One run of a preprocessing function: the values it was given, its analyzer calls, its features."""

    columns: Columns
    known: Mapping[bytes, Plain] = field(default_factory=dict)  #: values by the key of their call
    values: Mapping[str, Plain] | None = None  #: values by name, of a graph on disk
    pending: dict[bytes, AnalyzerCall] = field(default_factory=dict)  #: unknown, and waiting for nothing else
    names: dict[bytes, str] = field(default_factory=dict)  #: of the calls whose values are known, in order
    features: dict[str, pl.Expr] = field(default_factory=dict)
    complete: bool = True  #: nothing is unknown
    _unknown: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    _labels: Counter[str] = field(default_factory=Counter)

    def resolve(self, analyzer: Analyzer[object], inputs: tuple[pl.Expr, ...], use: Use) -> pl.Expr:
        """The expression that `use` makes of the value, or a placeholder column while the value is unknown."""
        inputs = tuple(map(drop_inner_nulls, inputs))
        roots = tuple(sorted({name for each in inputs for name in each.meta.root_names()}))
        waits = tuple(key for name in roots for key in self._unknown.get(name, ()))
        if waits:
            return self._placeholder(waits)
        key = _key(analyzer, inputs)
        call = AnalyzerCall(analyzer=analyzer, inputs=inputs, key=key, roots=roots)
        if self.values is not None:
            return use(self.values[self._stored_name(call, self.values)])
        if key in self.known:
            self._name(call)
            return use(self.known[key])
        self.pending[key] = call
        return self._placeholder((key,))

    def waiting(self) -> dict[bytes, list[str]]:
        """The features that need a value, by the key of the pending call."""
        found: dict[bytes, list[str]] = {key: [] for key in self.pending}
        for name, expression in self.features.items():
            for root in expression.meta.root_names():
                for key in self._unknown.get(root, ()):
                    found[key].append(name)
        return {key: list(dict.fromkeys(names)) for key, names in found.items()}

    def _placeholder(self, keys: tuple[bytes, ...]) -> pl.Expr:
        self.complete = False
        name = f"\x1anot known yet: {len(self._unknown)}"
        self._unknown[name] = keys
        return pl.col(name)

    def _name(self, call: AnalyzerCall) -> str:
        """The name of the value on disk; it must not depend on how a version of Polars writes expressions."""
        if call.key not in self.names:
            stem = f"{call.analyzer.label} of {', '.join(call.roots) or 'a constant'}"
            self._labels[stem] += 1
            self.names[call.key] = stem if self._labels[stem] == 1 else f"{stem} #{self._labels[stem]}"
        return self.names[call.key]

    def _stored_name(self, call: AnalyzerCall, values: Mapping[str, Plain]) -> str:
        name = self._name(call)
        if name not in values:
            raise PreprocessingError(
                f"the graph has no value for '{name}'; it has: {', '.join(values) or 'none'}. "
                "A preprocessing function must call the same analyzers in the same order each time."
            )
        return name


_TRACES: dict[int, PreprocessingTrace] = {}
"""The trace of the function that is running, by thread. Not a context variable: a cache key could not cover one."""


def trace_function(function: Preprocessing, trace: PreprocessingTrace) -> PreprocessingTrace:
    """Runs the function; the trace then holds its features and its analyzer calls.

    Raises:
        PreprocessingError: the function fails, or returns something else than expressions by name.
    """
    name = getattr(function, "__name__", repr(function))
    thread = threading.get_ident()
    _TRACES[thread] = trace
    try:
        found = function(trace.columns)
    except Exception as error:
        if isinstance(error, PreprocessingError) and error.__cause__ is not None:
            raise
        lines = traceback.extract_tb(error.__traceback__)
        theirs = next((line for line in reversed(lines) if line.name == name), lines[-1])
        said = str(error) if isinstance(error, PreprocessingError) else f"{type(error).__name__}: {error}"
        # its own lines are counted: it may stand elsewhere in the graph's source than in its file
        first = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
        line = (theirs.lineno or first) - first + 1
        raise PreprocessingError(f"line {line} of {name}, `{theirs.line}`: {said}") from error
    finally:
        del _TRACES[thread]
    if not isinstance(found, Mapping) or not found:
        raise PreprocessingError(
            f"{name} returned {type(found).__name__}{'' if found else ', empty'}; it returns a dict of features: "
            "{'distance': scale_to_z_score(columns['distance'])}."
        )
    for feature, expression in found.items():
        trace.features[_feature(name, feature, expression)] = drop_inner_nulls(expression)
    return trace


def _feature(function: str, feature: object, expression: object) -> str:
    if not isinstance(feature, str) or not feature or "\0" in feature:
        raise PreprocessingError(f"{function}: a feature's name is a text without NUL, not {feature!r}.")
    if not isinstance(expression, pl.Expr):
        raise PreprocessingError(
            f"{function}: feature {feature!r} is {type(expression).__name__} {expression!r:.100}; "
            "it must be an expression made of columns, or pl.lit(…) for a constant."
        )
    if expression.meta.has_multiple_outputs():
        raise PreprocessingError(
            f"{function}: feature {feature!r} is {format_expression(expression)}, several columns; name one."
        )
    return feature


def _key(analyzer: Analyzer[object], inputs: tuple[pl.Expr, ...]) -> bytes:
    written = [each.meta.serialize(format="binary") for each in inputs]
    return b"".join(len(part).to_bytes(8, "little") + part for part in (analyzer.label.encode(), *written))


def format_expression(expression: pl.Expr) -> str:
    """An expression on one line that is not too long."""
    text = " ".join(str(expression).split())
    return text if len(text) <= 300 else f"{text[:297]}..."  # noqa: PLR2004  three lines of a terminal


def analyze(analyzer: Analyzer[S], *inputs: pl.Expr, use: Use | None = None) -> pl.Expr:
    """The value that the analyzer learns from all rows of the window, as an expression.

    A single number, text or date becomes a literal; of anything else, `use` says what to make of it:

        analyze(Terms(), columns["carrier"], use=lambda terms: columns["carrier"].is_in(terms))
    """
    trace = _TRACES.get(threading.get_ident())
    name = type(analyzer).__name__
    if trace is None:
        raise PreprocessingError(f"{name}: analyzers can be called only inside a preprocessing function.")
    if not isinstance(analyzer, Analyzer):
        raise PreprocessingError(f"analyze takes an analyzer first, such as MeanAndDeviation(), not {analyzer!r}.")
    for each in inputs:
        if not isinstance(each, pl.Expr):
            raise PreprocessingError(f"{name} analyzes expressions such as columns['distance'], not {each!r}.")
    if not inputs:
        raise PreprocessingError(f"{name} needs something to analyze: analyze({name}(…), columns['distance']).")
    return trace.resolve(cast("Analyzer[object]", analyzer), inputs, use or partial(_literal, name))


_SCALARS = (bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal)


def _literal(name: str, value: Plain) -> pl.Expr:
    if value is None:
        return pl.lit(None)
    if not isinstance(value, _SCALARS):
        raise PreprocessingError(
            f"{name} gives a {type(value).__name__}, which is not a literal; say what to make of it: "
            f"analyze({name}(…), …, use=lambda value: …)."
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = float(value)
    return pl.lit(value, dtype=pl.Float64) if isinstance(value, float) else pl.lit(value)


def _analyze_part(analyzer: Analyzer[S], name: str, expression: pl.Expr, type_: type[pl.DataType] | None) -> pl.Expr:
    return analyze(analyzer, expression, use=lambda value: _typed(cast("dict[str, Plain]", value)[name], type_))


def _typed(value: Plain, type_: type[pl.DataType] | None) -> pl.Expr:
    return pl.lit(None, dtype=type_) if value is None else _literal("", value)


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
    return _analyze_part(Extremes(), "minimum", expression, None)


def maximum(expression: pl.Expr) -> pl.Expr:
    """The largest number, time or text."""
    return _analyze_part(Extremes(), "maximum", expression, None)


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
    """From 0 at the smallest to 1 at the largest value seen; later values may lie outside.

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
