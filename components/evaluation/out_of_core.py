"""Out of core: the figures over more rows than should be in memory, which are those that memory would give.

Sums are merged from part to part. Areas under curves need all rows by score, so the rows of a model are cut into files
by score, and each file is sorted in memory: exact areas of any number of rows, also in slices.
"""

from __future__ import annotations

import functools
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from spanwise.components.evaluation import metrics
from spanwise.components.evaluation.bootstrap import LANES, Counts, Floats, Ids
from spanwise.components.evaluation.curves import ScoreLevels, draw_curves
from spanwise.components.evaluation.exact_rows import (
    LEVELS,
    ExactRows,
    accumulate_states,
    count_unscored,
    draw_counts,
    finish_custom,
    group_rows,
    number_slices,
    refuse_writes,
    replicate_threads,
    sum_levels,
    value_key,
    weigh_confusion,
    weigh_rows,
)
from spanwise.components.evaluation.measurement import MOST_SLICES, EvaluationSpec, Measurement, SliceFigures
from spanwise.components.evaluation.metrics import AreaSums, Levels, ScoredRows, Sums, Whole
from spanwise.components.evaluation.scored_parts import ScoredPart
from spanwise.components.evaluation.slicing import Slicing
from spanwise.components.evaluation.sorted_runs import SortedRuns
from spanwise.components.read_ahead import map_ahead

RUN_ROWS = 1 << 18
"""About so many rows of a model are sorted in memory at once."""

WEIGHTS = 1 << 18
"""The number of weights at once, or four replicates of a piece: so few that they stay in a processor's cache."""

MOST_OCCURRING = 1_000_000
"""A slicing with more slices is left out: they would not fit into memory."""


@dataclass(frozen=True, kw_only=True)
class SliceTable:
    """The largest slices of one slicing over all parts."""

    by: Slicing
    groups: Sequence[tuple[object, ...]]  #: the values of each, the largest first
    sizes: Whole
    occurring: int
    next_size: int  #: the rows of the largest one that is not among them
    of_parts: Sequence[Whole]  #: for each part, the place of each of its slices among the largest, or -1

    def place_rows(self, part: int, exact: ExactRows) -> Whole:
        """The place of the slice of each row of a part."""
        return self.of_parts[part][number_slices(exact, self.by)]

    def large(self, spec: EvaluationSpec) -> int:
        """How many have replicates: the first ones."""
        return int((self.sizes >= max(spec.small_rows, 2)).sum()) if spec.replicates else 0


def measure_parts(parts: Sequence[ScoredPart], spec: EvaluationSpec, scratch: Path) -> Measurement:
    """The figures over all rows and slices."""
    parts = [part for part in parts if part.rows or part.unlabelled]
    count = sum(part.rows for part in parts)
    unlabelled = sum(part.unlabelled for part in parts)
    if not count:
        return Measurement(rows=0, unlabelled=unlabelled)
    tables = _number_slices(parts, spec)
    measured = {}
    for model in spec.models:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            measured[model] = _measure_model(parts, model, spec, tables, Path(folder))
    levels = {model: found.levels for model, found in measured.items() if found.levels is not None}
    return Measurement(
        rows=count,
        unlabelled=unlabelled,
        unscored={model: sum(part.unscored[model] for part in parts) for model in spec.models},
        overall={model: found.figures[0] for model, found in measured.items()},
        slices=tuple(
            SliceFigures(
                by=table.by,
                groups=[dict(zip(table.by, values, strict=True)) for values in table.groups],
                sizes=table.sizes.tolist(),
                figures={model: found.figures[number] for model, found in measured.items()},
                unscored={model: found.unscored[number] for model, found in measured.items()},
                occurring=table.occurring,
                next_size=table.next_size,
            )
            for number, table in enumerate(tables)
            if table.by
        ),
        curves=draw_curves(levels, is_binary=spec.is_binary),
        left_out=tuple(slicing for slicing in spec.slicings if slicing not in {table.by for table in tables}),
        confusion={model: found.confusion for model, found in measured.items() if found.confusion is not None},
    )


def _number_slices(parts: Sequence[ScoredPart], spec: EvaluationSpec) -> list[SliceTable]:
    """The largest slices of each slicing that has not too many; the first one is of all rows."""
    slicings = ((), *spec.slicings)
    columns = {name: _Numbers() for slicing in slicings for name in slicing}
    found = {slicing: _Numbers() for slicing in slicings}
    sizes: dict[Slicing, list[int]] = {slicing: [] for slicing in slicings}
    of_parts: dict[Slicing, list[Whole]] = {slicing: [] for slicing in slicings}
    for part in parts:
        slices = part.read_slices()
        places = {
            name: numbers.add(slices.values[name], map(value_key, slices.values[name]))
            for name, numbers in columns.items()
        }
        for slicing in list(found):
            local, counts = slices.codes[slicing]
            codes = [tuple(int(places[name][c]) for name, c in zip(slicing, each, strict=True)) for each in local]
            numbers = found[slicing].add(codes, codes)
            sizes[slicing] += [0] * (len(found[slicing].values) - len(sizes[slicing]))
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                sizes[slicing][number] += count
            of_parts[slicing].append(numbers)
            if len(sizes[slicing]) > MOST_OCCURRING:
                del found[slicing], of_parts[slicing]
        columns = {name: numbers for name, numbers in columns.items() if any(name in slicing for slicing in found)}
    return [
        _choose_largest(slicing, numbers.values, np.array(sizes[slicing]), of_parts[slicing], columns)
        for slicing, numbers in found.items()
    ]


class _Numbers:
    """Distinct values, numbered as they come."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._numbers: dict[object, int] = {}

    def add(self, values: Sequence[object], keys: Iterable[object]) -> Whole:
        """The numbers of these values, which are compared by their keys."""
        found = []
        for value, key in zip(values, keys, strict=True):
            number = self._numbers.setdefault(key, len(self.values))
            if number == len(self.values):
                self.values.append(value)
            found.append(number)
        return np.array(found, np.int64)


def _choose_largest(
    slicing: Slicing,
    slices: Sequence[object],
    sizes: Whole,
    of_parts: Sequence[Whole],
    columns: Mapping[str, _Numbers],
) -> SliceTable:
    """The largest slices; equals in the order in which their columns' values came, as in memory."""
    codes = np.array(slices, np.int64).reshape(len(slices), len(slicing))
    ordered = np.lexsort((*codes.T[::-1], -sizes))
    order, others = ordered[:MOST_SLICES], ordered[MOST_SLICES:]
    ranks = np.full(len(slices), -1, np.int64)
    ranks[order] = np.arange(len(order))
    return SliceTable(
        by=slicing,
        groups=[
            tuple(columns[name].values[c] for name, c in zip(slicing, row, strict=True))
            for row in codes[order].tolist()
        ],
        sizes=sizes[order],
        occurring=len(slices),
        next_size=int(sizes[others[:1]].sum()),
        of_parts=[ranks[numbers] for numbers in of_parts],
    )


@dataclass(frozen=True, kw_only=True)
class _ModelFigures:
    figures: Sequence[Sums]  #: by slicing
    unscored: Sequence[Whole]  #: the same
    levels: ScoreLevels | None
    confusion: Floats | Whole | None


def _measure_model(
    parts: Sequence[ScoredPart],
    model: str,
    spec: EvaluationSpec,
    tables: Sequence[SliceTable],
    folder: Path,
) -> _ModelFigures:
    """The figures of a model: of classes part by part, of other labels in the order of the scores."""
    count = sum(part.rows for part in parts)
    sums = [_SliceSums(table, spec, count) for table in tables]
    unscored = [np.zeros(len(table.sizes), np.int64) for table in tables]
    runs = None if spec.classes else SortedRuns(folder, [part.sample[model] for part in parts], len(tables), RUN_ROWS)
    confusion: Floats | Whole = np.zeros((len(spec.classes), len(spec.classes)), np.int64)
    for number, part in enumerate(parts):
        if not part.rows:
            continue
        exact = part.read(spec)
        groups = [table.place_rows(number, exact) for table in tables]
        unscored = [
            counted + count_unscored(exact, model, slices, len(counted))
            for counted, slices in zip(unscored, groups, strict=True)
        ]
        if runs is not None:
            runs.append(exact, model, groups)
            continue
        rows, ids = group_rows(exact, model, spec, np.zeros(part.rows, np.int64))
        _add_rows(sums, rows, ids, groups, spec)
        confusion = confusion + weigh_confusion(exact, model, spec)
    return _ModelFigures(
        levels=None if runs is None else _read_runs(runs, sums, spec, count),
        figures=[each.finish() for each in sums],
        unscored=unscored,
        confusion=confusion if spec.classes else None,
    )


@dataclass(frozen=True, kw_only=True)
class _SlicedRows:
    """Some rows of a piece by slice."""

    rows: ScoredRows
    places: Whole  #: of these rows in the piece
    slices: Whole  #: of the groups
    terms: metrics.Terms
    levels: Levels | None  #: None where areas are not wanted


class _SliceSums:
    """What is summed of one model over the slices of one slicing, by slice and replicate."""

    def __init__(self, table: SliceTable, spec: EvaluationSpec, rows: int) -> None:
        """`rows` are in all parts."""
        self._spec = spec
        self._rows = rows
        self._shape = len(table.sizes), 1 + spec.replicates
        self._large = table.large(spec)
        self._sums: Sums = {}
        self._states: dict[str, list[list[object]]] = {
            metric.name: [[None] * self._shape[1] for _ in table.sizes] for metric in spec.custom
        }
        self._areas = AreaSums((name for name in spec.names if name in metrics.AREAS), self._shape[::-1])

    def choose(self, rows: ScoredRows, slices: Whole) -> _SlicedRows | None:
        """The rows of the slices, in the order of the piece; None without any."""
        return self._choose(rows, slices, self._shape[0])

    def choose_large(self, rows: ScoredRows, slices: Whole, every: _SlicedRows | None) -> _SlicedRows | None:
        """The same of the slices that have replicates, with levels that are precise enough for these."""
        chosen = every if self._large == self._shape[0] else self._choose(rows, slices, self._large)
        if chosen is None or chosen.levels is None:
            return chosen
        return replace(chosen, levels=metrics.coarsen(chosen.levels, self._rows, LEVELS))

    def _choose(self, rows: ScoredRows, slices: Whole, most: int) -> _SlicedRows | None:
        places = np.flatnonzero((slices >= 0) & (slices < most))
        if not places.size:
            return None
        numbers = slices[places]
        sizes = np.bincount(numbers)
        present = np.flatnonzero(sizes)
        if len(present) > 1:
            places = places[np.argsort(numbers.astype(np.int16), kind="stable")]  # by radix, ten times as fast
        sizes = sizes[present]
        chosen = rows.take(places, np.cumsum(sizes) - sizes)
        levels = metrics.levels(chosen) if any(name in metrics.AREAS for name in self._spec.names) else None
        terms = metrics.terms(self._spec.names, chosen)
        return _SlicedRows(rows=chosen, places=places, slices=present, terms=terms, levels=levels)

    def add(self, sliced: _SlicedRows, weights: Floats, replicates: slice, *, is_tie: bool) -> None:
        """Adds rows; `weights` are those of the piece."""
        if len(sliced.slices) > 1 or len(sliced.places) < weights.shape[1]:
            weights = np.take(weights, sliced.places, axis=1)
        self._merge(sliced.slices, replicates, metrics.sum_terms(sliced.terms, sliced.rows, weights))
        self._merge_states(sliced.slices.tolist(), replicates.start, sliced.rows, weights)
        if sliced.levels is None:
            return
        positive, negative = metrics.count_levels(sliced.rows, weights, sliced.levels)
        if is_tie:
            self._areas.hold(positive, negative, sliced.slices, replicates)
        else:
            self._areas.add(positive, negative, sliced.levels.groups, sliced.slices, replicates)

    def end_tie(self) -> None:
        """What comes now has another score."""
        self._areas.release()

    def finish(self) -> Sums:
        """Every metric by slice and replicate; small slices have no replicates."""
        found = metrics.finish_metrics(self._spec.names, self._sums, self._areas.finish())
        for metric in self._spec.custom:
            found[metric.name] = finish_custom(metric, self._states[metric.name], self._sums)
        for values in found.values():
            values[self._large :, 1:] = np.nan
        return found

    def _merge(self, slices: Whole, replicates: slice, more: Sums) -> None:
        for term, values in more.items():
            if term not in self._sums:
                self._sums[term] = np.zeros((*self._shape, *values.shape[2:]))
        merged = metrics.merge_sums({term: self._sums[term][slices, replicates] for term in more}, more)
        for term, values in merged.items():
            self._sums[term][slices, replicates] = values

    def _merge_states(self, slices: Sequence[int], first: int, rows: ScoredRows, weights: Floats) -> None:
        for metric in self._spec.custom:
            for number, states in zip(slices, accumulate_states(metric, rows, weights), strict=True):
                mine = self._states[metric.name][number]
                with refuse_writes(metric):
                    for replicate, state in enumerate(states, first):
                        earlier = mine[replicate]
                        mine[replicate] = state if earlier is None else metric.merge(earlier, state)


def _read_runs(runs: SortedRuns, sums: Sequence[_SliceSums], spec: EvaluationSpec, count: int) -> ScoreLevels:
    """Adds the rows of all runs, and returns the levels of all rows."""
    levels: list[ScoreLevels] = []
    last = np.nan
    for run in runs.read():
        if not run.is_tie or run.rows.scores[0] != last:
            for each in sums:
                each.end_tie()
        levels.append(_coarse_levels(run.rows, count))
        _add_rows(sums, run.rows, run.ids, run.groups, spec, is_tie=run.is_tie)
        last = run.rows.scores[-1]
    for each in sums:
        each.end_tie()
    levels.reverse()
    return ScoreLevels(
        rows=np.concatenate([level.rows for level in levels]),
        unscored=np.concatenate([level.unscored for level in levels]),
        score=np.concatenate([level.score for level in levels]),
        label=np.concatenate([level.label for level in levels]),
        most=np.concatenate([level.most for level in levels]),
    )


def _add_rows(
    sums: Sequence[_SliceSums],
    rows: ScoredRows,
    ids: Ids,
    groups: Sequence[Whole],
    spec: EvaluationSpec,
    *,
    is_tie: bool = False,
) -> None:
    """Adds rows to the sums of each slicing; `groups` has the slice of each row, by slicing."""
    every = [each.choose(rows, slices) for each, slices in zip(sums, groups, strict=True)]
    large = [each.choose_large(rows, slices, some) for each, slices, some in zip(sums, groups, every, strict=True)]
    for first, last, chosen in ((0, 1, every), (1, 1 + spec.replicates, large)):
        if not any(chosen):
            continue
        work = functools.partial(_add_replicates, sums, rows, chosen, is_tie=is_tie)
        step = max(LANES, WEIGHTS // len(ids) // LANES * LANES)
        deque(map_ahead(work, draw_counts(ids, spec, first, last, step), replicate_threads(spec)), maxlen=0)


def _add_replicates(
    sums: Sequence[_SliceSums],
    rows: ScoredRows,
    chosen: Sequence[_SlicedRows | None],
    drawn: tuple[int, Counts],
    *,
    is_tie: bool,
) -> None:
    """Adds rows to the sums of some replicates. Their weights are the same whatever slices they are in."""
    start, counts = drawn
    weights = weigh_rows(rows, counts)
    for each, sliced in zip(sums, chosen, strict=True):
        if sliced is not None:
            each.add(sliced, weights, slice(start, start + len(counts)), is_tie=is_tie)


def _coarse_levels(rows: ScoredRows, count: int) -> ScoreLevels:
    """About `LEVELS` levels of all rows, for curves; a tenth of the scores' range from 0 to 1 ends a level."""
    tenths = np.searchsorted(rows.scores, np.arange(1, 10) / 10, side="right")
    starts = np.union1d(metrics.coarsen(metrics.levels(rows), count, LEVELS).starts, tenths[tenths < len(rows.scores)])
    return sum_levels(rows, starts)
