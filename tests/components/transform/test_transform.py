"""Transform: the component, as it is placed and as it runs after earlier runs of its own."""

import json
import shutil

import polars as pl
import pytest

from spanwise.components.transform.graph import Preprocessor
from spanwise.components.transform.preprocessing import scale_to_z_score, vocabulary
from spanwise.components.transform.transform import Transform, chosen_splits
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.errors import ParameterError
from spanwise.orchestrator.run import State
from spanwise.orchestrator.store import Claim
from tests.components.flow import Bench, Lake
from tests.forked import in_fork

ROWS = {"x": [1.0, 2.0, 3.0, 4.0], "carrier": ["AA", "B6", None, "AA"], "delay": [1, 20, None, 16]}


def preprocess(columns):
    return {
        "x": scale_to_z_score(columns["x"]),
        "carrier": vocabulary(columns["carrier"]),
        "late": columns["delay"] > 15,
    }


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def transformed(bench, spans, **parameters):
    """What Transform made of a window of these spans, the last of them new."""
    lake = Lake(rows={span: {**ROWS, "x": [float(span), 2.0, 3.0, 4.0]} for span in spans}, splits=["train", "eval"])
    outcome = bench.run(lake, Transform(examples=lake["examples"], preprocessing_fn=preprocess, **parameters))
    return outcome.executions["Transform"]


def reads(execution):
    (cache,) = execution.outputs["cache"]
    return {each["span"]: each["analyzed_rows"] for each in json.loads((cache.path / "reads.json").read_text())}


def test_a_daily_run_reads_the_new_day_and_says_which_cache_it_used(bench):
    """Each run finds by itself what the runs before it kept; that it did is recorded, and is not in its key."""
    first = transformed(bench, [1, 2])
    second = transformed(bench, [1, 2, 3])

    assert (first.state, second.state) == (State.COMPLETE, State.COMPLETE)
    assert reads(first) == {1: 4, 2: 4}
    assert reads(second) == {1: 0, 2: 0, 3: 4}
    assert json.loads(second.parameters["earlier"])[0]["name"] == first.outputs["cache"][0].name
    assert not [part for part in second.key_parts if "earlier" in part]

    again = transformed(bench, [1, 2, 3])

    assert again.state is State.CACHED
    assert again.outputs["examples"] == second.outputs["examples"]


def test_a_cache_that_was_garbage_collected_is_not_looked_for(bench):
    """Its files are gone on purpose, which is no damage to warn of; the one before it is used."""
    first = transformed(bench, [1, 2])
    second = transformed(bench, [1, 2, 3])
    (collected,) = second.outputs["cache"]
    bench.store.claim(Claim(COLLECTED, collected.name, {}))
    shutil.rmtree(collected.path)

    third = transformed(bench, [1, 2, 3, 4])

    assert [each["name"] for each in json.loads(third.parameters["earlier"])] == [first.outputs["cache"][0].name]
    assert reads(third) == {1: 0, 2: 0, 3: 4, 4: 4}


def test_there_are_examples_for_each_span_and_one_graph_for_all(bench):
    """Transformed examples carry span, version, splits, rows and columns of their own; the graph serves them all."""
    execution = transformed(bench, [7, 3])

    made = execution.outputs["examples"]
    assert [each.properties["span"] for each in made] == [3, 7]
    assert made[0].properties == {
        "span": 3,
        "version": None,
        "split_names": ["train", "eval"],
        "rows": {"train": 4, "eval": 4},
        "columns": {"x": "double", "carrier": "int32", "late": "bool"},
        "calendar": "number",
        "graph_digest": made[1].properties["graph_digest"],
    }
    assert in_fork(gives, execution.outputs["graph"][0].uri, made[0].path / "Split-eval" / "part-00000.parquet")


def gives(graph, part):
    """Whether the graph makes of the rows of span 3 what is in this part."""
    made = Preprocessor.load(graph).apply(pl.DataFrame({**ROWS, "x": [3.0, 2.0, 3.0, 4.0]}))
    return pl.read_parquet(part).equals(made)


def test_a_function_that_cannot_be_kept_is_refused_when_it_is_placed():
    """A mistake in the wiring is told before anything runs."""
    lake = Lake(rows={}, splits=["train"])

    with pytest.raises(ParameterError, match=r"the graph is to keep preprocessing_fn as source\..*with def"):
        Transform(examples=lake["examples"], preprocessing_fn=lambda columns: columns)
    with pytest.raises(ParameterError, match="analyze names no split"):
        Transform(examples=lake["examples"], preprocessing_fn=preprocess, analyze=())


def test_train_is_analyzed_and_every_split_transformed():
    """Unless chosen, the analyzers see train, and all splits are transformed."""
    chosen = chosen_splits([["train", "test"], ["test", "train"]], None, None)

    assert chosen.analyze == ("train",)
    assert set(chosen.transform) == {"train", "test"}


@pytest.mark.parametrize(
    ("given", "analyze", "transform", "said"),
    [
        (
            [["train"], ["train", "test"]],
            None,
            None,
            "must have the same splits; one has train and another train, test",
        ),
        ([["a", "b"]], None, None, "no split 'train'; they have: a, b"),
        ([["train"]], ["train"], ["eval"], "no split 'eval'"),
        ([], [], ["train"], "analyze names no split"),
    ],
)
def test_splits_that_are_not_there_are_refused(given, analyze, transform, said):
    """The spans of a window agree on their splits, and those that were chosen are among them."""
    with pytest.raises(ParameterError, match=said):
        chosen_splits(given, analyze, transform)
