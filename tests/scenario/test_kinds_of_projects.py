"""Kinds of a project that extend the product's: what is promised of a model holds of a `Boosted(Model)`, and so on."""

import shutil

import pytest

from tests.scenario.command_line import CommandLine

PIPELINE = '''
from spanwise import Blessing, Component, Examples, Input, Model, Output, Pipeline, Pusher
from tests.scenario.random_life import Ingest, read_text

class Clean(Examples):
    """Rows without errors."""

class Boosted(Model):
    trees: int

class Praise(Blessing):
    """By a person."""

class Prepare(Component):
    def run(self, examples: Input[Examples], clean: Output[Clean]) -> None:
        clean.span, clean.version, clean.split_names = examples.span, examples.version, ["train"]
        clean.graph_digest = "features"
        (clean.path / "text").write_text(read_text(examples))

class Learn(Component):
    def run(self, examples: Input[Examples], model: Output[Boosted]) -> None:
        (model.path / "text").write_text(read_text(examples))
        model.trees, model.spans = 3, [examples.span]

class Judge(Component):
    def run(self, model: Input[Model], blessing: Output[Praise]) -> None:
        blessing.blessed, blessing.current_model, blessing.current_model_id = 1, model.name, model.id
        (blessing.path / "text").write_text(model.name)

def flow() -> Pipeline:
    ingest = Ingest(lake="lake")
    prepare = Prepare(examples=ingest["examples"])
    learn = Learn(examples=prepare["clean"])
    judge = Judge(model=learn["model"])
    push = Pusher(model=learn["model"], blessing=judge["blessing"], destination="serving")
    return Pipeline("flow", [ingest, prepare, learn, judge, push])
'''
MODEL = "flow/Learn/model/1"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A model that serves, of a pipeline whose file, and with it the kinds, is in no process that asks."""
    bench = CommandLine(tmp_path, monkeypatch, PIPELINE)
    bench.arrive(1, "day")
    assert bench("run", "flow.py", "--span", "1") == 0
    return bench


def test_a_model_of_a_projects_kind_learned_from_its_spans(bench):
    """`tainted` names it and says that it serves; it is no other descendant."""
    found = bench.ask("tainted", "flow", "--span", "1")

    assert [(each["name"], each["serves"]) for each in found["models"]] == [(MODEL, True)]
    assert MODEL not in {each["name"] for each in found["others"]}


def test_a_model_is_recorded_with_the_graph_of_examples_of_a_projects_kind(bench):
    """Without it, it would be judged and served on columns of any graph."""
    assert bench.store.artifact(MODEL).properties["graph_digest"] == "features"


def test_a_model_of_a_projects_kind_is_found_among_models(bench):
    """By the type that it has, and by the one that it extends."""
    for kind in ("Model", "Boosted"):
        assert [each["name"] for each in bench.ask("artifacts", "flow", "--type", kind)] == [MODEL]


def test_people_decide_about_a_model_of_a_projects_kind(bench):
    """Its blessing is taken back and given again, and it is pushed by hand."""
    assert bench("push", MODEL, "--because", "it serves already") == 0
    assert bench("unbless", MODEL, "--because", "wrong") == 0
    assert bench("push", MODEL, "--because", "to see") != 0
    assert bench("bless", MODEL, "--because", "right after all") == 0
    shutil.rmtree(bench.folder / "serving")
    assert bench("push", MODEL, "--because", "it is gone") == 0
    assert [each.read_text() for each in (bench.folder / "serving").glob("*/text")] == ["1v1day"]
