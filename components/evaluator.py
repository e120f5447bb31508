"""Evaluator: measures a model on the examples of a window, beside the model it would replace, and gives the verdict."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from orchestrator.artifact import Blessing, Evaluation, Examples, Model
from orchestrator.component import Component, Input, Output
from orchestrator.errors import ParameterError, UnreadableInput

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

log = logging.getLogger("spanwise.evaluator")

MetricName: TypeAlias = Literal[
    "count", "auc", "log_loss", "accuracy", "calibration", "precision", "recall", "mae", "rmse", "r2"
]

MOST_SLICES = 1000
"""Of one slicing, the slices with the most rows that are reported."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """What a metric must satisfy for the model to be blessed; every bound is inclusive.

    `max_drop` and its like compare with the baseline on the same examples; a negative one asks for improvement:
    `max_drop=-0.01` is "better by at least 0.01". Without a baseline (the first run of a pipeline) they are not
    applied. A metric that is NaN satisfies nothing.
    """

    at_least: float | None = None
    at_most: float | None = None
    max_drop: float | None = None  #: below the baseline's, in the metric's own unit
    max_rise: float | None = None  #: above it, for metrics of which less is better
    max_drop_ratio: float | None = None  #: below it, as a share of the baseline's: 0.05 is five per cent
    max_rise_ratio: float | None = None

    def __post_init__(self) -> None:
        bounds = [b for b in vars(self).values() if b is not None]
        if not bounds or any(math.isnan(b) for b in bounds):
            raise ParameterError(f"{self} bounds nothing; give it a number, for example Threshold(at_least=0.6).")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ParameterError(f"{self} lets nothing pass: at_least is above at_most.")

    @property
    def compares(self) -> bool:
        """Whether it needs a baseline."""
        return any(b is not None for b in (self.max_drop, self.max_rise, self.max_drop_ratio, self.max_rise_ratio))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one bound of one threshold said."""

    metric: str
    bound: str  #: its name in Threshold
    limit: float  #: what it was set to
    value: float
    baseline: float | None  #: the baseline's value; None for bounds that compare with nothing
    passed: bool | None  #: None: not applied, because there is no baseline

    @property
    def reason(self) -> str:
        """For people: what was found and what was wanted."""
        if math.isnan(self.value):
            return f"{self.metric} is undefined on these examples; {self.bound}={self.limit:g} was wanted"
        if self.baseline is None:
            return f"{self.metric} is {self.value:.6g}; {self.bound}={self.limit:g} was wanted"
        return (
            f"{self.metric} is {self.value:.6g} and the baseline's is {self.baseline:.6g}; "
            f"{self.bound}={self.limit:g} was wanted"
        )


def judge(
    thresholds: Mapping[MetricName, Threshold], metrics: Mapping[str, float], baseline: Mapping[str, float] | None
) -> tuple[Finding, ...]:
    """Holds metrics against thresholds. Pure; the model is blessed when no finding has `passed` False."""
    return tuple(
        finding
        for name, threshold in thresholds.items()
        for finding in _findings(name, threshold, metrics[name], None if baseline is None else baseline[name])
    )


def _findings(metric: str, threshold: Threshold, value: float, baseline: float | None) -> Iterator[Finding]:
    t = threshold
    if t.at_least is not None:
        yield _finding(metric, "at_least", t.at_least, value, None, passed=value >= t.at_least)
    if t.at_most is not None:
        yield _finding(metric, "at_most", t.at_most, value, None, passed=value <= t.at_most)
    change, whole = (math.nan, math.nan) if baseline is None else (value - baseline, abs(baseline))
    for bound, limit, passed in (
        ("max_drop", t.max_drop, -change <= (t.max_drop or 0)),
        ("max_rise", t.max_rise, change <= (t.max_rise or 0)),
        ("max_drop_ratio", t.max_drop_ratio, -change <= (t.max_drop_ratio or 0) * whole),
        ("max_rise_ratio", t.max_rise_ratio, change <= (t.max_rise_ratio or 0) * whole),
    ):
        if limit is not None:
            yield _finding(metric, bound, limit, value, baseline, passed=None if baseline is None else passed)


def _finding(
    metric: str, bound: str, limit: float, value: float, baseline: float | None, *, passed: bool | None
) -> Finding:
    return Finding(metric=metric, bound=bound, limit=limit, value=value, baseline=baseline, passed=passed)


class Evaluator(Component):
    """Evaluates a model on one split of all the examples it is given, overall and by slice.

        Evaluator(examples=recent["examples"], model=trainer["model"], baseline=champion["model"], label="late",
                  predict_fn=predict, slices=("origin", ("origin", "carrier")),
                  thresholds={"auc": Threshold(at_least=0.6, max_drop=0.01)})

    `predict_fn(model_dir, table)` gives one score for each row; it is called batch by batch, so it does well to keep
    the model it has loaded (`functools.cache`). `label` is a column, or a function that makes the labels of a table.
    Rows whose label is null or NaN are left out and counted. `slices` are columns, or groups of columns.

    With thresholds there is a `blessing`, 1 when every threshold is met. Without any there is no verdict and so no
    blessing, as in TFX; a Pusher that is connected to it then does not push. A refused model does not fail the run.
    """

    preload: ClassVar = (
        "numpy",
        "pyarrow",
        "pyarrow.compute",
        "pyarrow.parquet",
        "components.metrics",
        "components.rows",
    )

    def check(self) -> None:
        thresholds = self.parameters["thresholds"]
        for metric, threshold in thresholds.items() if isinstance(thresholds, Mapping) else ():
            if threshold.compares and not self.inputs["baseline"]:
                raise ParameterError(
                    f"{self.name}: the threshold of {metric!r} compares with a baseline, and none is connected; "
                    f"connect one: baseline=LatestBlessed(trainer['model'])['model']."
                )

    def run(
        self,
        *,
        examples: Input[list[Examples]],
        model: Input[Model],
        baseline: Input[Model | None],
        evaluation: Output[Evaluation],
        blessing: Output[Blessing | None],
        label: str | Callable[..., object],
        predict_fn: Callable[..., object],
        split: str = "eval",
        metrics: Sequence[MetricName] = ("auc", "log_loss", "accuracy", "calibration"),
        slices: Sequence[str | Sequence[str]] = (),
        thresholds: Mapping[MetricName, Threshold] | None = None,
        small_slice_rows: int = 100,
        batch_size: int = 1 << 16,
    ) -> None:
        from components.metrics import measure

        specs = [(spec,) if isinstance(spec, str) else tuple(spec) for spec in slices]
        names = tuple(dict.fromkeys(("count", *metrics, *(thresholds or {}))))
        rival = None if baseline is None or baseline.name == model.name else baseline
        seen = _read(examples, split, label, predict_fn, [m for m in (model, rival) if m], specs, batch_size)
        _refuse_unsuitable(names, seen, examples, split)

        scores = seen.scores[model.name]
        old_scores = None if baseline is None else seen.scores[baseline.name]
        overall = measure(names, seen.labels, scores)
        old = None if old_scores is None else measure(names, seen.labels, old_scores)
        findings = judge(thresholds or {}, overall, old)
        refusals = [f.reason for f in findings if f.passed is False]
        blessed = None if not findings else not refusals

        report = {
            "model": model.name,
            "baseline": baseline.name if baseline is not None else None,
            "split": split,
            "spans": sorted({e.span for e in examples}),
            "label": label if isinstance(label, str) else _name_of(label),
            "predict_fn": _name_of(predict_fn),
            "rows_without_label": seen.unlabelled,
            "blessed": blessed,
            "reasons": refusals,
            "thresholds": [{**vars(f), "value": _plain(f.value), "baseline": _plain(f.baseline)} for f in findings],
            "overall": _plain_all(overall),
            "baseline_overall": None if old is None else _plain_all(old),
            "slices": [s for spec in specs for s in _slices(spec, seen, names, scores, old_scores, small_slice_rows)],
        }
        (evaluation.path / "metrics.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        evaluation.metrics = _defined(overall)
        if old is not None:
            evaluation.baseline_metrics = _defined(old)
        log.info("%s: %s", model.name, ", ".join(f"{n} {v:.6g}" for n, v in overall.items()))
        if blessed is not None:
            assert blessing is not None, "an output is always given"
            _bless(blessing, model, baseline, refusals)


def _bless(blessing: Blessing, model: Model, baseline: Model | None, refusals: Sequence[str]) -> None:
    blessing.blessed = int(not refusals)
    blessing.current_model, blessing.current_model_id = model.name, model.id
    if baseline is not None:
        blessing.baseline_model, blessing.baseline_model_id = baseline.name, baseline.id
    if refusals:
        blessing.reasons = list(refusals)
        log.warning("not blessed: %s", "; ".join(refusals))
    (blessing.path / ("NOT_BLESSED" if refusals else "BLESSED")).touch()


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Column:
    """The values of one sliced column, as numbers that are given out as values are met."""

    values: list[object] = field(default_factory=list)  #: by number
    numbers: dict[object, int] = field(default_factory=dict)
    of_rows: list[NDArray[np.int32]] = field(default_factory=list)  #: batch by batch

    def add(self, column: pa.Array[pa.Scalar[pa.DataType]]) -> None:
        """Notes the values of a batch."""
        import numpy as np
        import pyarrow as pa

        encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode("encode")
        assert isinstance(encoded, pa.DictionaryArray)
        values = encoded.dictionary.to_pylist()
        if encoded.indices.null_count:
            values.append(None)
        numbers = [self._number(value) for value in values]
        indices = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
        self.of_rows.append(np.array(numbers, dtype=np.int32)[indices])

    def _number(self, value: object) -> int:
        key = json.dumps(value, default=str, sort_keys=True)  # a list is no key of a dict, and NaN is not itself
        if key not in self.numbers:
            self.numbers[key] = len(self.values)
            self.values.append(value)
        return self.numbers[key]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What is kept of the rows: a few numbers for each."""

    labels: NDArray[np.float64]
    scores: Mapping[str, NDArray[np.float64]]  #: by model
    columns: Mapping[str, _Column]  #: those that slices are made of
    unlabelled: int


def _read(
    examples: Sequence[Examples],
    split: str,
    label: str | Callable[..., object],
    predict_fn: Callable[..., object],
    models: Sequence[Model],
    slices: Sequence[tuple[str, ...]],
    batch_size: int,
) -> _Seen:
    import numpy as np
    import pyarrow as pa

    from components import rows

    ordered = sorted(examples, key=lambda e: e.span)
    columns = {name: _Column() for spec in slices for name in spec}
    rows.chosen(rows.columns_of(ordered, split), [*columns, *([label] if isinstance(label, str) else [])])
    labels: list[NDArray[np.float64]] = []
    scores: dict[str, list[NDArray[np.float64]]] = {model.name: [] for model in models}
    unlabelled = 0
    for batch in rows.batches(ordered, split, batch_size=batch_size):
        table = pa.Table.from_batches([batch])
        found = _labels(label, table)
        known = ~np.isnan(found)
        if not known.all():
            unlabelled += int((~known).sum())
            table, found = table.filter(pa.array(known)), found[known]
        if not len(found):
            continue
        labels.append(found)
        for model in models:
            scores[model.name].append(_vector("predict_fn", predict_fn(model.path, table), len(found)))
        for name, column in columns.items():
            column.add(table.column(name).combine_chunks())
    if unlabelled:
        log.warning("%d rows have no label and are left out", unlabelled)
    if not labels:
        raise UnreadableInput(
            f"the split {split!r} of spans {', '.join(str(e.span) for e in ordered)} has no rows"
            f"{f' with a label ({unlabelled} without)' if unlabelled else ''}, so there is nothing to evaluate."
        )
    return _Seen(
        labels=np.concatenate(labels),
        scores={name: np.concatenate(parts) for name, parts in scores.items()},
        columns=columns,
        unlabelled=unlabelled,
    )


def _labels(label: str | Callable[..., object], table: pa.Table) -> NDArray[np.float64]:
    """The labels as numbers, NaN where there is none."""
    if not isinstance(label, str):
        return _vector("label", label(table), len(table))
    return _vector(f"label {label!r}", table.column(label), len(table))


def _vector(what: str, values: object, rows: int) -> NDArray[np.float64]:
    """What a user's function gave, as one float for each row; nulls are NaN."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray | pa.Array):
        values = values.cast(pa.float64()) if _is_number(values.type) else values
        values = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
    array = np.asarray(values)
    if array.shape == (rows, 1):
        array = array[:, 0]
    if array.shape != (rows,):
        raise ParameterError(
            f"{what} gave an array of shape {array.shape} for {rows} rows; one number for each row is wanted, "
            "for example model.predict_proba(x)[:, 1]."
        )
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"{what} gave {array.dtype} values such as {array[0]!r}; numbers are wanted. "
            "Give label a function that makes them."
        ) from error


def _is_number(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_null(type_)


def _refuse_unsuitable(names: Sequence[str], seen: _Seen, examples: Sequence[Examples], split: str) -> None:
    from components.metrics import unsuitable

    for model, scores in seen.scores.items():
        why = unsuitable(names, seen.labels, scores)
        if why is not None:
            raise ParameterError(f"{model} on split {split!r} of {len(examples)} spans: {why}.")


# --- slicing ------------------------------------------------------------------------------------------------------


def _slices(
    spec: tuple[str, ...],
    seen: _Seen,
    names: Sequence[str],
    scores: NDArray[np.float64],
    old_scores: NDArray[np.float64] | None,
    small_slice_rows: int,
) -> Iterator[dict[str, object]]:
    """The metrics of every group of rows that agree in the columns, the largest groups first."""
    import numpy as np

    from components.metrics import measure

    numbers = {name: np.concatenate(seen.columns[name].of_rows) for name in spec}
    of_rows = np.zeros(len(seen.labels), dtype=np.int64)
    for name in spec:  # numbering the combinations anew each time keeps them below rows times values
        _, of_rows = np.unique(of_rows * len(seen.columns[name].values) + numbers[name], return_inverse=True)
    sizes = np.bincount(of_rows)
    order = np.argsort(of_rows, kind="stable")
    ends = np.cumsum(sizes)
    largest = np.argsort(-sizes, kind="stable")
    if len(largest) > MOST_SLICES:
        log.warning("%d slices by %s; the %d largest are reported", len(largest), ", ".join(spec), MOST_SLICES)
    for group in largest[:MOST_SLICES]:
        rows = order[ends[group] - sizes[group] : ends[group]]
        values = {name: seen.columns[name].values[numbers[name][rows[0]]] for name in spec}
        yield {
            "slice": {name: _plain(value) for name, value in values.items()},
            "small": bool(sizes[group] < small_slice_rows),
            "metrics": _plain_all(measure(names, seen.labels[rows], scores[rows])),
            "baseline_metrics": (
                None if old_scores is None else _plain_all(measure(names, seen.labels[rows], old_scores[rows]))
            ),
        }


def _plain(value: object) -> object:
    """What JSON can say; a number that is none is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _plain_all(metrics: Mapping[str, float]) -> dict[str, object]:
    return {name: _plain(value) for name, value in metrics.items()}


def _defined(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _name_of(function: Callable[..., object]) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}"
