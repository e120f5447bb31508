"""Metrics of the models that runs have trained. Each run is read once; another one may evaluate its model later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.run import Execution, Run
from spanwise.scheduler.formatting import format_run_span
from spanwise.scheduler.inspect.judged_models import LastEvaluation, find_figures, format_learned
from spanwise.scheduler.inspect.run_outputs import is_trained, list_made
from spanwise.scheduler.web.site import WebSite

_FIRST = ("auc", "accuracy", "f1", "r2", "rmse", "mae", "log_loss")
"""The metrics that people look at first, where a model has them."""

COUNTS = ("count", "weight")
"""Of examples: they say nothing of how good a model is."""

_KEEP_S = 60.0
_KEEP_RUNNING_S = 2.0  # what a running run may change


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """The model of a run, as it was evaluated last."""

    run: Run
    artifact: Artifact
    figures: LastEvaluation = field(default_factory=LastEvaluation)
    label: str  #: the span of the run
    spans: str  #: that it learned from

    @property
    def metrics(self) -> Mapping[str, float]:
        """Its metrics over all examples."""
        return self.figures.metrics

    @property
    def baseline(self) -> Mapping[str, float]:
        """Those of the model that it was compared with."""
        return self.figures.baseline_metrics

    @property
    def report(self) -> Path | None:
        """The folder of its evaluation."""
        return None if self.figures.evaluation is None else self.figures.evaluation.path


def read_trained(site: WebSite, runs: Sequence[Run], newest: Run | None) -> list[TrainedModel]:
    """The models of these runs, in their order; runs that trained none are left out.

    `newest` is the newest run of the pipeline: what was evaluated is read again when there is another.
    """
    runs = [run for run in runs if not run.replay]
    unknown = [run for run in runs if not site.memo.holds(_key(run))]
    made = list_made(site.store, unknown) if unknown else {}
    trained = [
        site.memo.get(_key(run), partial(_describe, run, made.get(run.name, ())), for_s=_keep_s(run)) for run in runs
    ]
    models = [each for each in trained if each is not None]
    read = partial(find_figures, site.store, [each.artifact for each in models])
    known = ("figures", *map(_key, filter(None, (newest, *runs))))
    figures = site.memo.get(known, read, for_s=_KEEP_S if newest is None else min(_KEEP_S, _keep_s(newest)))
    return [replace(each, figures=figures[each.artifact.id]) for each in models]


def _key(run: Run) -> tuple[object, ...]:
    return ("trained", run.name, run.state)


def _keep_s(run: Run) -> float:
    return float("inf") if run.state.ended else _KEEP_RUNNING_S


def _describe(run: Run, made: Sequence[tuple[Execution, Artifact]]) -> TrainedModel | None:
    """Of several models of a run, that of the node which comes first in the pipeline."""
    trained = ((e, a) for e, a in made if is_trained(e, a))
    model = next((a for _, a in sorted(trained, key=lambda each: run.nodes.index(each[0].node))), None)
    if model is None:
        return None
    label = format_run_span(run, str(run.number))
    return TrainedModel(run=run, artifact=model, label=label, spans=format_learned(model, run))


def headline(metrics: Mapping[str, float]) -> str:
    """The metric that stands for a model; empty when it has none."""
    return next(
        (name for name in (*_FIRST, *metrics) if name in metrics and name not in COUNTS), next(iter(metrics), "")
    )
