"""Checkpoints and prepared spans under a root in object storage: an attempt on another machine goes on with them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime

import numpy as np
import pytest

from spanwise.components import Trainer
from spanwise.orchestrator import Retry, checkpoints
from spanwise.orchestrator.errors import Fenced
from spanwise.orchestrator.storage import BucketArchive, forget_buckets, open_bucket, parse_url
from spanwise.orchestrator.storage.checkpoints import POINTER
from spanwise.orchestrator.store import MemoryStore
from tests.components.flow import Bench, Lake, only
from tests.contract.faulty_proxy import proxied
from tests.contract.object_storage import SERVERS, at_endpoint, endpoint, serve

BEGAN = datetime(2026, 3, 1, 3, tzinfo=UTC).isoformat()
ROWS = {span: {"a": np.arange(400.0) + span} for span in (1, 2)}


@pytest.fixture(
    scope="module", params=["s3" if "s3" in SERVERS else "moto", *(kind for kind in SERVERS if kind == "gs")]
)
def home(request):
    with serve(request.param) as home:
        yield home


@pytest.fixture
def archive(home, tmp_path):
    return BucketArchive(tmp_path / "one", parse_url(f"{home}/{uuid.uuid4().hex}"))


def machine(archive, name, attempt, *, began=BEGAN):
    """The folder of a node on a machine, and what its attempt stores."""
    root = archive.root.with_name(name)
    folder = root / "p/.runs/1/Trainer.checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    return folder, BucketArchive(root, archive.home).checkpoints(folder, began=began, attempt=attempt)


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stored(archive):
    """The keys of all objects of checkpoints."""
    top = archive.home.key + "/"
    return {info.key.removeprefix(top) for info in open_bucket(archive.home.home).list(archive.home.key)}


def test_another_machine_finds_what_was_committed(archive, monkeypatch):
    """All of it and nothing else; what has not changed is not written again; at the end nothing is left."""
    monkeypatch.setattr("spanwise.orchestrator.storage.checkpoints.PART_BYTES", 1024)
    one, mine = machine(archive, "one", 1)
    large = b"".join(b"%015d\n" % number for number in range(100))
    (one / "steps/1").mkdir(parents=True)
    (one / "steps/1/large").write_bytes(large)
    (one / "empty").touch()
    mine.commit(one)
    before = stored(archive)
    (one / "steps/2").mkdir()
    (one / "steps/2/small").write_bytes(b"two")
    (one / "empty").unlink()
    mine.commit(one)
    wanted = files_of(one)
    (one / "never committed").touch()
    two, theirs = machine(archive, "two", 2)
    (two / "of an earlier attempt").touch()

    theirs.take_over(two)

    assert files_of(two) == wanted == {"steps/1/large": large, "steps/2/small": b"two"}
    kept = {key for key in before if key.endswith(POINTER) or key in stored(archive)}
    assert len(kept) == 3, "the pointer and the parts of the large file"
    assert len(stored(archive)) == 4
    assert archive.run_folders("p") == [str(one)]
    archive.remove_checkpoints(one)
    assert stored(archive) == set()


def test_the_next_attempt_finds_the_folder_as_it_is(archive):
    """Its links, empty folders and executable files too, on this machine and on another: `latest` led nowhere, and a trainer began anew."""
    one, mine = machine(archive, "one", 1)
    (one / "step-5").mkdir()
    (one / "step-5/weights").write_text("w")
    (one / "step-5/weights").chmod(0o755)
    (one / "empty").mkdir()
    (one / "latest").symlink_to("step-5")
    (one / "last.ckpt").symlink_to(one / "step-5/weights")
    outside = archive.root / "vocabulary"
    outside.write_text("v")
    (one / "vocabulary").symlink_to(outside)
    mine.commit(one)
    outside.unlink()

    found = {}
    for name, attempt in (("one", 2), ("two", 3)):
        folder, theirs = machine(archive, name, attempt)
        theirs.take_over(folder)
        found[name] = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}

    for paths in found.values():
        assert sorted(paths) == ["empty", "last.ckpt", "latest", "step-5", "step-5/weights", "vocabulary"]
        assert (str(paths["latest"].readlink()), str(paths["last.ckpt"].readlink())) == ("step-5", "step-5/weights")
        assert paths["vocabulary"].read_text() == "v"
        assert [name for name in ("step-5/weights", "vocabulary") if os.access(paths[name], os.X_OK)] == [
            "step-5/weights"
        ]


def test_an_earlier_attempt_commits_no_more(archive):
    """Also one that has committed before, and one that has never begun."""
    one, mine = machine(archive, "one", 1)
    (one / "step").write_text("1")
    mine.commit(one)
    machine(archive, "two", 2)[1].take_over(archive.root.with_name("two"))
    before = stored(archive)
    (one / "step").write_text("2")

    with pytest.raises(Fenced, match="Attempt 2 has begun since"):
        mine.commit(one)
    three, theirs = machine(archive, "three", 3)
    theirs.take_over(three)

    assert files_of(three) == {"step": b"1"}
    assert before <= stored(archive)
    with pytest.raises(Fenced):
        machine(archive, "two", 2)[1].take_over(three)


def test_a_run_with_the_number_of_a_forgotten_one_begins_anew(archive):
    """After a restore of the metadata, numbers are given again."""
    one, old = machine(archive, "one", 7, began="2026-01-01T00:00:00+00:00")
    (one / "step").write_text("old")
    old.commit(one)
    two, mine = machine(archive, "two", 2)

    mine.take_over(two)

    assert files_of(two) == {}
    with pytest.raises(Fenced):
        old.commit(one)


def test_a_damaged_checkpoint_is_not_used(archive, caplog):
    """The attempt begins anew, and the log says why."""
    one, mine = machine(archive, "one", 1)
    (one / "step").write_text("1")
    mine.commit(one)
    bucket = open_bucket(archive.home.home)
    (damaged,) = [key for key in stored(archive) if not key.endswith(POINTER)]
    bucket.write((archive.home / damaged).key, b"rotten")
    two, theirs = machine(archive, "two", 2)

    theirs.take_over(two)

    assert files_of(two) == {}
    assert "checkpoint-damaged" in caplog.text


def test_files_that_nobody_commits_follow_by_themselves(archive):
    """Once they have come to rest."""
    one, mine = machine(archive, "one", 1)
    with checkpoints.Checkpoints(one, mine).watched(every_s=0.01):
        (one / "step").write_text("1")
        _until(lambda: any(key.endswith(POINTER) for key in stored(archive)))
    two, theirs = machine(archive, "two", 2)

    theirs.take_over(two)

    assert files_of(two) == {"step": b"1"}


COMMITS = """
import sys
from pathlib import Path
from spanwise.orchestrator.storage import BucketArchive, parse_url

root, home, began = sys.argv[1:]
folder = Path(root, "p/.runs/1/Trainer.checkpoints")
mine = BucketArchive(Path(root), parse_url(home)).checkpoints(folder, began=began, attempt=1)
(folder / "a").write_text("two"); (folder / "b").write_text("two, too")
mine.commit(folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 4] if "s3" in SERVERS else [2, 3])
def test_a_commit_that_is_killed_leaves_the_one_before_or_itself(archive, monkeypatch, at):
    """Killed once the server has the object, the pointer, or has removed the old objects."""
    one, mine = machine(archive, "one", 1)
    (one / "a").write_text("one")
    mine.commit(one)
    kind = archive.home.scheme
    with proxied(endpoint(kind)) as proxy:
        writes = []
        forward = proxy.forward

        def pass_on(handler, body):
            answer = forward(handler, body)
            if handler.command not in ("GET", "HEAD"):
                writes.append(handler.path)
                if len(writes) == at:
                    os.kill(process.pid, signal.SIGKILL)
            return answer

        proxy.forward = pass_on
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", COMMITS, str(archive.root), str(archive.home), BEGAN],
            env={**os.environ, **at_endpoint(kind, proxy.url)},
        )
        code = process.wait(300)
    two, theirs = machine(archive, "two", 2)
    theirs.take_over(two)

    assert code == -signal.SIGKILL
    after = {"a": b"two", "b": b"two, too"}
    assert files_of(two) == (after if at > 2 else {"a": b"one"})
    (two / "c").touch()
    theirs.commit(two)
    archive.remove_checkpoints(one)
    assert stored(archive) == set()


def train(task) -> None:
    """Each epoch adds up the prepared rows. The first attempt loses its machine."""
    rows = task.examples.dataset("train", ["a"], prepare=lambda rows: rows.map(lambda row: {"a": row["a"] * 2}))
    first, total = task.load_checkpoint() or (0, 0.0)
    for epoch in range(first, 4):
        total += sum(row["a"] for row in rows)
        task.save_checkpoint((epoch + 1, total))
        if task.attempt == 1 and epoch == 1:
            shutil.rmtree(task.checkpoints)
            os.kill(os.getpid(), signal.SIGKILL)
    (task.model_dir / "model.json").write_text(json.dumps({"first": first, "total": total}))


def test_a_training_that_lost_its_machine_goes_on(archive):
    """The second attempt finds the checkpoint and the prepared spans, though nothing of the first machine is left."""
    bench = Bench(archive.root)
    bench.store = MemoryStore(archive=archive)
    lake = Lake(rows=ROWS, splits=["train"])
    trainer = Trainer(examples=lake["examples"], run_fn=train, retry=Retry(times=1, backoff_s=0))

    outcome = bench.run(lake, trainer)
    model = only(outcome.executions["Trainer"], "model")
    said = json.loads((model.path / "model.json").read_text())

    assert outcome.executions["Trainer"].attempt == 2
    assert said == {"first": 2, "total": 8 * sum(sum(columns["a"]) for columns in ROWS.values())}
    assert (model.properties["snapshots"]["hits"], model.properties["snapshots"]["misses"]) == (2, 0)
    assert not (archive.root / "snapshots").exists()
    assert [key for key in stored(archive) if ".checkpoints/" in key] == []


def _until(condition):
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _buckets():
    yield
    forget_buckets()
