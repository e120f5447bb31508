"""A snapshot as a source: found without the graph that made it."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import SnapshotDamaged, SnapshotNotFound
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.element import BatchSpec, Table
from spanwise.pipelines.input.snapshot import split_writer
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.inventory import snapshots
from spanwise.pipelines.input.snapshot.source import with_sources
from spanwise.pipelines.input.snapshot.storage import files_at


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Twenty thousand rows in several chunks."""
    monkeypatch.setattr(split_writer, "CHUNK_BYTES", 16 << 10)
    dataset = inputs.from_arrow(pa.table({"n": np.arange(20_000)})).options(block_rows=1_000).snapshot(tmp_path)
    with dataset.blocks() as blocks:
        list(blocks)
    return tmp_path


def test_rows_are_rows_again(rows):
    """With their columns and their number, known before anything of them is read."""
    found = inputs.load(rows)

    assert found.spec == Table(pa.schema({"n": pa.int64()}))
    assert found.cardinality == 20_000
    assert found.to_arrow()["n"].to_pylist() == list(range(20_000))


def test_batches_and_other_elements(tmp_path):
    """Batches are known as such; of other elements nothing is known but that they are as they were."""
    for name, dataset in {"batches": inputs.from_arrow(pa.table({"n": [1, 2, 3]})).batch(2), "lists": words()}.items():
        elements = list(dataset.snapshot(tmp_path / name))

        assert list(inputs.load(tmp_path / name)) == elements

    assert isinstance(inputs.load(tmp_path / "batches").spec, BatchSpec)


def words():
    return inputs.from_elements([{"word": "one"}, {"word": "two"}])


def test_a_pass_is_restored_where_it_stood(rows):
    """In the middle of a chunk, by another iterator."""
    with inputs.load(rows).iterator() as elements:
        first = [row["n"] for row in itertools.islice(elements, 3_333)]
        state = elements.state()

    with inputs.load(rows).iterator().restore(state) as elements:
        assert first + [row["n"] for row in elements] == list(range(20_000))


def test_one_of_several_is_named_by_its_fingerprint(tmp_path):
    """The first letters will do; without them it says which there are."""
    for count in (1, 2, 3):
        list(inputs.range(count).snapshot(tmp_path))
    names = [path.name for path in tmp_path.iterdir()]

    with pytest.raises(SnapshotNotFound, match=names[0]):
        inputs.load(tmp_path)
    found = [list(inputs.load(tmp_path, fingerprint=name[:8])) for name in names]
    assert sorted(found) == [[0], [0, 1], [0, 1, 2]]


def test_what_is_not_there_or_not_whole(tmp_path):
    """Says which of the two it is."""
    with pytest.raises(SnapshotNotFound, match="there is no snapshot"):
        inputs.load(tmp_path)
    with inputs.range(10).snapshot(tmp_path).iterator() as elements:
        next(elements)

        with pytest.raises(SnapshotNotFound, match="is not complete"):
            inputs.load(tmp_path)


def test_a_damaged_chunk_is_never_given_out(rows):
    """It is found when its turn comes, and named."""
    dataset = inputs.load(rows)
    last = max(rows.rglob("*.snapshot"))
    last.write_bytes(last.read_bytes()[:-1])

    with pytest.raises(SnapshotDamaged, match=last.name):
        dataset.to_arrow()


def test_a_pass_reports_what_it_read(rows):
    """As a pass over `Dataset.snapshot` does."""
    with inputs.load(rows).blocks() as blocks:
        list(blocks)
        (use,) = blocks.reports

    assert (use.hit, use.elements_read) == (True, 20_000)


def test_what_is_made_of_it_has_a_fingerprint(rows, tmp_path):
    """By what is in it, so that it can be kept in its turn, and found again."""
    kept = tmp_path / "kept"
    for state in ("write", "read"):
        with inputs.load(rows).snapshot(kept).blocks() as blocks:
            list(blocks)
            assert blocks.reports[0].state == state


def test_whole_snapshots_of_a_graph_become_sources(tmp_path):
    """Not those that are not there yet, nor those with a reader function, which has its own way to read them."""
    made = inputs.range(10).snapshot(tmp_path)
    assert with_sources(made.op) is made.op
    list(made)

    assert with_sources(made.map(str).op).inputs[0].name == "LoadedSnapshot"
    own = inputs.range(10).snapshot(tmp_path, reader_fn=lambda splits: splits.flat_map(lambda split: split))
    assert with_sources(own.op) is own.op


def test_word_of_a_failure_goes_with_the_next_attempt(tmp_path):
    """A pass in between, which writes the snapshot, is as good as a save."""
    dataset = inputs.range(10).snapshot(tmp_path)
    with dataset.iterator() as elements:
        next(elements)
        (pending,) = snapshots(files_at(tmp_path))
        SnapshotFolder(files_at(tmp_path), pending.fingerprint).fail(pending.pending.run_id, "the disk is full")
    with pytest.raises(SnapshotNotFound, match="the disk is full"):
        inputs.load(tmp_path)

    list(dataset)

    assert list(inputs.load(tmp_path)) == list(range(10))
