"""The commands that trace: what they print, what they end with, and what they say of what is not there."""

import json

import pytest

from spanwise.orchestrator.mlmd import open_store
from tests.scheduler.past import Past
from tests.scheduler.records import DAY


@pytest.fixture
def past(folder):
    """Two days and a pushed model of both, in the metadata that commands typed here read; day 1 came again."""
    store = open_store(str(folder / ".spanwise" / "metadata.db"), root=folder / ".spanwise")
    past = Past(folder / ".spanwise" / "flights", store)
    past.serving = folder / "serving"
    days = [past.ingest(DAY + n) for n in range(2)]
    past.model = past.train(days)
    past.push(past.model, 7)
    past.ingest(DAY, version=2)
    yield past
    store.close()


def test_lineage_is_a_tree_of_artifacts(past, spanwise):
    """Each with who made it."""
    code, out, _ = spanwise("lineage", "flights/Trainer/model/1")

    head, *branches, last = out.splitlines()
    assert code == 0
    assert head.startswith(
        "flights/Trainer/model/1  Model, learned from 2013-01-05 to 2013-01-06  <- Trainer in flights/"
    )
    assert [line[:3] for line in branches] == ["├─ ", "└─ "]
    assert "flights/ExampleGen/examples/15710/1  Examples 2013-01-05 v1" in branches[0]
    assert last == "It was made from 2 artifacts, 3 executions."


def test_lineage_down_stops_at_its_depth(past, spanwise):
    """And marks where there may be more."""
    code, out, _ = spanwise("lineage", "flights/ExampleGen/examples/15710/1", "--down", "--depth", "1")

    assert code == 0
    assert "└─ flights/Trainer/model/1" in out
    assert out.splitlines()[1].endswith("…")
    assert "PushedModel" not in out


def test_what_many_share_is_shown_once(past, spanwise):
    """The branches of a second artifact of the same maker are above."""
    one, two = past.do(
        "Split", {"rows": [past.ingest(DAY + 2)]}, a=[past.draft(type(past.model))], b=[past.draft(type(past.model))]
    ).values()
    merged = past.do("Merge", {"a": one, "b": two}, model=[past.draft(type(past.model))])["model"][0]

    _, out, _ = spanwise("lineage", merged.name)

    assert out.count("flights/ExampleGen/examples/15712/1") == 1
    assert out.count("(above)") == 1


def test_lineage_as_mermaid_has_every_edge(past, spanwise):
    """From artifacts through executions to artifacts."""
    code, out, _ = spanwise("lineage", "flights/Trainer/model/1", "--format", "mermaid")

    assert code == 0
    assert out.startswith("flowchart TD\n")
    assert out.count(" --> ") == 5


def test_lineage_as_json_has_the_graph(past, spanwise):
    """Executions with the ids of what went in and came out."""
    _, out, _ = spanwise("lineage", "flights/Trainer/model/1", "--json")

    told = json.loads(out)
    made = next(e for e in told["executions"] if past.model.id in e["outputs"])
    ids = {a["name"]: a["id"] for a in told["artifacts"]}
    assert told["artifact"] == "flights/Trainer/model/1"
    assert set(made["inputs"]) == set(ids.values()) - {past.model.id}


@pytest.mark.parametrize("form", ["name", "id", "folder", "file", "uri"])
def test_an_artifact_is_found_by_whatever_names_it(past, spanwise, form):
    """Its name, its id, its folder, a file in that, a URI."""
    model = past.do("Real", model=[_below_the_root(past)])["model"][0]
    (model.path / "weights").write_text("w")
    said = {
        "name": model.name, "id": str(model.id), "folder": model.uri, "file": f"{model.uri}/weights",
        "uri": model.path.as_uri(),
    }  # fmt: skip

    code, out, err = spanwise("lineage", said[form])

    assert code == 0, err
    assert out.startswith(model.name)


def _below_the_root(past):
    """A draft in the folder where a runner puts what the next execution makes: its id, which only counts up."""
    draft = past.draft(type(past.model), spans=[1])
    begun = len([e for r in past.store.runs("flights") for e in past.store.executions(r)]) + 1
    folder = past.folder / "Real" / "model" / str(begun)
    folder.mkdir(parents=True)
    return type(draft)(str(folder), properties=draft.properties)


def test_a_name_that_is_nearly_right_is_told_what_was_meant(past, spanwise):
    """Exit code 2, and the nearest names."""
    code, _, err = spanwise("lineage", "flights/Trainer/modl/1")

    assert code == 2
    assert "Did you mean flights/Trainer/model/1" in err


@pytest.mark.parametrize(
    ("said", "words"),
    [("999", "There is no artifact 999"), ("./nowhere", "Nothing was published in"), ("zzz", "spanwise artifacts")],
)
def test_what_names_nothing_is_refused(past, spanwise, said, words):
    """An id, a path, a word."""
    code, _, err = spanwise("lineage", said)

    assert code == 2
    assert words in err


def test_tainted_ends_with_1_while_a_tainted_model_serves(past, spanwise):
    """And with 0 when another does; the pipeline may be left out when there is one."""
    code, out, _ = spanwise("tainted", "--span", "2013-01-05")
    past.push(past.train([past.ingest(DAY + 1)]), 8)
    later, after, _ = spanwise("tainted", "flights", "--span", "2013-01-05")

    assert code == 1
    assert "Replace it:  spanwise backfill flights.py --span 2013-01-05" in out
    assert later == 0
    assert "None of them serves now." in after


def test_tainted_as_json_ends_alike(past, spanwise):
    """One document, and the exit code."""
    code, out, _ = spanwise("tainted", "--span", "2013-01-05", "--json")

    assert code == 1
    assert json.loads(out)["serving"] == ["flights/Trainer/model/1"]


def test_tainted_all_lists_what_else_was_made(past, spanwise):
    """With its folder."""
    _, out, _ = spanwise("tainted", "--span", "2013-01-05", "--all")

    assert "flights/Pusher/pushed_model/1" in out
    assert str(past.folder) in out


def test_tainted_takes_a_file_that_names_the_pipeline(past, spanwise, folder):
    """And then the command says that file."""
    (folder / "mine.py").write_text(
        "from spanwise.orchestrator import Component, Output, Pipeline, Report\n"
        "class One(Component):\n"
        "    def run(self, report: Output[Report]) -> None: ...\n"
        "flights = Pipeline('flights', [One()])\n"
    )

    _, out, err = spanwise("tainted", "mine.py", "--span", "2013-01-05")

    assert "spanwise backfill mine.py --span 2013-01-05" in out, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--span", "2013-01-09"], "nothing for span 2013-01-09"),
        (["--span", "2013-01-05", "--version", "9"], "no version 9"),
        (["--span", "soon"], "is not a span"),
        (["--span", "Trainer=2013-01-05"], "Write one of:  --span ExampleGen=2013-01-05"),
        (["--span", "5"], "5 is 1970-01-06 here"),
        (["fligts", "--span", "2013-01-05"], "Did you mean flights?"),
    ],
)
def test_tainted_refuses_what_cannot_be_asked(past, spanwise, words, said):
    """Exit code 2, not 0: an empty answer would say that all is well."""
    code, _, err = spanwise("tainted", *words)

    assert code == 2
    assert said in err


def test_diff_and_why_are_told_in_the_words_of_both_runs(past, spanwise):
    """And as JSON."""
    last = next(past.store.runs("flights")).number
    _, table, _ = spanwise("diff", "flights/1", f"flights/{last}")
    _, document, _ = spanwise("diff", "flights/1", f"flights/{last}", "--json")
    _, text, _ = spanwise("why", f"flights/{last}", "ExampleGen")
    _, parts, _ = spanwise("why", f"flights/{last}", "ExampleGen", "--json")

    assert "Trainer" not in table.splitlines()[0]
    assert json.loads(document)["runs"] == ["flights/1", f"flights/{last}"]
    assert text.startswith(f"ExampleGen of flights/{last} was executed")
    assert json.loads(parts)["node"] == "ExampleGen"


def test_a_node_that_is_not_in_the_run_ends_with_2(past, spanwise):
    """With the nodes there are."""
    code, _, err = spanwise("why", "flights", "Trainr")

    assert code == 2
    assert "has no node 'Trainr'" in err
