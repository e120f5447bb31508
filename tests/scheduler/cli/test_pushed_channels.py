"""push and unbless where a pipeline has models that its Pusher does not read: exports serve, not what they are made of."""

import re
from pathlib import Path

import pytest

from tests.scheduler.cli.rides import PARTS, find_served, train_models
from tests.scheduler.conftest import Command, run_warm

PIPELINE = (
    PARTS
    + """
class Export(Component):
    def run(self, model: Input[Model], exported: Output[Model]) -> None:
        (exported.path / "exported").write_text((model.path / "k").read_text())

def rides(k: int = 1) -> Pipeline:
    rows = Rows()
    trainer = Trainer(examples=rows["examples"], run_fn=train, parameters={"k": k})
    other = Trainer(name="Other", examples=rows["examples"], run_fn=train, parameters={"k": -k})
    evaluator, of_other = (
        measure(each["model"], examples=rows["examples"], name=f"Of{each.name}") for each in (trainer, other)
    )
    export = Export(model=trainer["model"])
    pusher = Pusher(model=export["exported"], blessing=evaluator["blessing"], destination="serving")
    return Pipeline("rides", [rows, trainer, other, evaluator, of_other, export, pusher])
"""
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of each Trainer; what was exported of one Trainer's was pushed."""
    return train_models(tmp_path_factory.mktemp("exported"), PIPELINE, (1, 2))


def served() -> dict[str, str]:
    """The files of the highest version."""
    return {path.name: path.read_text() for path in find_served().iterdir() if not path.name.startswith(".")}


def test_the_champion_of_a_pipeline_is_of_the_channel_that_its_pusher_reads(rides: Command) -> None:
    """What a server loads is an export, not the model that it was made of."""
    rides("unbless", "rides/Trainer/model/2", "--because", "wrong")

    code, _, err = rides("push", "rides", "--because", "2 is wrong")

    assert (code, err) == (0, "")
    assert served() == {"exported": "1"}


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ("rides/Trainer/model/1", "Push what was made of it:  spanwise push rides/Export/exported/1 --because TEXT"),
        ("rides/Other/model/1", "List the models: spanwise artifacts rides --type Model"),
    ],
)
def test_a_model_that_the_pusher_does_not_read_is_not_pushed(rides: Command, model: str, fix: str) -> None:
    """It would serve in the place of what servers expect; the command that pushes what was made of it is named."""
    code, _, err = rides("push", model, "--because", "2 is wrong")

    assert code == 2
    assert f"Pusher pushes Export['exported']; {model} is of {model.split('/')[1]}['model']" in err
    assert fix in err
    assert served() == {"exported": "2"}


def test_a_blessing_that_is_taken_back_is_that_of_the_export_too(rides: Command) -> None:
    """The answer says that what was made of the model serves; the command that it names works, the one back does not."""
    code, out, _ = rides("unbless", "rides/Trainer/model/2", "--because", "wrong")

    assert code == 0
    assert out.splitlines()[1:] == [
        "The champion is rides/Trainer/model/1.",
        "rides/Export/exported/2, which was made of it, still serves.",
        "Roll back:  spanwise push rides/Export/exported/1 --because TEXT",
    ]
    assert rides("push", "rides/Export/exported/1", "--because", "wrong")[0] == 0
    assert served() == {"exported": "1"}
    code, _, err = rides("push", "rides/Export/exported/2", "--because", "again")
    assert code == 2
    assert "rides/Export/exported/2 is not blessed by" in err


def test_a_garbage_collection_leaves_what_was_exported_of_a_blessed_model(rides: Command) -> None:
    """It has never served, and is what serves when somebody pushes that model."""
    run_warm(
        "run", "rides.py", "--param", "k=3", "--to", "OfTrainer", "--to", "Export", cwd=Path.cwd(), reads_data=True
    )
    for k in (4, 7):  # 7 is not good enough
        run_warm("run", "rides.py", "--param", f"k={k}", cwd=Path.cwd(), reads_data=True)
    rides("run", "rides.py", "--param", "k=4")

    code, out, _ = rides("gc", "rides", "--keep-younger", "0s", "--keep-last", "1", "--all")
    removed, kept = out.split("\nKEPT ")

    assert code == 0
    assert "rides/Export/exported/5" in removed
    assert re.search(r"rides/Export/exported/3 .* blessed\n", kept)
    assert rides("push", "rides/Export/exported/3", "--because", "4 is wrong")[0] == 0
    assert served() == {"exported": "3"}


def test_what_was_decided_about_a_model_is_shown_of_its_export(rides: Command) -> None:
    """It holds for it, as `push` says: a list of models showed the export of a refused one without a verdict."""
    rides("unbless", "rides/Trainer/model/2", "--because", "wrong")

    listed = rides("artifacts", "rides", "--type", "Model")[1]
    drawn = rides("lineage", "rides/Export/exported/2")[1]

    for text in (listed, drawn):
        said = [line for line in text.splitlines() if "not blessed by" in line]
        assert [line.split()[0].removeprefix("└─").strip() or line.split()[1] for line in said] == [
            "rides/Export/exported/2",
            "rides/Trainer/model/2",
        ]
