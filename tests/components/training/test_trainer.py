"""Trainer: the user's function gets the window and leaves a model."""

import json
from pathlib import Path

import pytest

from spanwise.components import Trainer
from spanwise.orchestrator import Component, Model, Output, Retry, State, past
from spanwise.resolvers import Latest
from tests.components.flow import Bench, Lake, only

ROWS = {2: {"x": [3, 4]}, 1: {"x": [1, 2]}}


def note(task):
    """A model that tells what it was trained with."""
    base = (task.base.path / "notes.json").read_text() if task.base else None
    said = {
        "x": task.table("train")["x"].to_pylist(),
        "streamed": [len(batch) for batch in task.examples.dataset("train", ["x"]).batch(1)],
        "spans": task.spans,
        "parameters": task.parameters,
        "base": base and json.loads(base)["parameters"],
    }
    (task.model_dir / "notes.json").write_text(json.dumps(said))


def nothing(task):
    """Returns without a model."""
    (task.model_dir / "empty").mkdir()


def fail_once(task):
    """Fails after its first checkpoint."""
    kept = task.checkpoints / "step"
    if task.attempt == 1:
        kept.write_text("7")
        raise RuntimeError("lost the machine")
    (task.model_dir / "step").write_text(kept.read_text())


class Base(Component):
    """Makes the same model in every run."""

    def run(self, *, model: Output[Model]) -> None:
        (model.path / "notes.json").write_text('{"parameters": {}}')


def trainer(run_fn=note, *, warm=False, **arguments):
    lake = Lake(rows=ROWS, splits=["train", "eval"])
    resolver = [Latest(past("Trainer", "model", Model))] if warm else []
    base = {"base": resolver[0]["model"]} if warm else {}
    return [lake, *resolver, Trainer(examples=lake["examples"], run_fn=run_fn, **base, **arguments)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs with a warm start, the second with another parameter."""
    bench = Bench(tmp_path_factory.mktemp("trainer"))
    return [bench.run(*trainer(warm=True, parameters={"depth": depth})).executions["Trainer"] for depth in (3, 4)]


def notes(execution):
    return json.loads((only(execution, "model").path / "notes.json").read_text())


def test_the_function_reads_the_window_oldest_span_first(trained):
    """Table and stream hold all spans in order, whatever order they came in."""
    assert notes(trained[0])["x"] == [1, 2, 3, 4]
    assert notes(trained[0])["streamed"] == [1, 1, 1, 1]


def test_the_model_records_its_spans(trained):
    """What a model has learned from can be asked of the model."""
    assert only(trained[0], "model").properties["spans"] == [1, 2]


def test_the_log_says_which_spans(trained):
    """With their versions, as people write them."""
    assert 'training-started spans="1 to 2"\n' in Path(trained[0].log).read_text()


def test_parameters_are_passed_on(trained):
    """The function gets the parameters as they were given."""
    assert notes(trained[0])["parameters"] == {"depth": 3}


def test_the_first_run_has_no_base(trained):
    """A warm start without an earlier model is a cold start."""
    assert notes(trained[0])["base"] is None
    assert only(trained[0], "model").properties.get("base") is None


def test_a_warm_start_reads_the_base_and_records_it(trained):
    """The second model starts from the first and says so."""
    assert notes(trained[1])["base"] == {"depth": 3}
    assert only(trained[1], "model").properties["base"] == only(trained[0], "model").name


def backfilled(bench, **arguments):
    """A routine run, then a backfill of the same window; what the Trainer of the second did."""
    bench.run(*trainer(warm=True))
    return bench.run(*trainer(warm=True, **arguments), from_scratch=True).executions["Trainer"]


def test_a_backfill_trains_from_scratch(tmp_path):
    """RFC: "Warmstarting can propagate this damage forward in an unpredictable way." The base is there, and neither read nor recorded."""
    execution = backfilled(Bench(tmp_path))

    assert execution.inputs["base"] == ()
    assert notes(execution)["base"] is None
    assert only(execution, "model").properties.get("base") is None


def test_a_backfill_starts_from_its_base_when_told_to(tmp_path):
    """`warm_start="always"` is for a base that is known to be good."""
    execution = backfilled(Bench(tmp_path), warm_start="always")

    assert notes(execution)["base"] == {}
    assert only(execution, "model").properties["base"] == execution.inputs["base"][0].name


def test_from_scratch_and_from_a_base_are_not_the_same_in_the_cache(tmp_path):
    """A backfill is not served the model that a routine run warm-started on the same window, nor the other way."""
    bench, base = Bench(tmp_path), Base()
    nodes = [lake := Lake(rows=ROWS, splits=["train"]), base]
    nodes.append(Trainer(examples=lake["examples"], base=base["model"], run_fn=note))

    outcomes = [bench.run(*nodes, from_scratch=scratch) for scratch in (False, True, False)]

    assert [o.executions["Trainer"].state for o in outcomes] == [State.COMPLETE, State.COMPLETE, State.CACHED]


def test_without_a_base_a_backfill_is_served_from_the_cache(tmp_path):
    """There is nothing to start from, so why the run was started changes nothing."""
    bench = Bench(tmp_path)
    bench.run(*trainer())

    again = bench.run(*trainer(), from_scratch=True)

    assert again.executions["Trainer"].state is State.CACHED


def test_a_function_that_writes_nothing_is_an_error_that_says_so(tmp_path):
    """An empty model folder is no model; the message names the function and what to do."""
    outcome = Bench(tmp_path).run(*trainer(nothing))

    assert outcome.failed == ("Trainer",)
    assert "run_fn nothing returned without writing a model" in outcome.executions["Trainer"].error
    assert "task.model_dir" in outcome.executions["Trainer"].error


def test_checkpoints_are_kept_from_one_attempt_to_the_next(tmp_path):
    """A second attempt finds what the first has left."""
    outcome = Bench(tmp_path).run(*trainer(fail_once, retry=Retry(times=1, backoff_s=0)))

    assert (only(outcome.executions["Trainer"], "model").path / "step").read_text() == "7"
