"""Metrics of the models that runs have trained, each run read once: what it published never changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact, Blessing, Evaluation
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import format_run_span, format_spans, run_calendar
from spanwise.scheduler.inspect import records
from spanwise.scheduler.inspect.run_outputs import is_baseline, is_trained, list_made
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
    report: Path | None  #: the folder of its evaluation
    spans: str  #: that it learned from


def read_trained(site: WebSite, runs: Sequence[Run]) -> list[TrainedModel]:
    """The models of these runs, in their order; runs that trained none are left out."""
    runs = [run for run in runs if not run.replay]
    unknown = [run for run in runs if not site.memo.holds(_key(run))]
    made = list_made(site.store, unknown) if unknown else {}
    judges = {e.id for row in made.values() for e, a in row if a.kind in (Evaluation.kind, Blessing.kind)}
    read = {(link.execution, link.artifact) for link in site.store.links(executions=list(judges)) if link.read}
    found = [
        site.memo.get(_key(run), partial(_describe, site.store, run, made.get(run.name, ()), read), for_s=_keep_s(run))
        for run in runs
    ]
    return [each for each in found if each is not None]


def _key(run: Run) -> tuple[object, ...]:
    return ("trained", run.name, run.state)


def _keep_s(run: Run) -> float:
    return float("inf") if run.state.ended else 2.0


def _describe(
    store: Store, run: Run, made: Sequence[tuple[Execution, Artifact]], read: Collection[tuple[int, int]]
) -> TrainedModel | None:
    """Of several models of a run, that of the node which comes first in the pipeline; `read` is what judges read."""
    trained = ((e, a) for e, a in made if is_trained(e, a))
    model = next((a for _, a in sorted(trained, key=lambda each: run.nodes.index(each[0].node))), None)
    if model is None:
        return None
    judges = {e.id for e, _ in made if (e.id, model.id) in read}
    if len(judges) > 1:
        judges = {id for id in judges if not is_baseline(model, store.execution(id))}  # noqa: A001
    evaluation = next((a for e, a in made if a.kind == Evaluation.kind and e.id in judges), None)
    blessing = next((a for e, a in made if a.kind == Blessing.kind and e.id in judges), None)
    return TrainedModel(
        run=run,
        model=model.id,
        name=model.name,
        metrics={} if evaluation is None else _numbers(evaluation.properties.get("metrics")),
        baseline={} if evaluation is None else _numbers(evaluation.properties.get("baseline_metrics")),
        blessed=None if blessing is None else bool(blessing.properties.get("blessed")),
        label=format_run_span(run, str(run.number)),
        report=None if evaluation is None else evaluation.path,
        spans=_learned(run, model),
    )


def _learned(run: Run, model: Artifact) -> str:
    spans = model.properties.get("spans")
    learned = [span for span in spans if isinstance(span, int)] if isinstance(spans, list) else []
    return format_spans(learned, records.artifact_calendar(model, run_calendar(run))) if learned else ""


def _numbers(found: object) -> dict[str, float]:
    items = found.items() if isinstance(found, dict) else ()
    return {str(k): float(v) for k, v in items if isinstance(v, int | float) and not isinstance(v, bool)}


def headline(metrics: Mapping[str, float]) -> str:
    """The metric that stands for a model; empty when it has none."""
    return next(
        (name for name in (*_FIRST, *metrics) if name in metrics and name not in COUNTS), next(iter(metrics), "")
    )
