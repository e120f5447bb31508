"""Statistics: what was counted over the splits of a span, as records that can be read, compared and merged.

A split is kept as one file of JSON lines: a line about the split, then a line per feature. The lines hold what the
accumulators hold (`statistics.accumulators`), so the statistics of a window are a merge of its spans' and never a
second look at the data. docs/reference/statistics.md describes the file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spanwise.components.statistics.accumulators import (
    Distinct,
    Extrema,
    Frequent,
    Moments,
    Occurrence,
    Quantiles,
    State,
    ValueCounts,
    count_values,
)
from spanwise.components.statistics.accumulators.frequent import LONGEST, cut
from spanwise.components.statistics.accumulators.value_counts import count_texts, count_weighted, to_list
from spanwise.components.statistics.feature_type import agree
from spanwise.components.statistics.feature_value import format_value
from spanwise.components.statistics.weighted import WeightedStatistics
from spanwise.orchestrator.errors import ColumnsChanged, InputError

FORMAT = "spanwise statistics 2"

Kind: TypeAlias = Literal["number", "boolean", "text", "binary", "time", "list", "struct", "null", "other"]
"""How a feature is counted. `other` is a type whose values are not looked at, only whether they are there."""

_PLAIN = ("name", "in_column", "type", "kind", "count", "missing", "nan", "infinite", "zeros")


@dataclass(frozen=True, kw_only=True)
class NumberStatistics:
    """What is known of numbers: those of a feature, or the lengths of its texts and lists."""

    moments: Moments = field(default_factory=Moments)
    extrema: Extrema = field(default_factory=Extrema)
    quantiles: Quantiles = field(default_factory=Quantiles)

    @classmethod
    def from_counts(cls, found: ValueCounts) -> Self:
        return cls(
            moments=Moments.from_counts(found),
            extrema=Extrema.from_counts(found),
            quantiles=Quantiles.from_counts(found),
        )

    def merge(self, other: Self) -> Self:
        return type(self)(
            moments=self.moments.merge(other.moments),
            extrema=self.extrema.merge(other.extrema),
            quantiles=self.quantiles.merge(other.quantiles),
        )

    @property
    def count(self) -> int:
        """How many finite numbers."""
        return self.moments.count

    @property
    def mean(self) -> float:
        """NaN when there is nothing."""
        return self.moments.mean

    @property
    def std(self) -> float:
        """NaN when there is nothing."""
        return self.moments.std

    @property
    def least(self) -> float | None:
        """The exact minimum."""
        return self.extrema.least

    @property
    def greatest(self) -> float | None:
        """The exact maximum."""
        return self.extrema.greatest

    def quantile(self, share: float) -> float:
        """The value with this share of all values up to it; within `quantiles.rank_error()` of that rank."""
        if share in (0, 1) and self.least is not None and self.greatest is not None:
            return float(self.greatest if share else self.least)
        return float(self.quantiles.quantiles([share])[0])

    def shares_between(self, edges: Sequence[float]) -> tuple[float, ...]:
        """The share of values in each bin; a bin has its upper edge, the first one both, and the ends are open."""
        up_to = self.quantiles.share_up_to(edges)
        up_to[0], up_to[-1] = 0.0, 1.0 if self.count else 0.0
        return tuple(float(share) for share in np.diff(up_to))

    def histogram(self, bins: int = 20) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Edges of bins of equal width from minimum to maximum, and about how many values each has."""
        edges = edges_between(self.least, self.greatest, bins)
        return edges, tuple(round(share * self.count) for share in self.shares_between(edges)) if edges else ()

    def state(self) -> State:
        return {
            "moments": dict(self.moments.state()),
            "extrema": dict(self.extrema.state()),
            "quantiles": dict(self.quantiles.state()),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        return cls(
            moments=Moments.from_state(_part(state, "moments")),
            extrema=Extrema.from_state(_part(state, "extrema")),
            quantiles=Quantiles.from_state(_part(state, "quantiles")),
        )


def edges_between(least: float | None, greatest: float | None, bins: int) -> tuple[float, ...]:
    """Edges of bins of equal width; one bin around a single value; none when there is nothing."""
    if least is None or greatest is None:
        return ()
    if least == greatest and float(least) + 0.5 != least:
        return (least - 0.5, greatest + 0.5)
    halves = np.linspace(least / 2, greatest / 2, bins + 1)  # halved, since the width may exceed a double
    edges = np.unique(halves * 2)
    if edges.size == 1:  # whole numbers that are one double
        edges = np.nextafter(edges[0], [-np.inf, np.inf])
    return tuple(float(edge) for edge in edges)


@dataclass(frozen=True, kw_only=True)
class FeatureStatistics:
    """What was counted of one feature: a column, or what lies within a nested one.

    A field of a struct `a` is a feature `a.field`; the elements of a list `a` are a feature `a[]`. Their `count` is
    that of the places they could stand in: structs that are there, elements of all lists.
    """

    name: str
    in_column: str  #: the column that it is or lies in
    type: str  #: Arrow's name of it
    kind: Kind
    count: int  #: rows, or places within a nested column
    missing: int = 0  #: places without a value
    nan: int = 0
    infinite: int = 0
    zeros: int = 0
    numbers: NumberStatistics | None = (
        None  #: finite numbers; times as units since the epoch or midnight; booleans as 0 and 1
    )
    lengths: NumberStatistics | None = None  #: of texts in characters, of binary in bytes, of lists in elements
    distinct: Distinct | None = None
    frequent: Frequent | None = None  #: texts, booleans and whole numbers as text
    weighted: WeightedStatistics | None = None  #: of a column, where rows have weights

    @property
    def present(self) -> int:
        """Places with a value."""
        return self.count - self.missing

    @property
    def is_integer(self) -> bool:
        """Whether its values are whole numbers, which times are not."""
        return self.type.startswith(("int", "uint"))

    @property
    def missing_share(self) -> float:
        """0 when there is no place."""
        return self.missing / self.count if self.count else 0.0

    @property
    def unique(self) -> int | None:
        """About how many different values (HyperLogLog: 95 of 100 estimates within 3.3 %); None if not counted."""
        return None if self.distinct is None else min(self.distinct.estimate, self.present)

    def top(self, most: int | None = 20) -> tuple[Occurrence, ...]:
        """The most frequent values, most frequent first; where `exact` is false, by an estimate."""
        return () if self.frequent is None else self.frequent.top(most)

    def format(self, value: float) -> str:
        """A number of this feature as people read it: a date, a time, a number."""
        return format_value(value, self.type)

    def is_comparable(self, other: Self) -> bool:
        """Whether figures of both mean the same: they are of one kind, and times count units of one length."""
        return self.kind == other.kind and (self.kind != "time" or self.type == other.type)

    def merge(self, other: Self) -> Self:
        """The statistics of both. What is all missing (type `null`), also in lists and structs, takes the other's type.

        Raises:
            ColumnsChanged: the types differ.
        """
        type_ = agree(self.type, other.type)
        if type_ is None:
            raise ColumnsChanged(
                f"feature '{self.name}' is {self.type} in one span and {other.type} in another, so that their "
                "statistics cannot be merged. Ingest one of them again with the other's type (types=)."
            )
        return replace(
            self,
            type=type_,
            kind=other.kind if self.kind == "null" else self.kind,
            count=self.count + other.count,
            missing=self.missing + other.missing,
            nan=self.nan + other.nan,
            infinite=self.infinite + other.infinite,
            zeros=self.zeros + other.zeros,
            numbers=_merge_optional(self.numbers, other.numbers),
            lengths=_merge_optional(self.lengths, other.lengths),
            distinct=_merge_optional(self.distinct, other.distinct),
            frequent=_merge_optional(self.frequent, other.frequent),
            weighted=self.weighted.merge(other.weighted) if self.weighted and other.weighted else None,
        )

    def add_absent(self, places: int, weight: float | None = None) -> Self:
        """The same feature where a span had so many rows, of so much weight, and no such column."""
        weighted = self.weighted.add_absent(weight) if self.weighted and weight is not None else None
        return replace(self, count=self.count + places, missing=self.missing + places, weighted=weighted)

    def state(self) -> State:
        """Its line in the file."""
        return {
            "name": self.name,
            "in_column": self.in_column,
            "type": self.type,
            "kind": self.kind,
            "count": self.count,
            "missing": self.missing,
            "nan": self.nan,
            "infinite": self.infinite,
            "zeros": self.zeros,
            "numbers": None if self.numbers is None else dict(self.numbers.state()),
            "lengths": None if self.lengths is None else dict(self.lengths.state()),
            "distinct": None if self.distinct is None else dict(self.distinct.state()),
            "frequent": None if self.frequent is None else dict(self.frequent.state()),
            "weighted": None if self.weighted is None else dict(self.weighted.state()),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """The feature of a line."""
        plain = {name: state[name] for name in _PLAIN}
        return cls(
            **cast("Any", plain),
            numbers=None if state["numbers"] is None else NumberStatistics.from_state(_part(state, "numbers")),
            lengths=None if state["lengths"] is None else NumberStatistics.from_state(_part(state, "lengths")),
            distinct=None if state["distinct"] is None else Distinct.from_state(_part(state, "distinct")),
            frequent=None if state["frequent"] is None else Frequent.from_state(_part(state, "frequent")),
            weighted=None if state["weighted"] is None else WeightedStatistics.from_state(_part(state, "weighted")),
        )


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """What was counted over one split."""

    name: str
    rows: int
    features: Mapping[str, FeatureStatistics]  #: by name, in the order of the columns

    def merge(self, other: Self) -> Self:
        """The statistics of both; a column that one of them lacks is missing in all of its rows."""
        features = {}
        for name in dict.fromkeys((*self.features, *other.features)):
            mine, theirs = self.features.get(name), other.features.get(name)
            if mine is not None and theirs is not None:
                features[name] = mine.merge(theirs)
            elif mine is not None:
                features[name] = mine.add_absent(other.rows if mine.in_column == name else 0, other.weight)
            elif theirs is not None:
                features[name] = theirs.add_absent(self.rows if theirs.in_column == name else 0, self.weight)
        return replace(self, rows=self.rows + other.rows, features=features)

    @property
    def weight(self) -> float | None:
        """The weight of all rows; None if they have none."""
        if not self.rows:
            return 0.0
        return next((f.weighted.total for f in self.features.values() if f.weighted is not None), None)

    def write(self, folder: Path) -> None:
        """Writes its file into a folder."""
        lines: list[State] = [{"format": FORMAT, "split": self.name, "rows": self.rows}]
        lines += [feature.state() for feature in self.features.values()]
        with (folder / f"{self.name}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n")

    @classmethod
    def read(cls, file: Path) -> Self:
        """Reads the file of a split.

        Raises:
            InputError: it is no statistics, or of another format.
        """
        try:
            with file.open(encoding="utf-8") as lines:
                head = json.loads(next(lines, "null"))
                if not isinstance(head, dict) or head.get("format") != FORMAT:
                    raise InputError(f"{file} is not '{FORMAT}'; run StatisticsGen again on its span.")
                features = [FeatureStatistics.from_state(json.loads(line)) for line in lines]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file}: these statistics cannot be read ({error}).") from error
        return cls(name=head["split"], rows=head["rows"], features={f.name: f for f in features})


@dataclass(frozen=True, kw_only=True)
class SpanStatistics:
    """What was counted over the splits of a span, or of several."""

    splits: Mapping[str, SplitCounts]

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Reads what StatisticsGen published.

        Raises:
            InputError: there are no statistics, or they cannot be read.
        """
        files = sorted(Path(folder).glob("*.jsonl"))
        if not files:
            raise InputError(f"{folder} has no statistics; give the folder of an artifact that StatisticsGen made.")
        splits = [SplitCounts.read(file) for file in files]
        return cls(splits={split.name: split for split in splits})

    def write(self, folder: Path) -> None:
        """Writes one file per split."""
        for split in self.splits.values():
            split.write(folder)

    def merge(self, other: Self) -> Self:
        """The statistics of both, split by split."""
        splits = {}
        for name in dict.fromkeys((*self.splits, *other.splits)):
            mine, theirs = self.splits.get(name), other.splits.get(name)
            splits[name] = mine.merge(theirs) if mine and theirs else cast("SplitCounts", mine or theirs)
        return replace(self, splits=splits)

    def whole(self) -> SplitCounts:
        """All splits as one."""
        return functools.reduce(SplitCounts.merge, self.splits.values(), SplitCounts(name="", rows=0, features={}))


def merge(statistics: Iterable[SpanStatistics]) -> SpanStatistics:
    """The statistics of several spans as one, in the order given; no data is read.

    Raises:
        ColumnsChanged: a feature has another type in one of them.
    """
    return functools.reduce(SpanStatistics.merge, statistics, SpanStatistics(splits={}))


def count_column(
    name: str, array: pa.Array[Any], weights: NDArray[np.float64] | None = None
) -> tuple[FeatureStatistics, ...]:
    """Counts one batch of a column: the column's own feature, then those within it. `weights` are those of the rows."""
    array = _unwrap(array)
    own, *inner = _count_features(name, name, array)
    if weights is None:
        return (own, *inner)
    show = None if own.frequent is None else functools.partial(_show, kind=own.kind)
    weighted = WeightedStatistics.accumulate(array, weights, numbers=own.numbers is not None, show=show)
    return (replace(own, weighted=weighted), *inner)


def _show(array: pa.Array[Any], kind: Kind) -> pa.Array[Any]:
    """The texts by which frequent values are known."""
    if kind == "text":
        texts = cast("pa.LargeStringArray", array.cast(pa.large_string()))
        if (pc.max(pc.utf8_length(texts)).as_py() or 0) <= LONGEST:
            return texts
        coded = texts.dictionary_encode()
        return pa.array(map(cut, to_list(coded.dictionary)), pa.large_string()).take(coded.indices)
    return array.cast(pa.string())


def merge_column(one: Sequence[FeatureStatistics], other: Sequence[FeatureStatistics]) -> tuple[FeatureStatistics, ...]:
    """The statistics of two batches of one column."""
    return tuple(a.merge(b) for a, b in zip(one, other, strict=True))


def _unwrap(array: pa.Array[Any]) -> pa.Array[Any]:
    while isinstance(array, pa.ExtensionArray | pa.DictionaryArray):
        array = array.storage if isinstance(array, pa.ExtensionArray) else array.dictionary_decode()
    return array


def _count_features(name: str, column: str, array: pa.Array[Any]) -> Iterator[FeatureStatistics]:
    array = _unwrap(array)
    kind = kind_of(array.type)
    plain = FeatureStatistics(
        name=name, in_column=column, type=str(array.type), kind=kind, count=len(array), missing=array.null_count
    )
    if kind in ("number", "boolean", "time"):
        yield _with_numbers(plain, array)
    elif kind == "text":
        yield _with_texts(plain, array.cast(pa.large_string()))
    elif kind == "binary":
        yield _with_bytes(plain, array.cast(pa.large_binary()))
    elif kind == "list":
        if pa.types.is_map(array.type):
            array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        lists = cast("pa.FixedSizeListArray[Any, Any]", array)
        yield replace(plain, lengths=NumberStatistics.from_counts(count_values(pc.list_value_length(lists))))
        yield from _count_features(f"{name}[]", column, lists.flatten())
    elif kind == "struct":
        yield plain
        there = cast("pa.StructArray", array.drop_null())
        for part, child in zip(there.type, there.flatten(), strict=True):
            yield from _count_features(f"{name}.{part.name}", column, child)
    else:
        yield replace(plain, missing=len(array)) if kind == "null" else plain


_KINDS: tuple[tuple[Kind, tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    ("null", (pa.types.is_null,)),
    ("boolean", (pa.types.is_boolean,)),
    ("number", (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)),
    ("other", (pa.types.is_interval,)),
    ("time", (pa.types.is_temporal,)),
    ("text", (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    ("binary", (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)),
    ("list", (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)),
    ("struct", (pa.types.is_struct,)),
)


def kind_of(type_: pa.DataType) -> Kind:
    """How values of an Arrow type are counted."""
    return next((kind for kind, tests in _KINDS if any(test(type_) for test in tests)), "other")


def _with_numbers(plain: FeatureStatistics, array: pa.Array[Any]) -> FeatureStatistics:
    found = count_values(array)
    zero = np.searchsorted(found.values, 0)
    zeros = int(found.counts[zero]) if zero < found.values.size and found.values[zero] == 0 else 0
    frequent = None
    if pa.types.is_integer(array.type):
        frequent = _frequent(found.values.tolist(), found.counts)
    elif pa.types.is_boolean(array.type) or pa.types.is_date(array.type):
        show = functools.partial(format_value, type_=str(array.type))
        frequent = Frequent.from_counts(map(show, found.values.tolist()), found.counts.tolist())
    return replace(
        plain,
        nan=found.nan,
        infinite=found.infinite,
        zeros=0 if plain.kind == "time" else zeros,
        numbers=NumberStatistics.from_counts(found),
        distinct=Distinct.from_numbers(found.values),
        frequent=frequent,
    )


def _with_texts(plain: FeatureStatistics, array: pa.Array[Any]) -> FeatureStatistics:
    values, counts = count_texts(array)
    distinct = to_list(values)
    lengths = count_weighted(pc.utf8_length(values), counts)
    return replace(
        plain,
        lengths=NumberStatistics.from_counts(lengths),
        distinct=Distinct.from_texts(distinct),
        frequent=_frequent(distinct, counts.to_numpy()),
    )


def _frequent(values: Sequence[object], counts: NDArray[np.int64]) -> Frequent:
    """Of different values, by their texts."""
    if counts.sum() == counts.size:
        return Frequent.from_distinct(values)
    return Frequent.from_counts(map(str, values), counts.tolist())


def _with_bytes(plain: FeatureStatistics, array: pa.Array[Any]) -> FeatureStatistics:
    values, counts = count_texts(array)
    return replace(
        plain,
        lengths=NumberStatistics.from_counts(count_weighted(pc.binary_length(values), counts)),
        distinct=Distinct.from_texts(value.hex() for value in to_list(values)),
    )


M = TypeVar("M", NumberStatistics, Distinct, Frequent)


def _merge_optional(one: M | None, other: M | None) -> M | None:
    if one is None or other is None:
        return other if one is None else one
    return one.merge(other)


def _part(state: State, name: str) -> State:
    return cast("State", state[name])
