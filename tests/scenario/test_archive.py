"""An archive keeps the files of artifacts: a root can be lost, and two hosts can share one history."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise import (
    Artifact,
    Component,
    ExampleGen,
    Examples,
    Input,
    Model,
    Output,
    Pipeline,
    RollingWindow,
)
from spanwise.orchestrator.errors import DamagedArtifact, StorageError
from spanwise.orchestrator.fingerprint import of_tree
from spanwise.orchestrator.integrity import find_damage
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import State
from spanwise.orchestrator.run_dir import set_aside
from spanwise.orchestrator.signature import Outputs
from spanwise.orchestrator.storage import BucketArchive, StorageBucket, open_bucket, parse_url
from spanwise.orchestrator.storage.helper import HelpedBucket
from spanwise.orchestrator.storage.manifest import Manifest
from spanwise.orchestrator.testing import Lake, Trial
from spanwise.scheduler.inspect.disk_inventory import take_inventory
from tests.contract.object_storage import serve


class Count(Component):
    """Counts the rows of a window; leaves an empty folder and a link, which belong to an artifact too."""

    def run(self, examples: Input[list[Examples]], model: Output[Model], shards: Outputs[Artifact]) -> None:
        import pyarrow.parquet as pq

        rows = sum(pq.read_metadata(file).num_rows for e in examples for file in e.path.rglob("*.parquet"))
        (model.path / "rows").write_text(str(rows))
        (model.path / "empty").mkdir()
        (model.path / "latest").symlink_to("rows")
        model.spans = [e.span for e in examples]
        for number in range(2):
            (shards.new().path / "shard").write_text(str(number))


def counted(lake):
    ingest = ExampleGen(pattern=lake.pattern)
    recent = RollingWindow(ingest["examples"], size=2, missing=1)
    return Pipeline("rows", [ingest, recent, Count(examples=recent["examples"])])


@pytest.fixture(scope="module")
def home():
    with serve("moto") as home:
        yield home


@pytest.fixture
def place(home):
    return parse_url(f"{home}/{uuid.uuid4().hex}")


class Host:
    """A machine with a root of its own, on metadata and an archive that it shares."""

    def __init__(self, tmp_path, name, place):
        self.root = tmp_path / name
        self.archive = BucketArchive(self.root, place)
        self.store = open_store(str(tmp_path / "metadata.db"), root=self.root, archive=self.archive)
        self.trial = Trial(self.root, self.store)


@pytest.fixture
def host(tmp_path, place):
    with contextlib.ExitStack() as stack:

        def make(name):
            made = Host(tmp_path, name, place)
            stack.callback(made.store.close)
            return made

        yield make


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    for span in (1, 2, 3):
        lake.arrive(span=span, rows=[{"x": number} for number in range(10 * span)])
    return lake


def rows_of(ran):
    return (ran.artifact("Count", "model").path / "rows").read_text()


def test_a_second_host_reads_the_window_of_the_first(host, lake):
    """Its root is empty; what it needs is fetched, what it has no use for is not."""
    first, second = host("first"), host("second")
    for span in (1, 2):
        first.trial.run(counted(lake), span=span)

    ran = second.trial.run(counted(lake), span=3)

    assert rows_of(ran) == "50"
    assert len(list((second.root / "rows" / "ExampleGen" / "examples").iterdir())) == 2, "of spans 2 and 3"


def test_a_root_that_is_lost_costs_nothing(host, lake):
    """Cached results are still found, without a copy; an artifact comes back when its path is asked for, all of it."""
    one = host("first")
    before = one.trial.run(counted(lake), span=1)
    digest = before.artifact("Count", "model").content
    shutil.rmtree(one.root / "rows")

    again = one.trial.run(counted(lake), span=1)

    assert again.states["ExampleGen"] is State.CACHED
    assert again["Count"].state is State.CACHED
    model = again.artifact("Count", "model")
    assert not Path(model.uri).exists()
    assert sorted(p.name for p in model.path.iterdir()) == ["empty", "latest", "rows"]
    assert (model.path / "latest").readlink() == Path("rows")
    assert find_damage(model) is None
    assert model.content == digest
    assert [(a.path / "shard").read_text() for a in again.artifacts("Count", "shards")] == ["0", "1"]


def test_a_damaged_copy_is_fetched_again(host, lake):
    """A rotten byte on this disk, before anything is learned from it."""
    one = host("first")
    first = one.trial.run(counted(lake), span=1)
    (file,) = first.artifact("ExampleGen", "examples").path.glob("Split-train/*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])

    ran = one.trial.run(counted(lake), span=2)

    assert ran["Count"].state is State.COMPLETE
    assert file.read_bytes() == whole


def test_an_archive_that_is_damaged_is_named(host, lake, place):
    """What it has is not what was published."""
    one = host("first")
    first = one.trial.run(counted(lake), span=1)
    shutil.rmtree(one.root / "rows")
    folder = Path(first.artifact("ExampleGen", "examples").uri).relative_to(one.root).as_posix()
    bucket = open_bucket(place.home)
    for info in list(bucket.list((place / folder).key)):
        bucket.write(info.key, b"rotten")

    ran = one.trial.run(counted(lake), span=2)

    assert ran["Count"].state is State.FAILED
    assert "does not have the content that was published" in ran["Count"].error


@pytest.mark.parametrize("name", ["upload_part", "write"])
def test_a_node_whose_files_cannot_be_kept_fails(host, lake, place, monkeypatch, name):
    """Nothing is published; the next run does the work again."""
    one = host("first")

    def refuse(self, *_arguments, **_options):
        raise StorageError(f"{self.home}: access was denied. Check the credentials in the environment.")

    with monkeypatch.context() as patch:
        for bucket in (StorageBucket, HelpedBucket):  # a node asks a helper if this process has used storage
            patch.setattr(bucket, name, refuse)
        failed = one.trial.run(counted(lake), span=1)
    ran = one.trial.run(counted(lake), span=1)

    assert failed["ExampleGen"].state is State.FAILED
    assert "access was denied" in failed["ExampleGen"].error
    assert ran["ExampleGen"].state is State.COMPLETE
    assert find_damage(ran.artifact("ExampleGen", "examples")) is None


def test_the_archive_says_what_it_has(host, lake, place):
    """Also what an upload that died has left, without a manifest."""
    one = host("first")
    ran = one.trial.run(counted(lake), span=1)
    open_bucket(place.home).write((place / "rows/Count/model/99/rows").key, b"half")

    found = set(one.archive.places("rows"))

    published = {a.uri for key in ("model", "shards") for a in ran.artifacts("Count", key)}
    assert found == published | {ran.artifact("ExampleGen", "examples").uri, str(one.root / "rows/Count/model/99")}
    one.archive.remove(str(one.root / "rows/Count/model/99"))
    assert str(one.root / "rows/Count/model/99") not in one.archive.places("rows")


def test_the_log_of_a_run_holds_nothing_of_a_forgotten_run_of_its_number(host, lake, place):
    """The metadata were restored from a backup of before that run, whose log was longer and went elsewhere since."""
    bucket = open_bucket(place.home)
    for piece in ("1/logs/Count.1.log/000000", "1/logs/Count.1.log/000001", "2/logs/Count.1.log/000000"):
        bucket.write((place / f"rows/.runs/{piece}").key, b"forgotten\n")
    one, second = host("first"), host("second")

    ran = one.trial.run(counted(lake), span=1)
    again = one.trial.run(counted(lake), span=1)

    opened = second.archive.open_log(str(second.root / Path(ran["Count"].log).relative_to(one.root)))
    assert b"forgotten" not in (b"" if opened is None else opened.read())
    assert [again["Count"].state, again["Count"].log] == [State.CACHED, ""]
    assert [e.log for e in second.store.executions(second.store.run("rows", 2)) if e.log] == []
    assert bucket.head((place / "rows/.runs/1~1/logs/Count.1.log/000001").key) is not None


def test_nothing_current_is_a_leftover_where_a_forgotten_execution_has_written(host, lake, place):
    """Its output of that number was one artifact, and is several by now."""
    one, second = host("first"), host("second")
    ran = one.trial.run(counted(lake), span=1)
    shards = ran.artifacts("Count", "shards")
    output = Path(shards[0].uri).parent
    open_bucket(place.home).write((place / f"{output.relative_to(one.root)}.json").key, Manifest.of(output).to_json())

    for each in (one, second):
        found = take_inventory(each.store, each.root, "rows", now=datetime.now(UTC), logs=timedelta(days=1))

        assert found.leftovers == ()
        assert sorted(a.name for a in found.artifacts if "shards" in a.name) == sorted(a.name for a in shards)


NAMES = st.sampled_from(["rows", "metrics.json", "0.json", "7.json", "0/1.json", "Split-0/part.json", "1/rows"])
TREES = st.sets(NAMES, min_size=1).map(sorted)


@given(
    outputs=st.dictionaries(
        st.integers(1, 12), st.tuples(st.booleans(), st.lists(TREES, min_size=1, max_size=3)), min_size=1, max_size=4
    )
)
@settings(max_examples=30, deadline=None)
def test_a_file_of_an_artifact_is_not_taken_for_an_artifact(tmp_path_factory, outputs):
    """Whatever its files are called, an output of one artifact is that one, and an output of several is those."""
    archive = BucketArchive(tmp_path_factory.mktemp("root"), parse_url(f"memory://{uuid.uuid4().hex}/home"))
    kept = {}
    for number, (several, trees) in outputs.items():
        output = archive.root / "rows/Count/model" / str(number)
        for place, names in [(output / str(n), t) for n, t in enumerate(trees)] if several else [(output, trees[0])]:
            for name in names:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_text(f"{number} {name}")
            archive.keep(place)
            kept[str(place)] = {name: (place / name).stat().st_size for name in names}

    found = list(archive.places("rows"))
    archive.remove(found[0])

    assert sorted(found) == sorted(kept)
    del kept[found[0]]
    assert sorted(archive.places("rows")) == sorted(kept)
    assert {place: archive.list_files(place) for place in kept} == kept
    assert all(archive.open_file(place, name).read() for place, names in kept.items() for name in names)


def test_a_program_can_be_executed_once_it_has_come_back(tmp_path):
    """`subprocess.run` of it failed on another machine; the digest counts no permissions."""
    home, folder = parse_url(f"memory://{uuid.uuid4().hex}/home"), Path("rows/Build/model/1")
    one, two = (BucketArchive(tmp_path / name, home) for name in ("one", "two"))
    (one.root / folder).mkdir(parents=True)
    for name, mode in (("score.sh", 0o755), ("weights", 0o644)):
        (one.root / folder / name).write_text(name)
        (one.root / folder / name).chmod(mode)
    content = of_tree(one.root / folder).digest
    one.keep(one.root / folder, content)

    two.fetch(str(two.root / folder), content)

    assert [path.name for path in (two.root / folder).iterdir() if os.access(path, os.X_OK)] == ["score.sh"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["publish", "read", "lose", "forget"]), st.integers(0, 1), st.integers(1, 2)), max_size=14
)


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_a_host_reads_what_was_published_last_at_a_place(tmp_path_factory, steps):
    """After the restore of an older database a number is given again, and a host may have a copy of what had it before."""
    home = parse_url(f"memory://{uuid.uuid4().hex}/home")
    hosts = [BucketArchive(tmp_path_factory.mktemp("root"), home) for _ in range(2)]
    published = {}
    for step, (what, number, place) in enumerate(steps):
        host = hosts[number]
        folder = host.root / "rows/Count/model" / str(place)
        if what == "publish":
            set_aside(folder)
            folder.mkdir(parents=True)
            (folder / "rows").write_text(f"{step:03d}")
            published[place] = f"{step:03d}", of_tree(folder).digest
            host.keep(folder, published[place][1])
        elif what == "lose":
            shutil.rmtree(folder, ignore_errors=True)
        elif what == "forget":
            shutil.rmtree(host.root / ".copies", ignore_errors=True)  # as in a folder of before there were records
        elif place in published:
            artifact = Model(str(folder), id=1, content=published[place][1], archive=host)
            assert not artifact.is_here or (folder / "rows").read_text() == published[place][0]
            assert (artifact.path / "rows").read_text() == published[place][0]
            assert artifact.is_here
            assert find_damage(artifact) is None


def test_what_another_history_has_left_is_not_read_where_the_archive_has_nothing(tmp_path):
    """It is refused, not taken for what was published."""
    archive = BucketArchive(tmp_path, parse_url(f"memory://{uuid.uuid4().hex}/home"))
    folder = tmp_path / "rows/Count/model/1"
    folder.mkdir(parents=True)
    (folder / "rows").write_text("old")

    with pytest.raises(DamagedArtifact, match="is not what was published"):
        archive.fetch(str(folder), "another digest")
