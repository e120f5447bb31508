"""Workers that count the elements of one dataset count them in one order; what has none, or cannot be shared, is refused."""

import random
import time

import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import BlockFailed, DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs
from tests.pipelines.input.service.servers import listed

COUNT = 200


@pytest.fixture(scope="module")
def service():
    with listed(2) as running:
        yield running


def uneven(number):
    time.sleep(random.random() / 1_000)
    return number


def tens(number):
    return inputs.range(10 * number, 10 * number + 10).map(uneven, num_parallel=4, deterministic=False)


NUMBERS = inputs.range(COUNT)
UNORDERED = {
    "map": NUMBERS.map(uneven, num_parallel=4, deterministic=False),
    "options": NUMBERS.map(uneven, num_parallel=4).options(deterministic=False),
    "nested": inputs.range(COUNT // 10).flat_map(tens),
    "interleave": inputs.range(COUNT // 10).interleave(tens, cycle_length=4, num_parallel=4, deterministic=False),
}


@pytest.mark.parametrize("unordered", UNORDERED)
@pytest.mark.parametrize("mode", ["data", "hint"])
def test_workers_that_share_by_elements_have_them_in_one_order(service, unordered, mode):
    """Whatever the dataset says of its order: else some elements come twice, and others never."""
    dataset = UNORDERED[unordered]
    dataset = dataset.shard(inputs.SHARD_HINT, 0) if mode == "hint" else dataset

    assert sorted(dataset.distribute(service.target, mode)) == list(range(COUNT))


def test_leased_splits_of_nested_datasets_are_in_order(service):
    """A worker that takes over skips what was sent."""
    found = list(UNORDERED["nested"].distribute(service.target, "exactly_once"))

    assert found == list(range(COUNT))


def test_a_worker_that_takes_splits_says_what_its_errors_count_from(service):
    """An element that is the first of the dataset may be any of the worker's."""
    failing = inputs.range(4).map(lambda x: x // (x != 3))

    with pytest.raises(FunctionFailed, match="It counts from the beginning of all splits that its worker has taken"):
        list(failing.distribute(service.target, "dynamic"))


def uneven_types(columns):
    return {"n": columns["n"] if columns["n"][0] < 8_192 else columns["n"] / 2}


@pytest.mark.parametrize("size", [None, 100])
@pytest.mark.parametrize("mode", ["exactly_once", "dynamic"])
def test_a_type_that_differs_between_splits_is_refused(service, mode, size):
    """Each is a pass of its own, at whichever worker; rows and batches alike."""
    rows = inputs.from_arrow(pa.table({"n": range(20_000)})).options(block_rows=1_000)
    rows = rows.map(uneven_types, vectorized=True)
    dataset = (
        rows.distribute(service.target, mode) if size is None else rows.batch(size).distribute(service.target, mode)
    )

    with pytest.raises(
        (DatasetError, BlockFailed), match=r"column 'n' as .* for other rows, and as .* Declare the types"
    ):
        list(dataset)


@pytest.mark.parametrize("mode", ["data", "file_or_data", "hint"])
@pytest.mark.parametrize("below", ["off", "dynamic", "exactly_once"])
def test_elements_of_a_service_are_not_shared_by_counting_them(service, mode, below):
    """Each worker would read a job of its own, in an order of its own."""
    dataset = NUMBERS.distribute(service.target, below)

    with pytest.raises(DatasetError, match=r"Distribute come in another order.*'off'"):
        dataset.distribute(service.target, mode)


@pytest.mark.parametrize("mode", ["data", "hint"])
def test_an_incomplete_snapshot_of_a_drawn_order_is_not_shared_by_counting(service, tmp_path, mode):
    """A worker that is restarted may find it complete, in the order of whoever has written it."""

    def shared(dataset):
        return (dataset.shard(inputs.SHARD_HINT, 0) if mode == "hint" else dataset).distribute(service.target, mode)

    drawn = NUMBERS.shuffle(COUNT).snapshot(tmp_path / "drawn")
    fixed = NUMBERS.snapshot(tmp_path / "fixed")

    with pytest.raises(DatasetError, match=r"snapshot.*not complete.*Write it first"):
        shared(drawn)
    written = list(drawn)

    assert sorted(shared(drawn)) == list(range(COUNT))
    assert sorted(shared(fixed)) == list(range(COUNT))
    assert list(drawn) == written
    assert len(list((tmp_path / "drawn").iterdir())) == 1  # all workers read the one that was written


@pytest.fixture
def lines(tmp_path):
    """The numbers from 0 to 39 in four files."""
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("".join(f"{10 * number + at}\n" for at in range(10)))
    return inputs.from_text(str(tmp_path / "*.txt")).map(int)


OTHERS = {
    "range": lambda: inputs.range(100, 110),
    "generator": lambda: inputs.from_generator(lambda: iter(range(100, 110))),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_reads_no_files_is_not_shared_by_files(service, lines, other):
    """Each worker would give all of it: so `file` refuses it, and `file_or_data` shares by elements."""
    dataset = lines.concatenate(OTHERS[other]())

    with pytest.raises(DatasetError, match=r"unshardable source dataset was found: .* reads no files; use 'data'"):
        dataset.distribute(service.target, "file")
    assert sorted(dataset.distribute(service.target, "file_or_data")) == [*range(40), *range(100, 110)]


def drawn(_line):
    return inputs.range(1).random_map(lambda _, numbers: int(numbers.integers(10**12)))


@pytest.mark.parametrize("mode", ["file", "file_or_data", "dynamic"])
@pytest.mark.parametrize("seed", [None, 3])
def test_no_two_workers_draw_the_same_numbers_for_their_elements(service, lines, mode, seed):
    """Datasets that a function returns for an element count the elements of one worker: all drew from one seed."""
    found = list(lines.map(uneven).flat_map(drawn).options(seed=seed).distribute(service.target, mode))

    assert len(found) == len(set(found)) == 40


def test_workers_that_produce_the_same_elements_draw_the_same_numbers(service):
    """Each sends its share of one dataset."""
    dataset = inputs.range(20).flat_map(drawn).options(seed=3)

    with dataset.distribute(service.target, "data").iterator(epoch=0) as elements:
        assert sorted(elements) == sorted(dataset.iterator(epoch=0))
