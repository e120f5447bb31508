from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.orchestrator import SettingsError, StoreUnavailable
from spanwise.orchestrator.store import MemoryStore
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


def test_two_roots_may_belong_to_one_store(tmp_path: Path) -> None:
    """Its numbers are used once, whichever root they name a folder in."""
    store = MemoryStore()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        root.claim_root(store, settings(tmp_path / name))

    assert (tmp_path / "a" / root.NOTE).read_text() == (tmp_path / "b" / root.NOTE).read_text()


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
