"""Binned counts: sums over the rows of a window, and counts by class and score bin, and the figures from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from spanwise.components.evaluation import metrics
from spanwise.components.evaluation.bootstrap import Floats
from spanwise.components.evaluation.curves import ScoreLevels, draw_curves
from spanwise.components.evaluation.exact_rows import (
    CHUNK,
    EDGES,
    ExactRows,
    accumulate_states,
    count_confusion,
    finish_custom,
    group_rows,
    merge_values,
    number_slices,
    resample_weights,
    slice_values,
)
from spanwise.components.evaluation.measurement import (
    MOST_SLICES,
    EvaluationSpec,
    Measurement,
    SliceFigures,
)
from spanwise.components.evaluation.metric import Metric
from spanwise.components.evaluation.metrics import ScoredRows, Sums, Whole
from spanwise.components.evaluation.slicing import Slicing

SLICE_EDGES = 128
"""The number of score bins of a slice; all rows together have `EDGES`."""

N = TypeVar("N", bound=np.generic)

_FLUSH_ROWS = 1 << 18  # counted at once


@dataclass(kw_only=True)
class ModelCounts:
    """The sums and counts of one model, by the groups of one slicing."""

    sums: Sums
    bins: NDArray[np.uint32] | None  #: rows by group, replicate, class and score bin
    states: Mapping[str, list[list[object]]]  #: by metric of the user: the states of each group and replicate
    level: ScoreLevels | None = None  #: of all rows, by score bin
    confusion: Whole | None = None  #: of all rows


@dataclass(kw_only=True)
class BinnedCounts:
    """Sums and counts of some rows, by slicing and model."""

    groups: dict[Slicing, list[tuple[object, ...]] | None]  #: the values of each group; None: too many to count
    counts: dict[tuple[Slicing, str], ModelCounts]  #: by slicing and model
    unlabelled: int
    custom: Sequence[Metric]

    def merge(self, other: BinnedCounts) -> BinnedCounts:
        """The sums and counts of both."""
        groups: dict[Slicing, list[tuple[object, ...]] | None] = {}
        counts: dict[tuple[Slicing, str], ModelCounts] = {}
        custom = {metric.name: metric for metric in self.custom}
        for slicing, mine in self.groups.items():
            theirs = other.groups[slicing]
            groups[slicing] = None
            if mine is None or theirs is None:
                continue
            merged, places = merge_values(mine, theirs)
            if len(merged) > MOST_SLICES:
                continue
            groups[slicing] = merged  # type: ignore[assignment]  # each value is one of theirs
            for key in {**self.counts, **other.counts}:
                if key[0] == slicing:
                    one, more = self.counts.get(key), other.counts.get(key)
                    if one and more:
                        counts[key] = _merge_counts(one, more, len(merged), places, custom)
                    else:
                        counts[key] = one or other.counts[key]
        return BinnedCounts(
            groups=groups, counts=counts, unlabelled=self.unlabelled + other.unlabelled, custom=self.custom
        )


def _merge_counts(
    one: ModelCounts, other: ModelCounts, count: int, places: NDArray[np.int32], custom: Mapping[str, Metric]
) -> ModelCounts:
    """The counts of both over `count` groups; `places` are the indices of the other's groups among them."""
    states = {}
    for name, mine in one.states.items():
        states[name] = [*mine, *([] for _ in range(count - len(mine)))]
        for place, theirs in zip(places, other.states[name], strict=True):
            merge, here = custom[name].merge, states[name][place]
            states[name][place] = [merge(a, b) for a, b in zip(here, theirs, strict=True)] if here else theirs
    bins = None
    if one.bins is not None and other.bins is not None:
        bins = _widen(one.bins, count)
        bins[places] += other.bins  # places are distinct
    sums = {term: _widen(mine, count) for term, mine in one.sums.items()}
    for term, total in sums.items():
        total[places] += other.sums[term]
    return ModelCounts(
        sums=sums,
        bins=bins,
        states=states,
        level=_add_levels(one.level, other.level),
        confusion=None if one.confusion is None or other.confusion is None else one.confusion + other.confusion,
    )


def _widen(counts: NDArray[N], groups: int) -> NDArray[N]:
    """A copy with zeros for additional groups."""
    return np.concatenate([counts, np.zeros((groups - len(counts), *counts.shape[1:]), dtype=counts.dtype)])


def _add_levels(one: ScoreLevels | None, other: ScoreLevels | None) -> ScoreLevels | None:
    if one is None or other is None:
        return None
    return ScoreLevels(rows=one.rows + other.rows, score=one.score + other.score, label=one.label + other.label)


def join_batches(batches: Iterable[ExactRows]) -> Iterator[ExactRows]:
    """Joins small batches, so that few counts need merging."""
    joined: ExactRows | None = None
    for batch in batches:
        joined = batch if joined is None else joined.merge(batch)
        if len(joined.labels) >= _FLUSH_ROWS:
            yield joined
            joined = None
    if joined is not None:
        yield joined


def count_rows(exact: ExactRows, spec: EvaluationSpec) -> BinnedCounts:
    """Sums and counts of some rows."""
    groups: dict[Slicing, list[tuple[object, ...]] | None] = {}
    counts: dict[tuple[Slicing, str], ModelCounts] = {}
    for slicing in ((), *spec.slicings):
        of_rows = number_slices(exact, slicing)
        count = int(of_rows.max()) + 1 if len(of_rows) else 0
        if count > MOST_SLICES:
            groups[slicing] = None
            continue
        groups[slicing] = slice_values(exact, slicing, of_rows, np.arange(count)) if count else []
        for model in spec.models if count else ():
            counts[slicing, model] = _count_model(exact, model, spec, of_rows, whole=not slicing)
    return BinnedCounts(groups=groups, counts=counts, unlabelled=exact.unlabelled, custom=spec.custom)


def _count_model(exact: ExactRows, model: str, spec: EvaluationSpec, of_rows: Whole, *, whole: bool) -> ModelCounts:
    rows, ids = group_rows(exact, model, spec, of_rows)
    edges = (spec.edges or {}).get(model)
    if edges is not None and not whole:
        edges = edges[EDGES // SLICE_EDGES - 1 :: EDGES // SLICE_EDGES]
    place = None if edges is None else np.searchsorted(edges, rows.scores, side="right")
    step = max(1, CHUNK // len(ids))
    terms = metrics.terms(spec.names, rows, spec.pivot)
    sums: list[Sums] = []
    bins: list[NDArray[np.uint32]] = []
    states: dict[str, list[list[object]]] = {metric.name: [[] for _ in rows.starts] for metric in spec.custom}
    for start in range(0, 1 + spec.replicates, step):
        weights = resample_weights(ids, spec, start, min(start + step, 1 + spec.replicates))
        sums.append(metrics.sum_terms(terms, rows, weights))
        if place is not None and edges is not None and any(name in metrics.AREAS for name in spec.names):
            bins.append(_count_bins(rows, place, len(edges) + 1, weights))
        for metric in spec.custom:
            for earlier, more in zip(states[metric.name], accumulate_states(metric, rows, weights), strict=True):
                earlier.extend(more)
    return ModelCounts(
        sums={term: np.concatenate([s[term] for s in sums], axis=1) for term in sums[0]},
        bins=np.concatenate(bins, axis=1) if bins else None,
        states=states,
        level=_bin_levels(rows, place, len(edges) + 1) if whole and place is not None and edges is not None else None,
        confusion=count_confusion(exact, model, spec) if whole and spec.classes else None,
    )


def _count_bins(rows: ScoredRows, place: Whole, count: int, weights: Floats) -> NDArray[np.uint32]:
    """Rows by group, replicate, class and score bin."""
    cells = (rows.groups * 2 + (rows.labels == 1)) * count + place
    size = len(rows.starts) * 2 * count
    counts = [np.bincount(cells, weights=weight, minlength=size).astype(np.uint32) for weight in weights]
    return np.stack([c.reshape(len(rows.starts), 2, count) for c in counts], axis=1)


def _bin_levels(rows: ScoredRows, place: Whole, count: int) -> ScoreLevels:
    return ScoreLevels(
        rows=np.bincount(place, minlength=count).astype(np.float64),
        score=np.bincount(place, weights=rows.scores, minlength=count).astype(np.float64),
        label=np.bincount(place, weights=rows.labels, minlength=count).astype(np.float64),
    )


def measure_binned(counts: BinnedCounts, spec: EvaluationSpec) -> Measurement:
    """The figures over all rows and slices."""
    overall = {model: model_counts for (slicing, model), model_counts in counts.counts.items() if not slicing}
    levels = {m: _without_empty(t.level) for m, t in overall.items() if t.level is not None}
    by_slicing = [
        (slicing, groups, {m: counts.counts[slicing, m] for m in spec.models})
        for slicing, groups in counts.groups.items()
        if slicing and groups
    ]
    return Measurement(
        rows=int(next(iter(overall.values())).sums["rows"][0, 0]) if overall else 0,
        unlabelled=counts.unlabelled,
        unscored={m: int(t.sums["unscored"][0, 0]) for m, t in overall.items()},
        exact=False,
        overall={m: _figures_of(t, spec) for m, t in overall.items()},
        slices=tuple(_slice_figures(slicing, groups, those, spec) for slicing, groups, those in by_slicing),
        curves=draw_curves(levels, is_binary=spec.is_binary),
        confusion={m: t.confusion for m, t in overall.items() if t.confusion is not None},
        auc_error={m: _auc_error(t.bins[0, 0]) for m, t in overall.items() if t.bins is not None},
        left_out=tuple(slicing for slicing, groups in counts.groups.items() if groups is None),
    )


def _slice_figures(
    slicing: Slicing, groups: Sequence[tuple[object, ...]], counts: Mapping[str, ModelCounts], spec: EvaluationSpec
) -> SliceFigures:
    figures = {model: _figures_of(model_counts, spec) for model, model_counts in counts.items()}
    sizes = next(iter(counts.values())).sums["rows"][:, 0].astype(np.int64)
    order = np.argsort(-sizes, kind="stable")
    return SliceFigures(
        by=slicing,
        groups=[dict(zip(slicing, groups[place], strict=True)) for place in order],
        sizes=sizes[order].tolist(),
        figures={m: {name: values[order] for name, values in f.items()} for m, f in figures.items()},
        occurring=len(groups),
    )


def _figures_of(model_counts: ModelCounts, spec: EvaluationSpec) -> Sums:
    ranks: Sums = {}
    wanted = [name for name in spec.names if name in metrics.AREAS]
    if wanted and model_counts.bins is not None:
        each = [
            metrics.areas(wanted, group[:, 1].astype(np.float64), group[:, 0].astype(np.float64), np.zeros(1, np.int64))
            for group in model_counts.bins
        ]
        ranks = {name: np.concatenate([found[name] for found in each]) for name in wanted}
    found = metrics.finish_metrics(spec.names, model_counts.sums, ranks)
    for metric in spec.custom:
        found[metric.name] = finish_custom(metric, model_counts.states[metric.name], model_counts.sums)
    return found


def _auc_error(bins: NDArray[np.uint32]) -> float:
    """Half the share of pairs of a positive and a negative row that share a bin."""
    negative, positive = bins.astype(np.float64)
    pairs = negative.sum() * positive.sum()
    return float((negative * positive).sum() / pairs / 2) if pairs else 0.0


def _without_empty(level: ScoreLevels) -> ScoreLevels:
    """The levels that have rows."""
    occupied = level.rows > 0
    return ScoreLevels(rows=level.rows[occupied], score=level.score[occupied], label=level.label[occupied])
