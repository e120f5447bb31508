"""Exact rows: a few numbers of each row of a window, in memory, and the figures computed from them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spanwise.components import predictions, rows
from spanwise.components.evaluation import bootstrap, metrics
from spanwise.components.evaluation.bootstrap import Counts, Floats, Ids
from spanwise.components.evaluation.curves import ScoreLevels, draw_curves
from spanwise.components.evaluation.measurement import (
    MOST_SLICES,
    EvaluationSpec,
    Measurement,
    ModelFailed,
    SliceFigures,
)
from spanwise.components.evaluation.metric import Metric
from spanwise.components.evaluation.metrics import ScoredRows, Sums, Whole
from spanwise.components.evaluation.slicing import SPAN, Slicing
from spanwise.components.read_ahead import count_threads, map_ahead
from spanwise.components.rows import ExamplesPart
from spanwise.orchestrator.errors import ParameterError
from spanwise.pipelines.input.selection import filter_rows

LEVELS = 4096
"""The number of score levels that replicates distinguish; figures themselves distinguish all."""

_PLAIN: Mapping[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}

CHUNK = 1 << 21
"""The number of weights in memory at once, 16 MB; the temporaries of a step take about ten times that."""


@dataclass(kw_only=True)
class ExactRows:
    """Labels, scores, ids and slices of some rows."""

    labels: Floats
    ids: Ids
    scores: Mapping[str, Floats]  #: by model; NaN or infinite without a score
    chosen: Mapping[str, NDArray[np.int32]]  #: by model: the predicted class; with classes only
    codes: Mapping[str, NDArray[np.int32]]  #: by sliced column: the index of the value
    values: Mapping[str, Sequence[object]]
    unlabelled: int = 0
    weights: Floats | None = None  #: None: each row counts once

    def merge(self, other: ExactRows) -> ExactRows:
        """The rows of both, in order."""
        columns = {name: merge_values(self.values[name], other.values[name]) for name in self.values}
        return ExactRows(
            labels=np.concatenate([self.labels, other.labels]),
            ids=np.concatenate([self.ids, other.ids]),
            scores={m: np.concatenate([s, other.scores[m]]) for m, s in self.scores.items()},
            chosen={m: np.concatenate([c, other.chosen[m]]) for m, c in self.chosen.items()},
            codes={n: np.concatenate([self.codes[n], codes[other.codes[n]]]) for n, (_, codes) in columns.items()},
            values={n: values for n, (values, _) in columns.items()},
            unlabelled=self.unlabelled + other.unlabelled,
            weights=None
            if self.weights is None or other.weights is None
            else np.concatenate([self.weights, other.weights]),
        )


def merge_values(one: Sequence[object], other: Sequence[object]) -> tuple[list[object], NDArray[np.int32]]:
    """The distinct values of both, and the indices of the second among them."""
    places = {value_key(value): place for place, value in enumerate(one)}
    values = list(one)
    for value in other:
        if places.setdefault(value_key(value), len(values)) == len(values):
            values.append(value)
    return values, np.array([places[value_key(value)] for value in other], dtype=np.int32)


def value_key(value: object) -> object:
    """A hashable key for a value: a list cannot be hashed, NaN does not equal itself, and -0.0 is 0.0."""
    if isinstance(value, float):
        value += 0.0
    return value if isinstance(value, str | int) or value is None else json.dumps(value, default=str, sort_keys=True)


def read_rows(part: ExamplesPart, spec: EvaluationSpec) -> Iterator[ExactRows]:
    """Reads and scores the rows of a part, batch by batch."""
    first = 0
    for batch in rows.read_part(part, spec.schema, spec.batch_rows):
        table = pa.Table.from_batches([batch])
        ids = bootstrap.row_ids(part.place, first, len(table))
        first += len(table)
        labels = _read_labels(spec, table)
        has_label = ~np.isnan(labels)
        unlabelled = int((~has_label).sum())
        if unlabelled:
            table = pa.Table.from_batches([filter_rows(batch, pa.array(has_label))])
            labels, ids = labels[has_label], ids[has_label]
        scores, chosen = _predict_scores(spec, table, labels)
        weights = None if spec.weight is None else predictions.weights(spec.weight, table)
        columns = {name: _encode(table, name, part.span) for slicing in spec.slicings for name in slicing}
        yield ExactRows(
            labels=labels,
            ids=ids,
            scores=scores,
            chosen=chosen,
            codes={name: codes for name, (codes, _) in columns.items()},
            values={name: values for name, (_, values) in columns.items()},
            unlabelled=unlabelled,
            weights=weights,
        )


def _read_labels(spec: EvaluationSpec, table: pa.Table) -> Floats:
    if spec.classes:
        return predictions.classes(spec.label, table, spec.classes)
    labels = predictions.labels(spec.label, table)
    if (mismatch := metrics.find_mismatch(spec.names, labels[~np.isnan(labels)], np.zeros(0))) is not None:
        raise ParameterError(f"{mismatch}.")
    return labels


def _predict_scores(
    spec: EvaluationSpec, table: pa.Table, labels: Floats
) -> tuple[dict[str, Floats], dict[str, NDArray[np.int32]]]:
    """The scores of each model; with classes, the score of the true class and the predicted class."""
    scores: dict[str, Floats] = {}
    chosen: dict[str, NDArray[np.int32]] = {}
    for model, folder in spec.models.items():
        if not len(labels):
            scores[model] = np.zeros(0)
            chosen |= {model: np.zeros(0, dtype=np.int32)} if spec.classes else {}
            continue
        try:
            output = spec.predict_fn(folder, table)
            if spec.classes:
                found = predictions.chances(output, len(labels), spec.classes, table)
                scored = np.isfinite(found).all(axis=1)
                scores[model] = np.where(scored, found[np.arange(len(labels)), labels.astype(np.int64)], np.nan)
                chosen[model] = np.where(scored, found.argmax(axis=1), -1).astype(np.int32)
            else:
                found = scores[model] = predictions.scores(output, len(labels), table, cuts=spec.cuts)
        except Exception as error:
            raise ModelFailed.from_error(model, error) from error
        if (mismatch := metrics.find_mismatch(spec.names, np.zeros(0), found)) is not None:
            raise ModelFailed(model, f"{mismatch}.")
    return scores, chosen


def _encode(table: pa.Table, name: str, span: str) -> tuple[NDArray[np.int32], list[object]]:
    """The values to slice by: of a column, or the span that the rows are of."""
    if name == SPAN and name not in table.column_names:
        return np.zeros(len(table), dtype=np.int32), [span]
    return _encode_column(table.column(name))


def _encode_column(column: pa.ChunkedArray[pa.Scalar[pa.DataType]]) -> tuple[NDArray[np.int32], list[object]]:
    """A column as indices of its distinct values, which are in order of appearance."""
    if isinstance(column.type, pa.DictionaryType):  # its categories may be equal, or missing
        decoded = [each.dictionary_decode() for each in column.chunks if isinstance(each, pa.DictionaryArray)]
        column = pa.chunked_array(decoded, column.type.value_type)
    if column.type in _PLAIN:  # of views, Arrow encodes a missing one as an empty one
        column = column.cast(_PLAIN[column.type])
    if pa.types.is_float16(column.type):  # which Arrow does not encode
        column = column.cast(pa.float32())
    try:
        encoded = column.combine_chunks().dictionary_encode("encode")
    except pa.ArrowNotImplementedError:  # lists and the like
        texts = [str(value_key(_to_python(value))) if value.is_valid else None for value in column]
        encoded = pa.array(texts, pa.string()).dictionary_encode("encode")
    assert isinstance(encoded, pa.DictionaryArray)
    values = [_to_python(value) for value in encoded.dictionary]
    codes = encoded.indices.to_numpy(zero_copy_only=False) if not encoded.indices.null_count else None
    if codes is None:
        values.append(None)
        codes = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    distinct, places = merge_values([], values)
    return places[codes] if len(codes) else np.zeros(0, dtype=np.int32), distinct


def _to_python(value: pa.Scalar[pa.DataType]) -> object:
    """A value that Python has, or its text: of a moment with nanoseconds, or beyond the year 9999.

    Raises:
        ParameterError: it holds such a moment.
    """
    try:
        return value.as_py()
    except (ValueError, OverflowError) as error:
        if pa.types.is_nested(value.type):
            raise ParameterError(
                f"slices: a {value.type} cannot be sliced by ({error}); name another column."
            ) from error
        return str(value.cast(pa.string()))


def measure_exact(exact: ExactRows, spec: EvaluationSpec) -> Measurement:
    """The exact figures over all rows and slices."""
    count = len(exact.labels)
    everything = np.zeros(count, dtype=np.int64), np.array([count])
    orders = {m: _order_by_score(exact, m) for m in spec.models} if count else {}
    levels = {m: _score_levels(exact, m, spec, order) for m, order in orders.items()} if not spec.classes else {}
    return Measurement(
        rows=count,
        unlabelled=exact.unlabelled,
        unscored={m: int((~np.isfinite(scores)).sum()) for m, scores in exact.scores.items()},
        overall={m: _compute_figures(exact, m, spec, *everything, order) for m, order in orders.items()},
        slices=tuple(_measure_slices(exact, spec, slicing, orders) for slicing in spec.slicings) if count else (),
        curves=draw_curves(levels, is_binary=spec.is_binary),
        confusion={m: weigh_confusion(exact, m, spec) for m in orders} if spec.classes else {},
    )


def _measure_slices(
    exact: ExactRows, spec: EvaluationSpec, slicing: Slicing, orders: Mapping[str, Whole]
) -> SliceFigures:
    """The figures of the largest slices."""
    of_rows = number_slices(exact, slicing)
    sizes = np.bincount(of_rows)
    ordered = np.argsort(-sizes, kind="stable")
    largest, others = ordered[:MOST_SLICES], ordered[MOST_SLICES:]
    numbers = np.full(len(sizes), -1)
    numbers[largest] = np.arange(len(largest))
    groups = numbers[of_rows]
    return SliceFigures(
        by=slicing,
        groups=[dict(zip(slicing, values, strict=True)) for values in slice_values(exact, slicing, of_rows, largest)],
        sizes=sizes[largest].tolist(),
        figures={m: _compute_figures(exact, m, spec, groups, sizes[largest], order) for m, order in orders.items()},
        unscored={m: count_unscored(exact, m, groups, len(largest)) for m in orders},
        occurring=len(sizes),
        next_size=int(sizes[others[:1]].sum()),
    )


def count_unscored(exact: ExactRows, model: str, groups: Whole, count: int) -> Whole:
    """The rows of each group without a finite score; those of no weight leave no metric undefined."""
    lacking = ~np.isfinite(exact.scores[model]) & (groups >= 0)
    if exact.weights is not None:
        lacking &= exact.weights > 0
    return np.bincount(groups[lacking], minlength=count)


def number_slices(exact: ExactRows, slicing: Slicing) -> Whole:
    """The number of the slice of each row, in the order of the columns' values."""
    of_rows = np.zeros(len(exact.labels), dtype=np.int64)
    for name in slicing:  # numbering the combinations after each column keeps the numbers small
        of_rows = _renumber(of_rows * len(exact.values[name]) + exact.codes[name])
    return of_rows


def _renumber(numbers: Whole) -> Whole:
    """The rank of each number among the distinct ones."""
    if not len(numbers) or numbers.max() >= 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)[1]
    there = np.bincount(numbers) > 0
    found: Whole = (np.cumsum(there) - 1)[numbers]
    return found


def slice_values(exact: ExactRows, slicing: Slicing, of_rows: Whole, groups: Whole) -> list[tuple[object, ...]]:
    """The values of the columns in each group."""
    firsts = np.unique(of_rows, return_index=True)[1][groups]
    return [tuple(exact.values[name][exact.codes[name][row]] for name in slicing) for row in firsts]


def _compute_figures(
    exact: ExactRows, model: str, spec: EvaluationSpec, groups: Whole, sizes: Whole, order: Whole
) -> Sums:
    """Every metric of every group, with its replicates; `groups` has the group of each row, -1 for none.

    Groups are sorted by size, largest first. Small ones have no replicates. `order` sorts the rows by score.
    """
    names = [*spec.names, *(metric.name for metric in spec.custom)]
    found = {name: np.full((len(sizes), 1 + spec.replicates), np.nan) for name in names}
    rows, ids = group_rows(exact, model, spec, groups, order)
    _fill_replicates(found, rows, ids, spec, 0, 1)
    large = int((sizes >= max(spec.small_rows, 2)).sum())
    if large and spec.replicates:
        if large < len(sizes):
            rows, ids = group_rows(exact, model, spec, np.where(groups < large, groups, -1), order)
        _fill_replicates(found, rows, ids, spec, 1, 1 + spec.replicates)
    return found


def _fill_replicates(found: Sums, rows: ScoredRows, ids: Ids, spec: EvaluationSpec, first: int, last: int) -> None:
    """Fills in the metrics of the first groups for the replicates from `first` up to `last`."""
    count = len(rows.starts)
    levels = metrics.levels(rows)
    if first:  # precise enough to estimate how far the figure varies
        levels = metrics.coarsen(levels, len(ids), LEVELS)
    terms = metrics.terms(spec.names, rows)
    threads = replicate_threads(spec)
    step = max(1, CHUNK // len(ids) // threads)

    def measure(drawn: tuple[int, Counts]) -> None:
        start, counts = drawn
        replicates = slice(start, start + len(counts))
        weights = weigh_rows(rows, counts)
        sums = metrics.sum_terms(terms, rows, weights)
        ranks = metrics.rank_areas(spec.names, rows, weights, levels)
        for name, values in metrics.finish_metrics(spec.names, sums, ranks).items():
            found[name][:count, replicates] = values
        for metric in spec.custom:
            states = accumulate_states(metric, rows, weights)
            found[metric.name][:count, replicates] = finish_custom(metric, states, sums)

    deque(map_ahead(measure, draw_counts(ids, spec, first, last, step), threads), maxlen=0)


def _order_by_score(exact: ExactRows, model: str) -> Whole:
    """The rows sorted by the score of a model."""
    scores = exact.scores[model]
    return np.argsort(np.where(np.isfinite(scores), scores, 0.0))


def group_rows(
    exact: ExactRows, model: str, spec: EvaluationSpec, groups: Whole, order: Whole | None = None
) -> tuple[ScoredRows, Ids]:
    """The rows sorted by group, and within each group in the given order."""
    rows = np.arange(len(groups)) if order is None else order
    numbers = groups[rows]
    if numbers.min() < 0:
        rows = rows[numbers >= 0]
        numbers = groups[rows]
    if numbers.max() > 0:
        # numbers of 16 bits are sorted by radix, ten times as fast
        small = numbers.astype(np.int16) if numbers.max() < 1 << 15 else numbers
        rows = rows[np.argsort(small, kind="stable")]
        numbers = groups[rows]
    scores = exact.scores[model][rows]
    unscored = ~np.isfinite(scores)
    found = ScoredRows(
        labels=exact.labels[rows],
        scores=np.where(unscored, 0.0, scores),
        unscored=unscored,
        starts=np.searchsorted(numbers, np.arange(numbers[-1] + 1)),
        chosen=np.maximum(exact.chosen[model][rows], 0) if spec.classes else None,
        classes=len(spec.classes),
        weights=None if exact.weights is None else exact.weights[rows],
    )
    return found, exact.ids[rows]


def draw_counts(ids: Ids, spec: EvaluationSpec, first: int, last: int, step: int) -> Iterator[tuple[int, Counts]]:
    """How often each row counts in the replicates from `first` up to `last`, so many at once, with the first of them.

    Replicate 0 is the figure itself. One hash of a row says it for several replicates.
    """
    if not first:
        assert last == 1, "the figure itself stands alone"
        yield 0, np.ones((1, len(ids)), np.uint8)
        return
    at_once = -(-step // bootstrap.LANES) * bootstrap.LANES
    for some in range(first, last, at_once):
        counts = bootstrap.weights(ids, spec.method, spec.replicates, some - 1, min(some + at_once, last) - 1)
        for start in range(0, len(counts), step):
            yield some + start, counts[start : start + step]


def weigh_rows(rows: ScoredRows, counts: Counts) -> Floats:
    """The weight of each row in each replicate: its own, as often as it counts."""
    weights: Floats = counts.astype(np.float64) if rows.weights is None else counts * rows.weights
    return weights


def replicate_threads(spec: EvaluationSpec) -> int:
    """How many threads measure replicates; a metric of the user's own may not be made for several."""
    return 1 if spec.custom else count_threads()


def accumulate_states(metric: Metric, rows: ScoredRows, weights: Floats) -> list[list[object]]:
    """The states of a user's metric for each group and replicate."""
    ends = [*rows.starts[1:].tolist(), len(rows.labels)]
    labels, scores, each = (_read_only(array) for array in (rows.labels, rows.scores, weights))
    with refuse_writes(metric):
        return [
            [metric.accumulate(labels[a:b], scores[a:b], weight[a:b]) for weight in each]
            for a, b in zip(rows.starts.tolist(), ends, strict=True)
        ]


def _read_only(array: Floats) -> Floats:
    """A view that nobody can write into: others read the same numbers."""
    view = array.view()
    view.flags.writeable = False
    return view


@contextmanager
def refuse_writes(metric: Metric) -> Iterator[None]:
    """Names the metric that has tried to write into the arrays that it was given.

    Raises:
        ParameterError: it has.
    """
    try:
        yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise ParameterError(
            f"the metric {metric.name!r} writes into the arrays that it is given ({error}), which other metrics read "
            "too; write into a copy: scores = scores.copy()."
        ) from error


def finish_custom(metric: Metric, states: Sequence[Sequence[object]], sums: Sums) -> Floats:
    """A user's metric by group and replicate; NaN without rows, as in some replicates, or without a score."""
    defined = (sums["rows"] > 0) & (sums["unscored"] == 0)
    with refuse_writes(metric):
        return np.array(
            [
                [
                    float(metric.finish(state)) if is_defined else np.nan
                    for state, is_defined in zip(group, row, strict=True)
                ]
                for group, row in zip(states, defined.tolist(), strict=True)
            ]
        )


def _score_levels(exact: ExactRows, model: str, spec: EvaluationSpec, order: Whole) -> ScoreLevels:
    """One level for each distinct score."""
    rows, _ = group_rows(exact, model, spec, np.zeros(len(exact.labels), dtype=np.int64), order)
    return sum_levels(rows, metrics.levels(rows).starts)


def sum_levels(rows: ScoredRows, starts: Whole) -> ScoreLevels:
    """The sums of rows between these, which are sorted by score; without rows of no weight."""
    weights = np.ones(len(rows.labels)) if rows.weights is None else rows.weights
    total = np.add.reduceat(weights, starts)
    there = total > 0
    return ScoreLevels(
        rows=total[there],
        unscored=np.add.reduceat(weights * rows.unscored, starts)[there],
        score=np.add.reduceat(weights * rows.scores, starts)[there],
        label=np.add.reduceat(weights * rows.labels, starts)[there],
        most=np.maximum.reduceat(rows.scores, starts)[there],
    )


def weigh_confusion(exact: ExactRows, model: str, spec: EvaluationSpec) -> Floats | Whole:
    """The weight of the rows by class and chosen class, or their number; those without a score are in none."""
    count = len(spec.classes)
    scored = exact.chosen[model] >= 0
    cells = exact.labels[scored].astype(np.int64) * count + exact.chosen[model][scored]
    weights = None if exact.weights is None else exact.weights[scored]
    return np.bincount(cells, weights, minlength=count * count).reshape(count, count)
