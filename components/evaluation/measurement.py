"""Measurement: the metrics of models over the rows of a window and over slices of it, with replicates, in one pass.

The pass goes over row groups, here or on Beam. Up to a number of rows it keeps a few numbers of each (label, score,
number, slice), and every figure is exact; replicates take rows with scores next to each other, one in 4,096, as ties.
Beyond, it keeps sums, and counts by class and score between fixed edges: what is made of sums is still exact, and the
areas under curves treat rows between two edges as ties. Either way what is gathered from two row groups merges, always
in the same order, so that the result does not depend on who did what.

Memory, beside one batch and what `predict_fn` takes: while exact, 16 bytes a row, 8 for each model (12 with classes)
and 4 for each sliced column, twice, and temporaries: 215 MB in all for a million rows, two models, two slicings and 40
replicates. Beyond, for each model `EDGES` counters a replicate and class, and `SLICE_EDGES` for each of at most
`MOST_SLICES` slices: 45 MB a slicing with 1,000 slices, 100 MB in all with 19 slices, however many rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spanwise.components import predictions, rows
from spanwise.components.evaluation import bootstrap, metrics
from spanwise.components.evaluation.bootstrap import Floats, Ids
from spanwise.components.evaluation.metric import Metric, known
from spanwise.components.evaluation.metrics import Rows, Sums, Whole
from spanwise.components.rows import ExamplesPart
from spanwise.orchestrator import user_code
from spanwise.orchestrator.errors import ParameterError, SpanwiseError

log = logging.getLogger("spanwise.evaluator")

M = TypeVar("M", bound="Mergeable")
N = TypeVar("N", bound=np.generic)

Slicing: TypeAlias = tuple[str, ...]
"""Columns; their values make a slice for each combination that occurs. Without any: all rows."""

MOST_SLICES = 1000
"""Of one slicing, the slices with the most rows that are reported."""

HERE_ROWS = 1_000_000
"""Up to so many rows are measured in this process when no Beam runner is named: a job would only add its start."""

EDGES, SLICE_EDGES = 4096, 128
"""How finely scores are told apart beyond the exact rows."""

CHUNK = 1 << 21
"""So many weights are in memory at once, 16 MB; the temporaries of a step are about ten times that."""

_FLUSH_ROWS = 1 << 18  # so many are tallied at once
_POINTS = 200  # of a curve
_BUCKETS = 15
_BARS = 40
_SAMPLED_PARTS = 8


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be measured."""

    schema: pa.Schema  #: of the window
    label: str | Callable[..., object]
    predict_fn: Callable[..., object]
    models: Mapping[str, Path]  #: the folder of each, by name
    names: tuple[str, ...]  #: of metrics known by name
    own: tuple[Metric, ...] = ()
    slicings: tuple[Slicing, ...] = ()
    classes: tuple[str | int, ...] = ()  #: of the labels; none: labels are 0 and 1, or numbers
    replicates: int = 0
    method: bootstrap.Method = "bootstrap"
    small_rows: int = 0  #: a slice with fewer has no intervals
    batch_rows: int = 1 << 16
    edges: Mapping[str, Floats] | None = None  #: of scores, by model; None: rows are kept, and all is exact
    pivot: float | None = None  #: squares of labels are summed around it; with `edges`

    @property
    def binary(self) -> bool:
        """Whether labels are 0 and 1."""
        return any(known(name).of == "binary" for name in self.names) and not self.classes


@dataclass(frozen=True, kw_only=True)
class Level:
    """Rows with scores next to each other, from the least score to the greatest; one array each."""

    rows: Floats
    score: Floats  #: sum
    label: Floats  #: sum


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What there is to draw of one model's scores, as points."""

    roc: tuple[tuple[float, float], ...] = ()  #: false and true positive rate
    precision_recall: tuple[tuple[float, float], ...] = ()  #: recall, precision
    at: tuple[tuple[float, float, float, float], ...] = ()  #: score, precision, recall, share of rows above
    calibration: tuple[tuple[float, float, float], ...] = ()  #: mean score, mean label, rows
    edges: tuple[float, ...] = ()  #: of the bars of `spread`
    spread: tuple[tuple[float, ...], ...] = ()  #: share of rows by score: of the negative and the positive, or of all


@dataclass(frozen=True, kw_only=True)
class Slices:
    """The figures of one slicing."""

    by: Slicing
    groups: Sequence[Mapping[str, object]]  #: the values of the columns; largest group first
    sizes: Sequence[int]
    figures: Mapping[str, Sums]  #: by model and metric, shape `(groups, 1 + replicates)`
    occurring: int  #: how many there are, reported or not


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The answer."""

    rows: int
    unlabelled: int = 0
    unscored: Mapping[str, int] = field(default_factory=dict)  #: by model: rows for which it gave no finite score
    exact: bool = True  #: otherwise the areas under curves count rows between two edges as ties
    overall: Mapping[str, Sums] = field(default_factory=dict)  #: by model and metric, shape `(1, 1 + replicates)`
    slices: tuple[Slices, ...] = ()
    curves: Mapping[str, Curves] = field(default_factory=dict)
    confusion: Mapping[str, Whole] = field(default_factory=dict)  #: rows by class and predicted class
    auc_error: Mapping[str, float] = field(default_factory=dict)  #: by model; the AUC is off by at most so much
    left_out: tuple[Slicing, ...] = ()  #: more slices than can be counted beyond the exact rows


# --- what is gathered ---------------------------------------------------------------------------------------------


class Mergeable(Protocol):
    """Gathered from some of the rows."""

    def merge(self, other: Self) -> Self: ...


@dataclass(kw_only=True)
class Kept:
    """A few numbers of each row."""

    labels: Floats
    ids: Ids
    scores: Mapping[str, Floats]  #: by model; NaN or infinite where it gave no score
    chosen: Mapping[str, NDArray[np.int32]]  #: by model, with classes
    codes: Mapping[str, NDArray[np.int32]]  #: by sliced column: which of its values
    values: Mapping[str, Sequence[object]]
    unlabelled: int = 0

    def merge(self, other: Kept) -> Kept:
        """The rows of both, the other's last."""
        columns = {name: _joined(self.values[name], other.values[name]) for name in self.values}
        return Kept(
            labels=np.concatenate([self.labels, other.labels]),
            ids=np.concatenate([self.ids, other.ids]),
            scores={m: np.concatenate([s, other.scores[m]]) for m, s in self.scores.items()},
            chosen={m: np.concatenate([c, other.chosen[m]]) for m, c in self.chosen.items()},
            codes={n: np.concatenate([self.codes[n], codes[other.codes[n]]]) for n, (_, codes) in columns.items()},
            values={n: values for n, (values, _) in columns.items()},
            unlabelled=self.unlabelled + other.unlabelled,
        )


def _joined(one: Sequence[object], other: Sequence[object]) -> tuple[list[object], NDArray[np.int32]]:
    """All values, and where those of the other are among them."""
    places = {_key(value): place for place, value in enumerate(one)}
    values = list(one)
    for value in other:
        if places.setdefault(_key(value), len(values)) == len(values):
            values.append(value)
    return values, np.array([places[_key(value)] for value in other], dtype=np.int32)


def _key(value: object) -> object:
    """What tells values apart; a list is no key of a dict, and NaN is not itself."""
    return value if isinstance(value, str | int) or value is None else json.dumps(value, default=str, sort_keys=True)


@dataclass(kw_only=True)
class Tally:
    """The sums of one model over the groups of one slicing."""

    sums: Sums
    between: NDArray[np.uint32] | None  #: rows by group, replicate, class and edges
    own: Mapping[str, list[list[object]]]  #: by metric: the states of each group and replicate
    level: Level | None = None  #: of all rows, between edges
    confusion: Whole | None = None  #: of all rows


@dataclass(kw_only=True)
class Tallies:
    """What is left of the rows beyond those that are kept."""

    groups: dict[Slicing, list[tuple[object, ...]] | None]  #: the values of each group; None: too many to count
    tallies: dict[tuple[Slicing, str], Tally]  #: by slicing and model
    unlabelled: int
    own: Sequence[Metric]

    def merge(self, other: Tallies) -> Tallies:
        """The sums of both."""
        groups: dict[Slicing, list[tuple[object, ...]] | None] = {}
        tallies: dict[tuple[Slicing, str], Tally] = {}
        own = {metric.name: metric for metric in self.own}
        for slicing, mine in self.groups.items():
            theirs = other.groups[slicing]
            groups[slicing] = None
            if mine is None or theirs is None:
                continue
            every, places = _joined(mine, theirs)
            if len(every) > MOST_SLICES:
                continue
            groups[slicing] = every  # type: ignore[assignment]  # it holds what it was made of
            for key in {**self.tallies, **other.tallies}:
                if key[0] == slicing:
                    one, more = self.tallies.get(key), other.tallies.get(key)
                    tallies[key] = (
                        _added(one, more, len(every), places, own) if one and more else one or other.tallies[key]
                    )
        return Tallies(groups=groups, tallies=tallies, unlabelled=self.unlabelled + other.unlabelled, own=self.own)


def _added(one: Tally, other: Tally, count: int, places: NDArray[np.int32], own: Mapping[str, Metric]) -> Tally:
    """The sums of both over `count` groups; `places` are where the other's stand among them."""
    states = {}
    for name, mine in one.own.items():
        states[name] = [*mine, *([] for _ in range(count - len(mine)))]
        for place, theirs in zip(places, other.own[name], strict=True):
            merge, here = own[name].merge, states[name][place]
            states[name][place] = [merge(a, b) for a, b in zip(here, theirs, strict=True)] if here else theirs
    between = None
    if one.between is not None and other.between is not None:
        between = _widened(one.between, count)
        between[places] += other.between  # no place twice
    sums = {term: _widened(mine, count) for term, mine in one.sums.items()}
    for term, total in sums.items():
        total[places] += other.sums[term]
    return Tally(
        sums=sums,
        between=between,
        own=states,
        level=_level_sum(one.level, other.level),
        confusion=None if one.confusion is None or other.confusion is None else one.confusion + other.confusion,
    )


def _widened(counts: NDArray[N], groups: int) -> NDArray[N]:
    """A copy with room for so many groups."""
    return np.concatenate([counts, np.zeros((groups - len(counts), *counts.shape[1:]), dtype=counts.dtype)])


def _level_sum(one: Level | None, other: Level | None) -> Level | None:
    if one is None or other is None:
        return None
    return Level(rows=one.rows + other.rows, score=one.score + other.score, label=one.label + other.label)


@dataclass(kw_only=True)
class Gathered:
    """What a part of the window came to; merging two gives what both came to."""

    kept: Kept | None = None
    tallies: Tallies | None = None
    trouble: SpanwiseError | None = None  #: why it could not be gathered

    def merge(self, other: Gathered) -> Gathered:
        """In the order of the rows; the first trouble counts."""
        if self.trouble is not None or other.trouble is not None:
            return self if self.trouble is not None else other
        if self.kept is not None and other.kept is not None:
            return Gathered(kept=self.kept.merge(other.kept))
        assert self.tallies is not None, "all parts gather alike"
        assert other.tallies is not None, "all parts gather alike"
        return Gathered(tallies=self.tallies.merge(other.tallies))


# --- the pass -----------------------------------------------------------------------------------------------------


def measured(
    question: Question,
    parts: Sequence[ExamplesPart],
    *,
    exact_rows: int,
    runner: str | None,
    options: Mapping[str, str | int | float | bool],
    scratch: Path,
) -> Measured:
    """Answers the question over the rows of the parts.

    Raises:
        ParameterError: labels or scores are not what the metrics want, or a function gave too few of them.
        UnreadableInput: a file is damaged.
    """
    count = sum(part.rows for part in parts)
    if not count:
        return Measured(
            rows=0,
            unlabelled=0,
            unscored={},
            exact=True,
            overall={},
            slices=(),
            curves={},
            confusion={},
            auc_error={},
            left_out=(),
        )
    if count > exact_rows:
        log.info("%d rows are more than %d: the areas under curves are not exact", count, exact_rows)
        question = _with_edges(question, parts)
    if runner is None and count <= HERE_ROWS:
        found = merged(gather(part, question) for part in parts)
    else:
        found = _on_beam(question, parts, runner, options, scratch)
    if found.trouble is not None:
        raise found.trouble
    if found.kept is not None:
        return _of_kept(found.kept, question)
    assert found.tallies is not None, "it is one or the other"
    return _of_tallies(found.tallies, question)


def gather(part: ExamplesPart, question: Question) -> Gathered:
    """What the rows of a part come to."""
    if question.edges is None:
        return Gathered(kept=merged(_kept(part, question)))
    return Gathered(tallies=merged(_tallied(kept, question) for kept in _pieces(_kept(part, question))))


def merged(found: Iterable[M]) -> M:
    """All of them merged: neighbours first, in the tree in which `spanwise.components.beam` merges them as well."""
    stack: list[tuple[int, M]] = []
    for each in found:
        level, value = 0, each
        while stack and stack[-1][0] == level:
            value = stack.pop()[1].merge(value)
            level += 1
        stack.append((level, value))
    result = stack[0][1]
    for _, value in stack[1:]:
        result = result.merge(value)
    return result


def _on_beam(
    question: Question,
    parts: Sequence[ExamplesPart],
    runner: str | None,
    options: Mapping[str, str | int | float | bool],
    scratch: Path,
) -> Gathered:
    from spanwise.components.beam import merge_in_order

    sent = user_code.ship(question)

    def work(part: ExamplesPart) -> Iterator[tuple[str, Gathered]]:
        asked = user_code.unpack(sent)
        assert isinstance(asked, Question), "as packed"
        try:
            yield "all", gather(part, asked)
        except SpanwiseError as error:  # Beam would wrap it
            yield "all", Gathered(trouble=error)

    def merge(one: Gathered, other: Gathered) -> Gathered:
        return one.merge(other)

    return merge_in_order(parts, work, merge, runner=runner, options=options, scratch=scratch)["all"]


def _kept(part: ExamplesPart, question: Question) -> Iterator[Kept]:
    """The rows of a part, batch by batch."""
    first = 0
    for batch in rows.read_part(part, question.schema, question.batch_rows):
        table = pa.Table.from_batches([batch])
        ids = bootstrap.row_ids(part.place, first, len(table))
        first += len(table)
        found = _labels(question, table)
        there = ~np.isnan(found)
        unlabelled = int((~there).sum())
        if unlabelled:
            table, found, ids = table.filter(pa.array(there)), found[there], ids[there]
        scores, chosen = _scores(question, table, found)
        columns = {name: _coded(table.column(name)) for slicing in question.slicings for name in slicing}
        yield Kept(
            labels=found,
            ids=ids,
            scores=scores,
            chosen=chosen,
            codes={name: codes for name, (codes, _) in columns.items()},
            values={name: values for name, (_, values) in columns.items()},
            unlabelled=unlabelled,
        )


def _labels(question: Question, table: pa.Table) -> Floats:
    if question.classes:
        return predictions.classes(question.label, table, question.classes)
    return predictions.labels(question.label, table)


def _scores(
    question: Question, table: pa.Table, labels: Floats
) -> tuple[dict[str, Floats], dict[str, NDArray[np.int32]]]:
    """What each model says of the rows of a table; with classes, of the true one, and which it chose."""
    scores: dict[str, Floats] = {}
    chosen: dict[str, NDArray[np.int32]] = {}
    for model, folder in question.models.items():
        if not len(labels):
            scores[model] = np.zeros(0)
            chosen |= {model: np.zeros(0, dtype=np.int32)} if question.classes else {}
            continue
        said = question.predict_fn(folder, table)
        if question.classes:
            chances = predictions.chances(said, len(labels), len(question.classes))
            scored = np.isfinite(chances).all(axis=1)
            scores[model] = np.where(scored, chances[np.arange(len(labels)), labels.astype(np.int64)], np.nan)
            chosen[model] = np.where(scored, chances.argmax(axis=1), -1).astype(np.int32)
        else:
            scores[model] = predictions.scores(said, len(labels))
        why = metrics.unsuitable(question.names, np.zeros(0) if question.classes else labels, scores[model])
        if why is not None:
            raise ParameterError(f"{model}: {why}.")
    return scores, chosen


def _coded(column: pa.ChunkedArray[pa.Scalar[pa.DataType]]) -> tuple[NDArray[np.int32], list[object]]:
    """A column as numbers of its values, in the order in which they are met."""
    try:
        encoded = column.combine_chunks().dictionary_encode("encode")
    except pa.ArrowNotImplementedError:  # lists and the like
        texts = [str(_key(value.as_py())) for value in column]
        encoded = pa.array(texts, pa.string()).dictionary_encode("encode")
    assert isinstance(encoded, pa.DictionaryArray)
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False) if not encoded.indices.null_count else None
    if codes is None:
        values.append(None)
        codes = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    distinct, places = _joined([], values)
    return places[codes] if len(codes) else np.zeros(0, dtype=np.int32), distinct


def _pieces(kept: Iterable[Kept]) -> Iterator[Kept]:
    """The rows in pieces that are worth tallying."""
    piece: Kept | None = None
    for more in kept:
        piece = more if piece is None else piece.merge(more)
        if len(piece.labels) >= _FLUSH_ROWS:
            yield piece
            piece = None
    if piece is not None:
        yield piece


# --- all rows kept ------------------------------------------------------------------------------------------------


def _of_kept(kept: Kept, question: Question) -> Measured:
    count = len(kept.labels)
    everything = np.zeros(count, dtype=np.int64), np.array([count])
    orders = {m: _by_score(kept, m) for m in question.models} if count else {}
    levels = {m: _levels(kept, m, question, order) for m, order in orders.items()} if not question.classes else {}
    return Measured(
        rows=count,
        unlabelled=kept.unlabelled,
        unscored={m: int((~np.isfinite(scores)).sum()) for m, scores in kept.scores.items()},
        overall={m: _figures(kept, m, question, *everything, order) for m, order in orders.items()},
        slices=tuple(_sliced(kept, question, slicing, orders) for slicing in question.slicings) if count else (),
        curves=_curves(levels, question),
        confusion={m: _confusion(kept, m, question) for m in orders} if question.classes else {},
    )


def _sliced(kept: Kept, question: Question, slicing: Slicing, orders: Mapping[str, Whole]) -> Slices:
    """The figures of the largest slices."""
    of_rows = _numbered(kept, slicing)
    sizes = np.bincount(of_rows)
    largest = np.argsort(-sizes, kind="stable")[:MOST_SLICES]
    numbers = np.full(len(sizes), -1)
    numbers[largest] = np.arange(len(largest))
    groups = numbers[of_rows]
    return Slices(
        by=slicing,
        groups=[dict(zip(slicing, values, strict=True)) for values in _values(kept, slicing, of_rows, largest)],
        sizes=sizes[largest].tolist(),
        figures={m: _figures(kept, m, question, groups, sizes[largest], order) for m, order in orders.items()},
        occurring=len(sizes),
    )


def _numbered(kept: Kept, slicing: Slicing) -> Whole:
    """The slice of each row, numbered in the order of the columns' values."""
    of_rows = np.zeros(len(kept.labels), dtype=np.int64)
    for name in slicing:  # numbering the combinations anew each time keeps them below rows times values
        _, of_rows = np.unique(of_rows * len(kept.values[name]) + kept.codes[name], return_inverse=True)
    return of_rows


def _values(kept: Kept, slicing: Slicing, of_rows: Whole, groups: Whole) -> list[tuple[object, ...]]:
    """What the rows of each group have in the columns."""
    firsts = np.unique(of_rows, return_index=True)[1][groups]
    return [tuple(kept.values[name][kept.codes[name][row]] for name in slicing) for row in firsts]


def _figures(kept: Kept, model: str, question: Question, groups: Whole, sizes: Whole, order: Whole) -> Sums:
    """Every metric of every group, as it is and in replicates; `groups` are of rows, -1: of none.

    The largest group is the first. Small ones have no replicates. `order` has the rows by score.
    """
    names = [*question.names, *(metric.name for metric in question.own)]
    found = {name: np.full((len(sizes), 1 + question.replicates), np.nan) for name in names}
    rows, ids = _grouped(kept, model, question, groups, order)
    _fill(found, rows, ids, question, 0, 1)
    large = int((sizes >= max(question.small_rows, 2)).sum())
    if large and question.replicates:
        if large < len(sizes):
            rows, ids = _grouped(kept, model, question, np.where(groups < large, groups, -1), order)
        _fill(found, rows, ids, question, 1, 1 + question.replicates)
    return found


def _fill(found: Sums, rows: Rows, ids: Ids, question: Question, first: int, last: int) -> None:
    """Puts in the metrics of the first groups, for the replicates from `first` up to `last`."""
    count = len(rows.starts)
    levels = metrics.levels(rows)
    if first:  # a replicate only tells how far the figure varies
        levels = metrics.coarser(levels, len(ids), EDGES)
    terms = metrics.terms(question.names, rows)
    step = max(1, CHUNK // len(ids))
    for start in range(first, last, step):
        end = min(start + step, last)
        weights = _weights(ids, question, start, end)
        sums = metrics.summed(terms, rows, weights)
        ranks = metrics.ranked(question.names, rows, weights, levels)
        for name, values in metrics.finished(question.names, sums, ranks).items():
            found[name][:count, start:end] = values
        for metric in question.own:
            states = _states(metric, rows, weights)
            found[metric.name][:count, start:end] = _own_finished(metric, states, sums)


def _by_score(kept: Kept, model: str) -> Whole:
    """The rows in the order of what a model says of them."""
    scores = kept.scores[model]
    return np.argsort(np.where(np.isfinite(scores), scores, 0.0))


def _grouped(kept: Kept, model: str, question: Question, groups: Whole, order: Whole | None = None) -> tuple[Rows, Ids]:
    """The rows of groups together, those of each in the order given."""
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
    scores = kept.scores[model][rows]
    unscored = ~np.isfinite(scores)
    found = Rows(
        labels=kept.labels[rows],
        scores=np.where(unscored, 0.0, scores),
        unscored=unscored,
        starts=np.searchsorted(numbers, np.arange(numbers[-1] + 1)),
        chosen=np.maximum(kept.chosen[model][rows], 0) if question.classes else None,
        classes=len(question.classes),
    )
    return found, kept.ids[rows]


def _weights(ids: Ids, question: Question, first: int, last: int) -> Floats:
    """How often each row counts: once in the first place, then as in the replicates."""
    if first:
        return bootstrap.weights(ids, question.method, question.replicates, first - 1, last - 1)
    once = np.ones((1, len(ids)))
    if last == 1:
        return once
    return np.concatenate([once, bootstrap.weights(ids, question.method, question.replicates, 0, last - 1)])


def _states(metric: Metric, rows: Rows, weights: Floats) -> list[list[object]]:
    """What a user's metric accumulates over each group, replicate by replicate."""
    ends = [*rows.starts[1:].tolist(), len(rows.labels)]
    return [
        [metric.accumulate(rows.labels[a:b], rows.scores[a:b], weight[a:b]) for weight in weights]
        for a, b in zip(rows.starts.tolist(), ends, strict=True)
    ]


def _own_finished(metric: Metric, states: Sequence[Sequence[object]], sums: Sums) -> Floats:
    """A user's metric by group and replicate; NaN without rows, as in some replicates, or without a score."""
    told = (sums["rows"] > 0) & (sums["unscored"] == 0)
    return np.array(
        [
            [float(metric.finish(state)) if tells else np.nan for state, tells in zip(group, row, strict=True)]
            for group, row in zip(states, told.tolist(), strict=True)
        ]
    )


def _levels(kept: Kept, model: str, question: Question, order: Whole) -> Level:
    """One level for each score that occurs."""
    rows, _ = _grouped(kept, model, question, np.zeros(len(kept.labels), dtype=np.int64), order)
    starts = metrics.levels(rows).starts
    sizes = np.diff(np.append(starts, len(rows.labels))).astype(np.float64)
    return Level(rows=sizes, score=rows.scores[starts] * sizes, label=np.add.reduceat(rows.labels, starts))


def _confusion(kept: Kept, model: str, question: Question) -> Whole:
    """Rows by class and chosen class; those without a score are in none."""
    count = len(question.classes)
    scored = kept.chosen[model] >= 0
    cells = kept.labels[scored].astype(np.int64) * count + kept.chosen[model][scored]
    return np.bincount(cells, minlength=count * count).reshape(count, count)


# --- only sums kept -----------------------------------------------------------------------------------------------


def _with_edges(question: Question, parts: Sequence[ExamplesPart]) -> Question:
    """The question with edges that divide the scores of a few batches, from all over the window, equally."""
    places = np.unique(np.linspace(0, len(parts) - 1, _SAMPLED_PARTS).astype(np.int64))
    sample = merged(next(_kept(parts[place], question)) for place in places)
    edges: dict[str, Floats] = {}
    for model, scores in sample.scores.items():
        finite = scores[np.isfinite(scores)]
        if not question.classes and len(finite):
            edges[model] = np.unique(np.quantile(finite, np.arange(1, EDGES) / EDGES, method="nearest"))
    return replace(question, edges=edges, pivot=float(sample.labels[0]) if len(sample.labels) else 0.0)


def _tallied(kept: Kept, question: Question) -> Tallies:
    """The sums of some rows."""
    groups: dict[Slicing, list[tuple[object, ...]] | None] = {}
    tallies: dict[tuple[Slicing, str], Tally] = {}
    for slicing in ((), *question.slicings):
        of_rows = _numbered(kept, slicing)
        count = int(of_rows.max()) + 1 if len(of_rows) else 0
        if count > MOST_SLICES:
            groups[slicing] = None
            continue
        groups[slicing] = _values(kept, slicing, of_rows, np.arange(count)) if count else []
        for model in question.models if count else ():
            tallies[slicing, model] = _tally(kept, model, question, of_rows, whole=not slicing)
    return Tallies(groups=groups, tallies=tallies, unlabelled=kept.unlabelled, own=question.own)


def _tally(kept: Kept, model: str, question: Question, of_rows: Whole, *, whole: bool) -> Tally:
    rows, ids = _grouped(kept, model, question, of_rows)
    edges = (question.edges or {}).get(model)
    if edges is not None and not whole:
        edges = edges[EDGES // SLICE_EDGES - 1 :: EDGES // SLICE_EDGES]
    place = None if edges is None else np.searchsorted(edges, rows.scores, side="right")
    step = max(1, CHUNK // len(ids))
    terms = metrics.terms(question.names, rows, question.pivot)
    sums: list[Sums] = []
    between: list[NDArray[np.uint32]] = []
    own: dict[str, list[list[object]]] = {metric.name: [[] for _ in rows.starts] for metric in question.own}
    for start in range(0, 1 + question.replicates, step):
        weights = _weights(ids, question, start, min(start + step, 1 + question.replicates))
        sums.append(metrics.summed(terms, rows, weights))
        if place is not None and edges is not None and any(name in metrics.AREAS for name in question.names):
            between.append(_between(rows, place, len(edges) + 1, weights))
        for metric in question.own:
            for states, more in zip(own[metric.name], _states(metric, rows, weights), strict=True):
                states.extend(more)
    return Tally(
        sums={term: np.concatenate([s[term] for s in sums], axis=1) for term in sums[0]},
        between=np.concatenate(between, axis=1) if between else None,
        own=own,
        level=_level(rows, place, len(edges) + 1) if whole and place is not None and edges is not None else None,
        confusion=_confusion(kept, model, question) if whole and question.classes else None,
    )


def _between(rows: Rows, place: Whole, count: int, weights: Floats) -> NDArray[np.uint32]:
    """Rows by group, replicate, class and edges."""
    cells = (rows.groups * 2 + (rows.labels == 1)) * count + place
    size = len(rows.starts) * 2 * count
    counts = [np.bincount(cells, weights=weight, minlength=size).astype(np.uint32) for weight in weights]
    return np.stack([c.reshape(len(rows.starts), 2, count) for c in counts], axis=1)


def _level(rows: Rows, place: Whole, count: int) -> Level:
    return Level(
        rows=np.bincount(place, minlength=count).astype(np.float64),
        score=np.bincount(place, weights=rows.scores, minlength=count).astype(np.float64),
        label=np.bincount(place, weights=rows.labels, minlength=count).astype(np.float64),
    )


def _of_tallies(tallies: Tallies, question: Question) -> Measured:
    overall = {model: tally for (slicing, model), tally in tallies.tallies.items() if not slicing}
    levels = {m: _there(t.level) for m, t in overall.items() if t.level is not None}
    found = [
        (slicing, groups, {m: tallies.tallies[slicing, m] for m in question.models})
        for slicing, groups in tallies.groups.items()
        if slicing and groups
    ]
    return Measured(
        rows=int(next(iter(overall.values())).sums["rows"][0, 0]) if overall else 0,
        unlabelled=tallies.unlabelled,
        unscored={m: int(t.sums["unscored"][0, 0]) for m, t in overall.items()},
        exact=False,
        overall={m: _of_tally(t, question) for m, t in overall.items()},
        slices=tuple(_of_slicing(slicing, groups, those, question) for slicing, groups, those in found),
        curves=_curves(levels, question),
        confusion={m: t.confusion for m, t in overall.items() if t.confusion is not None},
        auc_error={m: _auc_error(t.between[0, 0]) for m, t in overall.items() if t.between is not None},
        left_out=tuple(slicing for slicing, groups in tallies.groups.items() if groups is None),
    )


def _of_slicing(
    slicing: Slicing, groups: Sequence[tuple[object, ...]], tallies: Mapping[str, Tally], question: Question
) -> Slices:
    figures = {model: _of_tally(tally, question) for model, tally in tallies.items()}
    sizes = next(iter(tallies.values())).sums["rows"][:, 0].astype(np.int64)
    order = np.argsort(-sizes, kind="stable")
    return Slices(
        by=slicing,
        groups=[dict(zip(slicing, groups[place], strict=True)) for place in order],
        sizes=sizes[order].tolist(),
        figures={m: {name: values[order] for name, values in f.items()} for m, f in figures.items()},
        occurring=len(groups),
    )


def _of_tally(tally: Tally, question: Question) -> Sums:
    ranks: Sums = {}
    wanted = [name for name in question.names if name in metrics.AREAS]
    if wanted and tally.between is not None:
        each = [
            metrics.areas(wanted, group[:, 1].astype(np.float64), group[:, 0].astype(np.float64), np.zeros(1, np.int64))
            for group in tally.between
        ]
        ranks = {name: np.concatenate([found[name] for found in each]) for name in wanted}
    found = metrics.finished(question.names, tally.sums, ranks)
    for metric in question.own:
        found[metric.name] = _own_finished(metric, tally.own[metric.name], tally.sums)
    return found


def _auc_error(between: NDArray[np.uint32]) -> float:
    """Half the share of pairs of a positive and a negative row that lie between the same edges."""
    negative, positive = between.astype(np.float64)
    pairs = negative.sum() * positive.sum()
    return float((negative * positive).sum() / pairs / 2) if pairs else 0.0


def _there(level: Level) -> Level:
    """The levels that have rows."""
    some = level.rows > 0
    return Level(rows=level.rows[some], score=level.score[some], label=level.label[some])


# --- curves -------------------------------------------------------------------------------------------------------


def _curves(levels: Mapping[str, Level], question: Question) -> dict[str, Curves]:
    if not levels:
        return {}
    means = {model: level.score / level.rows for model, level in levels.items()}
    least, most = min(m.min() for m in means.values()), max(m.max() for m in means.values())
    if question.binary and least >= 0 and most <= 1:
        least, most = 0.0, 1.0
    edges = np.linspace(least, most if most > least else least + 1, _BARS + 1)
    return {m: _curves_of(level, edges, binary=question.binary) for m, level in levels.items()}


def _curves_of(level: Level, edges: Floats, *, binary: bool) -> Curves:
    mean = level.score / level.rows
    middle = (np.cumsum(level.rows) - level.rows / 2) / level.rows.sum()
    bucket = np.minimum((middle * _BUCKETS).astype(np.int64), _BUCKETS - 1)
    rows, score, label = (np.bincount(bucket, weights=w) for w in (level.rows, level.score, level.label))
    some = rows > 0
    calibration = zip(score[some] / rows[some], label[some] / rows[some], rows[some], strict=True)
    kinds = [level.rows - level.label, level.label] if binary else [level.rows]
    spread = [np.histogram(mean, edges, weights=np.maximum(w, 0))[0] / level.rows.sum() for w in kinds]
    found = Curves(
        calibration=tuple((float(a), float(b), float(c)) for a, b, c in calibration),
        edges=tuple(edges.tolist()),
        spread=tuple(tuple(share.tolist()) for share in spread),
    )
    return _with_rates(found, level, mean) if binary else found


def _with_rates(curves: Curves, level: Level, mean: Floats) -> Curves:
    """ROC and precision over recall, at so many scores as can be told apart in a plot; and figures at round scores."""
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
    for score in np.arange(1, 10) / 10:
        place = int(np.searchsorted(mean, score, side="right"))
        if above[place]:
            at.append((float(score), float(precision[place]), float(recall[place]), float(above[place] / above[0])))
    return replace(
        curves,
        roc=tuple((float(fall_out[p]), float(recall[p])) for p in places),
        precision_recall=tuple((float(recall[p]), float(precision[p])) for p in places if above[p]),
        at=tuple(at),
    )
