"""Span-driven evaluation: each day judges the newest model that has not learned from that day, and pushes it."""

import json

import pytest

from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.main import main
from tests.scenario.inline import run_inline

PIPELINE = '''
"""Predicts the fares of a day by those of the day before."""

import json

from spanwise import Evaluator, ExampleGen, Pipeline, Pusher, RollingWindow, Threshold, Trainer, UnseenSpans


def train(task):
    (task.model_dir / "fare.json").write_text(json.dumps(task.table("train")["fare"].to_pylist()[0]))


def predict(model, table):
    return [float(json.loads((model / "fare.json").read_text()))] * len(table)


def fares() -> Pipeline:
    ingest = ExampleGen(pattern="lake/{SPAN}/*.csv")
    recent = RollingWindow(ingest["examples"], size=1)
    trainer = Trainer(examples=recent["examples"], run_fn=train)
    unseen = UnseenSpans(ingest["examples"], trainer["model"])
    evaluator = Evaluator(
        examples=unseen["examples"], model=unseen["model"], label="fare", predict_fn=predict, metrics=("mae",),
        thresholds={"mae": Threshold(at_most=1.5)}, split="train", replicates=0,
    )
    pusher = Pusher(model=unseen["model"], blessing=evaluator["blessing"], destination="serving")
    return Pipeline("fares", [ingest, recent, trainer, unseen, evaluator, pusher])
'''


@pytest.fixture
def store(tmp_path, monkeypatch) -> MemoryStore:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fares.py").write_text(PIPELINE)
    for span, fare in ((1, 10), (2, 11), (3, 20)):
        (tmp_path / "lake" / str(span)).mkdir(parents=True)
        (tmp_path / "lake" / str(span) / "rows.csv").write_text("fare\n" + f"{fare}\n" * 40)
    return run_inline(monkeypatch)


def outputs(store, run, node):
    (execution,) = (e for e in store.executions(store.run("fares", run)) if e.node == node)
    return execution, {key: [a.name for a in found] for key, found in execution.outputs.items()}


def test_a_model_is_judged_on_the_day_after_it_and_then_pushed(store, tmp_path, capsys):
    """The first day has no model to judge; of the model that is judged it is recorded how far it has learned."""
    assert main(["run", "fares.py", "--span", "1"]) == 1
    assert "no earlier run has published one on Trainer['model']" in capsys.readouterr().out
    assert not (tmp_path / "serving").exists()

    assert main(["run", "fares.py", "--span", "2"]) == 0
    chose, found = outputs(store, 2, "UnseenSpans")
    assert found == {"examples": ["fares/ExampleGen/examples/2/1"], "model": ["fares/Trainer/model/1"]}
    assert chose.reason == "chose 2 and fares/Trainer/model/1, which learned from spans to 1"
    evaluation = outputs(store, 2, "Evaluator")[0].outputs["evaluation"][0]
    assert evaluation.properties["metrics"]["mae"] == 1.0
    (served,) = (tmp_path / "serving").glob("[0-9]*/fare.json")
    assert json.loads(served.read_text()) == 10

    assert main(["run", "fares.py", "--span", "3"]) == 0
    assert outputs(store, 3, "Evaluator")[0].outputs["blessing"][0].properties["blessed"] == 0  # 11 is not 20
    assert len(list((tmp_path / "serving").glob("[0-9]*"))) == 1


def test_other_commands_know_what_it_chooses(store, tmp_path, capsys):
    """`window` shows its spans; a part is supplied by what it chose, unless it would choose otherwise now."""
    for span in (1, 2):
        main(["run", "fares.py", "--span", str(span)])
    capsys.readouterr()

    assert main(["window", "fares.py"]) == 0
    assert "UnseenSpans chooses from ExampleGen['examples'] (size=1" in capsys.readouterr().out
    assert main(["gc", "fares.py", "--keep-last", "0", "--dry-run"]) == 0
    assert main(["run", "fares.py", "--from", "Evaluator"]) == 0
    assert main(["run", "fares.py", "--span", "3", "--to", "ExampleGen"]) == 0
    assert main(["run", "fares.py", "--from", "Evaluator"]) != 0
    assert "UnseenSpans chose" in capsys.readouterr().err


GATED = PIPELINE.replace("    recent = ", '    check = Check(examples=ingest["examples"])\n    recent = ').replace(
    "def train", "class Check(Gate):\n    def run(self, examples: Input[Examples]) -> None: ...\n\n\ndef train"
)
GATED = GATED.replace('(ingest["examples"], ', '(check["examples"], ').replace("[ingest, ", "[ingest, check, ")
GATED = GATED.replace("ExampleGen, Pipeline", "ExampleGen, Examples, Gate, Input, Pipeline")


def test_a_model_that_learned_from_a_span_that_was_refused_since_is_not_judged_or_pushed(store, tmp_path, capsys):
    """The one before it is, and it is said why; when no other is left, nothing is pushed."""
    (tmp_path / "fares.py").write_text(GATED)
    for span, fare in ((2, 18), (3, 11), (4, 11)):
        (tmp_path / "lake" / str(span)).mkdir(exist_ok=True)
        (tmp_path / "lake" / str(span) / "rows.csv").write_text("fare\n" + f"{fare}\n" * 40)
    for span in "12":
        main(["run", "fares.py", "--span", span])
    assert main(["refuse", "fares.py", "--span", "2", "--because", "a strike"]) == 0

    assert main(["run", "fares.py", "--span", "3"]) == 0

    assert outputs(store, 3, "UnseenSpans")[1]["model"] == ["fares/Trainer/model/1"]
    assert "; fares/Trainer/model/2 learned from 2, which was refused by" in capsys.readouterr().out
    assert outputs(store, 3, "Pusher")[0].outputs["pushed_model"][0].properties["pushed"] == 1
    for span in "13":
        main(["refuse", "fares.py", "--span", span, "--because", "a strike"])
    assert main(["run", "fares.py", "--span", "4"]) == 1
    why = "UnseenSpans wants a model that learned only from spans before 4, but fares/Trainer/model/3 learned from 3"
    assert why in capsys.readouterr().out
    assert main(["window", "fares.py"]) == 1
    assert (
        "A run would fail: UnseenSpans wants a model that learned only from spans before 4" in capsys.readouterr().out
    )
