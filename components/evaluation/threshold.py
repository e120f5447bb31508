"""Thresholds: what the metrics of a model must satisfy, and the findings that follow. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spanwise.components.bounds import format_apart, is_at_least, is_at_most
from spanwise.components.evaluation.metric import KNOWN
from spanwise.orchestrator.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The bounds of a metric for the model to be blessed; all are inclusive, as `components.bounds` compares.

    `max_drop` and the other relative bounds compare with the baseline on the same examples; a negative one requires an
    improvement: `max_drop=-0.01` means "better by at least 0.01". Without a baseline (the first run of a pipeline) they
    do not apply. An undefined metric (NaN) satisfies no bound, with or without a baseline.
    """

    at_least: float | None = None
    at_most: float | None = None
    max_drop: float | None = None  #: below the baseline, in the unit of the metric
    max_rise: float | None = None  #: above the baseline, for metrics where less is better
    max_drop_ratio: float | None = None  #: below the baseline, as a share of it: 0.05 is 5 %
    max_rise_ratio: float | None = None
    by: str | tuple[str, ...] | None = None  #: in `slice_thresholds`: applies only to slices by these columns

    def __post_init__(self) -> None:
        bounds = [b for name, b in vars(self).items() if name != "by" and b is not None]
        if not bounds or any(math.isnan(b) for b in bounds):
            raise ParameterError(f"{self} has no bound; set one, for example Threshold(at_least=0.6).")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ParameterError(f"{self} cannot be met: at_least is above at_most.")

    @property
    def compares(self) -> bool:
        """Whether it needs a baseline."""
        return any(b is not None for b in (self.max_drop, self.max_rise, self.max_drop_ratio, self.max_rise_ratio))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one bound of one threshold."""

    metric: str
    bound: str  #: its name in Threshold
    limit: float  #: its value
    value: float
    baseline: float | None  #: the baseline's value; None for absolute bounds
    passed: bool | None  #: None: not applied, without a baseline or in a slice whose labels leave the metric undefined
    slice: Mapping[str, object] | None = None  #: the values of its columns; None for all rows

    @property
    def reason(self) -> str:
        """The value and the bound, as a sentence."""
        metric = self.metric if self.slice is None else f"{self.metric} of {slice_name(self.slice)}"
        if math.isnan(self.value):
            return f"{metric} is undefined on these examples; {self.bound}={self.limit:g} is required{self._way_out}"
        if self.baseline is None:
            value, limit = format_apart(self.value, self.limit, 6, "g")
            return f"{metric} is {value}; {self.bound}={limit} is required"
        if self.lacks_baseline:
            return (
                f"{metric} is {self.value:.6g} and undefined for the baseline; {self.bound}={self.limit:g} is required"
            )
        return (
            f"{metric} is {self.value:.6g} and the baseline's is {self.baseline:.6g}; "
            f"{self.bound}={self.limit:g} is required"
        )

    @property
    def lacks_baseline(self) -> bool:
        """Whether the metric is undefined for the baseline alone, which no candidate can be compared with."""
        return self.baseline is not None and math.isnan(self.baseline) and not math.isnan(self.value)

    @property
    def judges(self) -> bool:
        """Whether the bound was applied, or would have been if there were a baseline."""
        return self.passed is not None or (self.baseline is None and not math.isnan(self.value))

    @property
    def _way_out(self) -> str:
        """What to do where a metric of the user's own is undefined in a slice."""
        if self.slice is None or self.metric.partition("@")[0] in KNOWN:
            return ""
        return (
            ". If that is because of the labels, say so in the metric by a built-in one that they leave undefined too: "
            'undefined_with = "recall"'
        )


def slice_name(values: Mapping[str, object]) -> str:
    """`origin=JFK, carrier=UA`."""
    return ", ".join(f"{name}={'null' if value is None else value}" for name, value in values.items())


def judge(
    thresholds: Mapping[str, Threshold], metrics: Mapping[str, float], baseline: Mapping[str, float] | None
) -> tuple[Finding, ...]:
    """Compares metrics with thresholds. The model is blessed if no finding has `passed` False."""
    return tuple(
        finding
        for name, threshold in thresholds.items()
        for finding in _findings(name, threshold, metrics[name], None if baseline is None else baseline[name])
    )


def _findings(metric: str, threshold: Threshold, value: float, baseline: float | None) -> Iterator[Finding]:
    t = threshold
    if t.at_least is not None:
        yield _finding(metric, "at_least", t.at_least, value, None, passed=is_at_least(value, t.at_least))
    if t.at_most is not None:
        yield _finding(metric, "at_most", t.at_most, value, None, passed=is_at_most(value, t.at_most))
    change, whole = (math.nan, math.nan) if baseline is None else (value - baseline, abs(baseline))
    scale = max(abs(value), whole)
    for bound, limit, worse, unit in (
        ("max_drop", t.max_drop, -change, 1.0),
        ("max_rise", t.max_rise, change, 1.0),
        ("max_drop_ratio", t.max_drop_ratio, -change, whole),
        ("max_rise_ratio", t.max_rise_ratio, change, whole),
    ):
        if limit is not None:
            within = worse < math.inf and is_at_most(worse, limit * unit, scale=scale)  # no share of infinity is finite
            passed = None if baseline is None and not math.isnan(value) else within
            yield _finding(metric, bound, limit, value, baseline, passed=passed)


def _finding(
    metric: str, bound: str, limit: float, value: float, baseline: float | None, *, passed: bool | None
) -> Finding:
    return Finding(metric=metric, bound=bound, limit=limit, value=value, baseline=baseline, passed=passed)
