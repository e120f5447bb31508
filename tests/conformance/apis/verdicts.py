"""Whether a model is blessed, and whether it is pushed: `evaluator`, `pusher`. By real runs of both components."""

import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spanwise.components import Evaluator, Pusher
from spanwise.components.evaluation.threshold import Threshold
from spanwise.orchestrator import (
    Blessing,
    Component,
    Execution,
    InfraBlessing,
    Input,
    Model,
    Output,
    State,
    fingerprint,
)
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import MemoryStore
from spanwise.orchestrator.verdict import verdicts_of, write_with
from spanwise.resolvers import LatestBlessed
from tests.components.flow import Bench, Lake
from tests.conformance.judge import NotMapped

for preloaded in Evaluator.preload:  # here once, not once in every run
    import_module(preloaded)

Given = Mapping[str, Any]

METRICS = {
    "ExampleCount": "count",
    "BinaryAccuracy": "accuracy",
    "AUC": "auc",
    "BinaryCrossentropy": "log_loss",
    "Calibration": "calibration",
    "Precision": "precision",
    "Recall": "recall",
    "MeanAbsoluteError": "mae",
    "RootMeanSquaredError": "rmse",
    "R2": "r2",
}
"""Ours, by the reference's names."""

CURRENT, BASELINE = 7, 3
"""The reference's ids of the two models."""

ROWS = {"score": [0.1, 0.4, 0.6, 0.9, 0.8, 0.2], "label": [0, 0, 1, 1, 0, 1]}


class Train(Component):
    """A model, which gives the scores that the rows come with."""

    def run(self, *, model: Output[Model]) -> None:
        (model.path / "model").write_text("scores as they are")


def predict(_model: Path, table: pa.Table) -> np.ndarray:
    return table.column("score").to_numpy()


def evaluate(given: Given) -> dict[str, Any]:
    """Evaluates a model beside one that is equal to it, as far as there is a baseline."""
    thresholds = {_metric(m): threshold_of(m) for m in given["metrics"] if m.get("value") or m.get("change")}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        old = _publish_blessed(bench.store, Path(folder)) if given["baseline_given"] else None
        lake = Lake(rows={1: ROWS}, splits=["eval"])
        train = Train()
        champion = LatestBlessed(train["model"])
        evaluator = Evaluator(
            examples=lake["examples"],
            model=train["model"],
            baseline=champion["model"] if given["baseline_configured"] else None,
            label="label",
            predict_fn=predict,
            metrics=[_metric(metric) for metric in given["metrics"]],
            thresholds=thresholds,
        )
        made = bench.run(lake, train, champion, evaluator).executions
        ids = {made["Train"].outputs["model"][0].id: CURRENT, **({old.id: BASELINE} if old is not None else {})}
        verdicts = made["Evaluator"].outputs.get("blessing", ())
        if made["Evaluator"].state is not State.COMPLETE or len(verdicts) > 1:
            raise AssertionError(f"Evaluator ended as {made['Evaluator']}")
        verdict = verdicts[0].as_kind(Blessing) if verdicts else None
        return {
            "blessed": verdict and verdict.blessed,
            "file": verdict and next(path.name for path in verdict.path.iterdir()),
            "current_model_id": verdict and ids[verdict.current_model_id],
            "baseline_model_id": verdict and ids.get(verdict.baseline_model_id or 0),
        }


def _metric(metric: Given) -> str:
    if metric["name"] not in METRICS:
        raise NotMapped(metric["name"])
    return METRICS[metric["name"]]


def threshold_of(metric: Given) -> Threshold:
    """The reference's change is a least one where more is better, so a drop with the sign turned."""
    value, change = metric.get("value") or {}, metric.get("change") or {}
    bounds: dict[str, float | None] = {"at_least": value.get("lower"), "at_most": value.get("upper")}
    if change:
        rises = change["direction"] == "LOWER_IS_BETTER"
        for unit, bound in (("absolute", ""), ("relative", "_ratio")):
            if (limit := change.get(unit)) is not None:
                bounds[f"max_rise{bound}" if rises else f"max_drop{bound}"] = limit if rises else -limit
    return Threshold(**bounds)


def _publish_blessed(store: MemoryStore, folder: Path) -> Artifact:
    """A model that an earlier run has made, and that was blessed."""
    (folder / "champion").mkdir()
    (folder / "champion" / "model").write_text("scores as they are")
    tree = fingerprint.of_tree(folder / "champion")
    draft = Model(str(folder / "champion")).with_content(tree.digest, tree.size_bytes, tree.files)
    model = publish(store, "Train", "model", draft)
    publish(store, "Evaluator", "blessing", a_blessing(model, 1))
    return model


def a_blessing(model: Artifact, blessed: int) -> Blessing:
    verdict = Blessing("")
    verdict.blessed, verdict.current_model, verdict.current_model_id = blessed, model.name, model.id
    return verdict


def publish(store: MemoryStore, node: str, key: str, draft: Artifact) -> Artifact:
    """Publishes something by hand, in a run of its own of the pipeline `p`."""
    run = store.begin_run(Run(pipeline="p", state=State.COMPLETE))
    begun = store.begin(Execution(pipeline="p", run=run.number, node=node))
    ended = Execution(**{**vars(begun), "state": State.COMPLETE, "outputs": {key: (draft,)}})
    given = verdicts_of([draft], judge=node, run=ended.run_name)
    return write_with(store, given, lambda claims: store.publish(ended, *claims)).outputs[key][0]


class Judge(Component):
    """Says what it is told to say, or nothing."""

    def run(self, *, model: Input[Model], blessing: Output[Blessing | None], blessed: int | None) -> None:
        if blessed is not None and blessing is not None:
            blessing.blessed, blessing.current_model, blessing.current_model_id = blessed, model.name, model.id
            (blessing.path / "verdict").touch()


class Probe(Component):
    """Says of a model that it serves, that it does not, or nothing."""

    def run(self, model: Input[Model], blessing: Output[InfraBlessing | None], blessed: int | None) -> None:
        if blessed is not None:
            assert blessing is not None
            blessing.blessed, blessing.model = blessed, model.name


def push(given: Given) -> dict[str, Any]:
    verdict, infra_verdict = given["model_blessing"], given.get("infra_blessing")
    with tempfile.TemporaryDirectory() as folder:
        serving = Path(folder) / "serving"
        before = time.time()
        taken = [int(before) + later for later in range(60)] if given.get("same_second") else []
        for version in taken:
            (serving / str(version)).mkdir(parents=True)
        train = Train()
        judge = Judge(model=train["model"], blessed=None if verdict == "unset" else verdict)
        probe = Probe(model=train["model"], blessed=None if infra_verdict == "unset" else infra_verdict)
        pusher = Pusher(
            model=train["model"] if given.get("model", True) else None,
            blessing=None if verdict is None else judge["blessing"],
            infra_blessing=None if infra_verdict is None else probe["blessing"],
            destination=str(serving),
        )
        made = Bench(Path(folder)).run(train, judge, probe, pusher).executions["Pusher"]
        versions = [path for path in serving.glob("[0-9]*") if (path / "model").is_file()]
        (pushed,) = made.outputs["pushed_model"]
        return {
            "pushed": bool(versions) and pushed.properties["pushed_destination"] == str(versions[0]),
            "custom_pushed": pushed.properties["pushed"],
            "version_is_unix_seconds": [int(before) <= int(path.name) <= time.time() for path in versions] == [True],
            "copied": bool(versions),
        }


APIS: Mapping[str, Callable[[Given], Mapping[str, Any]]] = {"evaluator": evaluate, "pusher": push}
