"""Curves: the points of the plots of one model's scores, from rows by score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from spanwise.components.evaluation.bootstrap import Floats

_POINTS = 200  # of a curve
_BUCKETS = 15
_BARS = 40
CUTS: Final = tuple(tenths / 10 for tenths in range(1, 10))  #: round scores, at which a curve has figures


@dataclass(frozen=True, kw_only=True)
class ScoreLevels:
    """Rows with scores next to each other, from the least score to the greatest; one array each."""

    rows: Floats
    unscored: Floats  #: of the rows, those without a score, which count as 0
    score: Floats  #: sum
    label: Floats  #: sum
    most: Floats  #: the greatest score; a mean of equal scores may round above it


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The points of the plots of one model's scores."""

    roc: tuple[tuple[float, float], ...] = ()  #: false and true positive rate
    precision_recall: tuple[tuple[float, float], ...] = ()  #: recall, precision
    at: tuple[tuple[float, float, float, float], ...] = ()  #: score, precision, recall, share of rows above
    calibration: tuple[tuple[float, float, float], ...] = ()  #: mean score, mean label, rows
    edges: tuple[float, ...] = ()  #: of the bars of `spread`
    spread: tuple[tuple[float, ...], ...] = ()  #: share of rows by score: of the negative and the positive, or of all


def draw_curves(levels: Mapping[str, ScoreLevels], *, is_binary: bool) -> dict[str, Curves]:
    """The curves of each model that has a score for every row; of others, metrics are undefined too."""
    levels = {model: level for model, level in levels.items() if len(level.rows) and not level.unscored.any()}
    if not levels:
        return {}
    means = {model: level.score / level.rows for model, level in levels.items()}
    least, most = min(m.min() for m in means.values()), max(m.max() for m in means.values())
    if is_binary and least >= 0 and most <= 1:
        least, most = 0.0, 1.0
    edges = np.linspace(least, most if most > least else least + 1, _BARS + 1)
    return {m: _draw_model(level, edges, is_binary=is_binary) for m, level in levels.items()}


def _draw_model(level: ScoreLevels, edges: Floats, *, is_binary: bool) -> Curves:
    mean = level.score / level.rows
    middle = (np.cumsum(level.rows) - level.rows / 2) / level.rows.sum()
    bucket = np.minimum((middle * _BUCKETS).astype(np.int64), _BUCKETS - 1)
    rows, score, label = (np.bincount(bucket, weights=w) for w in (level.rows, level.score, level.label))
    some = rows > 0
    calibration = zip(score[some] / rows[some], label[some] / rows[some], rows[some], strict=True)
    kinds = [level.rows - level.label, level.label] if is_binary else [level.rows]
    spread = [np.histogram(mean, edges, weights=np.maximum(w, 0))[0] / level.rows.sum() for w in kinds]
    curves = Curves(
        calibration=tuple((float(a), float(b), float(c)) for a, b, c in calibration),
        edges=tuple(edges.tolist()),
        spread=tuple(tuple(share.tolist()) for share in spread),
    )
    return _add_rates(curves, level) if is_binary else curves


def _add_rates(curves: Curves, level: ScoreLevels) -> Curves:
    """Adds ROC and precision over recall, at as many points as a plot can show, and figures at round scores."""
    hits = np.append(np.cumsum(level.label[::-1])[::-1], 0.0)  # of the positive rows, those from a level up
    above = np.append(np.cumsum(level.rows[::-1])[::-1], 0.0)
    positive, negative = hits[0], above[0] - hits[0]
    if not positive or not negative:
        return curves
    recall, fall_out = hits / positive, (above - hits) / negative
    way = recall + fall_out  # falls from 2 to 0, so that even steps of it are even steps along the curve
    places = np.unique(np.searchsorted(-way, -np.linspace(2, 0, _POINTS)).clip(0, len(way) - 1))[::-1]
    precision = hits / np.where(above > 0, above, 1)
    at = []
    for score in CUTS:
        place = int(np.searchsorted(level.most, score, side="right"))
        if above[place]:
            at.append((score, float(precision[place]), float(recall[place]), float(above[place] / above[0])))
    return replace(
        curves,
        roc=tuple((float(fall_out[p]), float(recall[p])) for p in places),
        precision_recall=tuple((float(recall[p]), float(precision[p])) for p in places if above[p]),
        at=tuple(at),
    )
