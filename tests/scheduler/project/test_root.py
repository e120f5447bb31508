import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.orchestrator import SettingsError, StoreUnavailable
from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.store import Claim, MemoryStore
from spanwise.scheduler.project import root
from spanwise.scheduler.project.settings import Settings


def settings(folder: Path) -> Settings:
    return Settings(root=folder, metadata=str(folder / "metadata.db"))


def test_a_root_notes_the_store_it_is_first_used_with(tmp_path: Path) -> None:
    """The note and the store's identity are the same, and stay so."""
    store = MemoryStore()

    root.claim_root(store, settings(tmp_path))
    noted = (tmp_path / root.NOTE).read_text().strip()
    root.claim_root(store, settings(tmp_path))

    claim = store.find_claim("store", "identity")
    assert claim is not None
    assert claim.facts["id"] == noted
    assert [f.name for f in tmp_path.iterdir()] == [root.NOTE]


def test_the_store_of_another_root_is_refused(tmp_path: Path) -> None:
    """None of its artifacts lies below a new root; the error names its root and, if that is gone, how to go on."""
    store = MemoryStore()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    root.claim_root(store, settings(tmp_path / "a"))

    with pytest.raises(SettingsError, match=f"first used with .*:{tmp_path / 'a'}") as refused:
        root.claim_root(store, settings(tmp_path / "b"))

    assert list((tmp_path / "b").iterdir()) == []
    subprocess.run(str(refused.value).partition("without them:  ")[2], shell=True, check=True)
    root.claim_root(store, settings(tmp_path / "b"))


def test_a_root_that_was_removed_is_made_anew_at_its_place(tmp_path: Path) -> None:
    """So is one whose first process died before it had recorded the store there."""
    store = MemoryStore()
    root.claim_root(store, settings(tmp_path))
    (tmp_path / root.NOTE).unlink()

    root.claim_root(store, settings(tmp_path))

    assert (tmp_path / root.NOTE).read_text().strip() == root.identity(store)


def test_of_two_new_roots_one_takes_a_new_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is refused, however near they come: it looked before, and claims after."""
    store = MemoryStore()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    claim = store.claim

    def claim_second(*claims: Claim) -> None:
        monkeypatch.undo()
        root.claim_root(store, settings(tmp_path / "a"))
        claim(*claims)

    monkeypatch.setattr(store, "claim", claim_second)

    with pytest.raises(SettingsError, match="belongs to another root"):
        root.claim_root(store, settings(tmp_path / "b"))


@pytest.mark.parametrize("known", [True, False])
def test_a_root_of_another_store_is_refused(tmp_path: Path, known: bool) -> None:
    """Whether the store in hand has been used before or not."""
    root.claim_root(MemoryStore(), settings(tmp_path))
    other = MemoryStore()
    if known:
        (tmp_path / "other").mkdir()
        root.claim_root(other, settings(tmp_path / "other"))

    with pytest.raises(SettingsError, match="belongs to another metadata store"):
        root.claim_root(other, settings(tmp_path))


class AwayArchive:
    """Object storage that does not answer."""

    def claimed_by(self) -> str | None:
        raise StorageError("s3://lake/root: the storage could not be reached.")


@pytest.mark.parametrize(("first", "noted", "readable"), [("root", "", True), ("old", "", False), ("root", "x", False)])
def test_records_are_read_while_storage_is_away_where_they_are_known_to_be_of_this_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, noted: str, readable: bool
) -> None:
    """By what the store says of its first root, unless this machine has noted another store."""
    store = MemoryStore()
    store.claim(Claim("store", "identity", {"id": "1", "root": f"s3://lake/{first}"}))
    if noted:
        (tmp_path / root.NOTE).write_text(noted)
    monkeypatch.setattr(root, "archive_of", lambda _settings: AwayArchive())

    with nullcontext() if readable else pytest.raises(StorageError):
        root.check_root(store, replace(settings(tmp_path), url="s3://lake/root"))


def test_looking_makes_nothing(tmp_path: Path) -> None:
    """A store that is not there reads as an empty one."""
    with root.open_for_reading(settings(tmp_path / "new")) as store:
        assert store.pipelines() == []

    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The message names it, and what to type."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreUnavailable, match="--root DIR"), root.open_for_writing(settings(tmp_path / "file")):
        pass


def test_the_store_is_opened_and_claimed(tmp_path: Path) -> None:
    """What one command has recorded, the next one reads; a moved root keeps its store."""
    with root.open_for_writing(settings(tmp_path / "root")) as store:
        assert store.pipelines() == []

    with root.open_for_reading(settings(tmp_path / "root")) as again:
        assert again.find_claim("store", "identity") is not None

    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / root.NOTE).write_text("another\n")
    moved = replace(settings(tmp_path / "copy"), metadata=str(tmp_path / "root" / "metadata.db"))
    with pytest.raises(SettingsError), root.open_for_reading(moved):
        pass
