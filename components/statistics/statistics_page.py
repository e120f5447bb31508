"""The page of statistics: every feature with its figures and a plot, for the splits of one span or for two spans."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from spanwise.components.report.page import Cell, ReportPage, table
from spanwise.components.report.plot import Series, bars, histogram
from spanwise.components.statistics.accumulators.frequent import abbreviate
from spanwise.components.statistics.span_statistics import (
    FeatureStatistics,
    NumberStatistics,
    SpanStatistics,
    SplitCounts,
    edges_between,
)
from spanwise.components.statistics.weighted import WeightedStatistics

BINS = 30
TOP = 7  #: bars of frequent values
PLOTS = 400
"""A page of more features would be slow to open; those after have figures without a plot."""

_FEW = 16  # whole numbers of so few values have a bar each
_TAILS = 0.005
_FAR = 2  # a range so many times that of the middle 99 % is cut to the latter


def page(statistics: SpanStatistics, *, title: str) -> str:
    """One span: its splits beside each other."""
    document = ReportPage(f"Statistics: {title}")
    _write(document, statistics.splits)
    return document.html()


def compare(left: SpanStatistics, right: SpanStatistics, *, names: tuple[str, str] = ("left", "right")) -> str:
    """Two spans, each with all of its splits together, side by side."""
    document = ReportPage(f"Statistics: {names[0]} and {names[1]}")
    _write(document, {name: s.whole() for name, s in zip(names, (left, right), strict=True)})
    return document.html()


def _write(document: ReportPage, splits: Mapping[str, SplitCounts]) -> None:
    names = list(dict.fromkeys(name for split in splits.values() for name in split.features))
    rows = ", ".join(f"{name} {split.rows:,} rows" for name, split in splits.items())
    document.paragraph(f"{rows}; {len(names):,} features. Heights are shares of the values that are present.")
    if len(names) > _FEW:
        document.search()
    write_features(document, splits, names)


def write_features(document: ReportPage, splits: Mapping[str, SplitCounts], names: Sequence[str]) -> None:
    """Adds the features of these names, with a colour for each of the splits."""
    document.legend(list(splits))
    for number, name in enumerate(names):
        found = {label: split.features.get(name) for label, split in splits.items()}
        some = next(f for f in found.values() if f is not None)
        drawn = _plot(found) if number < PLOTS else ""
        document.feature(name, _about(found, some), _figures(found, some), drawn)
    if len(names) > PLOTS:
        document.paragraph(f"Features after the first {PLOTS} have no plot.")


def _about(found: Mapping[str, FeatureStatistics | None], some: FeatureStatistics) -> list[Cell]:
    about = [Cell(some.type)]
    types = {f.type for f in found.values() if f is not None}
    if len(types) > 1:
        about.append(Cell("types differ: " + ", ".join(sorted(types)), "bad"))
    if some.kind == "other":
        about.append(Cell("values of this type are not analyzed, only whether they are present"))
    for label, feature in found.items():
        if feature is None:
            about.append(Cell(f"not in {label}", "bad"))
        elif feature.count and not feature.present:
            about.append(Cell(f"all missing in {label}", "bad"))
        elif feature.nan or feature.infinite:
            about.append(Cell(f"NaN or infinite in {label}", "warn"))
        if feature is not None and feature.frequent is not None and feature.frequent.error:
            about.append(
                Cell(f"frequent values in {label} (≈) are estimates, up to {feature.frequent.error:,} too high")
            )
    return about


def _figures(found: Mapping[str, FeatureStatistics | None], some: FeatureStatistics) -> str:
    rows: list[Sequence[str | Cell]] = []
    where: list[Sequence[str | Cell]] = []

    def row(name: str, value: Callable[[FeatureStatistics], str | Cell]) -> None:
        rows.append((name, *("" if f is None else value(f) for f in found.values())))

    row("present", lambda f: f"{f.present:,}")
    row("missing", lambda f: Cell(f"{f.missing_share:.2%}", "warn" if f.missing else "faint"))
    if any(f is not None and (f.nan or f.infinite) for f in found.values()):
        row("NaN, infinite", lambda f: Cell(f"{f.nan:,}, {f.infinite:,}", "warn"))
    if some.distinct is not None:
        row("distinct", lambda f: f"{f.unique or 0:,}")
    if some.kind == "boolean":
        row("true", lambda f: "" if f.numbers is None or not f.numbers.count else f"{f.numbers.mean:.2%}")
    elif some.numbers is not None:
        if some.kind == "number":
            row("zeros", lambda f: f"{f.zeros:,}")
            row("mean", functools.partial(_figure, figure=lambda n: n.mean))
            row("std", functools.partial(_figure, figure=lambda n: n.std))
        where = [(name, *(_figure(f, figure) if f else "" for f in found.values())) for name, figure in _WHERE.items()]
    if some.lengths is not None:
        row("length", lambda f: _lengths(f.lengths))
    if some.weighted is not None:
        _add_weighted(row, some)
    head = ("", *found)
    return table(head, rows) + (table(head, where) if where else "")


def _add_weighted(row: Callable[[str, Callable[[FeatureStatistics], str]], None], some: FeatureStatistics) -> None:
    row("weighted missing", lambda f: "" if f.weighted is None else f"{f.weighted.missing_share:.2%}")
    if some.kind == "number":
        row("weighted mean", functools.partial(_weighted, figure=lambda w: w.mean))
        row("weighted std", functools.partial(_weighted, figure=lambda w: w.std))
        row("weighted median", functools.partial(_weighted, figure=lambda w: w.quantile(0.5)))
    if some.weighted is not None and some.weighted.terms is not None:
        row("heaviest", lambda f: "" if f.weighted is None else _heaviest(f.weighted))


_WHERE: Mapping[str, Callable[[NumberStatistics], float | None]] = {
    "min": lambda n: n.least,
    "25 %": lambda n: n.quantile(0.25),
    "median": lambda n: n.quantile(0.5),
    "75 %": lambda n: n.quantile(0.75),
    "max": lambda n: n.greatest,
}


def _figure(feature: FeatureStatistics, figure: Callable[[NumberStatistics], float | None]) -> str:
    value = None if feature.numbers is None else figure(feature.numbers)
    if value is None or math.isnan(value):
        return ""
    return feature.format(value)


def _weighted(feature: FeatureStatistics, figure: Callable[[WeightedStatistics], float]) -> str:
    value = math.nan if feature.weighted is None else figure(feature.weighted)
    return "" if math.isnan(value) else feature.format(value)


def _heaviest(weighted: WeightedStatistics) -> str:
    """The values with the largest shares of the weight; ≈ marks estimates."""
    if not weighted.present:
        return ""
    return ", ".join(
        f"{'' if each.exact else '≈ '}{abbreviate(each.value)} {each.weight / weighted.present:.2%}"
        for each in weighted.top(3)
    )


def _lengths(lengths: NumberStatistics | None) -> str:
    if lengths is None or lengths.least is None or lengths.greatest is None:
        return ""
    if lengths.least == lengths.greatest:
        return f"{lengths.least:,}"
    return f"{lengths.least:,} to {lengths.greatest:,}, mean {lengths.mean:,.1f}"


def _plot(found: Mapping[str, FeatureStatistics | None]) -> str:
    there = {label: f for label, f in found.items() if f is not None and f.present}
    first = next(iter(there.values()), None)
    if first is None or not all(first.is_comparable(f) for f in there.values()):
        return ""
    few = all(f.frequent is not None and f.frequent.complete and (f.unique or 0) <= _FEW for f in there.values())
    if first.kind in ("text", "boolean"):
        return _top(found, there)
    if first.kind == "number" and few and all(f.frequent for f in there.values()):
        return _values(found, there)
    numbers = {label: f.numbers or f.lengths for label, f in there.items()}
    known = {label: n for label, n in numbers.items() if n is not None and n.count}
    if not known:
        return ""
    whole = all(_is_whole(f) for f in there.values())
    show = first.format if first.numbers is not None else "{:,.0f}".format
    return _distribution(list(found), known, whole=whole, show=show)


def _top(found: Mapping[str, FeatureStatistics | None], there: Mapping[str, FeatureStatistics]) -> str:
    """Bars of the values that are most frequent anywhere."""
    tops = {label: f.top(200) for label, f in there.items()}
    shares = {label: {o.value: o.count / there[label].present for o in top} for label, top in tops.items()}
    estimated = {o.value for top in tops.values() for o in top if not o.exact}
    union = {value for share in shares.values() for value in share}
    best = sorted(union, key=lambda value: (-max(s.get(value, 0.0) for s in shares.values()), value))[:TOP]
    labels = [
        ("≈ " if value in estimated else "") + (abbreviate(value) if value.strip() else repr(value)) for value in best
    ]
    return bars(
        labels,
        [
            Series(label, tuple(shares[label].get(v, 0.0) if label in shares else math.nan for v in best))
            for label in found
        ],
    )


def _values(found: Mapping[str, FeatureStatistics | None], there: Mapping[str, FeatureStatistics]) -> str:
    """A histogram with a bin for each whole number."""
    shares = {label: {int(o.value): o.count / f.present for o in f.top()} for label, f in there.items()}
    values = sorted({value for share in shares.values() for value in share})
    if values[-1] - values[0] > 4 * _FEW or not all(float(value) - 0.5 < value for value in values):
        return _top(found, there)
    first = next(iter(there.values()))
    edges = [float(value) - 0.5 for value in range(values[0], values[-1] + 2)]
    series = [
        Series(label, tuple(shares.get(label, {}).get(v, 0.0) for v in range(values[0], values[-1] + 1)))
        for label in found
    ]
    return histogram(edges, series, ends=(first.format(values[0]), first.format(values[-1])))


def _distribution(
    labels: Sequence[str], known: Mapping[str, NumberStatistics], *, whole: bool, show: Callable[[float], str]
) -> str:
    least = min(n.least for n in known.values() if n.least is not None)
    most = max(n.greatest for n in known.values() if n.greatest is not None)
    low = min(n.quantile(_TAILS) for n in known.values())
    high = max(n.quantile(1 - _TAILS) for n in known.values())
    cut = most - least > _FAR * (high - low) > 0
    start, end = (low, high) if cut else (least, most)
    edges = _whole_edges(start, end) if whole else edges_between(start, end, BINS)
    series = []
    for label in labels:
        if label in known:
            up_to = known[label].quantiles.share_up_to(edges)
            up_to[0] = 0.0 if not cut else up_to[0]
            series.append(Series(label, tuple(float(v) for v in np.diff(up_to))))
        else:
            series.append(Series(label, (0.0,) * (len(edges) - 1)))
    ends = (show(start), show(end))
    if cut:
        ends = (f"{ends[0]}  (min {show(least)})", f"{ends[1]}  (max {show(most)})")
    return histogram(edges, series, ends=ends)


def _whole_edges(start: float, end: float) -> tuple[float, ...]:
    """Edges between whole numbers, so that each bin holds equally many of them."""
    if float(start) - 0.5 == start:  # doubles that far out are whole numbers several apart
        return edges_between(start, end, BINS)
    step = max(1, math.ceil((end - start + 1) / BINS))
    count = math.ceil((end - start + 1) / step)
    return tuple(start - 0.5 + step * i for i in range(count + 1))


def _is_whole(feature: FeatureStatistics) -> bool:
    integer = feature.is_integer or feature.type == "date32[day]"
    return feature.numbers is None or integer
