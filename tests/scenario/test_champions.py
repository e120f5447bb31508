"""The champion is what serves; a champion that fails is named, taken back and rolled back."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import BulkInferrer, Evaluator, Pusher, Threshold, Trainer
from spanwise.orchestrator import Calendar, Component, Examples, Input, Model, Output, Pipeline, State
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Address
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.resolvers import Champion
from spanwise.scheduler.inspect.artifact_summary import summarize_artifact
from tests.components.flow import Bench, Lake, only


def train(task):
    """A model that predicts one number; `broken` ones cannot be loaded."""
    (task.model_dir / "told.json").write_text(json.dumps(dict(task.parameters)))


def predict(model, table):
    told = json.loads((model / "told.json").read_text())
    if told.get("broken") and told["broken"] in table["x"].to_pylist():
        raise RuntimeError("No module named 'sklearn.old'")
    return [float(told["k"])] * len(table)


class Export(Component):
    """Makes of a model what is served."""

    def run(self, model: Input[Model], exported: Output[Model]) -> None:
        shutil.copy(model.path / "told.json", exported.path / "exported.json")


class Days(Component):
    """Publishes the rows to predict."""

    def run(self, examples: Output[Examples]) -> None:
        examples.span, examples.calendar, examples.split_names = 1, "number", ["all"]
        examples.split("all").mkdir()
        pq.write_table(pa.table({"x": [1]}), examples.split("all") / "part-00000.parquet")


class Rides:
    """Runs of a pipeline whose model predicts `k`; labels are 0, so a smaller `k` is better."""

    def __init__(self, folder):
        self.bench, self.serving = Bench(folder / "root"), folder / "serving"

    def run(self, k, *, x=1, max_rise=1000.0, pushes=True, trainer="Trainer", pusher=None, pushed_by=None, **arguments):
        broken = {"broken": arguments.pop("broken")} if "broken" in arguments else {}
        lake = Lake(rows={1: {"x": [x], "y": [0.0]}}, splits=["train", "eval"])
        trainer = Trainer(name=trainer, examples=lake["examples"], run_fn=train, parameters={"k": k, **broken})
        champion = Champion(trainer["model"], pushed_by=pushed_by)
        evaluator = Evaluator(
            examples=lake["examples"],
            model=trainer["model"],
            baseline=champion["model"],
            label="y",
            predict_fn=predict,
            metrics=("mae",),
            thresholds={"mae": Threshold(max_rise=max_rise)},
            replicates=0,
            **arguments,
        )
        destination = str(self.serving)
        pusher = Pusher(model=trainer["model"], blessing=evaluator["blessing"], destination=destination, name=pusher)
        return self.bench.run(lake, trainer, champion, evaluator, *([pusher] if pushes else []))

    def say(self, model, given):
        append(
            self.bench.store,
            [Verdict(mark="blessed", artifact=model, given=given, by="ann@host", because="looked at it")],
        )


@pytest.fixture
def rides(tmp_path):
    return Rides(tmp_path)


def champion(outcome, node="Champion"):
    execution = outcome.executions[node]
    chosen = execution.outputs.get("model", ())
    return (chosen[0].name if chosen else None), execution.reason


def evaluated(outcome):
    return only(outcome.executions["Evaluator"], "evaluation")


def test_the_champion_is_what_serves_after_code_was_reverted(rides):
    """A Trainer that reuses an older model pushes it again, and the next model is compared with that one."""
    rides.run(1)
    rides.run(2)
    reverted = rides.run(1)  # reuses the first model, which serves again
    assert only(reverted.executions["Trainer"], "model").name == "p/Trainer/model/1"

    found = rides.run(3)

    assert champion(found) == (
        "p/Trainer/model/1",
        "chose p/Trainer/model/1, which serves, pushed by p/3",
    )
    assert evaluated(found).properties["baseline_metrics"]["mae"] == 1.0


def test_a_model_that_was_blessed_and_not_pushed_is_no_champion(rides):
    """Its push may have failed, or another check refused it: what serves counts."""
    rides.run(1)
    rides.run(2, pushes=False)

    assert champion(rides.run(3))[0] == "p/Trainer/model/1"


def test_without_a_push_the_newest_blessed_model_is_the_champion(rides):
    """A pipeline that pushes nothing compares with the newest blessed model, and says so."""
    assert champion(rides.run(1, pushes=False)) == (None, "found no artifact to choose")
    rides.run(2, pushes=False, max_rise=-1.0)  # refused

    assert champion(rides.run(3, pushes=False)) == (
        "p/Trainer/model/1",
        "chose p/Trainer/model/1, the newest blessed model; none was pushed",
    )


def test_the_next_best_champion_is_the_baseline_when_a_blessing_is_taken_back(rides):
    """The model pushed before it, while the other still serves; and back again when it is blessed again."""
    rides.run(1)
    rides.run(2)
    rides.say("p/Trainer/model/2", given=False)

    assert champion(rides.run(3, pushes=False)) == (
        "p/Trainer/model/1",
        "chose p/Trainer/model/1, the champion before p/Trainer/model/2, which serves, but whose blessing was taken back",
    )
    rides.say("p/Trainer/model/2", given=True)
    assert champion(rides.run(4, pushes=False))[0] == "p/Trainer/model/2"


def test_a_model_that_was_never_pushed_is_not_called_an_earlier_champion(rides):
    """Where no other was pushed, the newest blessed model is the baseline, and what is said of it is true."""
    rides.run(1, pushes=False)
    rides.run(2)
    rides.say("p/Trainer/model/2", given=False)

    what = "the newest blessed model, never pushed, instead of p/Trainer/model/2"
    assert champion(rides.run(3, pushes=False)) == (
        "p/Trainer/model/1",
        f"chose p/Trainer/model/1, {what}, which serves, but whose blessing was taken back",
    )


def test_the_pushes_of_a_pusher_that_was_renamed_are_named(rides):
    """They are not those of the node that is named now, so the newest blessed model is chosen, and it says why."""
    rides.run(1)
    rides.run(2, pushes=False)

    said = "the newest blessed model; Production has pushed none, while Pusher has pushed p/Trainer/model/1 last"
    assert champion(rides.run(3, pusher="Production", pushed_by="Production")) == (
        "p/Trainer/model/2",
        f"chose p/Trainer/model/2, {said}",
    )


def test_a_champion_that_cannot_be_loaded_is_named(rides):
    """The error says which model failed, whose it is, why, and what to type."""
    rides.run(1, broken=7)

    failed = rides.run(2, x=7)

    assert failed.failed == ("Evaluator",)
    message = failed.executions["Evaluator"].error
    assert "the baseline p/Trainer/model/1, made by run p/1, could not predict" in message
    assert "RuntimeError: No module named 'sklearn.old'" in message
    assert "spanwise unbless p/Trainer/model/1 --because" in message
    assert "on_baseline_error='ignore'" in message


def test_a_candidate_that_cannot_be_loaded_is_named(rides):
    """It is not the champion's fault."""
    failed = rides.run(2, x=7, broken=7)

    message = failed.executions["Evaluator"].error
    assert "the candidate p/Trainer/model/1, made by run p/1, could not predict" in message
    assert "unbless" not in message


def test_the_pushes_go_on_once_the_blessing_is_taken_back(rides):
    """The cure that is printed works: there is no champion left, and the new model is pushed."""
    rides.run(1, broken=7)
    rides.run(2, x=7)
    rides.say("p/Trainer/model/1", given=False)

    cured = rides.run(2, x=7)

    assert cured.succeeded
    assert champion(cured)[0] is None
    assert only(cured.executions["Pusher"], "pushed_model").properties["pushed"] == 1


def test_a_baseline_that_fails_may_be_ignored(rides):
    """The model is judged without it; the report, the page and the log say why."""
    rides.run(1, broken=7)

    judged = rides.run(2, x=7, on_baseline_error="ignore")

    assert judged.succeeded
    report = json.loads((evaluated(judged).path / "metrics.json").read_text())
    assert report["baseline"] is None
    assert report["baseline_error"].startswith("p/Trainer/model/1: RuntimeError: No module named 'sklearn.old'")
    assert "the baseline was ignored" in (evaluated(judged).path / "report.html").read_text()
    blessing = only(judged.executions["Evaluator"], "blessing")
    assert blessing.properties["blessed"] == 1
    (said,) = summarize_artifact(blessing, Calendar.NUMBER)
    assert said.startswith("blessed (compared with no baseline: p/Trainer/model/1: RuntimeError")


@pytest.mark.parametrize("damage", ["rotten", "gone"])
def test_a_damaged_baseline_may_be_ignored(rides, damage):
    """As one that cannot be loaded; what was not verified is no less damaged for the next node that reads it."""
    first = rides.run(1)
    file = only(first.executions["Trainer"], "model").path / "told.json"
    file.unlink() if damage == "gone" else file.write_text(file.read_text()[::-1])

    assert rides.run(2, x=7).failed == ("Evaluator",)
    judged = rides.run(2, x=7, on_baseline_error="ignore")

    report = json.loads((evaluated(judged).path / "metrics.json").read_text())
    assert report["baseline"] is None
    assert report["baseline_error"].startswith("p/Trainer/model/1: its files are not those that were published:")
    assert only(judged.executions["Pusher"], "pushed_model").properties["pushed"] == 1


def test_a_verdict_without_a_baseline_that_failed_ends_with_the_failure(rides):
    """Once the champion is whole again, a model that is worse was pushed by a verdict that had not compared it."""
    first = rides.run(1)
    file = only(first.executions["Trainer"], "model").path / "told.json"
    whole = file.read_text()
    file.write_text(whole[::-1])
    rides.run(2, max_rise=0.0, on_baseline_error="ignore", pushes=False)
    file.write_text(whole)

    judged = rides.run(2, max_rise=0.0, on_baseline_error="ignore")

    assert judged.executions["Evaluator"].reason.startswith(
        "the result of p/2/Evaluator/1 is not reused: it ignored a baseline that failed (p/Trainer/model/1: its files"
    )
    assert only(judged.executions["Evaluator"], "blessing").properties["blessed"] == 0
    assert only(judged.executions["Pusher"], "pushed_model").properties["pushed"] == 0


def test_a_candidate_that_fails_is_never_ignored(rides):
    """Only the baseline may be."""
    failed = rides.run(2, x=7, broken=7, on_baseline_error="ignore")

    assert failed.executions["Evaluator"].state is State.FAILED


def test_a_baseline_whose_files_are_gone_is_named(rides):
    """As good as one that cannot be loaded."""
    first = rides.run(1)
    shutil.rmtree(only(first.executions["Trainer"], "model").path)

    failed = rides.run(2)

    assert "p/Trainer/model/1" in failed.executions["Evaluator"].error


def test_a_model_whose_blessing_a_person_took_back_is_never_pushed_again(rides):
    """A Trainer whose code is reverted reuses it, and its Evaluator blesses it again: the person's verdict holds."""
    rides.run(1)
    rides.run(2)
    rides.say("p/Trainer/model/1", given=False)

    reverted = rides.run(1)

    assert only(reverted.executions["Trainer"], "model").name == "p/Trainer/model/1"
    assert only(reverted.executions["Evaluator"], "blessing").properties["blessed"] == 1
    pushed = only(reverted.executions["Pusher"], "pushed_model").properties
    assert pushed["pushed"] == 0
    assert "not blessed by ann@host: looked at it" in pushed["reason"]
    assert champion(rides.run(3))[0] == "p/Trainer/model/2"


def test_a_model_that_a_person_has_blessed_is_pushed_whatever_its_evaluator_says(rides):
    """A person overrules the Evaluator in the next run of the pipeline as well as in `spanwise push`."""
    rides.run(1)
    rides.run(2, max_rise=-1.0)
    rides.say("p/Trainer/model/2", given=True)

    again = rides.run(2, max_rise=-1.0)

    assert only(again.executions["Evaluator"], "blessing").properties["blessed"] == 0
    assert only(again.executions["Pusher"], "pushed_model").properties["pushed"] == 1


@pytest.fixture
def exporting(tmp_path):
    """Runs of a pipeline that judges a model and pushes what is exported of it."""
    bench = Bench(tmp_path / "root")

    def run(k, **thresholds):
        lake = Lake(rows={1: {"x": [1], "y": [0.0]}}, splits=["train", "eval"])
        trainer = Trainer(examples=lake["examples"], run_fn=train, parameters={"k": k})
        export = Export(model=trainer["model"])
        evaluator = Evaluator(
            examples=lake["examples"],
            model=trainer["model"],
            label="y",
            predict_fn=predict,
            metrics=("mae",),
            thresholds={"mae": Threshold(**thresholds or {"at_most": 5})},
            replicates=0,
        )
        pusher = Pusher(model=export["exported"], blessing=evaluator["blessing"], destination=str(tmp_path / "serving"))
        champion = Champion(export["exported"])
        done = bench.run(lake, trainer, evaluator, export, champion, pusher).executions
        chosen = [artifact.name for artifact in done["Champion"].outputs.get("exported", ())]
        return only(done["Pusher"], "pushed_model").properties, chosen

    run.say = Rides.say.__get__(run)
    run.bench = bench
    return run


def test_what_is_exported_of_a_model_whose_blessing_was_taken_back_is_never_pushed_again(exporting):
    """Nor is it the champion: who takes the blessing of the judged model back means what is served of it."""
    exporting(1)
    exporting(2)
    exporting.say("p/Trainer/model/2", given=False)

    pushed, _ = exporting(2)
    _, champion = exporting(3)

    assert (pushed["pushed"], pushed["model"]) == (0, "p/Export/exported/2")
    assert "not blessed by ann@host: looked at it" in pushed["reason"]
    assert champion == ["p/Export/exported/1"]


def test_what_is_exported_of_a_model_that_a_person_has_blessed_is_pushed(exporting):
    """The newest of what people said of the export and of the judged model counts."""
    exporting(1, at_most=0)
    exporting.say("p/Trainer/model/1", given=True)
    assert exporting(1, at_most=0)[0]["pushed"] == 1
    exporting(2)
    exporting.say("p/Export/exported/1", given=False)

    pushed, _ = exporting(1, at_most=0)

    assert pushed["pushed"] == 0


def test_the_model_of_which_the_export_serves_is_the_champion_among_the_judged(exporting):
    """Not the newest that is blessed: its export may have been withheld, or rolled back."""
    exporting(1)
    exporting(2)
    exporting.say("p/Trainer/model/2", given=False)
    exporting(1)
    exporting.say("p/Trainer/model/2", given=True)

    judged = History(exporting.bench.store, Address("p", "Trainer", "model"), Model, Run(pipeline="p"))

    assert judged.champion().name == "p/Trainer/model/1"
    assert [push.model for _, push in judged.served()] == [
        "p/Trainer/model/1",
        "p/Trainer/model/2",
        "p/Trainer/model/1",
    ]


def test_an_export_that_a_person_has_blessed_is_no_champion_once_its_model_was_withdrawn(exporting):
    """Also where none was pushed: the newest of what people said of either counts."""
    exporting(1, at_most=0)
    exporting.say("p/Export/exported/1", given=True)
    assert exporting(2, at_most=0)[1] == ["p/Export/exported/1"]
    exporting.say("p/Trainer/model/1", given=False)

    assert exporting(3, at_most=0)[1] == []


def test_the_champion_says_which_other_model_of_the_pipeline_serves_in_its_place(rides):
    """Two Trainers push to one destination: the version that is newer was pushed by a recorded run."""
    rides.run(1)
    rides.run(2, trainer="Learner")

    reason = champion(rides.run(3))[1]

    assert reason.startswith("chose p/Trainer/model/1, pushed last by p/1; but ")
    assert reason.endswith(" serves, where p/2 has pushed p/Learner/model/1 since")


@pytest.fixture
def scoring(tmp_path):
    """Runs of a pipeline that predicts other rows with the model that serves."""
    bench = Bench(tmp_path / "root")

    def run(k, *, waits=True, pushes=True, only=(), part=False, base=None, **thresholds):
        months = Lake(name="Months", rows={1: {"x": [1], "y": [0.0]}}, splits=["train", "eval"])
        days = Days()
        trainer = Trainer(examples=months["examples"], run_fn=train, parameters={"k": k})
        champion = Champion(trainer["model"])
        evaluator = Evaluator(
            examples=months["examples"],
            model=trainer["model"],
            baseline=champion["model"],
            label="y",
            predict_fn=predict,
            metrics=("mae",),
            thresholds={"mae": Threshold(**thresholds or {"max_rise": 1000.0})},
            replicates=0,
        )
        pusher = Pusher(model=trainer["model"], blessing=evaluator["blessing"], destination=str(tmp_path / "serving"))
        last = pusher if pushes else evaluator
        serving = Champion(trainer["model"], name="Serving", after=[last] if waits else [])
        scores = BulkInferrer(examples=days["examples"], model=serving["model"], predict_fn=predict)
        nodes = [months, days, trainer, champion, evaluator, *([pusher] if pushes else []), serving, scores]
        behind = ("Months", "Trainer", "Champion", "Evaluator", "Pusher") if part else ()
        selection = Pipeline("p", nodes).select(first=only)
        return bench.run(*nodes, selection=selection, behind=behind, base=base)

    return run


def predictor(outcome):
    """The model that predicted, and what is said of its choice."""
    name, reason = champion(outcome, "Serving")
    assert only(outcome.executions["BulkInferrer"], "inference_result").properties["model"] == name
    return name, reason


def test_the_model_that_serves_predicts_also_where_the_run_has_reused_it(scoring):
    """It is not compared with anything, so it may be the model of the run; the baseline is not."""
    assert predictor(scoring(1)) == ("p/Trainer/model/1", "chose p/Trainer/model/1, which serves, pushed by p/1")

    again = scoring(1)
    assert predictor(again) == ("p/Trainer/model/1", "chose p/Trainer/model/1, which serves, pushed by p/1")
    instead = "found no artifact to choose, instead of p/Trainer/model/1, which serves and is the model of this run"
    assert champion(again) == (None, instead)
    scoring(2)
    assert predictor(scoring(1)) == ("p/Trainer/model/1", "chose p/Trainer/model/1, which serves, pushed by p/4")


@pytest.mark.parametrize("part", [False, True], ids=["a partial run", "a part with a schedule of its own"])
def test_the_model_that_serves_predicts_also_where_an_earlier_run_supplies_it(scoring, part):
    """The part that predicts has no Trainer; the one of its base run has made what serves."""
    scoring(1)
    scoring(2)

    found = scoring(2, only=["Days", "Serving"], part=part)

    assert predictor(found) == ("p/Trainer/model/2", "chose p/Trainer/model/2, which serves, pushed by p/2")


def test_a_model_that_was_not_pushed_does_not_predict(scoring):
    """The Evaluator has refused it, so the one before it goes on serving."""
    scoring(1)

    refused = scoring(2, at_most=1)

    assert predictor(refused) == ("p/Trainer/model/1", "chose p/Trainer/model/1, which serves, pushed by p/1")


def test_without_a_push_the_newest_blessed_model_predicts(scoring):
    """Also that of this run, where its judge has judged before."""
    reason = "chose p/Trainer/model/1, the newest blessed model; none was pushed"
    assert predictor(scoring(1, pushes=False)) == ("p/Trainer/model/1", reason)

    assert predictor(scoring(1, pushes=False, waits=False)) == ("p/Trainer/model/1", reason)


def test_a_choice_that_does_not_wait_for_the_push_belongs_to_its_run(scoring):
    """What the run pushed after it makes it no older, however often a part of the run is run again."""
    scoring(1, waits=False)
    chosen = predictor(scoring(2, waits=False))

    for base in (2, 3):
        again = scoring(2, waits=False, only=["BulkInferrer"], base=base)
        assert champion(again, "Serving")[0] == "p/Trainer/model/1"

    assert chosen == ("p/Trainer/model/1", "chose p/Trainer/model/1, which serves, pushed by p/1")
