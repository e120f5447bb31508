"""Metrics: how good scores are, given the labels. A metric that has no answer is NaN, which no threshold lets pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_DECIDE = 0.5  # a score above it is a prediction of the positive class
_BINARY = frozenset({"auc", "log_loss", "accuracy", "calibration", "precision", "recall"})
_PROBABILITY = frozenset({"log_loss"})


def measure(names: Iterable[str], labels: Floats, scores: Floats) -> dict[str, float]:
    """The named metrics over rows of equal weight; labels of the positive class are 1, of the negative 0.

    Without rows, or with a score that is not a finite number, all but `count` are NaN.
    """
    answered = bool(len(scores)) and bool(np.isfinite(scores).all())
    return {
        name: METRICS[name](labels, scores) if answered or name == "count" else float("nan")
        for name in dict.fromkeys(names)
    }


def unsuitable(names: Iterable[str], labels: Floats, scores: Floats) -> str | None:
    """Why these metrics make no sense for these labels and scores; None when they do."""
    wanted = set(names)
    if wanted & _BINARY and (odd := labels[(labels != 0) & (labels != 1)]).size:
        return (
            f"{', '.join(sorted(wanted & _BINARY))} want labels 0 and 1, and there is a label {odd[0]:g}; "
            "map the labels to 0 and 1 with label=<function>, or use mae, rmse, r2"
        )
    if wanted & _PROBABILITY and (odd := scores[(scores < 0) | (scores > 1)]).size:
        return (
            f"{', '.join(sorted(wanted & _PROBABILITY))} wants probabilities, and there is a score {odd[0]:g}; "
            "return probabilities from predict_fn, or leave the metric out"
        )
    return None


def count(labels: Floats, _scores: Floats) -> float:
    """How many rows."""
    return float(len(labels))


def auc(labels: Floats, scores: Floats) -> float:
    """The chance that a positive row scores higher than a negative one, ties counting half (Mann-Whitney U).

    NaN when all rows are of one class.
    """
    positive = labels == 1
    low, high = np.sort(scores[~positive]), np.sort(scores[positive])  # several times faster than ranks by argsort
    beaten = np.searchsorted(low, high, "left").sum() + np.searchsorted(low, high, "right").sum()
    return _ratio(float(beaten) / 2, float(len(low)) * len(high))


def log_loss(labels: Floats, scores: Floats) -> float:
    """Mean negative log likelihood; a score of 0 or 1 counts as the nearest number between them."""
    least = np.finfo(np.float64).eps
    likely = np.clip(np.where(labels == 1, scores, 1 - scores), least, 1 - least)
    return float(-np.log(likely).mean())


def accuracy(labels: Floats, scores: Floats) -> float:
    """The share of rows that are on the right side of 0.5."""
    return float(((scores > _DECIDE) == (labels == 1)).mean())


def calibration(labels: Floats, scores: Floats) -> float:
    """Mean score over mean label: above 1 the model promises too much. NaN without positive rows."""
    return _ratio(float(scores.mean()), float(labels.mean()))


def precision(labels: Floats, scores: Floats) -> float:
    """The share of positive rows among those with a score above 0.5; NaN when there are none."""
    chosen = scores > _DECIDE
    return _ratio(float((labels[chosen] == 1).sum()), float(chosen.sum()))


def recall(labels: Floats, scores: Floats) -> float:
    """The share of rows with a score above 0.5 among the positive ones; NaN when there are none."""
    positive = labels == 1
    return _ratio(float((scores[positive] > _DECIDE).sum()), float(positive.sum()))


def mae(labels: Floats, scores: Floats) -> float:
    """Mean absolute error."""
    return float(np.abs(labels - scores).mean())


def rmse(labels: Floats, scores: Floats) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.square(labels - scores).mean()))


def r2(labels: Floats, scores: Floats) -> float:
    """The share of the labels' variance that the scores explain; NaN when the labels do not vary."""
    spread = float(np.square(labels - labels.mean()).sum())
    return 1 - _ratio(float(np.square(labels - scores).sum()), spread)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


METRICS: Mapping[str, Callable[[Floats, Floats], float]] = {
    "count": count,
    "auc": auc,
    "log_loss": log_loss,
    "accuracy": accuracy,
    "calibration": calibration,
    "precision": precision,
    "recall": recall,
    "mae": mae,
    "rmse": rmse,
    "r2": r2,
}
"""By the name that thresholds and reports use."""
