"""Disk inventory: what lies in a pipeline's folder, each under the record it belongs to."""

import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import Execution, Model, State
from spanwise.orchestrator.publisher import place
from spanwise.orchestrator.storage import BucketArchive, parse_url
from spanwise.orchestrator.store import Claim
from spanwise.scheduler.inspect.disk_inventory import ASIDE
from tests.scheduler.yard import Yard, examples, short


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.store.close()


def test_what_was_published_is_found_where_it_lies(yard: Yard) -> None:
    """Each artifact by its id, with its folder; nothing else."""
    model = yard.day(1)

    found = yard.inventory()

    assert [short(a) for a in found.artifacts] == ["ExampleGen/examples/1/1", "Trainer/model/1"]
    assert found.locations[model.id] == model.uri
    assert (found.half_removed, found.leftovers, found.unknown_files) == ((), (), ())


def test_what_is_gone_is_not_held(yard: Yard) -> None:
    """The disk is where the search begins: an artifact without files is none of it."""
    model = yard.day(1)
    Path(model.uri).rename(yard.root / "elsewhere")

    assert yard.there() == ["ExampleGen/examples/1/1"]


def test_a_root_may_be_reached_by_another_name(yard: Yard, tmp_path: Path) -> None:
    """Artifacts are those that were recorded under the first name, and lie where they were looked for."""
    yard.day(1)
    (tmp_path / "link").symlink_to(yard.root)
    yard.root = tmp_path / "link"

    found = yard.inventory()

    assert len(found.artifacts) == 2
    assert found.unknown_files == ()
    assert all(Path(path).is_relative_to(tmp_path / "link") for path in found.locations.values())


def test_several_artifacts_of_one_output_are_each_found(yard: Yard) -> None:
    """They lie in the folder of the execution, side by side."""
    run = yard.run()
    begun = yard.store.begin(Execution(pipeline="flights", run=run.number, node="Transform"))
    home = place(yard.root, begun, "examples")
    drafts = []
    for number in range(2):
        (home / str(number)).mkdir(parents=True)
        drafts.append(type(examples(1))(str(home / str(number)), properties=examples(number).properties))
    (home / "notes").mkdir()
    yard.store.publish(replace(begun, state=State.COMPLETE, outputs={"examples": tuple(drafts)}))

    found = yard.inventory()

    assert sorted(found.locations.values()) == [str(home / "0"), str(home / "1")]
    assert [s.path for s in found.unknown_files] == [home / "notes"]


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELED])
def test_what_an_execution_left_that_did_not_succeed_is_left_over(yard: Yard, state: State) -> None:
    """Nothing of it was published, and nothing ever will be."""
    failed = yard.do(yard.run(state=state), "Trainer", state=state, model=Model(""))

    (left,) = yard.inventory().leftovers

    assert left.path == place(yard.root, failed, "model")
    assert left.why == f"flights/1/Trainer/1 {state.value}"
    assert left.size_bytes == len("Trainer 1")


def test_what_is_being_written_is_left_out(yard: Yard) -> None:
    """An execution that goes on has a folder, and it is neither an artifact nor left over."""
    yard.do(yard.run(state=State.RUNNING), "Trainer", state=State.RUNNING, model=Model(""))

    found = yard.inventory()

    assert (found.artifacts, found.leftovers, found.unknown_files) == ((), (), ())


def test_what_no_run_has_written_is_a_stranger(yard: Yard) -> None:
    """Files, folders with other names, numbers that no execution or run has, and links: each with the reason."""
    yard.day(1)
    home = yard.root / "flights"
    (home / "notes.txt").write_text("mine")
    (home / "Trainer" / "model" / "best").mkdir()
    (home / "Trainer" / "model" / "777").mkdir()
    (home / "Trainer" / "other").symlink_to(yard.root)
    (home / "Trainer" / "model" / "778").symlink_to(yard.root)
    (home / ".runs" / "9").mkdir(parents=True)

    found = yard.inventory()

    assert {str(s.path.relative_to(home)): s.why for s in found.unknown_files} == {
        "notes.txt": "no run writes such a file",
        "Trainer/model/best": "no run writes such a file",
        "Trainer/model/777": "no execution 777 of Trainer is recorded",
        "Trainer/other": "a link, which gc does not follow",
        "Trainer/model/778": "a link, which gc does not follow",
        ".runs/9": "no run 9 of flights is recorded",
    }
    assert found.leftovers == ()
    assert len(found.artifacts) == 2


def test_a_number_of_another_node_is_a_stranger(yard: Yard) -> None:
    """A folder that was copied to another node's belongs to no record."""
    model = yard.day(1)
    copied = yard.root / "flights" / "Other" / "model" / Path(model.uri).name
    copied.mkdir(parents=True)

    assert [s.path for s in yard.inventory().unknown_files] == [copied]


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "archived"])
def test_what_no_execution_has_written_is_a_stranger_in_the_archive_too(yard: Yard, copied: bool) -> None:
    """After the restore of older metadata a number is unknown, another node's, or that of one that made something else."""
    archive = BucketArchive(yard.root, parse_url(f"memory://{uuid.uuid4().hex}/home"))
    yard.store.archive = archive
    model = Path(yard.day(1).uri)
    failed = yard.do(yard.run(state=State.FAILED), "Trainer", state=State.FAILED, model=Model(""))
    home = yard.root / "flights"
    strangers = [home / "Trainer/model/777", home / "Other/model" / model.name, home / "Trainer/report" / model.name]
    left = place(yard.root, failed, "model")
    for folder in (*strangers, left):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "data").write_text("kept")
        archive.keep(folder)
        if not copied:
            shutil.rmtree(folder)

    found = yard.inventory()

    assert sorted(s.path for s in found.unknown_files) == sorted(strangers)
    assert [each.path for each in found.leftovers] == [left]


def test_a_pipelines_folder_that_is_a_link_is_not_entered(yard: Yard) -> None:
    """What it leads to is outside of the root."""
    yard.day(1)
    (yard.root / "flights").rename(yard.root / "elsewhere")
    (yard.root / "flights").symlink_to(yard.root / "elsewhere")

    found = yard.inventory()

    assert found.artifacts == ()
    assert [s.path for s in found.unknown_files] == [yard.root / "flights"]


def test_old_logs_and_what_runs_had_for_themselves_are_left_over(yard: Yard) -> None:
    """Scratch and checkpoints of a run that has ended at once, its logs when they are old."""
    for run in (yard.run(), yard.run(state=State.RUNNING)):
        for name in ("logs", "Trainer.scratch", "Trainer.checkpoints"):
            folder = yard.root / "flights" / ".runs" / str(run.number) / name
            folder.mkdir(parents=True)
            (folder / "x").write_text("four")
    room = yard.root / "flights" / ".runs" / "1"

    young = {left.path.relative_to(room): left.size_bytes for left in yard.inventory().leftovers}
    yard.now += timedelta(days=90)
    old = {str(left.path.relative_to(room)) for left in yard.inventory().leftovers}

    assert young == {Path("Trainer.scratch"): 4, Path("Trainer.checkpoints"): 4}
    assert old == {"Trainer.scratch", "Trainer.checkpoints", "logs"}


def test_a_link_is_never_left_over(yard: Yard) -> None:
    """Whatever it is called: what it leads to is not ours, and perhaps it was put there on purpose."""
    yard.day(1)
    run = yard.run()
    (yard.root / "logs elsewhere").mkdir()
    room = yard.root / "flights" / ".runs" / str(run.number)
    room.mkdir(parents=True)
    links = [room / "logs", yard.root / "flights" / "Trainer" / "model" / f"{ASIDE}9"]
    for link in links:
        link.symlink_to(yard.root / "logs elsewhere")
    yard.now += timedelta(days=100)

    found = yard.inventory()

    assert found.leftovers == ()
    assert sorted(s.path for s in found.unknown_files) == sorted(links)


def test_what_is_empty_is_left_over(yard: Yard) -> None:
    """The folder of a run whose logs went, by a collection that was stopped before it had removed the folder too."""
    room = yard.root / "flights" / ".runs" / str(yard.run().number)
    room.mkdir(parents=True)

    assert [left.path for left in yard.inventory().leftovers] == [room]


def test_old_logs_of_ticks_are_left_over(yard: Yard) -> None:
    """By when they were last written; what else lies beside them is a stranger."""
    home = yard.root / "flights" / ".schedule"
    home.mkdir(parents=True)
    for name, days in (("old.1.log", 90), ("young.1.log", 89), ("notes", 90)):
        (home / name).write_text("four")
        written = (yard.now - timedelta(days=days)).timestamp()
        os.utime(home / name, (written, written))

    found = yard.inventory()

    assert [left.path.name for left in found.leftovers] == ["old.1.log"]
    assert [s.path.name for s in found.unknown_files] == ["notes"]


def test_what_a_collection_left_is_told_from_what_is_whole(yard: Yard) -> None:
    """Marked and with its own name, it is begun; with the other name, it is left over."""
    first, second = yard.day(1), yard.day(2)
    yard.store.claim(Claim("collected", first.name), Claim("collected", second.name))
    aside = Path(second.uri).with_name(f"{ASIDE}{Path(second.uri).name}")
    Path(second.uri).rename(aside)

    found = yard.inventory()

    assert [a.id for a in found.half_removed] == [first.id]
    assert [left.path for left in found.leftovers] == [aside]
    assert "Trainer/model/1" not in yard.there()
