"""Metrics: the quality of scores, given the labels. An undefined metric is NaN, which passes no threshold.

Most are made of sums over rows (`Sums`), which merge. The areas under curves need the rows sorted by score: `AreaSums`
takes them all at once, or piece by piece from the greatest score down. Everything is computed for many groups of rows
and many replicates at once.
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

SUM_WITHIN = 1e-3
"""How far from 1 the probabilities of a row may sum to: those of float16 do, or with four digits."""


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Rows in groups, those of a group together; in the order of their scores where ranks are asked for."""

    labels: Floats  #: 0 and 1, or a number, or the index of a class
    scores: Floats  #: with classes, the score of the true class; 0 without a score
    unscored: NDArray[np.bool_]  #: where the score is not finite
    starts: Whole  #: the first row of each group; no group is empty
    chosen: NDArray[np.int32] | None = None  #: the class with the greatest score
    weights: Floats | None = None  #: None: each row counts once
    classes: int = 0  #: the number of classes; 0 if labels are not classes

    def take(self, places: Whole, starts: Whole) -> ScoredRows:
        """The rows at these places, with other groups."""
        return ScoredRows(
            labels=self.labels[places],
            scores=self.scores[places],
            unscored=self.unscored[places],
            starts=starts,
            chosen=None if self.chosen is None else self.chosen[places],
            weights=None if self.weights is None else self.weights[places],
            classes=self.classes,
        )

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
    """Why these labels and scores do not suit the metrics; None if they do.

    `scores` has one for each row, or one for each row and class. Rows with a score that is not finite are passed over.
    """
    kinds = {name: find_metric(name) for name in names}
    binary = sorted(name for name, metric in kinds.items() if metric.of == "binary")
    if binary and (odd := labels[(labels != 0) & (labels != 1)]).size:
        return (
            f"{', '.join(binary)} need{'s' if len(binary) == 1 else ''} labels 0 and 1; found the label {odd[0]:g}; "
            "map the labels to 0 and 1 with label=<function>, name classes=(…), or use mae, rmse, r2"
        )
    if "log_loss" in kinds and (found := _find_improbable(scores)) is not None:
        return (
            f"log_loss needs probabilities; found {found}; "
            "return probabilities from predict_fn, or leave the metric out"
        )
    return None


def _find_improbable(scores: Floats) -> str | None:
    """A finite score that is no probability, or those of the classes that together are none."""
    if scores.ndim > 1:
        scores = scores[np.isfinite(scores).all(axis=1)]
    odd = scores[np.isfinite(scores) & ((scores < 0) | (scores > 1))]
    if odd.size:
        return f"the score {odd[0]:g}"
    if scores.ndim > 1:
        sums = scores.sum(axis=1)
        apart = sums[np.abs(sums - 1) > SUM_WITHIN]
        if apart.size:
            return f"scores of the classes that sum to {apart[0]:g}, not 1"
    return None


# --- sums ---------------------------------------------------------------------------------------------------------


def terms(names: Iterable[str], rows: ScoredRows) -> Terms:
    """What each row adds to the sums of the named metrics."""
    wanted = ("unscored", *(term for name in names for term in _terms(name)))
    values: Terms = {"count": None, "rows": None}
    for term in wanted:
        kind, _, at = term.partition("@")
        if term not in values:
            values[term] = _PER_ROW[kind](rows, float(at or 0)) if kind in _PER_ROW else None
    return values


def sum_terms(terms: Terms, rows: ScoredRows, weights: Floats) -> Sums:
    """The sums by group and replicate; `weights` is `(replicates, rows)`."""
    sums = {term: _sum(term, values, rows, weights) for term, values in terms.items() if term != "spread"}
    return sums | _spread(rows, weights, sums["rows"]) if "spread" in terms else sums


def merge_sums(one: Sums, other: Sums) -> Sums:
    """The sums over the rows of both, which have the same groups and replicates."""
    merged = {term: total + other[term] for term, total in one.items() if term not in ("mean", "spread")}
    if "spread" in one:  # Chan, Golub & LeVeque 1983
        share = np.divide(other["rows"], merged["rows"], out=np.zeros_like(merged["rows"]), where=merged["rows"] > 0)
        apart = other["mean"] - one["mean"]
        merged["mean"] = np.where(share == 1, other["mean"], one["mean"] + apart * share)  # of no rows, it says nothing
        merged["spread"] = one["spread"] + other["spread"] + apart**2 * one["rows"] * share
    return merged


def _terms(name: str) -> list[str]:
    metric, at = parse_name(name)
    return [term.replace("@", f"@{at!r}") for term in FORMULAS[metric][0]] if metric in FORMULAS else []


def _sum(term: str, values: Floats | NDArray[np.bool_] | None, rows: ScoredRows, weights: Floats) -> Floats:
    if term in ("actual", "predicted", "both"):
        return _by_class(term, rows, weights)
    if term == "count":
        sizes = np.diff(np.append(rows.starts, len(rows.labels)))
        return np.repeat(sizes.astype(np.float64)[:, None], len(weights), axis=1)
    if values is None:
        each = weights
    elif values.dtype == np.bool_ and not values.any():
        return np.zeros((len(rows.starts), len(weights)))
    else:
        each = weights * values.astype(np.float64, copy=False)
    sums: Floats = np.add.reduceat(each, rows.starts, axis=1).T
    return sums


def _spread(rows: ScoredRows, weights: Floats, total: Floats) -> Sums:
    """The mean of the labels, and the sum of their squared distances from it, by group and replicate.

    Both are taken around a median of each group, so that neither a large mean nor a few far labels swallow the spread,
    also in replicates that leave out the far ones. Rows of little or no weight do not choose it.
    """
    ends = [*rows.starts[1:].tolist(), len(rows.labels)]
    parts = [slice(first, end) for first, end in zip(rows.starts.tolist(), ends, strict=True)]
    middles = np.array(
        [_median(rows.labels[part], None if rows.weights is None else rows.weights[part]) for part in parts]
    )
    away = rows.labels - middles[rows.groups]
    once, twice = (np.add.reduceat(weights * each, rows.starts, axis=1).T for each in (away, away * away))
    mean = np.divide(once, total, out=np.zeros_like(once), where=total > 0)
    return {"mean": middles[:, None] + mean, "spread": np.maximum(twice - once * mean, 0)}


def _median(labels: Floats, weights: Floats | None) -> np.float64:
    """A label of which about half of the weight is on either side."""
    if weights is None or not weights.any():
        half = len(labels) // 2
        middle: np.float64 = np.partition(labels, half)[half]
        return middle
    order = np.argsort(labels)
    ends = np.cumsum(weights[order])
    found: np.float64 = labels[order[np.searchsorted(ends, ends[-1] / 2)]]
    return found


def _loss(rows: ScoredRows, _at: float) -> Floats:
    least = np.finfo(np.float64).eps
    likely = rows.scores if rows.classes else np.where(rows.labels == 1, rows.scores, 1 - rows.scores)
    loss: Floats = -np.log(np.clip(likely, least, 1 - least))
    return loss


def _right(rows: ScoredRows, at: float) -> NDArray[np.bool_]:
    right: NDArray[np.bool_]
    right = rows.labels == rows.chosen if rows.classes else (rows.scores > at) == (rows.labels == 1)
    return right


_PER_ROW: Mapping[str, Callable[[ScoredRows, float], Floats | NDArray[np.bool_]]] = {
    "unscored": lambda rows, _at: rows.unscored,
    "label": lambda rows, _at: rows.labels,
    "positive": lambda rows, _at: rows.labels == 1,
    "score": lambda rows, _at: rows.scores,
    "loss": _loss,
    "above": lambda rows, at: rows.scores > at,
    "hit": lambda rows, at: (rows.scores > at) & (rows.labels == 1),
    "right": _right,
    "error": lambda rows, _at: np.abs(rows.labels - rows.scores),
    "error2": lambda rows, _at: np.square(rows.labels - rows.scores),
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
    positive, negative = count_levels(rows, weights, levels)
    sums = AreaSums(wanted, (len(weights), len(levels.groups)))
    sums.add(positive, negative, levels.groups, np.arange(len(levels.groups)), slice(None))
    return sums.finish()


def count_levels(rows: ScoredRows, weights: Floats, levels: Levels) -> tuple[Floats, Floats]:
    """The weight of positive and of negative rows, shape `(replicates, levels)`."""
    positive: Floats = np.add.reduceat(weights * (rows.labels == 1).astype(np.float64), levels.starts, axis=1)
    every: Floats = np.add.reduceat(weights, levels.starts, axis=1)
    return positive, every - positive


class AreaSums:
    """Areas of groups, from the weights of rows by class and score level; pieces come from the greatest scores down.

    Rows of one level count as ties. Arrays are of shape `(replicates, groups)`.
    """

    def __init__(self, names: Iterable[str], shape: tuple[int, int]) -> None:
        self._above = np.zeros(shape), np.zeros(shape)  # positive and negative rows that have come
        self._areas = {name: np.zeros(shape) for name in names}
        self._held = np.zeros(shape), np.zeros(shape)

    def add(self, positive: Floats, negative: Floats, starts: Whole, groups: Whole, replicates: slice) -> None:
        """Adds levels of some groups and replicates, ascending in each group; `starts` are the groups' first levels."""
        here = (replicates, groups)
        sizes = np.diff(np.append(starts, positive.shape[1]))
        above = []
        for each, before in zip((positive, negative), self._above, strict=True):
            total = before[here] + np.add.reduceat(each, starts, axis=1)
            above.append(np.repeat(total, sizes, axis=1) - _up_to(each, starts, sizes))
            before[here] = total
        for name, area in self._areas.items():
            if name == "auc":
                part = negative * (above[0] + positive / 2)
            else:
                hits = above[0] + positive
                chosen = hits + above[1] + negative
                part = positive * np.divide(hits, chosen, out=np.zeros_like(hits), where=chosen > 0)
            area[here] += np.add.reduceat(part, starts, axis=1)

    def hold(self, positive: Floats, negative: Floats, groups: Whole, replicates: slice) -> None:
        """Holds some rows of the next level, which is the same for all groups, until `release` adds the level."""
        for each, held in zip((positive, negative), self._held, strict=True):
            held[replicates, groups] += each

    def release(self) -> None:
        """Adds the level that was held, if any."""
        groups = np.arange(self._held[0].shape[1])
        if self._held[0].any() or self._held[1].any():
            self.add(*self._held, groups, groups, slice(None))
            self._held = np.zeros_like(self._held[0]), np.zeros_like(self._held[1])

    def finish(self) -> Sums:
        """The areas by group and replicate; NaN where a class has no rows."""
        positive, negative = self._above
        wholes = {"auc": positive * negative, "pr_auc": positive}
        return {name: ratio(area, wholes[name]).T for name, area in self._areas.items()}


def _up_to(counts: Floats, starts: Whole, sizes: Whole) -> Floats:
    """Rows of the same group at this level or a lower one."""
    running = np.cumsum(counts, axis=1)
    return running - np.repeat(running[:, starts] - counts[:, starts], sizes, axis=1)


# --- results ------------------------------------------------------------------------------------------------------


def finish_metrics(names: Iterable[str], sums: Sums, ranks: Sums) -> Sums:
    """The named metrics by group and replicate; NaN in a group with a score that is not finite."""
    broken = sums["unscored"] > 0
    found = {}
    for name in names:
        if name == "count":
            found[name] = sums["count"]
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


def _r2(_rows: Floats, error2: Floats, spread: Floats) -> Floats:
    return 1 - ratio(error2, spread)


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
    "r2": (("error2", "spread"), _r2),
}
"""The terms of each metric, and its formula over the number of rows and their sums; "@" is the score in `f1@0.3`."""
