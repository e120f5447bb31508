"""Rollbacks: what `push` and `unbless` do where several Pushers push the models of a pipeline, and where one was tried."""

import shlex
from pathlib import Path

import pytest

from tests.scenario.command_line import CommandLine

PIPELINE = """
from spanwise import *

class Learn(Component):
    def run(self, model: Output[Model], score: int) -> None:
        (model.path / "score").write_text(str(score))

class Judge(Component):
    def run(self, model: Input[Model], champion: Input[Model | None], blessing: Output[Blessing]) -> None:
        mine = int((model.path / "score").read_text())
        if not mine:
            raise RuntimeError("no rows")
        blessing.blessed = int(champion is None or mine >= int((champion.path / "score").read_text()))
        blessing.current_model, blessing.current_model_id = model.name, model.id
        (blessing.path / "judged").touch()

def flow(score: int = 1, production: str = "production") -> Pipeline:
    learn = Learn(score=score)
    champion = Champion(learn["model"], pushed_by="Production")
    judge = Judge(model=learn["model"], champion=champion["model"])
    pusher = Pusher(model=learn["model"], blessing=judge["blessing"], destination=production, name="Production")
    trial = Pusher(model=learn["model"], destination="staging", name="Staging")
    return Pipeline("flow", [learn, champion, judge, pusher, trial])
"""
"""Production has what was judged, staging has all."""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(tmp_path, monkeypatch, PIPELINE)


def learn(bench: CommandLine, *scores: int) -> None:
    for score in scores:
        assert bench("run", "flow.py", "--param", f"score={score}") == (0 if score else 1)


def served(folder: str) -> str:
    """The score of the model that serves there."""
    return max(Path(folder).glob("[0-9]*/score"), key=lambda file: int(file.parent.name)).read_text()


@pytest.mark.parametrize("tried", [0, 1], ids=["not judged", "refused"])
def test_a_pusher_rolls_back_to_what_it_has_pushed_itself(bench, capsys, tried):
    """The newest model was only tried in staging; it is the champion of no other Pusher, and none may push it."""
    learn(bench, 5, 6, tried)
    capsys.readouterr()

    assert bench("unbless", "flow/Learn/model/2", "--because", "6 is wrong") == 0
    assert capsys.readouterr().out.splitlines()[1:4] == [
        "The champion of Production is flow/Learn/model/1.",
        "The champion of Staging is flow/Learn/model/3.",
        "flow/Learn/model/2 still serves.",
    ]
    assert bench("push", "flow/Learn/model/3", "--because", "6 is wrong", "--node", "Production") == 2
    assert bench("push", "flow", "--because", "6 is wrong", "--node", "Production") == 0
    assert (served("production"), served("staging")) == ("5", str(tried))


@pytest.mark.parametrize("part", [["--to", "Judge"], []], ids=["not pushed", "refused"])
def test_a_trial_with_other_arguments_moves_no_push(bench, part):
    """Its Pusher has pushed nothing there; the push goes to where the model serves, not to where it was tried."""
    learn(bench, 5, 6)
    tried = ["--param", "score=1", "--param", "production=trial"]
    assert bench("run", "flow.py", *tried, *part) == 0

    assert bench("push", "flow/Learn/model/1", "--because", "6 is wrong", "--node", "Production") == 0

    assert served("production") == "5"
    assert not Path("trial").exists()


def test_each_printed_way_back_works(bench, capsys):
    """One for each Pusher that serves the model, with its name: a push without it is refused where several read it."""
    learn(bench, 5, 6)
    capsys.readouterr()

    assert bench("unbless", "flow/Learn/model/2", "--because", "6 is wrong") == 0

    printed = sorted(line for line in capsys.readouterr().out.splitlines() if line.startswith("Roll back:"))
    assert printed == [
        f"Roll back:  spanwise push flow/Learn/model/1 --node {node} --because TEXT"
        for node in ("Production", "Staging")
    ]
    for line in printed:
        assert bench(*shlex.split(line)[3:]) == 0
    assert (served("production"), served("staging")) == ("5", "5")


def test_no_way_back_is_to_a_model_that_was_refused_since_it_served(bench, capsys):
    """Its Evaluator has judged it again; a push of it is refused."""
    learn(bench, 5, 6, 5)
    capsys.readouterr()

    assert bench("unbless", "flow/Learn/model/2", "--because", "6 is wrong") == 0

    assert capsys.readouterr().out.splitlines()[-1] == (
        "No other model may be pushed by Production. List the models:  spanwise artifacts flow --type Model"
    )


def test_a_push_that_failed_names_its_pusher_to_push_again(bench, capsys):
    """Without its name, the command is refused where several Pushers read the model."""
    learn(bench, 5, 6)
    Path("production").rename("aside")
    Path("production").touch()
    capsys.readouterr()

    assert bench("push", "flow/Learn/model/1", "--node", "Production", "--because", "6 is wrong") == 1

    again = "spanwise push flow/Learn/model/1 --node Production --because TEXT"
    assert f"Push it again:  {again}" in capsys.readouterr().out
    Path("production").unlink()
    Path("aside").rename("production")
    assert bench(*shlex.split(again)[1:]) == 0
    assert served("production") == "5"
