"""Snapshots written and read through the service, by real workers; and the state of a save, by its records."""

import functools
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.records import RegisterWorker, RemoveWorker
from spanwise.pipelines.input.service.dispatcher.state import ServiceState, records_of
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.saves.save import _wait
from spanwise.pipelines.input.service.saves.state import TakeShard, next_step
from spanwise.pipelines.input.service.sharding.splits import count_shards, plan_graph, splits_of_shard
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, this_process
from spanwise.pipelines.input.service.wire.requests import (
    AbandonSave,
    CommitSave,
    FailSave,
    Heartbeat,
    KeepShard,
    NextShard,
    PollSave,
    RegisterDataset,
    StartSave,
    WaitForWriters,
    WriteShard,
)
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.inventory import collect, snapshots, verify
from spanwise.pipelines.input.snapshot.state import ChunkRecord
from spanwise.pipelines.input.snapshot.storage import files_at
from tests.pipelines.input.service.servers import Service, listed
from tests.servers import eventually

ROWS = 20_000


@pytest.fixture
def two():
    with Service(2) as service:
        yield service


def trips():
    table = pa.table({"trip": np.arange(ROWS), "zone": np.arange(ROWS) % 7})
    return inputs.from_arrow(table).map(with_fare, vectorized=True, format="arrow")


def with_fare(batch):
    return batch.append_column("fare", pa.array(batch.column("trip").to_numpy() * 0.5))


def doubled(number):
    return number * 2


# What is written.


def test_a_save_is_the_snapshot_of_the_dataset(two, tmp_path):
    """A pass over `dataset.snapshot(path)` reads what the workers wrote, in the dataset's order; every byte is right."""
    inputs.save(trips(), tmp_path, two.target)

    with trips().snapshot(tmp_path).blocks() as blocks:
        found = pa.Table.from_batches(blocks)
        (use,) = blocks.reports
    assert use.hit
    assert found.equals(trips().to_arrow())
    (listing,) = snapshots(files_at(tmp_path))
    assert listing.state == "whole"
    assert not any(verdict.problem for verdict in verify(files_at(tmp_path), listing))
    assert collect(files_at(tmp_path), now=listing.final.started) == []


def test_shards_are_splits_to_a_reader_function(two, tmp_path):
    """They can be shuffled and read side by side."""
    inputs.save(inputs.range(100), tmp_path, two.target)

    mixed = inputs.range(100).snapshot(
        tmp_path, reader_fn=lambda shards: shards.shuffle(32, seed=1).interleave(lambda shard: shard, cycle_length=4)
    )

    found = list(mixed)
    assert sorted(found) == list(range(100)) != found


@pytest.mark.parametrize(
    "word",
    [
        lambda ds: ds.batch(7),
        lambda ds: ds.enumerate(),
        lambda ds: ds.shuffle(10, seed=1),
        lambda ds: ds.take(30),
        lambda ds: inputs.zip(ds, ds),
        lambda ds: ds.repeat(2),
        lambda ds: ds.concatenate(ds),
        lambda ds: ds.map(doubled).concatenate(ds.map(float)),
    ],
    ids=["batch", "enumerate", "shuffle", "take", "zip", "repeat", "concatenate with itself", "two maps of it"],
)
def test_what_looks_at_all_elements_is_one_shard(word):
    """Batches do not end with a split, numbers go on, what is read twice comes twice: one worker writes all of it."""
    assert count_shards(word(inputs.range(100)).op) == 1
    assert count_shards(inputs.range(100).map(doubled).op) == 32
    assert count_shards(inputs.range(100).concatenate(inputs.range(50)).op) == 32


def test_one_shard_is_the_whole_dataset(two, tmp_path):
    """Elements are those of a pass over it here."""
    dataset = inputs.range(1000).map(doubled).batch(7)
    inputs.save(dataset, tmp_path, two.target)

    found = [batch.tolist() for batch in inputs.load(tmp_path)]

    assert found == [batch.tolist() for batch in dataset]


@pytest.mark.parametrize(
    "word",
    [
        lambda ds: ds.shuffle(),
        lambda ds: ds.map(doubled),
        lambda ds: ds.shuffle().random_map(lambda n, numbers: (n, int(numbers.integers(10**12)))).repeat(2),
        lambda ds: ds.flat_map(lambda n: inputs.range(n).shuffle()).batch(1).unbatch().cache(),
    ],
    ids=["shuffle", "splits of a shuffled source", "random numbers", "nested"],
)
def test_a_seed_leads_to_the_same_snapshot_whoever_writes_it(two, tmp_path, word):
    """So features that a save has written lie beside labels that a pass has written, as if one pass had done both."""
    dataset = word(inputs.from_random_access(range(20), shuffle=True)).options(seed=7)
    inputs.save(dataset, tmp_path / "saved", two.target)

    assert list(inputs.load(tmp_path / "saved")) == list(dataset.snapshot(tmp_path / "passed"))


def test_shards_put_behind_each_other_are_the_dataset():
    """Whatever their number, each split is in one of them."""
    op = plan_graph(inputs.range(1000).map(doubled).op, inputs.range(1).settings)
    for shards in (2, 7, 32):
        found = [number for shard in range(shards) for number, _ in splits_of_shard(op, shards, shard)]
        assert found == list(range(250)), shards


def test_a_save_can_begin_again_after_it_has_failed(two, tmp_path):
    """Word of the failure goes when the next one begins."""
    fail = tmp_path / "fail"
    fail.touch()
    dataset = inputs.range(100).map(functools.partial(_unless, str(fail))).with_snapshot_fingerprint("unless")
    place = tmp_path / "snapshots"
    with pytest.raises(ServiceError, match="not yet"):
        inputs.save(dataset, place, two.target)
    fail.unlink()

    inputs.save(dataset, place, two.target)

    assert list(inputs.load(place)) == list(range(100))
    (folder,) = place.iterdir()
    assert not (folder / "metadata.error").exists()


def _unless(path, number):
    if Path(path).exists():
        raise ValueError("not yet")
    return number


def test_a_folder_that_workers_cannot_write_ends_the_save(two, tmp_path):
    """Who has begun it is told."""
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(OSError, match="file"):
        inputs.save(inputs.range(10), tmp_path / "file", two.target)


def test_a_dispatcher_that_has_forgotten_the_save(tmp_path):
    """Without a journal it is lost with the dispatcher; whoever waits for it is told, and may begin again at once."""
    with Service(0) as service:
        inputs.save(inputs.range(10), tmp_path, service.target, wait=False)
        (listing,) = snapshots(files_at(tmp_path))
        service.restart_dispatcher()
        connection = ServiceConnection(service.target, Security())
        with pytest.raises(ServiceError, match="no longer knows the save"):
            _wait(connection, SnapshotFolder(files_at(tmp_path), listing.fingerprint), listing.pending.run_id)
        inputs.save(inputs.range(10), tmp_path, service.target, wait=False)


def test_an_object_store_is_saved_to_as_a_folder_is(two, s3_url):
    """Where there are no locks, a put with a condition decides."""
    place = f"{s3_url}/saved"
    inputs.save(inputs.range(100), place, two.target)

    assert list(inputs.load(place)) == list(range(100))
    with pytest.raises(ServiceError, match="has been started or completed already"):
        inputs.save(inputs.range(100), place, two.target)


def test_what_is_there_will_do_if_it_may(two, tmp_path):
    """And what somebody writes is waited for."""
    dataset = inputs.range(1000).map(doubled)
    with dataset.snapshot(tmp_path).iterator() as elements, ThreadPoolExecutor(1) as pool:
        next(elements)
        saved = pool.submit(inputs.save, dataset, tmp_path, two.target, exist_ok=True)
        assert len(list(elements)) == 999

        assert saved.result() is False
    assert inputs.save(dataset, tmp_path, two.target, exist_ok=True) is False


# Beside distribute.


def test_a_snapshot_before_distribute_is_written_once(two, tmp_path):
    """Under OFF each worker gives the whole dataset: one of them writes it on the way, and a later job reads it."""
    dataset = inputs.range(100).snapshot(tmp_path)

    assert sorted(dataset.distribute(two.target, "off")) == sorted([*range(100)] * 2)
    assert list(inputs.load(tmp_path)) == list(range(100))
    assert sorted(dataset.distribute(two.target, "off")) == sorted([*range(100)] * 2)


def test_a_snapshot_behind_distribute_is_written_by_the_consumer(two, tmp_path):
    """It keeps what the workers gave; a second pass asks no worker any more."""
    dataset = inputs.range(100).distribute(two.target, "exactly_once").snapshot(tmp_path)
    first = sorted(dataset)
    with dataset.iterator() as elements:
        second = sorted(elements)
        assert elements.reports[0].hit

    assert first == second == list(range(100))


@pytest.mark.parametrize("mode", ["dynamic", "exactly_once"])
def test_a_snapshot_cannot_be_dealt_out_by_splits_while_it_is_written(two, tmp_path, mode):
    """A part would be kept for the whole."""
    with pytest.raises(ServiceError, match="snapshot keeps a whole pass"):
        list(inputs.range(100).snapshot(tmp_path).distribute(two.target, mode))


@pytest.mark.parametrize("mode", ["dynamic", "exactly_once"])
def test_a_snapshot_that_is_there_is_dealt_out_by_its_chunks(two, tmp_path, mode):
    """`load` is a source like any other."""
    inputs.save(inputs.range(1000), tmp_path, two.target)

    assert sorted(inputs.load(tmp_path).map(doubled).distribute(two.target, mode)) == list(range(0, 2000, 2))


def test_static_shards_have_snapshots_of_their_own(tmp_path):
    """Each has another fingerprint, as its elements are others (Snapshot RFC, Concurrency)."""
    dataset = inputs.range(100).shard(inputs.SHARD_HINT, 0).snapshot(tmp_path)
    with listed(2) as service:
        assert sorted(dataset.distribute(service.target, "hint")) == list(range(100))
        assert sorted(dataset.distribute(service.target, "hint")) == list(range(100))

    assert len(list(snapshots(files_at(tmp_path)))) == 2


def test_datasets_that_are_kept_at_two_places_are_two(two, tmp_path):
    """What is kept where is no part of a fingerprint, but of what a worker does."""
    for place in (tmp_path / "a", tmp_path / "b"):
        list(inputs.range(10).snapshot(place).distribute(two.target, ShardingPolicy.OFF))

        assert list(inputs.load(place)) == list(range(10))


# Who dies.


def test_a_shard_of_a_lost_worker_is_written_by_another(tmp_path):
    """What the lost one has written of it, and tells of too late, does not count; nothing is left of it."""
    with Service(0) as service:
        inputs.save(inputs.range(100), tmp_path, service.target, wait=False)
        (listing,) = snapshots(files_at(tmp_path))
        connection = ServiceConnection(service.target, Security())
        lost = _arrive(connection, "127.0.0.1:1")
        about = {"save": listing.pending.run_id, "worker": lost}
        assert connection.ask(NextShard(**about))[0].step == WriteShard(shard=0)
        _arrive(connection, "127.0.0.1:1")  # it was started again: its first life is over
        (tmp_path / listing.fingerprint / listing.pending.run_id / "000-00000000-gone.snapshot").touch()
        service.add_worker()
        eventually(lambda: not connection.ask(PollSave(save=listing.pending.run_id))[0].going)
        kept = connection.ask(KeepShard(**about, shard=0, chunks=()))[0].kept

    assert not kept
    assert list(inputs.load(tmp_path)) == list(range(100))
    assert not list(tmp_path.rglob("*gone*"))


def _arrive(connection, address):
    """A life of a worker that never does anything."""
    life = secrets.token_hex(4)
    connection.ask(Heartbeat(worker=life, address=address, process=this_process(), wait_s=0))
    return life


def test_a_dispatcher_that_is_started_again_goes_on(tmp_path):
    """It knows the save, and which shards are written."""
    with Service(0, fault_tolerant_mode=True, work_dir=str(tmp_path / "work")) as service:
        inputs.save(inputs.range(100), tmp_path / "kept", service.target, wait=False)
        (listing,) = snapshots(files_at(tmp_path / "kept"))
        service.restart_dispatcher()
        service.add_worker()
        connection = ServiceConnection(service.target, Security())
        eventually(lambda: not connection.ask(PollSave(save=listing.pending.run_id))[0].going)

    assert list(inputs.load(tmp_path / "kept")) == list(range(100))


# The state of a save.


START = StartSave(save="s", dataset="d", path="p", fingerprint="f", compression="auto", shards=3, seed=1)


def kept(shard, *, files=1):
    chunk = ChunkRecord(file=f"{shard}-0", split=shard, first=0, elements=4, size_bytes=100, checksum="abc")
    return KeepShard(save="s", worker="a", shard=shard, chunks=(chunk,) * files)


def state_of(*records):
    workers = [RegisterWorker(worker=each, address=each, process="p") for each in "ab"]
    dataset = RegisterDataset(dataset="d", structure="", splits=(9,))
    return ServiceState([dataset, *workers, START, *records])


def step_of(state, worker):
    return next_step(state.saves.by_id["s"], worker)


def test_each_worker_has_a_shard_of_its_own():
    """And the same one if it asks again; who comes too late waits."""
    state = state_of(TakeShard(save="s", shard=0, worker="a"), TakeShard(save="s", shard=1, worker="b"))

    assert [step_of(state, each) for each in "abc"] == [WriteShard(shard=shard) for shard in range(3)]
    state.apply(TakeShard(save="s", shard=2, worker="c"))
    assert step_of(state, "d") == WaitForWriters()


def test_the_shard_of_a_worker_that_is_gone_is_free():
    """The next one who asks writes it."""
    state = state_of(TakeShard(save="s", shard=0, worker="a"))
    state.apply(RemoveWorker(worker="a"))

    assert step_of(state, "b") == WriteShard(shard=0)


def test_when_all_is_written_it_is_committed_in_the_order_of_shards():
    """By whoever asks."""
    step = step_of(state_of(*(kept(shard) for shard in (2, 0, 1))), "a")

    assert step == CommitSave(chunks=tuple(chunk for shard in range(3) for chunk in kept(shard).chunks))


def test_an_error_ends_a_save_whatever_is_written():
    """Nobody writes any more."""
    written = [kept(shard, files=0) for shard in range(3)]

    assert step_of(state_of(*written, FailSave(save="s", error="full")), "a") == AbandonSave(error="full")


def test_a_shorter_journal_leads_to_the_same_save():
    """Who writes what, what is written, and the error."""
    state = state_of(
        TakeShard(save="s", shard=0, worker="a"),
        kept(0),
        TakeShard(save="s", shard=1, worker="b"),
        FailSave(save="s", error="full"),
    )

    assert ServiceState(records_of(state)).saves.by_id == state.saves.by_id
