"""Metric: what can be asked for by name, and how one's own is written. Computes nothing."""

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
    """A metric of one's own: gathered from some of the rows, merged with what others gathered, finished to a number.

        class Cost(Metric):
            name = "cost"

            def accumulate(self, labels, scores, weights):
                wrong = labels != (scores > 0.3)
                return np.array([weights.sum(), (weights * wrong).sum()])

            def merge(self, one, other):
                return one + other

            def finish(self, state):
                return state[1] / state[0]

    The three arrays have one number for each row; `weights` says how often a row counts. What `accumulate` returns may
    be anything that can be pickled; rows may come in one piece or in many.
    """

    name: ClassVar[str]

    def accumulate(
        self, labels: NDArray[np.float64], scores: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> object:
        """What some rows amount to."""
        raise NotImplementedError

    def merge(self, one: object, other: object) -> object:
        """What the rows of both amount to."""
        raise NotImplementedError

    def finish(self, state: object) -> float:
        """The metric; NaN when it is undefined."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Known:
    """A metric that is known by its name."""

    about: str
    of: Literal["anything", "binary", "classes", "numbers"]  #: what labels and scores it is for
    at: bool = False  #: may be asked for at another score than 0.5: precision@0.3
    least: float = -math.inf
    most: float = math.inf
    better: Literal["more", "less", "neither"] = "more"


KNOWN: Mapping[str, Known] = {
    "count": Known(about="how many rows", of="anything", better="neither"),
    "auc": Known(
        about="the chance that a positive row scores higher than a negative one, ties counting half",
        of="binary",
        least=0,
        most=1,
    ),
    "pr_auc": Known(about="average precision: the area under precision over recall", of="binary", least=0, most=1),
    "log_loss": Known(
        about="mean negative log likelihood; scores are kept 2e-16 away from 0 and 1",
        of="binary",
        least=0,
        better="less",
    ),
    "accuracy": Known(
        about="the share of rows on the right side of 0.5, or whose class has the greatest score",
        of="binary",
        at=True,
        least=0,
        most=1,
    ),
    "calibration": Known(
        about="mean score over mean label: above 1 the model promises too much", of="binary", better="neither"
    ),
    "precision": Known(
        about="the share of positive rows among those with a score above 0.5", of="binary", at=True, least=0, most=1
    ),
    "recall": Known(
        about="the share of rows with a score above 0.5 among the positive ones", of="binary", at=True, least=0, most=1
    ),
    "f1": Known(about="the harmonic mean of precision and recall", of="binary", at=True, least=0, most=1),
    "macro_f1": Known(about="the mean of the classes' F1", of="classes", least=0, most=1),
    "micro_f1": Known(about="F1 over all classes together, which is the accuracy", of="classes", least=0, most=1),
    "mae": Known(about="mean absolute error", of="numbers", least=0, better="less"),
    "rmse": Known(about="root of the mean squared error", of="numbers", least=0, better="less"),
    "r2": Known(about="the share of the labels' variance that the scores explain", of="numbers", most=1),
}
"""By the name that thresholds and reports use."""

USUAL: Mapping[Literal["binary", "classes"], Sequence[str]] = {
    "binary": ("auc", "log_loss", "accuracy", "calibration"),
    "classes": ("accuracy", "log_loss", "macro_f1"),
}
"""What is measured when nothing else is asked for."""


def parsed(name: str) -> tuple[str, float]:
    """A metric's name as known here, and the score above which a row is positive.

    Raises:
        ValueError: there is no such metric; the message names those that there are.
    """
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in KNOWN:
        raise ValueError(f"there is no metric {name!r}; there are: {', '.join(KNOWN)}")
    if found[2] is not None and not KNOWN[found[1]].at:
        able = ", ".join(n for n, m in KNOWN.items() if m.at)
        raise ValueError(f"{name!r}: only {able} may be asked for at a score")
    return found[1], DECIDE if found[2] is None else float(found[2])


def known(name: str) -> Known:
    """What is known of a metric by its name."""
    return KNOWN[parsed(name)[0]]


def suits(name: str, *, classes: bool) -> bool:
    """Whether it can be measured where labels are classes, or where they are not."""
    of = known(name).of
    return of in ("anything", "classes") or name in ("accuracy", "log_loss") if classes else of != "classes"
