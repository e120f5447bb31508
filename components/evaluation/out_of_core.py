"""Out of core: the figures over more rows than should be in memory, which are those that memory would give.

Sums are merged from part to part. Areas under curves need all rows by score, so the rows of a model are cut into files
by score, and each file is sorted in memory: exact areas of any number of rows, also in slices.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spanwise.components.evaluation import metrics
from spanwise.components.evaluation.bootstrap import Floats, Ids
from spanwise.components.evaluation.curves import ScoreLevels, draw_curves
from spanwise.components.evaluation.exact_rows import (
    CHUNK,
    LEVELS,
    ExactRows,
    accumulate_states,
    count_confusion,
    finish_custom,
    group_rows,
    number_slices,
    resample_weights,
    sum_levels,
    value_key,
)
from spanwise.components.evaluation.measurement import MOST_SLICES, EvaluationSpec, Measurement, SliceFigures
from spanwise.components.evaluation.metrics import AreaSums, ScoredRows, Sums, Whole
from spanwise.components.evaluation.scored_parts import ScoredPart
from spanwise.components.evaluation.slicing import Slicing
from spanwise.components.evaluation.sorted_runs import Records, SortedRuns

RUN_ROWS = 1 << 18
"""About so many rows of a model are sorted in memory at once."""

MOST_OCCURRING = 1_000_000
"""A slicing with more slices is left out: they would not fit into memory."""


@dataclass(frozen=True, kw_only=True)
class SliceTable:
    """The largest slices of one slicing over all parts."""

    by: Slicing
    groups: Sequence[tuple[object, ...]]  #: the values of each, the largest first
    sizes: Whole
    occurring: int
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
                occurring=table.occurring,
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
    order = np.lexsort((*codes.T[::-1], -sizes))[:MOST_SLICES]
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
        of_parts=[ranks[numbers] for numbers in of_parts],
    )


@dataclass(frozen=True, kw_only=True)
class _ModelFigures:
    figures: Sequence[Sums]  #: by slicing
    levels: ScoreLevels | None
    confusion: Whole | None


def _measure_model(
    parts: Sequence[ScoredPart],
    model: str,
    spec: EvaluationSpec,
    tables: Sequence[SliceTable],
    folder: Path,
) -> _ModelFigures:
    runs = None if spec.classes else SortedRuns(folder, [part.sample[model] for part in parts], len(tables), RUN_ROWS)
    totals = [_GroupTotals(table, spec) for table in tables]
    confusion = np.zeros((len(spec.classes), len(spec.classes)), np.int64)
    for number, part in enumerate(parts):
        if not part.rows:
            continue
        exact = part.read(spec)
        groups = [table.place_rows(number, exact) for table in tables]
        for total, of_rows in zip(totals, groups, strict=True):
            total.add(exact, model, of_rows)
        if runs is None:
            confusion += count_confusion(exact, model, spec)
        else:
            runs.append(exact, model, groups)
    ranks: list[Sums] = [{} for _ in tables]
    levels = None
    if runs is not None:
        count = sum(part.rows for part in parts)
        ranks, levels = _read_runs(runs, totals, spec, count)
    return _ModelFigures(
        figures=[total.finish(rank) for total, rank in zip(totals, ranks, strict=True)],
        levels=levels,
        confusion=confusion if spec.classes else None,
    )


class _GroupTotals:
    """The sums of one model over the slices of one slicing, by slice and replicate."""

    def __init__(self, table: SliceTable, spec: EvaluationSpec) -> None:
        self._spec = spec
        self._shape = len(table.sizes), 1 + spec.replicates
        self.large = table.large(spec)
        self.sums: Sums = {}
        self._states: dict[str, list[list[object]]] = {
            metric.name: [[None] * self._shape[1] for _ in table.sizes] for metric in spec.custom
        }

    def add(self, exact: ExactRows, model: str, groups: Whole) -> None:
        """Adds the rows of a part; `groups` has the slice of each row."""
        for first, last, most in ((0, 1, self._shape[0]), (1, self._shape[1], self.large)):
            present, dense = np.unique(groups[(groups >= 0) & (groups < most)], return_inverse=True)
            if not present.size or first == last:
                continue
            numbers = np.full(len(groups), -1)
            numbers[(groups >= 0) & (groups < most)] = dense
            rows, ids = group_rows(exact, model, self._spec, numbers)
            terms = metrics.terms(self._spec.names, rows)
            for start, end in _steps(first, last, len(ids)):
                weights = resample_weights(rows, ids, self._spec, start, end)
                self._merge(present, slice(start, end), metrics.sum_terms(terms, rows, weights))
                self._merge_states(present.tolist(), start, rows, weights)

    def _merge(self, groups: Whole, replicates: slice, more: Sums) -> None:
        for term, values in more.items():
            if term not in self.sums:
                self.sums[term] = np.zeros((*self._shape, *values.shape[2:]))
        merged = metrics.merge_sums({term: self.sums[term][groups, replicates] for term in more}, more)
        for term, values in merged.items():
            self.sums[term][groups, replicates] = values

    def _merge_states(self, groups: Sequence[int], first: int, rows: ScoredRows, weights: Floats) -> None:
        for metric in self._spec.custom:
            for group, states in zip(groups, accumulate_states(metric, rows, weights), strict=True):
                mine = self._states[metric.name][group]
                for replicate, state in enumerate(states, first):
                    earlier = mine[replicate]
                    mine[replicate] = state if earlier is None else metric.merge(earlier, state)

    def areas(self) -> AreaSums:
        """The areas to which rows are to be added by score."""
        positive = self.sums["positive"].T
        wanted = [name for name in self._spec.names if name in metrics.AREAS]
        return AreaSums(wanted, positive.copy(), self.sums["rows"].T - positive)

    def finish(self, ranks: Sums) -> Sums:
        """Every metric by slice and replicate; small slices have no replicates."""
        found = metrics.finish_metrics(self._spec.names, self.sums, ranks)
        for metric in self._spec.custom:
            found[metric.name] = finish_custom(metric, self._states[metric.name], self.sums)
        for values in found.values():
            values[self.large :, 1:] = np.nan
        return found


def _steps(first: int, last: int, rows: int) -> Iterator[tuple[int, int]]:
    """Replicates whose weights are in memory at once."""
    step = max(1, CHUNK // rows)
    return ((start, min(start + step, last)) for start in range(first, last, step))


def _read_runs(
    runs: SortedRuns, totals: Sequence[_GroupTotals], spec: EvaluationSpec, count: int
) -> tuple[list[Sums], ScoreLevels]:
    """The areas of each slicing, and the levels of all rows."""
    ranked = any(name in metrics.AREAS for name in spec.names)
    areas = [total.areas() for total in totals] if ranked else []
    levels: list[ScoreLevels] = []
    last = np.nan
    for records, is_tie in runs.read():
        levels.append(_coarse_levels(records, count))
        for number, (area, total) in enumerate(zip(areas, totals, strict=False)):
            if not is_tie or records["score"][0] != last:
                area.release()
            _add_areas(area, records, records["groups"][:, number], total.large, spec, count, is_tie=is_tie)
        last = records["score"][-1]
    for area in areas:
        area.release()
    joined = ScoreLevels(
        rows=np.concatenate([level.rows for level in levels]),
        score=np.concatenate([level.score for level in levels]),
        label=np.concatenate([level.label for level in levels]),
    )
    return ([area.finish() for area in areas] if ranked else [{} for _ in totals]), joined


def _add_areas(
    area: AreaSums, records: Records, groups: Whole, large: int, spec: EvaluationSpec, count: int, *, is_tie: bool
) -> None:
    """Adds rows that are sorted by score; `groups` has the slice of each."""
    for first, last, most in ((0, 1, MOST_SLICES), (1, 1 + spec.replicates, large)):
        kept = (groups >= 0) & (groups < most)
        present, dense = np.unique(groups[kept], return_inverse=True)
        if not present.size or first == last:
            continue
        order = np.argsort(dense.astype(np.int16), kind="stable")
        rows, ids = _scored_rows(records[kept][order], np.searchsorted(dense[order], np.arange(len(present))))
        levels = metrics.levels(rows)
        if first:  # precise enough to estimate how far the figure varies
            levels = metrics.coarsen(levels, count, LEVELS)
        for start, end in _steps(first, last, len(ids)):
            weights = resample_weights(rows, ids, spec, start, end)
            positive, negative = metrics.count_levels(rows, weights, levels)
            if is_tie:
                area.hold(positive, negative, present, slice(start, end))
            else:
                area.add(positive, negative, levels.groups, present, slice(start, end))


def _coarse_levels(records: Records, count: int) -> ScoreLevels:
    """About `LEVELS` levels of all rows, for curves; a tenth of the scores' range from 0 to 1 ends a level."""
    rows, _ = _scored_rows(records, np.zeros(1, np.int64))
    tenths = np.searchsorted(rows.scores, np.arange(1, 10) / 10, side="right")
    starts = np.union1d(metrics.coarsen(metrics.levels(rows), count, LEVELS).starts, tenths[tenths < len(records)])
    return sum_levels(rows, starts)


def _scored_rows(records: Records, starts: Whole) -> tuple[ScoredRows, Ids]:
    scores = np.ascontiguousarray(records["score"])
    rows = ScoredRows(
        labels=np.ascontiguousarray(records["label"]),
        scores=scores,
        unscored=np.zeros(len(scores), np.bool_),
        starts=starts,
        weights=np.ascontiguousarray(records["weight"]),
    )
    return rows, np.ascontiguousarray(records["id"])
