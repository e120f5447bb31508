"""A champion that learned a day that was corrected since may know rows that it is measured on."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from spanwise.components import Evaluator, ExampleGen, Pusher, Threshold, Trainer
from spanwise.orchestrator import Component, Examples, Input, Model, Output
from spanwise.resolvers import Champion, RollingWindow
from tests.components.flow import Bench, only


def learn(task):
    """A model that knows by heart what it has learned."""
    table = task.table("train")
    known = dict(zip(table["id"].to_pylist(), table["late"].to_pylist(), strict=True))
    (task.model_dir / "known.json").write_text(json.dumps(known))


def recall(model, table):
    known = json.loads((model / "known.json").read_text())
    return np.array([known.get(str(ride), 0.5) for ride in table["id"].to_pylist()])


class Desk:
    """Days of rides, each in versions; a model of the newest day is pushed unless it is worse than the champion."""

    def __init__(self, folder, **ingest):
        self.bench, self.folder, self.ingest = Bench(folder / "root"), folder, ingest

    def arrive(self, span, version, fare):
        day = self.folder / "lake" / str(span) / f"v{version}"
        day.mkdir(parents=True)
        rows = "".join(f"{ride},{ride % 2},{fare * ride}\n" for ride in range(300))
        (day / "rides.csv").write_text("id,late,fare\n" + rows)

    def run(self, span):
        ingest = ExampleGen(pattern=f"{self.folder}/lake/{{SPAN}}/v{{VERSION}}/*.csv", **self.ingest)
        recent = RollingWindow(ingest["examples"], size=1)
        trainer = Trainer(examples=recent["examples"], run_fn=learn)
        champion = Champion(trainer["model"])
        evaluator = Evaluator(
            examples=recent["examples"],
            model=trainer["model"],
            baseline=champion["model"],
            label="late",
            predict_fn=recall,
            metrics=("auc",),
            thresholds={"auc": Threshold(max_drop=0.02)},
            replicates=0,
        )
        pusher = Pusher(
            model=trainer["model"], blessing=evaluator["blessing"], destination=str(self.folder / "serving")
        )
        return self.bench.run(ingest, recent, trainer, champion, evaluator, pusher, span=span).executions


def rides(executions, split):
    return {*pq.read_table(only(executions["ExampleGen"], "examples").path / f"Split-{split}")["id"].to_pylist()}


def verdict(executions):
    return only(executions["Evaluator"], "blessing").properties


def report(executions):
    return json.loads((only(executions["Evaluator"], "evaluation").path / "metrics.json").read_text())


def test_a_model_of_a_corrected_day_is_told_that_the_champion_may_know_its_rows(tmp_path):
    """Rows that were corrected are divided anew: the champion has learned some that it is measured on, and looks better."""
    desk = Desk(tmp_path)
    desk.arrive(1, 1, fare=100)
    first = desk.run(1)
    desk.arrive(1, 2, fare=1)

    second = desk.run(1)

    assert rides(first, "train") & rides(second, "eval")
    assert verdict(second)["blessed"] == 0
    assert verdict(second)["reasons"][-1].startswith(
        "the baseline learned from 1 v1, other versions of what is measured"
    )
    assert report(second)["baseline_versions"] == "1 v1"
    assert (
        "the baseline learned from 1 v1" in (only(second["Evaluator"], "evaluation").path / "report.html").read_text()
    )


def test_rows_of_a_key_stay_in_their_split_when_a_day_is_corrected(tmp_path):
    """The way out that the docs name: the champion knows none of the rows, and is compared fairly."""
    desk = Desk(tmp_path, split_key=["id"])
    desk.arrive(1, 1, fare=100)
    first = desk.run(1)
    desk.arrive(1, 2, fare=1)

    second = desk.run(1)

    assert not rides(first, "train") & rides(second, "eval")
    assert verdict(second)["blessed"] == 1


@pytest.mark.parametrize("corrected", [False, True], ids=["another day", "and a correction of it"])
def test_a_champion_of_other_days_is_compared_without_a_remark(tmp_path, corrected):
    """It has learned none of the spans that are measured."""
    desk = Desk(tmp_path)
    desk.arrive(1, 1, fare=100)
    desk.run(1)
    desk.arrive(2, 1, fare=100)
    if corrected:
        desk.arrive(2, 2, fare=1)

    assert report(desk.run(2))["baseline_versions"] is None


class Lent(Component):
    """Prices of the same day, in a version of their own."""

    def run(self, examples: Input[Examples], prices: Output[Examples]) -> None:
        prices.span, prices.version, prices.split_names = examples.span, 7, ["train"]


class LearnBoth(Component):
    def run(self, rides: Input[Examples], prices: Input[Examples], model: Output[Model], known: float) -> None:
        (model.path / "known.json").write_text(json.dumps({str(ride): known for ride in range(300)}))


def test_versions_of_another_source_are_none_of_what_is_measured(tmp_path):
    """A model that was rightly refused was explained away by the version of its prices."""
    desk = Desk(tmp_path)
    desk.arrive(1, 1, fare=100)

    def run(known):
        ingest = ExampleGen(pattern=f"{tmp_path}/lake/{{SPAN}}/v{{VERSION}}/*.csv")
        lent = Lent(examples=ingest["examples"])
        learned = LearnBoth(rides=ingest["examples"], prices=lent["prices"], known=known)
        champion = Champion(learned["model"])
        evaluator = Evaluator(
            examples=ingest["examples"],
            model=learned["model"],
            baseline=champion["model"],
            label="fare",
            predict_fn=recall,
            metrics=("mae",),
            thresholds={"mae": Threshold(max_rise=0.1)},
            replicates=0,
        )
        pusher = Pusher(model=learned["model"], blessing=evaluator["blessing"], destination=str(tmp_path / "serving"))
        return desk.bench.run(ingest, lent, learned, champion, evaluator, pusher, span=1).executions

    run(known=1.0)

    refused = run(known=-500.0)

    assert verdict(refused)["blessed"] == 0
    assert len(verdict(refused)["reasons"]) == 1
