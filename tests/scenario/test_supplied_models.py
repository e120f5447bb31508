"""The newest model, where the part that chooses it does not train: of a run is what its own nodes have made."""

import pytest

from tests.scenario.command_line import CommandLine

TEXT = """
from pathlib import Path
from spanwise import *
from tests.scenario.random_life import Ingest, read_text

class Learn(Component):
    def run(self, examples: Input[Examples], model: Output[Model]) -> None:
        (model.path / "text").write_text(read_text(examples))
        model.spans = [examples.span]

class Wait(Component):
    def run(self, model: Input[Model], report: Output[Report]) -> None:
        if Path("stop").exists():
            raise RuntimeError("no memory left")
        (report.path / "text").write_text("")

class Predict(Component):
    def run(self, model: Input[Model | None], candidate: Input[Model | None], report: Output[Report]) -> None:
        (report.path / "text").write_text(read_text(model) if model else "")

def flow() -> Pipeline:
    ingest = Ingest(lake="lake")
    learn = Learn(examples=ingest["examples"])
    wait = Wait(model=learn["model"])
    best = CHOICE
    return Pipeline("flow", [ingest, learn, wait, best, Predict(model=best["model"], candidate=CANDIDATE)])
"""

NEWEST = ['Latest(learn["model"]', 'LatestBlessed(learn["model"]', 'UnseenSpans(ingest["examples"], learn["model"]']


def train(tmp_path, monkeypatch, choice, *, candidate="None"):
    """Two runs have each trained a model that was blessed; what the resolver chose is of the first in the second."""
    text = TEXT.replace("CHOICE", f'{choice}, name="Best", after=[wait])').replace("CANDIDATE", candidate)
    bench = CommandLine(tmp_path, monkeypatch, text)
    for span in (1, 2, 3):
        bench.arrive(span, "a")
    for span in (1, 2):
        assert bench("run", "flow.py", "--span", str(span), "--to", "Wait") == 0
        assert bench("bless", f"flow/Learn/model/{span}", "--because", "good") == 0
    return bench


def chosen(bench):
    run = next(iter(bench.store.runs("flow")))
    (best,) = (execution for execution in bench.store.executions(run) if execution.node == "Best")
    return [artifact.name for artifact in best.outputs["model"]]


@pytest.mark.parametrize("choice", NEWEST)
def test_a_part_that_does_not_train_reads_the_newest_model(tmp_path, monkeypatch, choice):
    """Its base run supplies that model, which is not of this run: nobody compares it with anything."""
    bench = train(tmp_path, monkeypatch, choice)
    assert bench("run", "flow.py", "--span", "3", "--to", "Ingest") == 0
    assert bench("run", "flow.py", "--from", "Best", "--base-run", "2") == 0

    assert chosen(bench) == ["flow/Learn/model/2"]
    assert bench("run", "flow.py", "--from", "Predict", "--base-run", "latest") == 0


@pytest.mark.parametrize("choice", NEWEST)
def test_a_part_never_compares_a_model_that_it_is_supplied_with_with_itself(tmp_path, monkeypatch, choice):
    """Law 8, as in a run that trains."""
    bench = train(tmp_path, monkeypatch, choice, candidate='learn["model"]')
    assert bench("run", "flow.py", "--from", "Best") == 0

    assert chosen(bench) == ["flow/Learn/model/1"]


@pytest.mark.parametrize("choice", NEWEST)
def test_the_model_of_a_run_that_is_resumed_is_its_own(tmp_path, monkeypatch, choice):
    """It has made it itself, before it failed."""
    bench = train(tmp_path, monkeypatch, choice)
    (tmp_path / "stop").touch()
    assert bench("run", "flow.py", "--span", "3") == 1
    (tmp_path / "stop").unlink()
    assert bench("resume", "flow/3") == 0

    assert chosen(bench) == ["flow/Learn/model/2"]
