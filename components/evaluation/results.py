"""The figures of a model beside those of its baseline, in the form of `metrics.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spanwise.components.evaluation.bootstrap import ResampleMethod, interval
from spanwise.components.evaluation.metric import KNOWN, parse_name
from spanwise.components.evaluation.metrics import Sums

Ends = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The metrics of one group of rows, by name; NaN where undefined."""

    metrics: Mapping[str, float]
    intervals: Mapping[str, Ends]  #: 95 %; none for a small slice
    baseline_metrics: Mapping[str, float] | None = None
    baseline_intervals: Mapping[str, Ends] | None = None
    change: Mapping[str, float] | None = None  #: the model's minus the baseline's
    change_intervals: Mapping[str, Ends] | None = None

    def plain(self) -> dict[str, object]:
        """As JSON values; undefined ones are null."""
        return {name: plain(value) for name, value in vars(self).items()}


def figures(
    measured: Mapping[str, Sums],
    group: int,
    *,
    model: str,
    baseline: str | None,
    method: ResampleMethod,
    intervals: bool = True,
) -> Figures:
    """The figures of one group; `measured` is by model and metric, with the replicates on its last axis."""
    mine = {name: values[group] for name, values in measured[model].items()}
    theirs = None if baseline is None else {name: values[group] for name, values in measured[baseline].items()}
    apart = None if theirs is None else {name: mine[name] - theirs[name] for name in mine if name != "count"}

    def values_of(which: Sums) -> dict[str, float]:
        return {name: float(values[0]) for name, values in which.items()}

    def ends_of(which: Sums, *, within: bool) -> dict[str, Ends]:
        drawn = {n: v for n, v in which.items() if n != "count" and len(v) > 2 and intervals}  # noqa: PLR2004  two draws
        return {n: _ends(n, *(float(end) for end in interval(v, method)), within=within) for n, v in drawn.items()}

    return Figures(
        metrics=values_of(mine),
        intervals=ends_of(mine, within=True),
        baseline_metrics=None if theirs is None else values_of(theirs),
        baseline_intervals=None if theirs is None else ends_of(theirs, within=True),
        change=None if apart is None else values_of(apart),
        change_intervals=None if apart is None else ends_of(apart, within=False),
    )


def _ends(name: str, low: float, high: float, *, within: bool) -> Ends:
    """The interval, cut where the metric has no values."""
    if not within or name.partition("@")[0] not in KNOWN or math.isnan(low):
        return low, high
    known = KNOWN[parse_name(name)[0]]
    return max(low, known.least), min(high, known.most)


def plain(value: object) -> object:
    """A JSON value: a number that is not finite becomes null, an unknown type its text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def plain_slice(values: Mapping[str, object]) -> dict[str, object]:
    """The values of a slice as JSON values: null is a missing value alone, so NaN and infinities are texts."""
    odd = {name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)}
    return {name: str(value) if name in odd else plain(value) for name, value in values.items()}
