"""Snapshots as a user meets them: passes that write, read and pass through, stopped and taken up anywhere."""

import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import DatasetError, SnapshotDamaged
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.snapshot import split_writer
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
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
    return inputs.from_generator(pairs)


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
    expire(tmp_path)

    elements, use = passed(dataset)

    assert elements == table().to_pylist()
    assert left > 1
    assert (use.state, use.committed) == ("write", True)
    assert use.elements_read + use.elements_passed == ROWS
    assert use.elements_read > 0
    assert use.elements_written == use.elements_passed


def expire(path):
    (pending,) = Path(path).rglob("snapshot.metadata")
    pending.write_text(json.dumps(json.loads(pending.read_text()) | {"started": 0}))


def test_a_damaged_chunk_of_a_writer_that_stopped_is_made_anew(tmp_path):
    """What is left behind it is used all the same."""
    dataset = rows().snapshot(tmp_path)
    with dataset.blocks() as first:
        for _ in range(25):
            next(first)
    expire(tmp_path)
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
    expire(tmp_path)

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
            expire(tmp_path / dataset.op.path) if not final(dataset) else None
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
