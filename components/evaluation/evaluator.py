"""Evaluator: measures a model on the examples of a window, compares it with its baseline, and blesses or refuses it."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from spanwise.components.evaluation.metric import KNOWN, USUAL, Metric, suits
from spanwise.components.evaluation.slicing import SPAN, Slicing
from spanwise.components.evaluation.threshold import Finding, Threshold, judge
from spanwise.orchestrator.artifact import Artifact, Blessing, Evaluation, Examples, Model
from spanwise.orchestrator.beam_settings import BEAM_PARAMETERS, BeamOptions, check_given, choose_beam
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.code_digest import strip_addresses
from spanwise.orchestrator.collection import channel_of
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import NodeFailed, ParameterError, UnreadableInput
from spanwise.orchestrator.signature import Attempt, Input, ModelOrigin, Output, check_call, check_least

if TYPE_CHECKING:
    from spanwise.components.evaluation.bootstrap import ResampleMethod
    from spanwise.components.evaluation.measurement import Measurement, ModelFailed

log = logging.getLogger("spanwise.evaluation")

PAGE = "report.html"

MEMORY_ROWS = 1_000_000
"""Up to this many rows of the split are held in memory, about 215 MB; more are in files while they are measured."""


class Evaluator(Component):
    """Evaluates a model on one split of its examples, overall and by slice.

        Evaluator(examples=recent["examples"], model=trainer["model"], baseline=champion["model"], label="late",
                  predict_fn=predict, slices=("origin", ("origin", "carrier")),
                  thresholds={"auc": Threshold(at_least=0.6, max_drop=0.01)})

    `predict_fn(model_dir, table)` returns one score for each row; it is called once a batch, so cache the loaded model
    (`functools.cache`). `label` is a column, or a function that computes the labels of a table. Rows whose label is
    null or NaN are skipped and counted. `slices` are columns, or groups of columns; `span` is the span of the examples,
    unless they have a column of that name. With `classes`, each label is one
    of them, and `predict_fn` returns a score for each class, in their order. With `weight`, a column of numbers that
    are not negative, each row counts so often in every metric but `count`.

    Every metric, and its difference from the baseline's on the same rows, has a 95 % interval from `replicates` of a
    Poisson bootstrap. `evaluation` holds them in `metrics.json` and as a page in `report.html`.

    With thresholds there is a `blessing`: 1 if every threshold is met. `slice_thresholds` apply to every slice of at
    least `small_slice_rows`. Without thresholds there is no verdict and no blessing, as in TFX, and a Pusher that is
    connected to it does not push. A refused model does not fail the run.

    A model that cannot be loaded, or whose predictions are unusable, fails the node; the error names it. With
    `on_baseline_error="ignore"` the model is judged without a baseline that fails, and the report says so.

    `beam_runner` and `beam_options` send the work to a Beam cluster that sees the same storage. Up to a million rows
    are measured in this process when no runner is named; the figures are the same. More than `memory_rows` rows are in
    files of the run's folder while they are measured; the figures are the same too.
    """

    preload: ClassVar = (
        "numpy",
        "pyarrow",
        "pyarrow.compute",
        "pyarrow.parquet",
        "spanwise.components.evaluation.results",
        "spanwise.components.evaluation.window_pass",
        "spanwise.components.evaluation.page",
        "spanwise.components.transform.graph_digest",
    )
    hints: ClassVar = BEAM_PARAMETERS
    libraries: ClassVar = ("numpy", "pyarrow")

    def may_be_damaged(self) -> Sequence[str]:
        return ["baseline"] if self.parameters["on_baseline_error"] == "ignore" else []

    def refuse_reuse(self, outputs: Mapping[str, Sequence[Artifact]]) -> str | None:
        """A verdict without a baseline that failed holds for as long as that fails."""
        errors = (artifact.properties.get("baseline_error") for found in outputs.values() for artifact in found)
        error = next(filter(None, errors), None)
        return None if error is None else f"it ignored a baseline that failed ({str(error).splitlines()[0]})"

    def check(self) -> None:
        check_call(f"{self.name}.predict_fn", self.parameters["predict_fn"], "model_dir", "table")
        for which in ("thresholds", "slice_thresholds"):
            thresholds = self.parameters[which]
            for metric, threshold in thresholds.items() if isinstance(thresholds, Mapping) else ():
                if which == "thresholds" and threshold.by is not None:
                    raise ParameterError(
                        f"{self.name}: the threshold of {metric!r} is of slices by {threshold.by!r}; "
                        f"move it to slice_thresholds."
                    )
                if threshold.compares and not self.inputs["baseline"]:
                    raise ParameterError(
                        f"{self.name}: the threshold of {metric!r} compares with a baseline, and none is connected; "
                        f"connect one: baseline=LatestBlessed(trainer['model'])['model']."
                    )
        check_given(self.name, self.parameters)
        _check_metrics(self.name, self.parameters)
        _check_classes(self.name, self.parameters["classes"])
        check_least(self.name, self.parameters, replicates=0, small_slice_rows=0, batch_size=1, memory_rows=0)
        _check_slices(self.name, self.parameters["slices"], self.parameters["slice_thresholds"])

    def run(
        self,
        *,
        examples: Input[list[Examples]],
        model: Input[Model],
        baseline: Input[Model | None],
        evaluation: Output[Evaluation],
        blessing: Output[Blessing | None],
        attempt: Attempt,
        label: str | Callable[..., object],
        predict_fn: Callable[..., object],
        split: str = "eval",
        metrics: Sequence[str | Metric] | None = None,
        slices: Sequence[str | Sequence[str]] = (),
        thresholds: Mapping[str, Threshold] | None = None,
        slice_thresholds: Mapping[str, Threshold] | None = None,
        small_slice_rows: int = 100,
        classes: Sequence[str | int] = (),
        replicates: int = 40,
        intervals: Literal["bootstrap", "jackknife"] = "bootstrap",
        weight: str | None = None,
        memory_rows: int = MEMORY_ROWS,
        batch_size: int = 1 << 16,
        beam_runner: str | None = None,
        beam_options: BeamOptions | None = None,
        on_baseline_error: Literal["fail", "ignore"] = "fail",
    ) -> None:
        from spanwise.components import rows
        from spanwise.components.evaluation.measurement import EvaluationSpec, ModelFailed
        from spanwise.components.evaluation.page import page
        from spanwise.components.evaluation.window_pass import measure_window
        from spanwise.components.transform.graph_digest import refuse_other_graph

        ordered = sorted(examples, key=lambda e: e.span)
        slicings = tuple(dict.fromkeys(map(_slicing, slices)))
        schema = rows.read_schema(ordered, split)
        named = [name for slicing in slicings for name in slicing if name != SPAN]
        rows.choose_columns(schema, [*named, *(each for each in (label, weight) if isinstance(each, str))])
        rival = None if baseline is None or baseline.name == model.name else baseline
        baseline_error = None
        if rival is not None and rival.name in attempt.damaged:
            baseline_error = f"{rival.name}: its files are not those that were published: {attempt.damaged[rival.name]}"
            log.warning("baseline-ignored", extra={"model": rival.name, "reason": baseline_error})
            baseline = rival = None
        for role, each in (("model", model), ("baseline", rival)):
            if each is not None:
                refuse_other_graph(self.name, ordered, each, role)
        names, custom = _select_metrics(metrics, thresholds or {}, slice_thresholds or {}, classes=bool(classes))
        spec = EvaluationSpec(
            schema=schema,
            label=label,
            predict_fn=predict_fn,
            models={m.name: m.path for m in (model, rival) if m is not None},
            names=names,
            custom=custom,
            slicings=slicings,
            classes=tuple(classes),
            replicates=replicates,
            method=intervals,
            small_rows=small_slice_rows,
            batch_rows=batch_size,
            weight=weight,
        )
        measure = functools.partial(
            measure_window,
            parts=rows.list_parts(ordered, split),
            memory_rows=memory_rows,
            beam=choose_beam(attempt.run, beam_runner, beam_options),
            scratch=attempt.scratch,
        )
        try:
            measurement = measure(spec)
        except ModelFailed as failed:
            if rival is None or failed.model != rival.name or on_baseline_error == "fail":
                role = "candidate" if failed.model == model.name else "baseline"
                raise NodeFailed(_explain_failure(self.name, failed, role, attempt.origins)) from failed
            log.warning("baseline-ignored", extra={"model": failed.model, "reason": str(failed)})
            baseline_error = f"{failed.model}: {failed}"
            baseline = rival = None
            measurement = measure(replace(spec, models={model.name: model.path}))
        _refuse_left_out(self.name, measurement, small_slice_rows, slice_thresholds or {})
        _log_gaps(measurement, ordered, split)
        others = None if rival is None else _find_other_versions(ordered, rival.name, attempt.origins)
        judged, refusals = _judge_measurement(
            measurement,
            intervals,
            model=model.name,
            baseline=None if baseline is None else baseline.name,
            baseline_versions=others,
            small_rows=small_slice_rows,
            thresholds=thresholds or {},
            slice_thresholds=slice_thresholds or {},
            beside={metric: _metric_beside(metric, custom) for metric in slice_thresholds or {}},
        )
        report: dict[str, object] = {
            "model": model.name,
            "baseline": None if baseline is None else baseline.name,
            "baseline_error": baseline_error,
            "baseline_versions": others,
            "split": split,
            "spans": sorted({e.span for e in examples}),
            "window": [Calendar(e.calendar or "number").label(e.span) for e in (ordered[0], ordered[-1])],
            "label": label if isinstance(label, str) else _name_of(label),
            "weight": weight,
            "predict_fn": _name_of(predict_fn),
            "classes": list(classes) or None,
            "replicates": replicates,
            "interval_method": intervals,
            **judged,
        }
        curves = {name: asdict(each) for name, each in measurement.curves.items()}
        for name, content in (("metrics.json", report), ("curves.json", curves)):
            text = json.dumps(content, indent=2 if content is report else None, ensure_ascii=False)
            (evaluation.path / name).write_text(text + "\n", encoding="utf-8")
        (evaluation.path / PAGE).write_text(page(report, measurement.curves), encoding="utf-8")
        _describe(evaluation, report)
        if refusals is not None:
            assert blessing is not None, "an output is always given"
            _bless(blessing, model, baseline, refusals, baseline_error)
        elif thresholds or slice_thresholds:
            why = "every slice is small, or its labels leave the metric undefined"
            log.warning("model-not-judged", extra={"model": model.name, "reason": why})


# --- checks -------------------------------------------------------------------------------------------------------


def _check_metrics(node: str, parameters: Mapping[str, object]) -> None:
    metrics, classes = parameters["metrics"], bool(parameters["classes"])
    asked = list(metrics) if isinstance(metrics, Sequence) else []
    mine = [metric.name for metric in asked if isinstance(metric, Metric)]
    own = set(mine)
    if len(own) < len(mine):
        twice = next(name for name in mine if mine.count(name) > 1)
        raise ParameterError(f"{node}: two custom metrics have the name {twice!r}; rename one of them.")
    if own and classes:
        raise ParameterError(f"{node}: the custom metric {min(own)} takes one score a row, and classes have several.")
    if taken := {name for name in own if name.partition("@")[0] in KNOWN}:
        raise ParameterError(f"{node}: there is a metric {min(taken)!r} already; rename yours.")
    for which in ("thresholds", "slice_thresholds"):
        thresholds = parameters[which]
        asked += [name for name in thresholds if name not in own] if isinstance(thresholds, Mapping) else []
    asked += [metric.undefined_with for metric in asked if isinstance(metric, Metric)]
    for name in (name for name in asked if isinstance(name, str)):
        try:
            suitable = suits(name, classes=classes)
        except ValueError as error:
            raise ParameterError(f"{node}: {error}.") from None
        if not suitable:
            able = ", ".join(n for n in KNOWN if suits(n, classes=classes))
            raise ParameterError(
                f"{node}: {name} cannot be measured {'with' if classes else 'without'} classes; these can: {able}."
            )


def _check_classes(node: str, classes: object) -> None:
    given = list(classes) if isinstance(classes, Sequence) else []
    if twice := next((repr(name) for place, name in enumerate(given) if name in given[:place]), None):
        raise ParameterError(f"{node}.classes has {twice} twice; name each class once.")


def _check_slices(node: str, slices: object, thresholds: object) -> None:
    given = {_slicing(spec) for spec in slices} if isinstance(slices, Sequence) else set()
    for metric, threshold in thresholds.items() if isinstance(thresholds, Mapping) else ():
        if not given:
            raise ParameterError(f"{node}: slice_thresholds are of slices, and there are none; name some: slices=(…).")
        if threshold.by is not None and _slicing(threshold.by) not in given:
            raise ParameterError(
                f"{node}: the threshold of {metric!r} is of slices by {threshold.by!r}, which `slices` does not have."
            )


def _slicing(spec: str | Sequence[str]) -> tuple[str, ...]:
    return (spec,) if isinstance(spec, str) else tuple(spec)


def _select_metrics(
    metrics: Sequence[str | Metric] | None,
    thresholds: Mapping[str, Threshold],
    slice_thresholds: Mapping[str, Threshold],
    *,
    classes: bool,
) -> tuple[tuple[str, ...], tuple[Metric, ...]]:
    """The metrics to compute: by name, with those that have a threshold, and the user's own."""
    asked = USUAL["classes" if classes else "binary"] if metrics is None else metrics
    own = tuple(m for m in asked if isinstance(m, Metric))
    limited = [t for t in (*thresholds, *slice_thresholds) if t not in {m.name for m in own}]
    beside = [_metric_beside(t, own) for t in slice_thresholds]
    return tuple(dict.fromkeys(("count", *(m for m in asked if isinstance(m, str)), *limited, *beside))), own


def _metric_beside(metric: str, own: Sequence[Metric]) -> str:
    """The metric that is undefined too where the labels leave this one undefined, not what the model predicts.

    That of a precision is the recall; any other built-in metric is its own, and a metric of the user's own names it.
    """
    mine = next((each for each in own if each.name == metric), None)
    if mine is not None:
        return mine.undefined_with
    name, at, score = metric.partition("@")
    return f"recall{at}{score}" if name == "precision" else metric


# --- the report ---------------------------------------------------------------------------------------------------


def _log_gaps(measurement: Measurement, examples: Sequence[Examples], split: str) -> None:
    """Logs what was not measured.

    Raises:
        UnreadableInput: there is nothing to measure.
    """
    if not measurement.rows:
        raise UnreadableInput(
            f"the split {split!r} of spans {', '.join(str(e.span) for e in examples)} has no rows"
            f"{f' with a label ({measurement.unlabelled} without)' if measurement.unlabelled else ''}, "
            "so there is nothing to evaluate."
        )
    if measurement.unlabelled:
        log.warning("rows-skipped", extra={"rows": measurement.unlabelled, "reason": "no label"})
    for model, count in measurement.unscored.items():
        if count:
            facts = {"model": model, "rows": count, "all_rows": measurement.rows, "reason": "no finite score"}
            log.warning("rows-skipped", extra=facts)
    for slices in measurement.slices:
        if slices.occurring > len(slices.sizes):
            facts = {"by": slices.by, "slices": slices.occurring, "reported": len(slices.sizes)}
            log.warning("slices-limited", extra=facts)
    for slicing in measurement.left_out:
        log.warning("slices-skipped", extra={"by": slicing, "rows": measurement.rows, "reason": "there are too many"})


def _refuse_left_out(node: str, measurement: Measurement, small_rows: int, thresholds: Mapping[str, Threshold]) -> None:
    """Refuses to bless by slices that were not measured."""
    for group in measurement.slices:
        if group.next_size >= max(small_rows, 1) and _is_judged(group.by, thresholds):
            raise ParameterError(
                f"{node}: {len(group.sizes):,} of {group.occurring:,} slices by {', '.join(group.by)} are measured; "
                f"slice_thresholds judge all that have small_slice_rows={small_rows} rows or more. Set "
                f"small_slice_rows={group.next_size + 1} or more, slice by a column with fewer values, or name the "
                "slices to judge: Threshold(…, by=…)."
            )
    for slicing in measurement.left_out:
        if _is_judged(slicing, thresholds):
            raise ParameterError(
                f"{node}: there are too many slices by {', '.join(slicing)} to measure, and slice_thresholds judge "
                "them. Slice by a column with fewer values, or name the slices to judge: Threshold(…, by=…)."
            )


def _is_judged(slicing: Slicing, thresholds: Mapping[str, Threshold]) -> bool:
    return any(t.by is None or _slicing(t.by) == slicing for t in thresholds.values())


def _judge_measurement(
    measurement: Measurement,
    method: ResampleMethod,
    *,
    model: str,
    baseline: str | None,
    baseline_versions: str | None,
    small_rows: int,
    thresholds: Mapping[str, Threshold],
    slice_thresholds: Mapping[str, Threshold],
    beside: Mapping[str, str],
) -> tuple[dict[str, object], list[str] | None]:
    """The content of `metrics.json`, and why the model is refused; None if it is not judged.

    `beside` has for each metric of `slice_thresholds` the one that is undefined too where the labels leave it so.
    """
    from spanwise.components.evaluation.results import figures, plain, plain_slice

    overall = figures(measurement.overall, 0, model=model, baseline=baseline, method=method)
    findings = list(judge(thresholds, overall.metrics, overall.baseline_metrics))
    slices: list[dict[str, object]] = []
    for group in measurement.slices:
        mine = {m: t for m, t in slice_thresholds.items() if t.by is None or _slicing(t.by) == group.by}
        for place, (values, size) in enumerate(zip(group.groups, group.sizes, strict=True)):
            small = size < small_rows
            each = figures(group.figures, place, model=model, baseline=baseline, method=method, intervals=not small)
            slices.append({"slice": plain_slice(values), "small": small, **each.plain()})
            if not small:
                found = judge(mine, each.metrics, each.baseline_metrics)
                measured = [(each.metrics, group.unscored[model][place])]
                if baseline is not None and each.baseline_metrics is not None:
                    measured.append((each.baseline_metrics, group.unscored[baseline][place]))
                findings += _of_slice(found, values, measured, beside)
    judged = any(finding.judges for finding in findings)
    unmet = [finding for finding in findings if finding.passed is False]
    refusals = [_explain(finding, baseline) for finding in unmet] if judged else None
    if refusals and baseline_versions is not None and any(finding.baseline is not None for finding in unmet):
        refusals.append(
            f"the baseline learned from {baseline_versions}, other versions of what is measured: it may know rows that "
            "have moved between the splits since, and look better than it is"
        )
    described = overall.plain()
    report = {
        "rows": measurement.rows,
        "rows_without_label": measurement.unlabelled,
        "rows_without_score": dict(measurement.unscored),
        "blessed": None if refusals is None else not refusals,
        "reasons": refusals or [],
        "thresholds": [
            plain({**vars(f), "slice": None if f.slice is None else plain_slice(f.slice)}) for f in findings
        ],
        "overall": described.pop("metrics"),
        "baseline_overall": described.pop("baseline_metrics"),
        **described,
        "confusion": {m: counts.tolist() for m, counts in measurement.confusion.items()} or None,
        "slicings": [
            *({"by": list(s.by), "occurring": s.occurring, "reported": len(s.sizes)} for s in measurement.slices),
            *({"by": list(by), "occurring": None, "reported": 0} for by in measurement.left_out),
        ],
        "slices": slices,
    }
    return report, refusals


def _explain(finding: Finding, baseline: str | None) -> str:
    """Why a bound is not met; with the way out where the baseline is such that nothing ever will."""
    if not finding.lacks_baseline:
        return finding.reason
    return f"{finding.reason}. Take the baseline's blessing back:  spanwise unbless {baseline} --because TEXT"


def _of_slice(
    findings: Sequence[Finding],
    values: Mapping[str, object],
    measured: Sequence[tuple[Mapping[str, float], int]],
    beside: Mapping[str, str],
) -> Iterator[Finding]:
    """The findings, marked with their slice; a metric that is undefined for its labels is not judged there.

    `measured` has the metrics of the model, then of its baseline, each with the number of rows without a score.
    """
    for finding in findings:
        compared = measured if finding.baseline is not None else measured[:1]
        unjudged = any(
            not unscored and math.isnan(metrics[finding.metric]) and math.isnan(metrics[beside[finding.metric]])
            for metrics, unscored in compared
        )
        yield replace(finding, slice=values, passed=None if unjudged else finding.passed)


def _describe(evaluation: Evaluation, report: Mapping[str, object]) -> None:
    """Sets the properties, which can be queried without opening a file."""
    overall, old = report["overall"], report["baseline_overall"]
    assert isinstance(overall, Mapping), "as judged"
    evaluation.metrics = {name: value for name, value in overall.items() if value is not None}
    if report["baseline_error"] is not None:
        evaluation.baseline_error = str(report["baseline_error"])
    if isinstance(old, Mapping):
        evaluation.baseline_metrics = {name: value for name, value in old.items() if value is not None}
    log.info("model-evaluated", extra={"model": report["model"], "metrics": evaluation.metrics})


def _bless(
    blessing: Blessing, model: Model, baseline: Model | None, refusals: Sequence[str], baseline_error: str | None
) -> None:
    blessing.blessed = int(not refusals)
    blessing.current_model, blessing.current_model_id = model.name, model.id
    if baseline is not None:
        blessing.baseline_model, blessing.baseline_model_id = baseline.name, baseline.id
    if baseline_error is not None:
        blessing.baseline_error = baseline_error
    if refusals:
        blessing.reasons = list(refusals)
        log.warning("blessing-refused", extra={"model": model.name, "reason": "; ".join(refusals)})
    (blessing.path / ("NOT_BLESSED" if refusals else "BLESSED")).touch()


def _find_other_versions(measured: Sequence[Examples], baseline: str, origins: Mapping[str, ModelOrigin]) -> str | None:
    """The versions of these spans that the baseline learned from and that are not measured; None where there are none.

    Rows are divided by a hash of the whole row unless there is a `split_key`. One that was corrected may have moved
    from `train`, where the model has learned it, to the split that is measured.
    """
    versions = {examples.span: examples.version for examples in measured}
    read = origins[baseline].spans if baseline in origins else {}
    learned = read.get(channel_of(measured[0]), next(iter(read.values())) if len(read) == 1 else ())
    others = sorted((span, version) for span, version in learned if version not in (None, versions.get(span, version)))
    if not others:
        return None
    found = format_versions(others, Calendar.from_name(measured[0].calendar))
    log.warning("baseline-learned-other-versions", extra={"model": baseline, "versions": found})
    return found


def _explain_failure(node: str, failed: ModelFailed, role: str, origins: Mapping[str, ModelOrigin]) -> str:
    """Which model failed, why, and what to type."""
    ways = (
        "No model is judged until its own predictions work: correct run_fn or predict_fn, then run again."
        if role == "candidate"
        else "No model is judged until it works again, so none is pushed. Take its blessing back, and the champion "
        f'before it is the baseline:  spanwise unbless {failed.model} --because "cannot be loaded"\n'
        "Or evaluate without a baseline that fails: on_baseline_error='ignore'."
    )
    made_by = f", made by run {origins[failed.model].run}," if failed.model in origins else ""
    return f"{node}: the {role} {failed.model}{made_by} could not predict: {failed}\n{ways}"


def _name_of(function: Callable[..., object]) -> str:
    if not hasattr(function, "__qualname__"):  # a partial, or an object that is called
        return strip_addresses(repr(function))
    return f"{function.__module__}:{function.__qualname__}"
