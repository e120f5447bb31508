"""Facts about coordinated reads: a test for each case of `tests/conformance/cases/data.json`, named by its id."""

import time
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError, ServiceError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service import CrossTrainerCache
from spanwise.pipelines.input.service.client import coordinated
from spanwise.pipelines.input.service.dispatcher import decisions, rounds
from spanwise.pipelines.input.service.dispatcher.records import CreateJob, RegisterWorker
from spanwise.pipelines.input.service.dispatcher.state import ServiceState
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire.requests import RegisterDataset, RoundReport
from spanwise.pipelines.input.service.worker import buffers
from tests.pipelines.input.service.consumers import Consumers, groups, is_consecutive
from tests.pipelines.input.service.servers import Service

OFF = "off"
ENDLESS = inputs.range(10**9).repeat()
CACHE = CrossTrainerCache("one")


@pytest.fixture(autouse=True)
def near(monkeypatch):
    """Nobody works or reads far ahead, so that what happens is seen soon."""
    monkeypatch.setattr(buffers, "MAX_ROUNDS_AHEAD", 8)
    monkeypatch.setattr(coordinated, "MAX_ROUNDS_AHEAD", 8)


@pytest.fixture
def one():
    with Service(1) as service:
        yield service


@pytest.mark.parametrize("mode", [OFF, "dynamic"])
@pytest.mark.parametrize(("workers", "count"), [(1, 1), (1, 5), (3, 2), (3, 5)])
def test_CR_01_each_round_comes_from_one_worker(workers, count, mode):
    """A worker gives groups of consecutive numbers, and each round is one of them."""
    with (
        Service(workers) as service,
        Consumers(count, partial(groups(count).distribute, service.target, mode, "job")) as consumers,
    ):
        found = consumers.read(100)

    assert all(is_consecutive(each) for each in found)
    assert len({each[0] for each in found}) > 90


def test_CR_02_finite_data_is_refused(one):
    """The dispatcher knows of the dataset whether it ends."""
    finite = inputs.range(100)
    number = inputs.register_dataset(one.target, finite)
    some = {"consumer_index": 0, "num_consumers": 1}

    with pytest.raises(
        ServiceError, match=r"has infinite cardinality, .* Put repeat\(\) last, right before distribute"
    ):
        list(finite.distribute(one.target, OFF, "job", **some))
    with pytest.raises(ServiceError, match="requires that the input dataset has infinite cardinality"):
        list(inputs.from_dataset_id(OFF, one.target, number, "job", **some))


def test_CR_03_a_consumer_that_begins_at_round_0_again(one):
    """The job goes on without it; when all have left, it begins again."""
    make = partial(ENDLESS.distribute, one.target, OFF, "job")
    with Consumers(3, make) as consumers:
        before = consumers.read(20)
        with Consumers(3, make) as again, pytest.raises(ServiceError, match=r"current round has already reached \d\d"):
            again.read(1)
        after = consumers.read(5)
    with Consumers(3, make) as fresh:
        first = fresh.read(1)

    assert before + after == [(number, number + 1, number + 2) for number in range(0, 75, 3)]
    assert first == [(0, 1, 2)]


@pytest.mark.slow
def test_CR_05_workers_and_the_dispatcher_are_restarted(tmp_path):
    """Whoever is stopped and started, every round is of one worker, and nobody hangs."""
    with Service(
        3, fault_tolerant_mode=True, work_dir=str(tmp_path), worker_timeout_s=3.0, client_timeout_s=60.0
    ) as service:
        make = partial(ENDLESS.distribute, service.target, OFF, "job")
        with Consumers(5, make) as consumers:
            found = consumers.read(20)
            service.workers[1].stop()
            found += consumers.read(100)
            service.restart_worker(1)
            began = len(found)
            while (0, 1, 2, 3, 4) not in found[began:]:  # the new life begins at the beginning
                found += consumers.read(10)
                assert len(found) < began + 1_000, "the worker that came back serves no round"
            service.restart_dispatcher()
            found += consumers.read(100)
            service.restart_worker(0)
            service.restart_worker(2)
            service.restart_dispatcher()
            found += consumers.read(100)

    assert all(is_consecutive(each) and each[0] % 5 == 0 for each in found)


def test_CR_06_bucketed_batches():
    """Fifteen consumers get batches of one bucket in each round, whichever of four workers serves it."""
    batches = (
        inputs.range(1, 90)
        .repeat()
        .shuffle(1_000)
        .map(lambda length: np.ones(length, np.int8))
        .bucket_by_sequence_length(len, [30, 60], [4, 4, 4], shapes=(90,))
        .bucket_by_sequence_length(longest, [30, 60], [15, 15, 15], no_padding=True)
        .unbatch()
        .repeat()
    )
    with (
        Service(4) as service,
        Consumers(15, partial(batches.distribute, service.target, OFF, "job")) as consumers,
    ):
        found = consumers.read(4)

    assert all(len({np.searchsorted([30, 60], longest(batch), "right") for batch in each}) == 1 for each in found)
    assert {batch.shape for each in found for batch in each} == {(4, 90)}


def longest(batch):
    return int(batch.sum(axis=1).max())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"consumer_index": 0}, "wants both"),
        ({"num_consumers": 2}, "wants both"),
        ({"consumer_index": 2, "num_consumers": 2}, "wants one below num_consumers"),
        ({"consumer_index": -1, "num_consumers": 2}, "consumer_index"),
        ({"consumer_index": 0, "num_consumers": 0}, "num_consumers"),
        ({"consumer_index": 0, "num_consumers": 2, "job_name": None}, "wants a job_name"),
        ({"consumer_index": 0, "num_consumers": 2, "processing_mode": "exactly_once"}, "leases end with their splits"),
    ],
)
def test_CR_07_arguments_are_checked(arguments, why):
    """When the dataset is put together."""
    with pytest.raises(DatasetError, match=why):
        ENDLESS.distribute("grpc://127.0.0.1:1", **{"job_name": "job", **arguments})


def coordinated_state(consumers):
    """A job with so many consumers, and a worker; the clients, by index."""
    dataset = RegisterDataset(dataset="d", structure="int64", splits=(10,), infinite=True)
    wanted = CreateJob(job=0, dataset="d", mode=ShardingPolicy.OFF, name="j", epoch="0", consumers=consumers)
    state = ServiceState([dataset])
    arrive(state, "one")
    for index in range(consumers):
        do(state, decisions.join(state, wanted, index, f"key {index}"))
    (job,) = state.jobs
    return state, job


def arrive(state, name):
    return do(state, decisions.arrive(state, RegisterWorker(worker=name, address=name, process="here:1")))


def do(state, records):
    for record in records:
        state.apply(record)
    return records


def test_CR_08_a_new_worker_joins_at_a_round_that_no_consumer_has_passed():
    """Not before all consumers were heard of; then where they agree, so behind everything that any has given. It counts
    for a consumer's rounds only when that one says that it knows.
    """
    state, job = coordinated_state(2)
    (old,) = state.tasks
    plans = state.jobs[job].plans
    do(state, decisions.plan_rounds(state, job, rounds.agreed(plans, [RoundReport(plans=0, ready=0, agreed=0)] * 2)))
    arrive(state, "two")
    (new,) = state.tasks.keys() - {old}
    at_9 = RoundReport(plans=1, ready=9, agreed=4)
    at_6 = RoundReport(plans=1, ready=6, agreed=5)

    pending = decisions.plan_rounds(state, job, rounds.agreed(plans, [at_9, None]))
    (made,) = do(state, decisions.plan_rounds(state, job, rounds.agreed(plans, [at_9, at_6])))

    assert not pending
    assert (made.plan.first, set(made.plan.tasks)) == (6, {old, new})
    assert rounds.agreed(plans, [at_9, RoundReport(plans=2, ready=20, agreed=6)]) == 6  # one goes by the old plan still
    assert (
        rounds.agreed(plans, [RoundReport(plans=2, ready=12, agreed=6), RoundReport(plans=2, ready=20, agreed=6)]) == 12
    )
    assert not decisions.plan_rounds(state, job, 12)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"target_workers": "local"}, "target_workers='any'"),
        ({"target_workers": ["127.0.0.1:1"]}, "target_workers='any'"),
        ({"cross_trainer_cache": CACHE}, "cannot be combined with cross_trainer_cache"),
    ],
)
def test_CR_09_what_does_not_go_with_coordinated_reads(arguments, why):
    """Workers that a consumer chooses, and windows in which each goes at its own pace."""
    with pytest.raises(DatasetError, match=why):
        ENDLESS.distribute("grpc://127.0.0.1:1", OFF, "job", consumer_index=0, num_consumers=2, **arguments)


def test_other_consumers_hear_of_one_that_has_left(one):
    """They are given what all had in hand, and then an error instead of a wait without end."""
    with Consumers(2, partial(ENDLESS.distribute, one.target, OFF, "job")) as consumers:
        consumers.read(3)
        consumers.iterators.pop(0).close()
        with pytest.raises(ServiceError, match="consumer 0 of 2 has left job 'job'"):
            consumers.read(1_000)


def test_an_error_in_a_function_is_that_of_one_consumer(one):
    """Its round goes on for the others, and so do the rounds behind it."""
    with Consumers(2, partial(ENDLESS.map(but_for_5).distribute, one.target, OFF, "job")) as consumers:
        consumers.read(2)
        with pytest.raises(Exception, match="five"):
            consumers.read(1)

        assert consumers.read(2) == [(6, 7), (8, 9)]


def but_for_5(number):
    if number == 5:
        raise ValueError("five")
    return number


def test_rows_are_given_one_a_round():
    """Blocks of rows are shared out row by row, as other elements are."""
    table = inputs.from_arrow(pa.table({"n": range(1_000)})).repeat()
    with (
        Service(2) as service,
        Consumers(3, partial(table.distribute, service.target, OFF, "job")) as consumers,
    ):
        found = consumers.read(50)

    numbers = [[row["n"] for row in each] for each in found]
    assert all((each[1] - each[0]) % 1_000 == (each[2] - each[1]) % 1_000 == 1 for each in numbers)


def test_rows_of_small_blocks_are_given_one_a_round():
    """A worker sends several rows to a block; consumers that took a block for a round got rows of different workers."""

    def rows():
        for number in range(3):
            time.sleep(0.002)  # so that a consumer finds more rows than the other
            yield {"n": number}

    table = inputs.from_generator(rows, spec=pa.schema([("n", pa.int64())])).repeat()
    with Service(2) as service, Consumers(2, partial(table.distribute, service.target, OFF, "job")) as consumers:
        found = consumers.read(60)

    assert {tuple(row["n"] for row in each) for each in found} == {(0, 1), (2, 0), (1, 2)}


def test_jobs_must_agree_on_the_number_of_consumers(one):
    """A job is read by as many as it was made for."""
    make = partial(ENDLESS.distribute, one.target, OFF, "job")
    with Consumers(2, make) as consumers, make(consumer_index=0, num_consumers=3).iterator() as other:
        consumers.read(1)
        with pytest.raises(ServiceError, match="by 2 coordinated consumers"):
            next(other)
