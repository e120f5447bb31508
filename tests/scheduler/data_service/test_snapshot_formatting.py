"""The commands that look after snapshots, typed."""

import json
from pathlib import Path

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.state import Metadata
from spanwise.pipelines.input.snapshot.storage import files_at
from tests.scheduler.conftest import Command


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with one whole snapshot of 100 numbers."""
    path = tmp_path / "snapshots"
    for _ in inputs.range(100).snapshot(path):
        pass
    return path


def chunk(path: Path) -> Path:
    (found,) = path.rglob("*.snapshot")
    return found


def test_ls_lists_what_there_is(spanwise: Command, kept: Path) -> None:
    """A snapshot a line; nothing is no error."""
    code, out, _ = spanwise("snapshot", "ls", "--path", str(kept))

    assert code == 0
    assert out.splitlines()[1].split()[1:3] == ["whole", "100"]
    assert spanwise("snapshot", "ls", "--path", f"{kept}-none") == (0, "No snapshot is stored here yet.\n", "")


def test_ls_as_a_document(spanwise: Command, kept: Path) -> None:
    """For programs, with whole fingerprints."""
    (found,) = json.loads(spanwise("snapshot", "ls", "--json", "--path", str(kept))[1])

    assert (found["state"], found["elements"]) == ("whole", 100)
    assert len(found["fingerprint"]) == 32


def test_show_names_run_and_chunks(spanwise: Command, kept: Path) -> None:
    """By the first letters of the fingerprint."""
    fingerprint = chunk(kept).parts[-3]

    code, out, _ = spanwise("snapshot", "show", fingerprint[:6], "--path", str(kept))

    assert code == 0
    assert "00000000.snapshot" in out
    assert chunk(kept).parent.name in out


def test_a_save_that_failed_says_why(spanwise: Command, tmp_path: Path) -> None:
    """As long as nobody has begun it again."""
    fingerprint = "abc" + "0" * 29
    folder = SnapshotFolder(files_at(tmp_path), fingerprint)
    run = Metadata(run_id="r1", fingerprint=fingerprint, started=0.0)
    assert folder.claim(run, folder.look())
    folder.fail("r1", "the disk is full")

    code, out, _ = spanwise("snapshot", "show", "abc", "--path", str(tmp_path))

    assert code == 0
    assert f"snapshot {fingerprint}: failed" in out
    assert "the save job failed: the disk is full" in out


def test_show_of_what_is_not_there(spanwise: Command, kept: Path) -> None:
    """Says which there are."""
    code, out, err = spanwise("snapshot", "show", "zz", "--path", str(kept))

    assert (code, out) == (1, "")
    assert chunk(kept).parts[-3] in err


def test_verify_finds_a_byte_that_has_changed(spanwise: Command, kept: Path) -> None:
    """Exit 0 while all is well, 1 and the file's name when it is not."""
    well = spanwise("snapshot", "verify", "--path", str(kept))
    content = bytearray(chunk(kept).read_bytes())
    content[100] ^= 1
    chunk(kept).write_bytes(content)

    damaged = spanwise("snapshot", "verify", "--path", str(kept))

    assert (well[0], damaged[0]) == (0, 1)
    assert well[1].startswith("1 snapshot intact, 0 chunks damaged")
    assert str(chunk(kept)) in damaged[1]


def test_gc_removes_what_was_replaced_and_only_when_told_what_is_whole(spanwise: Command, kept: Path) -> None:
    """A dry run removes nothing; a whole snapshot stays unless an age is given."""
    for _ in inputs.range(100).snapshot(kept, mode="write"):
        pass
    before = sorted(kept.rglob("*.snapshot"))

    dry = spanwise("snapshot", "gc", "--dry-run", "--path", str(kept))
    after_dry = sorted(kept.rglob("*.snapshot"))
    spanwise("snapshot", "gc", "--path", str(kept))
    after = sorted(kept.rglob("*.snapshot"))
    spanwise("snapshot", "gc", "--older-than", "0s", "--path", str(kept))

    assert "would be removed" in dry[1]
    assert (len(before), after_dry, len(after)) == (2, before, 1)
    assert list(kept.rglob("*.snapshot")) == []


def test_gc_lists_folders_that_are_not_snapshots_and_touches_none(spanwise: Command, kept: Path) -> None:
    """Data that lies beside the snapshots is listed as unknown; of many such folders, the first ones."""
    for number in range(25):
        (kept / f"data-{number:02}" / "v1").mkdir(parents=True)

    _, out, _ = spanwise("snapshot", "gc", "--path", str(kept))

    assert len(list(kept.glob("data-*/v1"))) == 25
    assert out.splitlines()[0].split() == ["unknown,", "not", "touched", "why"]
    assert out.splitlines()[1].split()[0] == "data-00"
    assert out.splitlines()[-3:] == ["and 5 more folders", "", "Nothing to remove."]


def test_snapshots_are_below_the_root_unless_a_path_is_given(spanwise: Command, kept: Path) -> None:
    """So that they need not be named."""
    assert "whole" in spanwise("snapshot", "ls", "--root", str(kept.parent))[1]
