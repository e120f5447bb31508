"""A model is judged, served and started from through the transform graph that it was trained with, or not at all.

The features change with every window: a vocabulary, most frequent word first. The label is the length of the word, so a
model is perfect with its own vocabulary, and wrong with another one.
"""

import json
import shutil
import subprocess
import sys

import pytest

from spanwise.components import (
    BulkInferrer,
    Evaluator,
    Importer,
    InfraValidator,
    Preprocessor,
    Pusher,
    Threshold,
    Trainer,
    Transform,
    vocabulary,
)
from spanwise.orchestrator import (
    Component,
    Examples,
    Input,
    Model,
    Output,
    PipelineError,
    TransformGraph,
    past,
)
from spanwise.resolvers import Fixed, LatestBlessed, RollingWindow
from tests.components.flow import Bench, Lake, only

FIRST = ["a"] * 6 + ["bbbbbbbbb"] * 3
SECOND = ["bbbbbbbbb"] * 6 + ["a"] * 3  #: the vocabulary is the other way round


def preprocess(columns):
    return {"code": vocabulary(columns["word"]), "length": columns["length"]}


def stateless(columns):
    """The same for every window."""
    return {"code": columns["length"] * 2, "length": columns["length"]}


def train(task):
    """Notes the length of each code, and what it was started from."""
    rows = task.table("train")
    lengths = dict(zip(rows["code"].to_pylist(), rows["length"].to_pylist(), strict=True))
    base = task.base.name if task.base else None
    (task.model_dir / "lengths.json").write_text(json.dumps({"lengths": lengths, "base": base}))


def train_on_raw(task):
    """Applies the graph itself."""
    rows = Preprocessor.load(task.graph.uri).apply(task.table("train"))
    lengths = dict(zip(rows["code"].to_pylist(), rows["length"].to_pylist(), strict=True))
    (task.model_dir / "lengths.json").write_text(json.dumps({"lengths": lengths, "base": None}))


def train_and_write_a_graph(task):
    train(task)
    shutil.copytree(task.graph.uri, task.model_dir / "graph")


def train_and_write_something_else(task):
    train(task)
    (task.model_dir / "graph").mkdir()
    (task.model_dir / "graph" / "saved_model.pb").write_text("of a framework")


def predict_features(model, table):
    lengths = json.loads((model / "lengths.json").read_text())["lengths"]
    return [float(lengths.get(str(code), 0)) for code in table["code"].to_pylist()]


def predict(model, table):
    """From raw columns, as a server."""
    return predict_features(model, Preprocessor.load(model / "graph").apply(table, outputs=["code"]))


class Half(Component):
    """Drops rows; it knows nothing of graphs."""

    def run(self, examples: Input[list[Examples]], half: Output[Examples]) -> None:
        (given,) = examples
        shutil.copytree(given.path, half.path, dirs_exist_ok=True)
        half.span, half.split_names, half.calendar = given.span, given.split_names, given.calendar


def features(words, function=preprocess, *, base_graph="same", warm=False, run_fn=train):
    rows = {1: {"word": words, "length": [len(word) for word in words]}}
    lake = Lake(rows=rows, splits=["train", "eval"])
    transform = Transform(examples=lake["examples"], preprocessing_fn=function)
    base = [LatestBlessed(past("Trainer", "model", Model), name="Base")] if warm else []
    trainer = Trainer(
        examples=transform["examples"],
        graph=transform["graph"],
        run_fn=run_fn,
        base_graph=base_graph,
        **({"base": base[0]["model"]} if base else {}),
    )
    return [lake, transform, *base, trainer]


def judged(nodes, on, function=predict, **arguments):
    """The nodes, and an Evaluator with the champion as baseline, on the examples of the node called `on`."""
    by_name = {node.name: node for node in nodes}
    champion = LatestBlessed(by_name["Trainer"]["model"], name="Champion")
    evaluator = Evaluator(
        examples=by_name[on]["half" if on == "Half" else "examples"],
        model=by_name["Trainer"]["model"],
        baseline=champion["model"],
        label="length",
        predict_fn=function,
        metrics=("mae",),
        thresholds={"mae": Threshold(max_rise=0.0)},
        replicates=0,
        **arguments,
    )
    return [*nodes, champion, evaluator]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "root")


def error_of(outcome, node):
    assert outcome.failed == (node,), outcome.run.error
    return outcome.executions[node].error


# --- the Evaluator


def test_a_perfect_champion_stays_perfect_after_the_vocabulary_changed(bench):
    """Every model is judged through its own graph: the champion's error on raw examples is 0, whatever today's
    vocabulary is.
    """
    bench.run(*judged(features(FIRST), "Lake"))

    second = bench.run(*judged(features(SECOND), "Lake"))

    evaluation = only(second.executions["Evaluator"], "evaluation").properties
    assert evaluation["metrics"]["mae"] == 0
    assert evaluation["baseline_metrics"]["mae"] == 0


def test_a_champion_is_not_judged_on_the_features_of_another_model(bench):
    """Examples that today's graph transformed are refused for a champion of yesterday's, and the way out is named."""
    bench.run(*judged(features(FIRST), "Transform", predict_features))

    second = bench.run(*judged(features(SECOND), "Transform", predict_features))

    message = error_of(second, "Evaluator")
    assert "the baseline p/Trainer/model/1" in message
    assert "p/Transform/examples/1/2" in message
    assert "Connect the examples that Transform reads" in message
    assert "Preprocessor.load(model_dir / 'graph')" in message


def test_a_model_is_judged_on_the_features_of_its_own_graph(bench):
    """What matches is no mistake, with the same vocabulary of other words counts too."""
    first = bench.run(*judged(features(FIRST), "Transform", predict_features))
    second = bench.run(*judged(features([*FIRST, "a"]), "Transform", predict_features))

    for ran in (first, second):
        assert only(ran.executions["Evaluator"], "blessing").properties["blessed"] == 1


def test_a_graph_without_analyzers_is_the_same_for_every_window(bench):
    """Its features mean the same on every day, so champions are judged on them."""
    bench.run(*judged(features(FIRST, stateless), "Transform", predict_features))

    second = bench.run(*judged(features(SECOND, stateless), "Transform", predict_features))

    assert second.succeeded
    assert only(second.executions["Evaluator"], "evaluation").properties["baseline_metrics"]["mae"] == 0


def test_a_champion_that_was_trained_without_a_graph_is_not_judged_on_features(bench, tmp_path):
    """A model of the time before Transform, or an imported one, never saw these columns."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "lengths.json").write_text('{"lengths": {}}')
    old = Importer(uri=str(tmp_path / "old"), kind=Model, name="Old")
    nodes = features(FIRST)
    evaluator = Evaluator(
        examples=nodes[1]["examples"], model=old["artifact"], label="length", predict_fn=predict_features
    )

    message = error_of(bench.run(*nodes, old, evaluator), "Evaluator")

    assert "the model p/Old/artifact/1 was trained without a graph" in message


def test_what_is_made_of_features_carries_their_graph(bench):
    """A component between Transform and Evaluator cannot lose which graph made the features."""
    nodes = features(FIRST)
    half = Half(examples=nodes[1]["examples"])
    bench.run(*judged([*nodes, half], "Half", predict_features))
    nodes = features(SECOND)
    half = Half(examples=nodes[1]["examples"])

    second = bench.run(*judged([*nodes, half], "Half", predict_features))

    assert "the baseline p/Trainer/model/1" in error_of(second, "Evaluator")


def test_transform_from_the_cache_is_the_graph_of_its_first_time(bench):
    """The digest is of what the graph does: what is reused matches what it was made with."""
    first = bench.run(*judged(features(FIRST), "Transform", predict_features))
    second = bench.run(*judged(features(FIRST), "Transform", predict_features))

    graph = only(first.executions["Trainer"], "model").properties["graph_digest"]
    assert second.succeeded
    assert only(second.executions["Transform"], "examples").properties["graph_digest"] == graph


# --- InfraValidator, BulkInferrer, Pusher


def test_infra_validator_refuses_features_of_another_graph(bench):
    """A model is tried on features of its own graph, or on raw examples."""
    bench.run(*judged(features(FIRST), "Lake"))
    nodes = features(SECOND)
    champion = Fixed(nodes[-1]["model"], artifact="p/Trainer/model/1")
    infra = InfraValidator(model=champion["model"], examples=nodes[1]["examples"], predict_fn=predict_features)

    assert "the model p/Trainer/model/1" in error_of(bench.run(*nodes, champion, infra), "InfraValidator")


def test_bulk_inferrer_refuses_features_of_another_graph(bench):
    """Predictions by the champion of features of today would be wrong in silence."""
    bench.run(*judged(features(FIRST), "Lake"))
    nodes = features(SECOND)
    champion = LatestBlessed(nodes[-1]["model"], name="Champion")
    rows = Fixed(nodes[1]["examples"], artifact="p/Transform/examples/1/2")
    inferrer = BulkInferrer(examples=rows["examples"], model=champion["model"], predict_fn=predict_features)

    assert "the model p/Trainer/model/1" in error_of(bench.run(*nodes, rows, champion, inferrer), "BulkInferrer")


def test_what_serves_has_its_graph(bench, tmp_path):
    """The graph is in the served model without a line of the user's: it answers raw rows from its folder alone."""
    nodes = features(FIRST)
    pusher = Pusher(model=nodes[-1]["model"], destination=str(tmp_path / "serving"))
    bench.run(*nodes, pusher)

    (served,) = [path for path in (tmp_path / "serving").iterdir() if path.name.isdigit()]
    program = (
        "import pathlib, pyarrow as pa; from tests.scenario.test_graphs import predict; "
        f"print(predict(pathlib.Path({str(served)!r}), pa.table({{'word': ['bbbbbbbbb', 'a'], 'length': [0, 0]}})))"
    )  # a process of its own: the threads of Polars do not survive the forks of other tests
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[9.0, 1.0]"


# --- the Trainer


def test_a_graph_that_the_function_wrote_itself_stays(bench):
    """Copying the graph by hand, as a function may, is no conflict."""
    ran = bench.run(*features(FIRST, run_fn=train_and_write_a_graph))

    assert ran.succeeded
    assert (only(ran.executions["Trainer"], "model").path / "graph" / "graph.json").exists()


def test_a_model_with_a_folder_of_that_name_is_refused(bench):
    """The graph never overwrites the files of a model, and a model is never published without its graph."""
    ran = bench.run(*features(FIRST, run_fn=train_and_write_something_else))

    assert "train_and_write_something_else wrote `graph` into the model" in error_of(ran, "Trainer")


def test_a_trainer_of_features_needs_their_graph():
    """A model without its graph could not be served: refused when the pipeline is built."""
    lake = Lake(rows={}, splits=["train"])
    transform = Transform(examples=lake["examples"], preprocessing_fn=preprocess)
    recent = RollingWindow(transform["examples"], size=2)

    for examples in (transform["examples"], recent["examples"]):
        with pytest.raises(PipelineError, match=r"graph=transform\['graph'\]"):
            Trainer(examples=examples, run_fn=train)


def test_a_trainer_refuses_a_graph_that_did_not_make_its_examples(bench):
    """Two Transforms, crossed by mistake."""
    nodes = features(FIRST)[:2]
    other = Transform(examples=nodes[0]["examples"], preprocessing_fn=stateless, name="Other")
    trainer = Trainer(examples=nodes[1]["examples"], graph=other["graph"], run_fn=train)

    message = error_of(bench.run(*nodes, other, trainer), "Trainer")

    assert "p/Transform/examples/1/1" in message
    assert "another graph than p/Other/graph/1" in message


def test_a_trainer_refuses_features_of_several_graphs(bench):
    """A window over features of several runs mixes vocabularies."""
    bench.run(*features(FIRST))
    rows = {2: {"word": SECOND, "length": [len(word) for word in SECOND]}}
    lake = Lake(rows=rows, splits=["train", "eval"])
    transform = Transform(examples=lake["examples"], preprocessing_fn=preprocess)
    recent = RollingWindow(transform["examples"], size=2)
    trainer = Trainer(examples=recent["examples"], graph=transform["graph"], run_fn=train)

    message = error_of(bench.run(lake, transform, recent, trainer), "Trainer")

    assert "p/Transform/examples/1/1" in message
    assert "Put the window before Transform" in message


def test_features_are_not_transformed_again(bench):
    """The graph of the second Transform alone could not serve raw rows."""
    nodes = features(FIRST)[:2]
    again = Transform(examples=nodes[1]["examples"], preprocessing_fn=stateless, name="Again")

    assert "Put both into one preprocessing_fn" in error_of(bench.run(*nodes, again), "Again")


def test_an_imported_graph_is_recognised_by_what_it_does(bench, tmp_path):
    """A graph that was copied elsewhere and imported is the same graph; the model is trained on raw examples with it."""
    first = bench.run(*features(FIRST))
    shutil.copytree(only(first.executions["Transform"], "graph").path, tmp_path / "graph")
    lake = features(FIRST)[0]
    imported = Importer(uri=str(tmp_path / "graph"), kind=TransformGraph, name="Imported")
    trainer = Trainer(examples=lake["examples"], graph=imported["artifact"], run_fn=train_on_raw)

    second = bench.run(lake, imported, trainer)

    model = only(second.executions["Trainer"], "model")
    assert model.properties["graph_digest"] == only(first.executions["Trainer"], "model").properties["graph_digest"]
    assert (model.path / "graph" / "graph.json").exists()


def test_a_warm_start_from_another_graph_is_refused(bench):
    """The base's weights are of other features: code 0 was another word."""
    bench.run(*judged(features(FIRST), "Lake"))

    second = bench.run(*features(SECOND, warm=True))

    message = error_of(second, "Trainer")
    assert "the base p/Trainer/model/1" in message
    assert "base_graph='any'" in message


def test_a_function_may_map_the_features_of_its_base(bench):
    """With base_graph="any" it gets the base, whose graph is beside it."""
    bench.run(*judged(features(FIRST), "Lake"))

    second = bench.run(*features(SECOND, warm=True, base_graph="any"))

    notes = json.loads((only(second.executions["Trainer"], "model").path / "lengths.json").read_text())
    assert notes["base"] == "p/Trainer/model/1"
