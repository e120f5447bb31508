"""Metrics by name, and the base class of a user's own metrics. Computes nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DECIDE = 0.5
"""A score above it is a prediction of the positive class."""

_NAME = re.compile(r"([a-z0-9_]+)(?:@(0?\.\d+|0|1))?")


class Metric:
    """The base class of your own metrics: accumulate some of the rows, merge two states, finish with a number.

        class Cost(Metric):
            name = "cost"

            def accumulate(self, labels, scores, weights):
                wrong = labels != (scores > 0.3)
                return np.array([weights.sum(), (weights * wrong).sum()])

            def merge(self, one, other):
                return one + other

            def finish(self, state):
                return state[1] / state[0]

    The three arrays have one number for each row, and are read-only; `weights` is how often a row counts. `accumulate`
    may return anything that can be pickled; rows may come in one piece or in many.

    In a slice, NaN fails a threshold, unless the labels leave the metric undefined whatever the model says. Where they
    may, name a built-in metric that they leave undefined too: `undefined_with = "recall"` where no label is 1,
    `"auc"` where all are the same.
    """

    name: ClassVar[str]

    undefined_with: ClassVar[str] = "mae"
    """A slice in which this built-in metric is undefined too is not judged; `mae` is undefined only without rows."""

    def accumulate(
        self, labels: NDArray[np.float64], scores: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> object:
        """The state of some rows."""
        raise NotImplementedError

    def merge(self, one: object, other: object) -> object:
        """The state of the rows of both."""
        raise NotImplementedError

    def finish(self, state: object) -> float:
        """The metric; NaN when it is undefined."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """A built-in metric."""

    about: str
    of: Literal["anything", "binary", "classes", "numbers"]  #: the labels and scores that it suits
    at: bool = False  #: whether a name may set another score than 0.5: precision@0.3
    least: float = -math.inf
    most: float = math.inf
    better: Literal["more", "less", "neither"] = "more"


KNOWN: Mapping[str, MetricInfo] = {
    "count": MetricInfo(about="the number of rows", of="anything", better="neither"),
    "auc": MetricInfo(
        about="the chance that a positive row scores higher than a negative one, ties counting half",
        of="binary",
        least=0,
        most=1,
    ),
    "pr_auc": MetricInfo(about="average precision: the area under precision over recall", of="binary", least=0, most=1),
    "log_loss": MetricInfo(
        about="mean negative log likelihood; scores are kept 2e-16 away from 0 and 1",
        of="binary",
        least=0,
        better="less",
    ),
    "accuracy": MetricInfo(
        about="the share of rows on the right side of 0.5, or whose class has the greatest score",
        of="binary",
        at=True,
        least=0,
        most=1,
    ),
    "calibration": MetricInfo(
        about="mean score over mean label: above 1 the model promises too much", of="binary", better="neither"
    ),
    "precision": MetricInfo(
        about="the share of positive rows among those with a score above 0.5", of="binary", at=True, least=0, most=1
    ),
    "recall": MetricInfo(
        about="the share of rows with a score above 0.5 among the positive ones", of="binary", at=True, least=0, most=1
    ),
    "f1": MetricInfo(about="the harmonic mean of precision and recall", of="binary", at=True, least=0, most=1),
    "macro_f1": MetricInfo(about="the mean of the classes' F1", of="classes", least=0, most=1),
    "micro_f1": MetricInfo(about="F1 over all classes together, which is the accuracy", of="classes", least=0, most=1),
    "mae": MetricInfo(about="mean absolute error", of="numbers", least=0, better="less"),
    "rmse": MetricInfo(about="root of the mean squared error", of="numbers", least=0, better="less"),
    "r2": MetricInfo(about="the share of the labels' variance that the scores explain", of="numbers", most=1),
}
"""The built-in metrics, by the name in thresholds and reports."""

USUAL: Mapping[Literal["binary", "classes"], Sequence[str]] = {
    "binary": ("auc", "log_loss", "accuracy", "calibration"),
    "classes": ("accuracy", "log_loss", "macro_f1"),
}
"""The default metrics."""


def parse_name(name: str) -> tuple[str, float]:
    """Splits a metric's name into that of the built-in metric and the score above which a row is positive.

    Raises:
        ValueError: there is no such metric; the message names all metrics.
    """
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in KNOWN:
        raise ValueError(f"there is no metric {name!r}; there are: {', '.join(KNOWN)}")
    if found[2] is not None and not KNOWN[found[1]].at:
        able = ", ".join(n for n, m in KNOWN.items() if m.at)
        raise ValueError(f"{name!r}: only {able} can be measured at a score")
    return found[1], DECIDE if found[2] is None else float(found[2])


def find_metric(name: str) -> MetricInfo:
    """The built-in metric of that name."""
    return KNOWN[parse_name(name)[0]]


def suits(name: str, *, classes: bool) -> bool:
    """Whether it can be measured where labels are classes, or where they are not."""
    of = find_metric(name).of
    return of in ("anything", "classes") or name in ("accuracy", "log_loss") if classes else of != "classes"
