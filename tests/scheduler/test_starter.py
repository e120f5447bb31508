import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.orchestrator import UsageError
from spanwise.scheduler.project import load, settings, starter
from tests.scheduler.conftest import environment


def test_the_starter_is_a_pipeline_with_data_settings_and_a_test(folder: Path) -> None:
    """It validates as it is written, with the settings it is written with."""
    starter.write_project(folder / "rides")

    read = settings.read(folder=folder / "rides")
    loaded = load.load(str(folder / "rides" / "rides.py"), settings=read.params)

    order = ("ExampleGen", "RowCount", "RollingWindow", "Trainer", "Champion", "Evaluator", "Pusher")
    assert loaded.pipeline.order == order
    assert loaded.parameters["window"] == 3
    assert len(list((folder / "rides" / "data").glob("*/v1/rides.csv"))) == starter.DAYS


def test_the_starter_is_the_same_every_time(folder: Path) -> None:
    """Its data are made up, but not by chance."""
    for name in ("a", "b"):
        starter.write_project(folder / name)

    texts = [{f.relative_to(folder / n): f.read_bytes() for f in (folder / n).rglob("*.*")} for n in ("a", "b")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("there", ["rides.py", "spanwise.toml", "data"])
def test_no_file_of_a_user_is_overwritten(folder: Path, there: str) -> None:
    """A folder that has one of the project's files or folders is left as it is."""
    (folder / there).write_text("mine")

    with pytest.raises(UsageError, match=f"has {there} already, so nothing was written"):
        starter.write_project(folder)

    assert [(f.name, f.read_text()) for f in folder.iterdir()] == [(there, "mine")]


def test_other_files_do_not_matter(folder: Path) -> None:
    """A repository, an environment or notes may be there first."""
    (folder / ".git").mkdir()
    (folder / "notes.txt").write_text("mine")

    starter.write_project(folder)

    assert (folder / "rides.py").is_file()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_file_is_no_folder(folder: Path) -> None:
    """The message names it."""
    (folder / "x").write_text("")

    with pytest.raises(UsageError, match="x is a file"):
        starter.write_project(folder / "x")


def test_a_root_is_noted_in_the_settings(folder: Path) -> None:
    """`init --root` holds for every command typed there later."""
    starter.write_project(folder / "rides", "/lake/rides")

    assert settings.read(folder=folder / "rides").root == Path("/lake/rides")


@pytest.mark.slow
def test_the_test_of_the_starter_passes(folder: Path) -> None:
    """What is written works: two days are ingested, a model is trained, judged and pushed."""
    starter.write_project(folder / "rides")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder / "rides", env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
