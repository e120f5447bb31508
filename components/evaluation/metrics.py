"""Metrics: the quality of scores, given the labels. An undefined metric is NaN, which passes no threshold.

Most are made of sums over rows (`Sums`), which merge by addition. The areas under curves need the rows sorted by score:
they are exact from the rows themselves, and approximate from counts by class and score bin. Everything is computed for
many groups of rows and many replicates at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spanwise.components.evaluation.metric import find_metric, parse_name

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Sums: TypeAlias = dict[str, Floats]
"""By term: the sum for each group and replicate, shape `(groups, replicates)` or with more axes."""

Terms: TypeAlias = "dict[str, Floats | NDArray[np.bool_] | None]"
"""By term: what each row adds to its sum; None adds 1, or is not computed row by row."""


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Rows in groups, those of a group together; in the order of their scores where ranks are asked for."""

    labels: Floats  #: 0 and 1, or a number, or the index of a class
    scores: Floats  #: with classes, the score of the true class; 0 without a score
    unscored: NDArray[np.bool_]  #: where the score is not finite
    starts: Whole  #: the first row of each group; no group is empty
    chosen: NDArray[np.int32] | None = None  #: the class with the greatest score
    classes: int = 0  #: the number of classes; 0 if labels are not classes

    @property
    def groups(self) -> Whole:
        """The group of each row."""
        return np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.labels))))


def measure(names: Iterable[str], labels: Floats, scores: Floats) -> dict[str, float]:
    """The named metrics over rows of equal weight; labels of the positive class are 1, of the negative 0.

    Without rows, or with a score that is not a finite number, all but `count` are NaN.
    """
    wanted = list(dict.fromkeys(names))
    if not len(labels):
        return {name: 0.0 if name == "count" else float("nan") for name in wanted}
    order = np.argsort(scores)
    labels, scores = labels[order], scores[order]
    unscored = ~np.isfinite(scores)
    rows = ScoredRows(
        labels=labels,
        scores=np.where(unscored, 0.0, scores),
        unscored=unscored,
        starts=np.zeros(1, dtype=np.int64),
    )
    once = np.ones((1, len(labels)))
    found = finish_metrics(
        wanted, sum_terms(terms(wanted, rows), rows, once), rank_areas(wanted, rows, once, levels(rows))
    )
    return {name: float(found[name][0, 0]) for name in wanted}


def find_mismatch(names: Iterable[str], labels: Floats, scores: Floats) -> str | None:
    """Why these labels and scores do not suit the metrics; None if they do."""
    kinds = {name: find_metric(name) for name in names}
    binary = sorted(name for name, metric in kinds.items() if metric.of == "binary")
    if binary and (odd := labels[(labels != 0) & (labels != 1)]).size:
        return (
            f"{', '.join(binary)} need labels 0 and 1; found the label {odd[0]:g}; "
            "map the labels to 0 and 1 with label=<function>, name classes=(…), or use mae, rmse, r2"
        )
    if "log_loss" in kinds and (odd := scores[(scores < 0) | (scores > 1)]).size:
        return (
            f"log_loss needs probabilities; found the score {odd[0]:g}; "
            "return probabilities from predict_fn, or leave the metric out"
        )
    return None


# --- sums ---------------------------------------------------------------------------------------------------------


def terms(names: Iterable[str], rows: ScoredRows, pivot: float | None = None) -> Terms:
    """What each row adds to the sums of the named metrics.

    Labels are squared around `pivot`, which must be the same for all sums to be added; without one, around the first
    label of each group.
    """
    values: Terms = {"rows": None}
    for term in ("unscored", *(t for name in names for t in _terms(name))):
        kind, _, at = term.partition("@")
        if term not in values and kind in _PER_ROW:
            centre = rows.labels[rows.starts][rows.groups] if pivot is None and kind.startswith("away") else pivot
            values[term] = _PER_ROW[kind](rows, float(at or 0), 0.0 if centre is None else centre)
        elif term not in values:
            values[term] = None
    return values


def sum_terms(terms: Terms, rows: ScoredRows, weights: Floats) -> Sums:
    """The sums by group and replicate; `weights` is `(replicates, rows)`."""
    return {term: _sum(term, values, rows, weights) for term, values in terms.items()}


def _terms(name: str) -> list[str]:
    metric, at = parse_name(name)
    return [term.replace("@", f"@{at:g}") for term in FORMULAS[metric][0]] if metric in FORMULAS else []


def _sum(term: str, values: Floats | NDArray[np.bool_] | None, rows: ScoredRows, weights: Floats) -> Floats:
    if term in ("actual", "predicted", "both"):
        return _by_class(term, rows, weights)
    sums: Floats = np.add.reduceat(weights if values is None else weights * values, rows.starts, axis=1).T
    return sums


def _loss(rows: ScoredRows, _at: float, _pivot: Floats | float) -> Floats:
    least = np.finfo(np.float64).eps
    likely = rows.scores if rows.classes else np.where(rows.labels == 1, rows.scores, 1 - rows.scores)
    loss: Floats = -np.log(np.clip(likely, least, 1 - least))
    return loss


def _right(rows: ScoredRows, at: float, _pivot: Floats | float) -> NDArray[np.bool_]:
    right: NDArray[np.bool_]
    right = rows.labels == rows.chosen if rows.classes else (rows.scores > at) == (rows.labels == 1)
    return right


_PER_ROW: Mapping[str, Callable[[ScoredRows, float, Floats | float], Floats | NDArray[np.bool_]]] = {
    "unscored": lambda rows, _at, _pivot: rows.unscored,
    "label": lambda rows, _at, _pivot: rows.labels,
    "score": lambda rows, _at, _pivot: rows.scores,
    "loss": _loss,
    "above": lambda rows, at, _pivot: rows.scores > at,
    "hit": lambda rows, at, _pivot: (rows.scores > at) & (rows.labels == 1),
    "right": _right,
    "error": lambda rows, _at, _pivot: np.abs(rows.labels - rows.scores),
    "error2": lambda rows, _at, _pivot: np.square(rows.labels - rows.scores),
    "away": lambda rows, _at, pivot: rows.labels - pivot,
    "away2": lambda rows, _at, pivot: np.square(rows.labels - pivot),
}
"""What a row adds to the sum of a term."""


def _by_class(term: str, rows: ScoredRows, weights: Floats) -> Floats:
    """Rows by class, shape `(groups, replicates, classes)`: that have it, that were said to, or both."""
    assert rows.chosen is not None, "there are classes"
    classes = rows.chosen if term == "predicted" else rows.labels.astype(np.int64)
    cells = rows.groups * rows.classes + classes
    counting = (rows.labels == rows.chosen).astype(np.float64) if term == "both" else 1.0
    size = len(rows.starts) * rows.classes
    counts = [np.bincount(cells, weights=weight * counting, minlength=size) for weight in weights]
    return np.stack([c.reshape(len(rows.starts), rows.classes) for c in counts], axis=1)


# --- ranks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Levels:
    """Runs of rows with the same group and score, ascending within each group."""

    starts: Whole  #: the first row of each level
    groups: Whole  #: the first level of each group


def levels(rows: ScoredRows) -> Levels:
    """The levels of rows that are sorted by score within each group."""
    fresh = np.empty(len(rows.scores), dtype=bool)
    fresh[0] = True
    np.not_equal(rows.scores[1:], rows.scores[:-1], out=fresh[1:])
    fresh[rows.starts] = True
    starts = np.flatnonzero(fresh)
    return Levels(starts, np.searchsorted(starts, rows.starts))


def coarsen(levels: Levels, rows: int, most: int) -> Levels:
    """Joins neighbouring levels to about `most`: precise enough to estimate how far an area varies."""
    step = max(1, rows // most)
    is_first = np.diff(levels.starts // step, prepend=-1) > 0
    is_first[levels.groups] = True
    starts = levels.starts[is_first]
    return Levels(starts, np.searchsorted(starts, levels.starts[levels.groups]))


def rank_areas(names: Iterable[str], rows: ScoredRows, weights: Floats, levels: Levels) -> Sums:
    """The areas under curves among the named metrics, exactly, by group and replicate."""
    wanted = [name for name in names if name in AREAS]
    if not wanted:
        return {}
    positive = np.add.reduceat(weights * (rows.labels == 1), levels.starts, axis=1)
    every = np.add.reduceat(weights, levels.starts, axis=1)
    return areas(wanted, positive, every - positive, levels.groups)


def areas(names: Iterable[str], positive: Floats, negative: Floats, starts: Whole) -> Sums:
    """Areas from the numbers of rows by class and score level, ascending, shape `(replicates, levels)`.

    `starts` are the first levels of the groups; rows of one level count as ties.
    """
    sizes = np.diff(np.append(starts, positive.shape[1]))
    below = _below(positive, starts, sizes), _below(negative, starts, sizes)
    total = np.add.reduceat(positive, starts, axis=1), np.add.reduceat(negative, starts, axis=1)
    found = {}
    for name in names:
        if name == "auc":
            beaten = np.add.reduceat(positive * (below[1] + negative / 2), starts, axis=1)
            found[name] = ratio(beaten, total[0] * total[1]).T
        else:
            hits = np.repeat(total[0], sizes, axis=1) - below[0]
            chosen = hits + np.repeat(total[1], sizes, axis=1) - below[1]
            share = np.divide(hits, chosen, out=np.zeros_like(hits), where=chosen > 0)
            found[name] = ratio(np.add.reduceat(positive * share, starts, axis=1), total[0]).T
    return found


def _below(counts: Floats, starts: Whole, sizes: Whole) -> Floats:
    """Rows of the same group at lower levels."""
    up_to = np.cumsum(counts, axis=1) - counts
    return up_to - np.repeat(up_to[:, starts], sizes, axis=1)


# --- results ------------------------------------------------------------------------------------------------------


def finish_metrics(names: Iterable[str], sums: Sums, ranks: Sums) -> Sums:
    """The named metrics by group and replicate; NaN in a group with a score that is not finite."""
    broken = sums["unscored"] > 0
    found = {}
    for name in names:
        if name == "count":
            found[name] = sums["rows"]
        elif name in AREAS:
            found[name] = np.where(broken, np.nan, ranks[name])
        else:
            _, finish = FORMULAS[parse_name(name)[0]]
            found[name] = np.where(broken, np.nan, finish(sums["rows"], *(sums[term] for term in _terms(name))))
    return found


def ratio(part: Floats, whole: Floats) -> Floats:
    """The quotient; NaN where the divisor is 0."""
    share: Floats = np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole != 0)
    return share


def _r2(rows: Floats, error2: Floats, away: Floats, away2: Floats) -> Floats:
    spread = away2 - np.square(away) / np.where(rows > 0, rows, 1)
    return 1 - ratio(error2, np.where(spread > 0, spread, 0))


def _macro_f1(_rows: Floats, actual: Floats, predicted: Floats, both: Floats) -> Floats:
    """Classes that neither occur nor are predicted are left out (scikit-learn)."""
    scores = ratio(2 * both, actual + predicted)
    there = np.isfinite(scores)
    return ratio(np.where(there, scores, 0).sum(axis=2), there.sum(axis=2).astype(np.float64))


AREAS = ("auc", "pr_auc")
"""The metrics that need rows sorted by score."""

FORMULAS: Mapping[str, tuple[tuple[str, ...], Callable[..., Floats]]] = {
    "log_loss": (("loss",), lambda rows, loss: ratio(loss, rows)),
    "accuracy": (("right@",), lambda rows, right: ratio(right, rows)),
    "calibration": (("score", "label"), lambda _rows, score, label: ratio(score, label)),
    "precision": (("hit@", "above@"), lambda _rows, hit, above: ratio(hit, above)),
    "recall": (("hit@", "label"), lambda _rows, hit, label: ratio(hit, label)),
    "f1": (("hit@", "above@", "label"), lambda _rows, hit, above, label: ratio(2 * hit, above + label)),
    "macro_f1": (("actual", "predicted", "both"), _macro_f1),
    "micro_f1": (("right@",), lambda rows, right: ratio(right, rows)),
    "mae": (("error",), lambda rows, error: ratio(error, rows)),
    "rmse": (("error2",), lambda rows, error2: np.sqrt(ratio(error2, rows))),
    "r2": (("error2", "away", "away2"), _r2),
}
"""The terms of each metric, and its formula over the number of rows and their sums; "@" is the score in `f1@0.3`."""
