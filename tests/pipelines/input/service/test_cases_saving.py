"""Facts about saves through the service: tests for cases of `tests/conformance/cases/data.json`, named by their ids."""

import os
import re
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import DatasetError, ServiceError, SnapshotNotFound
from spanwise.pipelines import input as inputs
from tests.pipelines.input.service.servers import Service


@pytest.fixture
def two():
    with Service(2) as service:
        yield service


def test_DS_01_two_workers_save(two, tmp_path):
    """All elements, once, in the layout of any snapshot."""
    inputs.save(inputs.range(1000), tmp_path, two.target)

    assert list(inputs.load(tmp_path)) == list(range(1000))
    (folder,) = tmp_path.iterdir()
    run, *metadata = sorted(folder.iterdir(), key=lambda path: path.is_file())
    assert sorted(path.name for path in metadata) == ["metadata.final", "snapshot.metadata"]
    assert all(re.fullmatch(r"\d{3}-0{8}-[0-9a-f]{8}\.snapshot", path.name) for path in run.iterdir())


def test_DS_02_an_endless_dataset(two, tmp_path):
    """It is refused before anything is written."""
    with pytest.raises(DatasetError, match="saving an infinite dataset is not allowed"):
        inputs.save(inputs.range(10).repeat(), tmp_path, two.target)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_DS_03_saving_twice_to_one_path(workers, tmp_path):
    """It is refused while the first save goes on, and when it is done."""
    with Service(workers) as service:
        inputs.save(inputs.range(100), tmp_path, service.target, wait=bool(workers))

        with pytest.raises(ServiceError, match="has been started or completed already"):
            inputs.save(inputs.range(100), tmp_path, service.target)


def test_DS_05_a_worker_that_fails_leaves_word_of_it(two, tmp_path):
    """Who has begun the save hears why it failed, and so does whoever wants to read it."""

    def fragile(number):
        if number == 500:
            raise ValueError("five hundred is too much")
        return number

    dataset = inputs.range(1000).map(fragile)
    why = "the save job failed to write .*five hundred is too much"

    with pytest.raises(ServiceError, match=why):
        inputs.save(dataset, tmp_path, two.target)
    with pytest.raises(SnapshotNotFound, match=why):
        inputs.load(tmp_path)
    with pytest.raises(SnapshotNotFound, match=why):
        list(dataset.snapshot(tmp_path, mode="read"))


def test_a_file_that_changes_while_workers_read_it_is_not_saved(two, tmp_path):
    """The worker that reads the file may see it, or whichever commits: it compares the files with the dataset's."""
    path, lake = str(tmp_path / "lake.parquet"), tmp_path / "kept"
    pq.write_table(pa.table({"x": [1] * 1000}), path, row_group_size=100)

    def replace_file(row):
        if row["x"] == 1:  # two workers may do so at once
            draft = f"{path}.{uuid.uuid4().hex}"
            pq.write_table(pa.table({"x": [2] * 1000}), draft, row_group_size=100)
            os.replace(draft, path)  # noqa: PTH105
        return row

    with pytest.raises(ServiceError, match=r"the save job failed .* changed while it was read"):
        inputs.save(inputs.from_parquet(path).map(replace_file), lake, two.target)

    assert not list(lake.glob("*/metadata.final"))


def test_the_shards_of_a_shuffled_source_have_one_order(two, tmp_path):
    """Each of its elements is saved, and once, although no seed was given."""
    inputs.save(inputs.from_random_access(range(300), shuffle=True), tmp_path, two.target)

    assert sorted(inputs.load(tmp_path)) == list(range(300))


def test_a_save_of_shuffled_row_groups_has_the_order_of_their_seed(two, tmp_path):
    """As a snapshot that a pass has written, which has the same fingerprint."""
    pq.write_table(pa.table({"x": range(300)}), tmp_path / "x.parquet", row_group_size=10)
    dataset = inputs.from_parquet(str(tmp_path / "x.parquet"), shuffle=True, seed=3)
    inputs.save(dataset, tmp_path / "kept", two.target)

    assert inputs.load(tmp_path / "kept").to_arrow().equals(dataset.to_arrow())


def test_a_save_has_the_order_of_its_seed_whatever_its_worker_has_cached(tmp_path):
    """A training that the worker feeds from the same cache has filled it in the order of a pass."""
    dataset = inputs.range(30).shuffle().cache().options(seed=3)
    with Service() as service:
        list(dataset.distribute(service.target))
        inputs.save(dataset, tmp_path / "saved", service.target)

    assert list(inputs.load(tmp_path / "saved")) == list(dataset.snapshot(tmp_path / "written"))
