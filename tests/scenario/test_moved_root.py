"""A root that is moved or copied together with its metadata reads its own files, wherever the original is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.scenario.cli import call, lay_out


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A project after 3 runs; each test has a copy of its own."""
    folder = lay_out(tmp_path_factory.mktemp("built") / "project", spans=4)
    for span in "123":
        call(folder, "run", "rides.py", "--span", span)
    return folder.rename(folder.with_name("moved"))  # or each copy would find the root that has pushed what serves


@pytest.fixture
def original(tmp_path, built):
    return Path(shutil.copytree(built, tmp_path / "original", symlinks=True))


def test_a_copied_root_reads_its_own_files(tmp_path, original):
    """With the original gone, the copy runs, finds every artifact and every log, and a full check finds no damage."""
    copy = tmp_path / "copy"
    shutil.copytree(original, copy, symlinks=True)
    original.rename(tmp_path / "gone")

    call(copy, "run", "rides.py", "--span", "4")

    shown = call(copy, "artifacts", "rides", "--json")
    assert str(copy / ".spanwise" / "rides" / "ExampleGen") in shown
    assert str(original / ".spanwise") not in shown
    assert "Trainer" in call(copy, "logs", "rides/2")
    assert "fail" not in call(copy, "doctor")


def test_a_copied_root_and_the_original_do_not_read_each_other(tmp_path, original):
    """What changes in the original is not seen in the copy: a run of the copy reads what was copied."""
    copy = tmp_path / "copy"
    shutil.copytree(original, copy, symlinks=True)
    for file in (original / ".spanwise" / "rides" / "ExampleGen").rglob("*.parquet"):
        file.write_bytes(b"\0" * file.stat().st_size)

    call(copy, "run", "rides.py", "--span", "4")

    newest = max((copy / "serving").glob("[0-9]*"), key=lambda version: int(version.name))
    assert json.loads((newest / "model.json").read_text())["spans"] == [2, 3, 4]


def test_the_pusher_of_a_moved_root_finds_what_it_pushed(tmp_path, original):
    """What serves is not pushed once more, and older versions are removed as if the root had not been moved."""
    moved = original.rename(tmp_path / "moved")
    before = {version.name for version in (moved / "serving").glob("[0-9]*")}

    said = call(moved, "run", "rides.py", "--span", "3")

    assert "not pushed again" in said
    assert {version.name for version in (moved / "serving").glob("[0-9]*")} == before
    call(moved, "run", "rides.py", "--span", "4", "--param", "keep=1")
    (left,) = (moved / "serving").glob("[0-9]*")
    assert json.loads((left / "model.json").read_text())["spans"] == [2, 3, 4]
    assert "what serves" not in call(moved, "doctor")


def test_gc_of_a_copy_knows_its_folders_and_leaves_the_original_alone(tmp_path, original):
    """The copy's folders are artifacts that gc may collect, none is foreign, and the original keeps all of its own."""
    copy = tmp_path / "copy"
    shutil.copytree(original, copy, symlinks=True)
    before = sorted((original / ".spanwise").rglob("*"))

    said = call(copy, "gc", "rides", "--keep-last", "1", "--keep-younger", "0s", "--keep-marked", "none")

    assert "unknown" not in said
    assert "no run writes" not in said
    assert sorted((original / ".spanwise").rglob("*")) == before
    assert len(list((copy / ".spanwise" / "rides" / "Trainer" / "model").iterdir())) == 1, said


def test_the_metadata_of_one_root_are_not_used_with_another(tmp_path):
    """Every command refuses and names the first root; a root that is moved keeps the metadata that it has elsewhere."""
    project = lay_out(tmp_path / "project", spans=2)
    (project / "spanwise.toml").write_text(f'metadata = "{tmp_path / "metadata.db"}"\n')
    call(project, "run", "rides.py", "--span", "1")

    commands = ["runs", "artifacts rides", "window rides.py", "schedule status rides.py", "gc", "doctor --deep"]
    refused = [call(project, *command.split(), "--root", "new", code=None) for command in commands]
    refused.append(call(project, "run", "rides.py", "--span", "2", "--root", "new", code=2))

    for said in refused:
        assert f":{project / '.spanwise'}. Its artifacts would not be found here." in said, said
        assert "there is nothing at" not in said
    (project / ".spanwise").rename(project / "new")
    assert "complete" in call(project, "run", "rides.py", "--span", "2", "--root", "new")
    assert "fail" not in call(project, "doctor", "--root", "new")
