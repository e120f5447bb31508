"""Metrics of the models that runs have trained. Each run is read once; another one may evaluate its model later."""

from __future__ import annotations

import itertools
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

LOOK_BACK = 3000
"""How many runs are looked through for models; those before them are on the next page."""

_AT_ONCE = 100
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
    models = _list_trained(site, runs)
    read = partial(find_figures, site.store, [each.artifact for each in models])
    known = ("figures", *map(_key, filter(None, (newest, *(each.run for each in models)))))
    figures = site.memo.get(known, read, for_s=_KEEP_S if newest is None else min(_KEEP_S, _keep_s(newest)))
    return [replace(each, figures=figures[each.artifact.id]) for each in models]


def find_newest(
    site: WebSite, pipeline: str, limit: int, before: int | None = None
) -> tuple[list[TrainedModel], int | None]:
    """The newest models of a pipeline, or of its runs below a number, newest first, whatever else has run since.

    Models before them are of runs below the number that comes with them; None where there are no such runs.
    """
    runs = itertools.islice(site.store.runs(pipeline, before=before), LOOK_BACK)
    trained: list[Run] = []
    last = 1
    while len(trained) < limit and (some := list(itertools.islice(runs, _AT_ONCE))):
        trained += [model.run for model in _list_trained(site, some)]
        last = trained[limit - 1].number if len(trained) >= limit else some[-1].number
    models = read_trained(site, trained[:limit], next(iter(site.store.runs(pipeline)), None))
    return models, last if last > 1 else None


def _list_trained(site: WebSite, runs: Sequence[Run]) -> list[TrainedModel]:
    """The models of these runs, without what was measured of them."""
    runs = [run for run in runs if not run.replay]
    unknown = [run for run in runs if not site.memo.holds(_key(run))]
    made = list_made(site.store, unknown) if unknown else {}
    trained = (
        site.memo.get(_key(run), partial(_describe, run, made.get(run.name, ())), for_s=_keep_s(run)) for run in runs
    )
    return [each for each in trained if each is not None]


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
