"""Trainer: the user's function gets the window and leaves a model."""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spanwise.components import Trainer
from spanwise.components.training.elastic.job import ElasticJob
from spanwise.components.training.elastic.training import readings_of
from spanwise.components.training.prepared_spans import SnapshotTally
from spanwise.components.training.row_weights import check_weights
from spanwise.components.training.trainer_task import ExamplesWindow, TrainerTask
from spanwise.orchestrator import Component, Model, Output, Retry, State, past
from spanwise.orchestrator.errors import ParameterError, PipelineError
from spanwise.resolvers import Latest
from tests.components.flow import Bench, Lake, only, written

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


WEIGHTED = {span: {**columns, "y": [1.0, 5.0], "w": [float(span), 0.0]} for span, columns in ROWS.items()}


def weighted(run_fn, rows, **arguments):
    lake = Lake(rows=rows, splits=["train", "eval"])
    return [lake, Trainer(examples=lake["examples"], run_fn=run_fn, weight="w", **arguments)]


def average(task):
    """Reads features, labels and weights in each of the ways there are."""
    table = task.table("train", ["x", "y"])
    batches = list(task.examples.dataset("train", ["y"]).batch(3).as_numpy())
    prepared = task.examples.dataset("train", ["y"], prepare=lambda rows: rows.shuffle(9, seed=1)).to_arrow()
    (task.model_dir / "model.json").write_text(
        json.dumps(
            {
                "table": [table.column_names, np.average(table["y"], weights=table[task.weight])],
                "batches": [batch[task.weight].tolist() for batch in batches],
                "prepared": sorted(prepared[task.weight].to_pylist()),
                "named": task.table("train", ["w"]).column_names,
            }
        )
    )


def test_the_function_reads_the_weight_with_whatever_it_reads(tmp_path):
    """The column is named once, at the Trainer; tables, datasets and prepared spans have it beside the columns asked for."""
    execution = Bench(tmp_path).run(*weighted(average, WEIGHTED)).executions["Trainer"]

    assert json.loads((only(execution, "model").path / "model.json").read_text()) == {
        "table": [["x", "y", "w"], 1.0],
        "batches": [[1.0, 0.0, 2.0], [0.0]],
        "prepared": [0.0, 0.0, 1.0, 2.0],
        "named": ["w"],
    }


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1.0, None], "has a missing value"),
        ([-1.0, 1.0], "has the value -1"),
        ([float("nan"), 1.0], "has the value nan"),
        ([float("inf"), 1.0], "has the value inf"),
        (["1", "2"], "is string; weights are numbers"),
    ],
)
def test_a_bad_weight_is_refused_before_anything_is_learned(tmp_path, bad, message):
    """Whatever the function would read; the message says where it is and what to write."""
    lake = written(tmp_path / "1", 1, {"train": pa.table({"w": [1]}), "eval": pa.table({"w": bad})})
    good = written(tmp_path / "2", 2, {"train": pa.table({"w": [1, 2]})})

    check_weights("Trainer", [good], "w")
    with pytest.raises(ParameterError, match=rf"(?s){message}.*\(split 'eval' of span 1\).*fill_null\(1\.0\)"):
        check_weights("Trainer", [lake], "w")


def test_a_weight_that_a_span_lacks_is_missing_there(tmp_path):
    """A row without a weight is no row of weight 1. Without the column anywhere, the message lists those that are there."""
    spans = [written(tmp_path / str(n), n, {"train": pa.table({c: [1.0]})}) for n, c in ((1, "x"), (2, "w"))]

    with pytest.raises(ParameterError, match=r"missing value; .* of span 1\)"):
        check_weights("Trainer", spans, "w")
    with pytest.raises(ParameterError, match=r"has no such column; it has: w, x\. If Transform made"):
        check_weights("Trainer", spans, "u")
    outcome = Bench(tmp_path / "root").run(*weighted(nothing, {1: {"x": [1]}}))
    assert "weight='w': the split 'eval' has no such column" in outcome.executions["Trainer"].error


def test_the_weights_of_a_split_that_some_spans_have_are_checked_in_those(tmp_path):
    """As where a split has come with a newer span: the function may read the others from all spans."""
    old = written(tmp_path / "1", 1, {"train": pa.table({"w": [1.0]})})
    new, bad = (
        written(tmp_path / str(n), n, {"train": pa.table({"w": [1.0]}), "test": pa.table({"w": [weight]})})
        for n, weight in ((2, 2.0), (3, -1.0))
    )

    check_weights("Trainer", [old, new], "w")
    with pytest.raises(ParameterError, match=r"has the value -1.*\(split 'test' of span 3\)"):
        check_weights("Trainer", [old, new, bad], "w")


def test_an_elastic_job_reads_the_weight_with_its_columns(tmp_path):
    """Its `columns` need not name it."""
    window = written(tmp_path / "1", 1, {"train": pa.table({"x": [1], "y": [2], "w": [0.5]})})
    examples = ExamplesWindow(artifacts=(window,), snapshots=tmp_path, tally=SnapshotTally(), weight="w")
    task = TrainerTask(examples=examples, model_dir=tmp_path, checkpoints=tmp_path)
    job = ElasticJob(dataset_fn=id, init=id, save=id, predict=len, columns=("x",))

    (reading,) = readings_of(job, task).values()

    assert reading.row_schema.names == ["x", "w"]


def note_shares(task):
    """Every replica tells what it has read, and rank 0 writes it down."""
    read = [x for batch in task.share("train", ["x"]).batch(2).as_numpy() for x in batch["x"].tolist()]
    (task.model_dir / f"of-{task.rank}").touch()
    (task.model_dir / "shares").write_text(json.dumps([task.replicas, task.gather(read)]))


def test_each_replica_reads_its_share_and_rank_0_writes_the_model(tmp_path):
    """What others write below `model_dir` is not in the model."""
    execution = Bench(tmp_path).run(*trainer(note_shares, replicas=3)).executions["Trainer"]

    model = only(execution, "model")
    assert json.loads((model.path / "shares").read_text()) == [3, [[1], [2], [3, 4]]]
    assert sorted(path.name for path in model.path.iterdir()) == ["of-0", "shares"]
    assert model.properties["spans"] == [1, 2]


def fail_in_the_middle(task):
    """Each replica goes on where it was, if rank 1 is killed after the second of its four batches."""
    iterator = task.share("train", ["x"]).batch(1).as_numpy().iterator()
    learned = task.load_checkpoint(iterator) or []
    for batch in iterator:
        learned.append(task.gather(int(batch["x"][0])))
        task.save_checkpoint(learned, iterator)
        if task.rank == 1 and task.attempt == 1 and len(learned) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    (task.model_dir / "learned").write_text(json.dumps(learned))


def test_after_a_kill_all_replicas_continue_from_one_checkpoint(tmp_path):
    """The model of the second attempt has each row once, in the steps of an undisturbed training."""
    lake = Lake(rows={1: {"x": list(range(8))}}, splits=["train"])
    nodes = [lake, Trainer(examples=lake["examples"], run_fn=fail_in_the_middle, replicas=2, retry=Retry(times=1))]

    execution = Bench(tmp_path).run(*nodes).executions["Trainer"]

    assert execution.attempt == 2
    assert json.loads((only(execution, "model").path / "learned").read_text()) == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replicas": 0}, "Trainer needs at least 1 replica; found replicas=0."),
        ({"workers": 2}, "To call a function in several processes at once: replicas=2."),
    ],
)
def test_processes_that_cannot_be_are_refused(arguments, message):
    """When the pipeline is written."""
    with pytest.raises(PipelineError, match=re.escape(message)):
        trainer(**arguments)
