"""The models of a pipeline: their metrics over spans and by slice, with intervals, beside a baseline or another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from spanwise.orchestrator.serving import find_serving
from spanwise.scheduler.client import ModelRecord
from spanwise.scheduler.client.models import find_model
from spanwise.scheduler.inspect.judged_models import find_blessings, is_blessed
from spanwise.scheduler.web.pages import artifact_url
from spanwise.scheduler.web.pictures.charts import ChartLine, draw_lines, draw_sparkline
from spanwise.scheduler.web.pictures.intervals import Estimate, draw_estimate, find_scale
from spanwise.scheduler.web.queries.evaluations import EvaluationReport, Interval, Scores, read_evaluation
from spanwise.scheduler.web.queries.model_metrics import COUNTS, TrainedModel, find_newest, headline
from spanwise.scheduler.web.site import WebSite

MODELS = 40
"""How many are shown."""

SLICES = 20
"""How many slices are shown, the largest."""


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One figure of a model, or of two: of all examples, or of a slice."""

    name: str
    values: Sequence[float | None]
    intervals: Sequence[Interval | None]
    picture: Markup  #: values with their intervals, on the scale of all rows that can be compared
    rows: float | None = None  #: examples in the slice
    baseline: float | None = None
    trend: Markup = field(default_factory=Markup)

    @property
    def difference(self) -> float | None:
        first, second = self.values[0], self.values[-1]
        return None if first is None or second is None else second - first


@dataclass(frozen=True, kw_only=True)
class ComparedModels:
    """Two models side by side, each on the examples that it was evaluated on."""

    first: ModelRecord
    second: ModelRecord
    metrics: Sequence[MetricRow]
    slices: Sequence[MetricRow]


@dataclass(frozen=True, kw_only=True)
class ModelsView:
    """The newest models."""

    models: Sequence[TrainedModel]  #: newest first
    blessed: Mapping[int, bool | None]  #: by the id of a model
    reports: Sequence[EvaluationReport]  #: of each
    metrics: Sequence[str]
    metric: str  #: the one that the chart shows
    chart: Markup
    banded: bool  #: the chart has intervals
    slicings: Sequence[str]
    by: str
    slices: Sequence[MetricRow]  #: of the newest model
    serving: Mapping[str, Sequence[str]]  #: by the name of a model: the places in which it serves
    compared: ComparedModels | None
    older: int | None


def read_models(
    site: WebSite, pipeline: str, *, metric: str, by: str, before: int | None, pair: tuple[str, str]
) -> ModelsView:
    """The newest models, or those of runs below a number.

    Raises:
        NotRecorded: one of the two to compare does not exist.
    """
    models, older = find_newest(site, pipeline, MODELS, before)
    standings = find_blessings(site.store, [model.artifact for model in models])
    blessed = {model: is_blessed(standing) for model, standing in standings.items()}
    reports = [read_evaluation(site, model.report) for model in models]
    named = dict.fromkeys(name for model in models for name in model.metrics)
    metrics = sorted(named, key=lambda name: name in COUNTS)
    chosen = metric if metric in metrics else (headline(models[0].metrics) if models else "")
    slicings = list(dict.fromkeys(slicing for report in reports for slicing in report.slicings))
    by = by if by in slicings else next(iter(slicings), "")
    return ModelsView(
        models=models,
        blessed=blessed,
        reports=reports,
        metrics=metrics,
        metric=chosen,
        chart=_draw(models[::-1], reports[::-1], chosen, blessed),
        banded=any(chosen in report.intervals for report in reports),
        slicings=slicings,
        by=by,
        slices=_list_slices(reports, chosen, by),
        serving={
            name: [push.destination for push in pushes] for name, pushes in find_serving(site.store, pipeline).items()
        },
        compared=_compare(site, pair, chosen, by) if all(pair) else None,
        older=older,
    )


def _draw(
    models: Sequence[TrainedModel], reports: Sequence[EvaluationReport], metric: str, blessed: Mapping[int, bool | None]
) -> Markup:
    lines = [
        ChartLine(
            metric,
            [model.metrics.get(metric) for model in models],
            "line",
            [report.intervals.get(metric) for report in reports],
            [blessed[model.artifact.id] is False for model in models],
        ),
        ChartLine("baseline", [model.baseline.get(metric) for model in models], "baseline"),
    ]
    title = f"{metric} of each model with its interval, and of the baseline on the same examples"
    return draw_lines(
        [model.label for model in models], lines, title, [artifact_url(model.artifact.id) for model in models]
    )


def _list_slices(reports: Sequence[EvaluationReport], metric: str, by: str) -> list[MetricRow]:
    """The slices of the newest model that has any, each with its way over the models."""
    newest = next((report for report in reports if report.of_slicing(by)), None)
    if newest is None or not by:
        return []
    shown = newest.of_slicing(by)[:SLICES]
    scale = find_scale([_estimate(each, metric, "model") for each in shown])
    before = [{each.label: each for each in report.of_slicing(by)} for report in reversed(reports)]
    rows = []
    for each in shown:
        way = [found[each.label].metrics.get(metric) if each.label in found else None for found in before]
        rows.append(
            MetricRow(
                name=each.label,
                values=[each.metrics.get(metric)],
                intervals=[each.intervals.get(metric)],
                baseline=each.baseline.get(metric),
                picture=draw_estimate([_estimate(each, metric, "model")], scale, f"{metric} of {each.label}"),
                rows=each.rows,
                trend=draw_sparkline(way, f"{metric} of {each.label} over the models"),
            )
        )
    return rows


def _estimate(figures: Scores, metric: str, style: str) -> Estimate:
    return Estimate(figures.metrics.get(metric), figures.intervals.get(metric), figures.baseline.get(metric), style)


def _compare(site: WebSite, pair: tuple[str, str], metric: str, by: str) -> ComparedModels:
    first, second = (find_model(site.client.session, site.client.artifact(name).name) for name in pair)
    reports = [
        read_evaluation(site, None if model.evaluation is None else model.evaluation.path) for model in (first, second)
    ]
    both = [report if report.metrics else Scores(metrics=model.metrics) for report, model in
            zip(reports, (first, second), strict=True)]  # fmt: skip
    names = list(dict.fromkeys(name for each in both for name in each.metrics))
    slices = [{each.label: each for each in report.of_slicing(by)} for report in reports]
    labels = [label for label in slices[0] if label in slices[1]][:SLICES]
    pairs = [(slices[0][label], slices[1][label]) for label in labels]
    scale = find_scale([_estimate(each, metric, "model") for found in pairs for each in found])
    return ComparedModels(
        first=first,
        second=second,
        metrics=[_side_by_side(name, both, name) for name in names],
        slices=[_side_by_side(label, found, metric, scale) for label, found in zip(labels, pairs, strict=True)],
    )


def _side_by_side(name: str, pair: Sequence[Scores], metric: str, scale: Interval | None = None) -> MetricRow:
    estimates = [
        Estimate(each.metrics.get(metric), each.intervals.get(metric), None, style)
        for each, style in zip(pair, ("first", "second"), strict=True)
    ]
    return MetricRow(
        name=name,
        values=[each.metrics.get(metric) for each in pair],
        intervals=[each.intervals.get(metric) for each in pair],
        picture=draw_estimate(estimates, scale or find_scale(estimates), f"{metric} of both models"),
    )
