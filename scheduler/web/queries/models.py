"""The models of a pipeline: their metrics over spans, beside the baseline, and where they serve."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from spanwise.orchestrator.serving import channel_of, pushes
from spanwise.scheduler.client import ModelRecord
from spanwise.scheduler.client.models import find_model
from spanwise.scheduler.web.pages import artifact_url
from spanwise.scheduler.web.pictures.charts import ChartLine, draw_lines
from spanwise.scheduler.web.queries.model_metrics import COUNTS, TrainedModel, headline, read_trained
from spanwise.scheduler.web.site import WebSite

MODELS = 40
"""How many of the last runs are looked through."""


@dataclass(frozen=True, kw_only=True)
class ModelsView:
    """The newest models."""

    models: Sequence[TrainedModel]  #: newest first
    metrics: Sequence[str]
    metric: str  #: the one that the chart shows
    chart: Markup
    serving: str  #: name of the model that was pushed last
    compared: tuple[ModelRecord, ModelRecord] | None
    older: int | None


def read_models(site: WebSite, pipeline: str, *, metric: str, before: int | None, pair: tuple[str, str]) -> ModelsView:
    """The models of the last runs, or of those below a number.

    Raises:
        NotRecorded: one of the two to compare does not exist.
    """
    runs = list(itertools.islice(site.store.runs(pipeline, before=before), MODELS))
    models = read_trained(site, runs)
    named = dict.fromkeys(name for model in models for name in model.metrics)
    metrics = sorted(named, key=lambda name: name in COUNTS)
    chosen = metric if metric in metrics else (headline(models[0].metrics) if models else "")
    ordered = models[::-1]
    labels = [model.label for model in ordered]
    lines = [
        ChartLine(chosen, [model.metrics.get(chosen) for model in ordered], "line"),
        ChartLine("baseline", [model.baseline.get(chosen) for model in ordered], "baseline"),
    ]
    links = [artifact_url(model.model) for model in ordered]
    last = next(pushes(site.store, channel_of(models[0].name)), None) if models else None
    compared = None
    if all(pair):
        one, other = (find_model(site.client.session, site.client.artifact(name).name) for name in pair)
        compared = (one, other)
    return ModelsView(
        models=models,
        metrics=metrics,
        metric=chosen,
        chart=draw_lines(labels, lines, f"{chosen} of each model, and of the baseline on the same examples", links),
        serving="" if last is None else last.model,
        compared=compared,
        older=runs[-1].number if runs and runs[-1].number > 1 else None,
    )
