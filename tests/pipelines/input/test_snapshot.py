"""Snapshots as a user meets them: passes that write, read and pass through, stopped and taken up anywhere."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import BlockFailed, DatasetError, SnapshotDamaged
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.snapshot import attempt, split_writer
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.state import Metadata
from spanwise.pipelines.input.snapshot.storage import files_at

ROWS = 3_000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of a few hundred elements, so that a snapshot has several."""
    monkeypatch.setattr(split_writer, "CHUNK_BYTES", 4_096)


def table():
    return pa.table({"trip": np.arange(ROWS), "fare": np.arange(ROWS) / 2})


def pairs():
    for number in range(300):
        yield {"number": number, "text": f"{number}"}


def rows():
    return inputs.from_arrow(table()).options(block_rows=100)


def small_batches():
    return rows().batch(70)


def shuffled():
    return inputs.range(1000).shuffle(64)


def structures():
    return inputs.from_elements(list(pairs()))


KINDS = [rows, small_batches, shuffled, structures]


def opened(dataset):
    """A pass in the form in which elements travel, so that rows are met in blocks."""
    return dataset.blocks() if isinstance(dataset.spec, inputs.Table) else dataset.iterator()


def plain(piece):
    return piece.to_pylist() if isinstance(piece, pa.RecordBatch) else [piece]


def flat(pieces):
    """Elements however they were cut into pieces."""
    return [element for piece in pieces for element in plain(piece)]


def passed(dataset):
    iterator = opened(dataset)
    return flat(iterator), iterator.reports[-1]


def final_of(path):
    (fingerprint,) = files_at(path).folders("")
    return SnapshotFolder(files_at(path), fingerprint).look().final


def chunks(path):
    return sorted(Path(path).rglob("*.snapshot"))


@pytest.mark.parametrize("made", KINDS)
@pytest.mark.parametrize("as_", ["write", "read", "passthrough"])
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_pass_can_stop_anywhere_and_go_on(made, as_, data, tmp_path_factory):
    """Its state is kept as text, and another pass gives the same rest; one that writes completes the snapshot."""
    path = tmp_path_factory.mktemp("snapshots")
    dataset = made().snapshot(path)
    others = opened(dataset)
    if as_ == "read":
        list(others)
    elif as_ == "passthrough":
        next(others)
    pieces = []
    with opened(dataset) as first:
        for _ in range(data.draw(st.integers(0, 40))):
            pieces.extend(piece for piece in [next(first, None)] if piece is not None)
        saved = json.loads(json.dumps(first.state()))

    second = opened(dataset).restore(saved)
    found = flat([*pieces, *second])

    wanted = flat(opened(made())) if made is not shuffled else None
    assert found == wanted if wanted is not None else sorted(found) == list(range(1000))
    had_ended = bool(first.reports) and first.reports[0].committed
    assert second.reports[0].state == ("read" if had_ended else as_)
    if as_ == "write" and not had_ended:
        assert second.reports[0].committed
        assert passed(dataset)[0] == found


@pytest.mark.parametrize("made", KINDS)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_met_on_the_way_is_mended_from_the_input(made, data, tmp_path_factory):
    """The elements given before and after are those that were written, and the next pass reads them."""
    path = tmp_path_factory.mktemp("snapshots")
    dataset = made().snapshot(path)
    written, _ = passed(dataset)
    damaged = data.draw(st.sets(st.sampled_from(chunks(path)), min_size=1))
    for file in damaged:
        file.write_bytes(file.read_bytes()[:-1])

    mended, use = passed(dataset)
    after, read = passed(dataset)

    assert mended == written == after
    assert use.damaged[0] in {file.name for file in damaged}
    assert (use.state, use.committed, read.state) == ("write", True, "read")


def test_finished_chunks_of_a_writer_that_stopped_are_taken_up(tmp_path):
    """The next writer reads them, makes the rest, and owns all of it."""
    dataset = rows().snapshot(tmp_path)
    with dataset.blocks() as first:
        for _ in range(20):
            next(first)
    left = sum(1 for _ in chunks(tmp_path))

    elements, use = passed(dataset)

    assert elements == table().to_pylist()
    assert left > 1
    assert (use.state, use.committed) == ("write", True)
    assert use.elements_read + use.elements_passed == ROWS
    assert use.elements_read > 0
    assert use.elements_written == use.elements_passed


def test_a_type_that_differs_from_that_of_an_earlier_pass_is_refused(tmp_path):
    """A pass that continues does not see the blocks that the one before it has written."""
    uneven = inputs.from_arrow(table()).options(block_rows=500).map(halved_from_the_middle, vectorized=True)
    kept = uneven.snapshot(tmp_path)

    for _ in range(3):
        with pytest.raises(
            (DatasetError, BlockFailed), match=r"column 'trip' as int64 for other rows, and as double .* Declare"
        ):
            list(kept)


def halved_from_the_middle(columns):
    return {"trip": columns["trip"] if columns["trip"][0] < ROWS / 2 else columns["trip"] / 2}


def test_a_damaged_chunk_of_a_writer_that_stopped_is_made_anew(tmp_path):
    """What is left behind it is used all the same."""
    dataset = rows().snapshot(tmp_path)
    with dataset.blocks() as first:
        for _ in range(25):
            next(first)
    second = chunks(tmp_path)[1]
    second.write_bytes(b"?" + second.read_bytes()[1:])

    elements, use = passed(dataset)

    assert elements == table().to_pylist()
    assert use.elements_passed < ROWS
    assert passed(dataset)[1].hit


def test_chunks_of_a_pass_in_no_promised_order_are_not_taken_up(tmp_path):
    """Another pass would not go on where that one stopped."""
    dataset = rows().options(deterministic=False).snapshot(tmp_path)
    with dataset.blocks() as first:
        for _ in range(20):
            next(first)

    elements, use = passed(dataset)

    assert elements == table().to_pylist()
    assert use.elements_read == 0


def test_damage_in_no_promised_order_ends_the_pass(tmp_path):
    """The elements that are missing cannot be told; the next pass writes."""
    dataset = rows().options(deterministic=False).snapshot(tmp_path)
    passed(dataset)
    chunks(tmp_path)[3].unlink()

    with pytest.raises(SnapshotDamaged, match="start the pass again"):
        passed(dataset)
    assert passed(dataset)[1].state == "write"


def test_splits_are_written_and_read_in_any_order(tmp_path):
    """`writer_fn` splits, `reader_fn` mixes; nothing is lost."""
    dataset = inputs.range(1000).snapshot(
        tmp_path,
        writer_fn=lambda ds: [ds.shard(3, index) for index in range(3)],
        reader_fn=lambda splits: splits.shuffle(3, seed=7).interleave(lambda split: split, cycle_length=3),
    )

    written, read = passed(dataset), passed(dataset)

    assert written[0] == list(range(1000))
    assert sorted(read[0]) == list(range(1000))
    assert read[0] != written[0]
    assert read[1].hit
    assert final_of(tmp_path).splits == 3


def test_a_mixed_pass_can_stop_and_go_on(tmp_path):
    """The state holds where each split stands."""
    dataset = inputs.range(1000).snapshot(
        tmp_path,
        writer_fn=lambda ds: [ds.shard(2, 0), ds.shard(2, 1)],
        reader_fn=lambda splits: splits.interleave(lambda split: split, cycle_length=2),
    )
    passed(dataset)
    with dataset.iterator() as first:
        taken = [next(first) for _ in range(333)]
        saved = first.state()

    assert taken + list(dataset.iterator().restore(saved)) == list(range(1000))


def test_rows_are_split_in_blocks(tmp_path):
    """Splits of rows are rows."""
    dataset = rows().snapshot(tmp_path, writer_fn=lambda ds: [ds.shard(2, 0), ds.shard(2, 1)])

    assert passed(dataset)[0] == table().to_pylist()
    assert sorted(passed(dataset)[0], key=lambda row: row["trip"]) == table().to_pylist()


def test_splits_that_lose_elements_are_refused(tmp_path):
    """A snapshot that is not whole is never made."""
    dataset = inputs.range(1000).snapshot(tmp_path, writer_fn=lambda ds: [ds.shard(2, 0)])

    with pytest.raises(DatasetError, match="500 elements, but there are 1000"):
        list(dataset)
    assert list(tmp_path.rglob("*.snapshot")) == []


def test_a_pass_leaves_no_thread(tmp_path):
    """Finished, closed or dropped, in each of its states."""
    before = set(threading.enumerate())
    split = inputs.range(1000).snapshot(tmp_path / "split", writer_fn=lambda ds: [ds.shard(2, 0), ds.shard(2, 1)])
    whole = inputs.range(1000).snapshot(tmp_path / "whole")
    for dataset in (whole, split):
        for _ in range(2):
            dropped = dataset.iterator()
            next(dropped)
            del dropped
            list(dataset)

    assert set(threading.enumerate()) == before


def final(dataset):
    return SnapshotFolder(files_at(dataset.op.path), dataset.op.fingerprint).look().final


def test_a_report_says_what_was_read_and_written(tmp_path):
    """Elements and bytes, hit and miss."""
    dataset = rows().snapshot(tmp_path)

    miss, hit = passed(dataset)[1], passed(dataset)[1]

    size = sum(file.stat().st_size for file in chunks(tmp_path))
    assert (miss.hit, miss.elements_passed, miss.elements_written, miss.bytes_written) == (False, ROWS, ROWS, size)
    assert (hit.hit, hit.elements_read, hit.bytes_read, hit.elements_written) == (True, ROWS, size, 0)


def test_metadata_that_cannot_be_read_is_written_anew(tmp_path):
    """Nobody is known to be writing, so nobody waits until it expires."""
    dataset = rows().snapshot(tmp_path)
    passed(dataset)
    (metadata,) = tmp_path.rglob("metadata.final")
    metadata.write_bytes(metadata.read_bytes()[:50])

    use = passed(dataset)[1]

    assert (use.state, use.committed) == ("write", True)
    assert passed(dataset)[1].hit


def test_a_folder_that_cannot_be_written_is_passed_through(tmp_path):
    """Training goes on without it, and the report says why."""
    (tmp_path / "file").write_text("")

    elements, use = passed(rows().snapshot(tmp_path / "file"))

    assert elements == table().to_pylist()
    assert use.state == "passthrough"
    assert use.failed


def test_two_snapshots_in_one_graph(tmp_path):
    """Each finds its own; the second does not read its input again."""
    dataset = inputs.range(500).snapshot(tmp_path).map(str).snapshot(tmp_path)
    list(dataset)
    with dataset.iterator() as again:
        elements = list(again)

    assert elements == [str(number) for number in range(500)]
    assert [use.state for use in again.reports] == ["read"]


class UnorderedNumbers:
    """Numbers in another order in each pass, as from a set or a query without ORDER BY."""

    def __init__(self):
        self.passes = 0

    def __call__(self):
        self.passes += 1
        return iter(np.random.default_rng(self.passes).permutation(500).tolist())

    def __fingerprint__(self):
        return "unordered"


UNPROVEN = {
    "generator": inputs.from_generator,
    "flat_map": lambda numbers: inputs.range(1).flat_map(lambda _: inputs.from_elements(list(numbers()))),
}


@pytest.mark.parametrize("make", UNPROVEN.values(), ids=UNPROVEN)
def test_a_source_without_a_provable_order_is_written_anew(tmp_path, make):
    """What an interrupted pass has left of another order is not part of the snapshot."""
    dataset = make(UnorderedNumbers()).snapshot(tmp_path)
    with dataset.iterator() as interrupted:
        for _ in range(450):
            next(interrupted)

    found, use = passed(dataset)

    assert (use.state, use.elements_read, use.committed) == ("write", 0, True)
    assert sorted(found) == sorted(passed(dataset)[0]) == list(range(500))


def test_damage_to_a_snapshot_without_a_provable_order_ends_the_pass(tmp_path):
    """The elements behind the damage are unknown; the next pass writes them all again."""
    dataset = inputs.from_generator(UnorderedNumbers()).snapshot(tmp_path)
    list(dataset)
    chunks(tmp_path)[1].write_bytes(b"")
    with pytest.raises(SnapshotDamaged, match="start the pass again"):
        list(dataset)

    found, use = passed(dataset)

    assert (sorted(found), use.committed) == (list(range(500)), True)


def test_one_look_leaves_the_snapshot_to_the_next_pass(tmp_path):
    """A pass that is closed, or dropped, before its end withdraws, whatever was read of it."""
    dataset = inputs.range(1000).snapshot(tmp_path / "a")
    with dataset.iterator() as peeking:
        next(peeking)
    assert [passed(dataset)[1].state for _ in range(2)] == ["write", "read"]

    few = inputs.range(1000).snapshot(tmp_path / "b", writer_fn=lambda ds: [ds.shard(2, 0), ds.shard(2, 1)])
    assert [passed(few.take(5))[1].state for _ in range(2)] == ["write", "write"]
    assert passed(few)[1].committed


@pytest.mark.parametrize("where", ["folder", "memory://"])
def test_a_writer_of_another_machine_is_known_to_be_dead_by_its_heartbeat(tmp_path, where):
    """Within a minute after its last one; of those who notice, one writes."""
    place = str(tmp_path) if where == "folder" else f"memory:/{tmp_path}"
    clock = [1_000.0]
    dataset = inputs.range(10).snapshot(place)
    dataset = inputs.Dataset(replace(dataset.op, clock=lambda: clock[0]), dataset.settings)
    folder = SnapshotFolder(files_at(place), dataset.op.fingerprint)
    far = Metadata(run_id="far", fingerprint=folder.fingerprint, started=clock[0], writer="elsewhere/1/2")
    assert folder.claim(far, folder.look())

    states = []
    for now, beats in ((1_050.0, False), (1_100.0, True), (1_150.0, False), (1_161.0, False)):
        clock[0] = now
        if beats:
            folder.beat("far", now)
        states.append(passed(dataset)[1].state)

    assert states == ["passthrough", "passthrough", "passthrough", "write"]
    assert passed(dataset)[1].hit
    assert not folder.commit(replace(far, complete=True), over=False)


def test_a_living_writer_beats_its_heart_until_it_ends(tmp_path, monkeypatch):
    """And leaves no heartbeat behind."""
    monkeypatch.setattr(attempt, "BEAT_S", 0.001)
    with inputs.range(1000).snapshot(tmp_path).iterator() as writing:
        next(writing)
        limit = time.monotonic() + 300
        while not list(tmp_path.glob("*/snapshot.heartbeat")):
            assert time.monotonic() < limit
            time.sleep(0.001)
        list(writing)

    assert list(tmp_path.glob("*/snapshot.heartbeat")) == []


def test_of_two_who_replace_a_dead_writer_on_an_object_store_one_wins(tmp_path):
    """By a conditional put; if it dies at that moment, another one takes over a minute later."""
    folder = SnapshotFolder(files_at(f"memory:/{tmp_path}"), "f")

    def run(name, now):
        return Metadata(run_id=name, fingerprint="f", started=now, writer=f"{name}/1/2")

    assert folder.claim(run("far", 0.0), folder.look())
    found = folder.look()
    assert folder._take_over("far", 100.0)
    assert not folder.claim(run("second", 101.0), found, abandoned=True)
    assert folder.claim(run("third", 161.0), found, abandoned=True)
    assert not folder.claim(run("fourth", 161.0), found, abandoned=True)


def test_the_seed_of_the_options_counts():
    """Where an op has no seed of its own; said before the snapshot or after it."""
    shuffled = inputs.range(20).shuffle()
    found = [list(shuffled.options(seed=seed).snapshot("memory://seeds")) for seed in (1, 2)]
    after = [list(shuffled.snapshot("memory://seeds").options(seed=seed)) for seed in (1, 2)]
    own = [list(inputs.range(20).shuffle(seed=3).options(seed=seed).snapshot("memory://own")) for seed in (1, 2)]

    assert found[0] != found[1]
    assert after == found
    assert own[0] == own[1]


def test_the_seed_of_a_pass_counts_in_datasets_that_a_function_makes():
    """An op that leaves its seed open may be in one of them: each seed of the options has a snapshot of its own."""
    nested = inputs.range(3).flat_map(lambda _: inputs.range(20).shuffle())
    found = [list(nested.options(seed=seed).snapshot("memory://nested seeds")) for seed in (1, 2)]

    assert found[0] != found[1]


def test_elements_in_any_order_are_another_snapshot():
    """A pass that promises an order does not read them."""
    numbers = inputs.range(3).map(str, num_parallel=2)
    ordered, unordered = (
        numbers.options(deterministic=promised).snapshot("memory://order").op.fingerprint for promised in (True, False)
    )

    assert ordered != unordered


@pytest.mark.parametrize("mode", ["auto", "passthrough"])
def test_what_is_shuffled_once_and_kept_in_two_snapshots_stays_side_by_side(tmp_path, mode):
    """Such as features and their labels, which are zipped again; shuffles that shall differ have seeds of their own."""
    order = inputs.range(1000).shuffle()
    features, labels = (
        order.map(lambda x, add=add: x + add).snapshot(str(tmp_path / "at"), mode=mode) for add in (0, 1000)
    )
    other = inputs.range(1000).shuffle(seed=1).snapshot(str(tmp_path / "at"), mode=mode)

    for _ in range(2):
        assert all(label == feature + 1000 for feature, label in inputs.zip(features, labels))
        assert sum(int(a == b) for a, b in inputs.zip(features, other)) < 20


def test_a_snapshot_holds_the_elements_of_its_fingerprint_whatever_pass_writes_it(tmp_path):
    """The seed and the order in it are those of its dataset; the pass of a function's dataset has others."""

    def delay(number):
        time.sleep(0.002 if number == 0 else 0)
        return number

    dataset = inputs.range(9).shuffle().map(delay, num_parallel=4).options(seed=1)
    nested = dataset.snapshot(tmp_path / "nested")
    list(inputs.range(1).flat_map(lambda _: nested).options(deterministic=False))

    assert list(nested) == list(dataset.snapshot(tmp_path / "alone"))


def test_options_of_speed_leave_snapshots_as_they_are():
    """Those of datasets that were combined may have been written in any order, which their pass does not allow."""
    loose = inputs.range(3).map(str, num_parallel=2).options(deterministic=False).snapshot("memory://loose")
    both = inputs.zip(inputs.range(3), loose)

    assert both.options(cpu_budget=2).op.parts[1].fingerprint == loose.op.fingerprint


@pytest.mark.parametrize("write", [lambda made: list(made.iterator(epoch=3)), lambda made: list(made.repeat(2))])
def test_a_snapshot_with_a_seed_has_one_order_whichever_pass_writes_it(tmp_path, write):
    """As after a first pass that was cut short, or in a round of a repeat: features came beside other labels."""
    dataset = inputs.range(9).shuffle().options(seed=1)
    write(written := dataset.snapshot(tmp_path / "written"))

    assert list(written) == list(dataset.snapshot(tmp_path / "first"))


def test_a_snapshot_that_passes_through_is_shuffled_anew_in_each_pass(tmp_path):
    """Nothing is written, so nothing else has to have its order."""
    through = inputs.range(9).shuffle(seed=1).snapshot(tmp_path, mode="passthrough")

    assert list(through) != list(through)


def test_a_snapshot_with_a_seed_has_its_order_whatever_is_cached(tmp_path):
    """A pass without the snapshot has filled the cache in an order of its own."""
    dataset = inputs.range(9).shuffle().options(seed=1)
    list(cached := dataset.cache())

    assert list(cached.snapshot(tmp_path / "cached")) == list(dataset.snapshot(tmp_path / "alone"))


def test_what_functions_make_of_splits_keeps_its_seed(tmp_path):
    """Splits are written and read in the orders of `options(seed=…)`, as by itself."""
    shuffled = inputs.range(9).shuffle().options(seed=4)
    written = inputs.range(9).snapshot(tmp_path / "a", writer_fn=lambda ds: [ds.shuffle().options(seed=4)])
    read = inputs.range(9).snapshot(
        tmp_path / "b", reader_fn=lambda splits: splits.flat_map(lambda split: split).shuffle().options(seed=4)
    )
    for made in (written, read):
        list(made.iterator(epoch=0))

    assert [list(made.iterator(epoch=0)) for made in (written, read)] == [list(shuffled.iterator(epoch=0))] * 2
