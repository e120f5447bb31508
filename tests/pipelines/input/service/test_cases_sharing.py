"""Facts about trainers that share a computation: a test for each case of `tests/conformance/cases/data.json`."""

import contextlib
import itertools

import pytest

from spanwise.orchestrator.errors import DatasetError, ServiceError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service import CrossTrainerCache
from tests.pipelines.input.service.servers import Service

OFF = "off"
NEAR = 4_096  # bytes: how far workers work ahead here
ENDLESS = inputs.range(10**9).repeat()


@pytest.fixture
def one():
    with Service(0) as service:
        service.add_worker(buffer_bytes=NEAR)
        yield service


def first(dataset, count):
    with dataset.iterator() as elements:
        return list(itertools.islice(elements, count))


def of_trainer(service, name, dataset=ENDLESS, **more):
    cache = None if name is None else CrossTrainerCache(name)
    return dataset.distribute(service.target, OFF, "job", cross_trainer_cache=cache, **more)


def test_CT_02_the_same_trainer_does_not_read_again(one):
    """A consumer goes on where another one of its trainer stood; another trainer reads from the beginning."""
    before = first(of_trainer(one, "t2"), 10)
    again = first(of_trainer(one, "t2"), 10)
    other = first(of_trainer(one, "t1"), 10)

    assert before == other == list(range(10))
    assert again[0] >= 10


def test_CT_03_needs_infinite_data(one):
    """The window slides for ever; what has slid out is not made again."""
    with pytest.raises(ServiceError, match="requires that the input dataset has infinite cardinality"):
        first(of_trainer(one, "t1", inputs.range(10)), 1)


def test_CT_04_needs_a_job_name():
    """By which trainers find together; and a trainer has a name itself."""
    with pytest.raises(DatasetError, match="wants a job_name"):
        ENDLESS.distribute("grpc://127.0.0.1:1", OFF, cross_trainer_cache=CrossTrainerCache("t1"))
    with pytest.raises(DatasetError, match="a different one for each trainer"):
        CrossTrainerCache("")
    with pytest.raises(DatasetError, match=r"wants CrossTrainerCache\(trainer_id=…\)"):
        ENDLESS.distribute("grpc://127.0.0.1:1", OFF, "job", cross_trainer_cache="t1")


def test_CT_05_off_by_default(one):
    """Consumers of one name share the elements of a job, each of which goes to one of them."""
    one_took = first(of_trainer(one, None), 10)
    other_took = first(of_trainer(one, None), 10)

    assert one_took == list(range(10))
    assert other_took[0] >= 10


def test_CT_06_a_slow_reader_skips():
    """What slid out of the window it does not get; it gets as many elements as it asks for."""
    with Service(0) as service:
        service.add_worker(buffer_bytes=NEAR, cross_trainer_cache_bytes=500)
        fast = first(of_trainer(service, "fast"), 200)
        slow = first(of_trainer(service, "slow"), 200)

    assert fast == list(range(200))
    assert slow[0] > 0
    assert len(slow) == 200


made = []


def costly(number):
    made.append(number)
    return number


def test_a_computation_is_made_once_for_all_trainers(one):
    """Three trainers read the same elements, and each was made once."""
    made.clear()
    with contextlib.ExitStack() as stack:
        # named, since the fingerprint of `costly` is that of `made` too
        dataset = ENDLESS.map(costly)
        datasets = [of_trainer(one, f"t{number}", dataset, dataset_id="costly") for number in range(3)]
        trainers = [stack.enter_context(dataset.iterator()) for dataset in datasets]
        found = [list(itertools.islice(trainer, 50)) for trainer in trainers]

    assert found == [list(range(50))] * 3
    assert len(made) == len(set(made))


def test_shared_and_private_readers_do_not_mix(one):
    """A job is read through a window by all or by none."""
    with of_trainer(one, "t1").iterator() as elements:
        next(elements)
        with pytest.raises(ServiceError, match="through a cross_trainer_cache"):
            first(of_trainer(one, None), 1)
