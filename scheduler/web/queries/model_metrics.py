"""Metrics of the models that runs have trained, each run read once: what it published never changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.artifact import Blessing, Evaluation, Model
from spanwise.orchestrator.run import Run
from spanwise.scheduler.formatting import format_run_span
from spanwise.scheduler.web.site import WebSite

_FIRST = ("auc", "accuracy", "f1", "r2", "rmse", "mae", "log_loss")
"""The metrics that people look at first, where a model has them."""

COUNTS = ("count", "weight")
"""Of examples: they say nothing of how good a model is."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """The model of a run, as its Evaluator saw it."""

    run: Run
    model: int  #: id
    name: str
    metrics: Mapping[str, float]
    baseline: Mapping[str, float]
    blessed: bool | None
    label: str  #: the span of the run


def read_trained(site: WebSite, runs: Sequence[Run]) -> list[TrainedModel]:
    """The models of these runs, in their order; runs that trained none are left out."""
    found = [_read_once(site, run) for run in runs if not run.replay]
    return [each for each in found if each is not None]


def _read_once(site: WebSite, run: Run) -> TrainedModel | None:
    return site.memo.get(("trained", run.name, run.state), lambda: _read(site, run), for_s=_keep_s(run))


def _keep_s(run: Run) -> float:
    return float("inf") if run.state.ended else 2.0


def _read(site: WebSite, run: Run) -> TrainedModel | None:
    made = [
        (e, a)
        for e in site.store.executions(run)
        if e.state.succeeded and not e.chosen
        for a in itertools.chain(*e.outputs.values())
    ]
    model = next((a for e, a in made if a.kind == Model.kind and e.reused is None), None)
    if model is None:
        return None
    evaluation = next((a for _, a in made if a.kind == Evaluation.kind), None)
    blessing = next((a for _, a in made if a.kind == Blessing.kind), None)
    return TrainedModel(
        run=run,
        model=model.id,
        name=model.name,
        metrics={} if evaluation is None else _numbers(evaluation.properties.get("metrics")),
        baseline={} if evaluation is None else _numbers(evaluation.properties.get("baseline_metrics")),
        blessed=None if blessing is None else bool(blessing.properties.get("blessed")),
        label=format_run_span(run, str(run.number)),
    )


def _numbers(found: object) -> dict[str, float]:
    items = found.items() if isinstance(found, dict) else ()
    return {str(k): float(v) for k, v in items if isinstance(v, int | float) and not isinstance(v, bool)}


def headline(metrics: Mapping[str, float]) -> str:
    """The metric that stands for a model; empty when it has none."""
    return next(
        (name for name in (*_FIRST, *metrics) if name in metrics and name not in COUNTS), next(iter(metrics), "")
    )
