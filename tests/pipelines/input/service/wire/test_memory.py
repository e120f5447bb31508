"""Shared memory between a worker and a consumer on one host: what is in it, when it is used again, what is left."""

import gc
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.element import Table
from spanwise.pipelines.input.service.wire import memory
from spanwise.pipelines.input.service.wire.config import WorkerConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.memory import LEAST_BYTES, SEGMENTS, Borrower, Lender, NotShared
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.worker.worker import WorkerServer
from tests.pipelines.input.service.servers import Service
from tests.servers import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared through /proc")

MIB = 1 << 20
ROWS = 200_000
TABLE = pa.table({"n": np.arange(ROWS), "x": np.random.default_rng(0).random(ROWS)})


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """No descriptor and no mapping, whatever the test has done."""
    yield
    eventually(lambda: not held() or (gc.collect() >= 0 and not held()))


@pytest.fixture
def lender():
    there = Lender(64 * MIB)
    yield there
    there.close()


def block(number, rows=MIB // 8):
    return pa.RecordBatch.from_pydict({"n": np.full(rows, number)})


def lent(lender, number, client=1, returned=(), rows=MIB // 8):
    blocks = [block(number, rows)]
    return lender.lend(client, returned, blocks[0].schema, blocks)


def held():
    """How many segments this process has open or mapped."""
    fds = [target for path in Path("/proc/self/fd").iterdir() if (target := open_file(path))]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:spanwise" in each for each in [*fds, *maps])


def open_file(path):
    """What a descriptor refers to; nothing if another thread has closed it meanwhile."""
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def pieces(dataset):
    """Blocks of rows, or batches."""
    return list(dataset.blocks() if isinstance(dataset.spec, Table) else dataset)


def test_what_is_lent_is_mapped(lender):
    """The consumer's columns lie in the segment; nothing is copied."""
    borrower = Borrower()
    (found,) = borrower.blocks(lent(lender, 7))

    assert found.equals(block(7))
    address = found.column(0).buffers()[1].address
    spans = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line]
    assert any(int(start, 16) <= address < int(end, 16) for start, end in spans)


def test_a_segment_is_used_again_when_nothing_refers_to_it(lender):
    """Not before: an array of one column holds it."""
    borrower = Borrower()
    first = lent(lender, 1)
    array = borrower.blocks(first)[0].column(0).to_numpy()
    second = lent(lender, 2, returned=borrower.unused())
    assert second.number != first.number
    assert (array == 1).all()

    del array
    assert borrower.unused() == (first.number,)
    third = lent(lender, 3, returned=borrower.unused())

    assert third.number == first.number
    assert borrower.blocks(third)[0].equals(block(3))


def test_a_segment_that_is_too_small_is_replaced(lender):
    """By one of the right size; the other one is let go."""
    borrower = Borrower()
    borrower.blocks(lent(lender, 1))
    large = lent(lender, 2, returned=borrower.unused(), rows=2 * MIB // 8)

    assert borrower.blocks(large)[0].num_rows == 2 * MIB // 8
    assert lender.bytes == 3 * MIB


def test_memory_is_bounded(lender):
    """By the worker's limit, and by the number of segments that a client may keep: more are let go, or not lent."""
    borrower = Borrower()
    assert lent(Lender(MIB), 1) is None
    kept = [borrower.blocks(lent(lender, number)) for number in range(2 * SEGMENTS)]

    assert lender.bytes <= SEGMENTS * 2 * MIB
    assert [blocks[0].column(0)[0].as_py() for blocks in kept] == list(range(2 * SEGMENTS))


def test_little_is_sent(lender):
    """To map it would take longer."""
    assert lent(lender, 1, rows=LEAST_BYTES // 8 // 2) is None


def test_a_process_that_has_got_the_number_of_another_is_not_believed(lender):
    """The segment is known by its inode; a process that is gone cannot be opened at all."""
    borrower = Borrower()
    loan = lent(lender, 1)
    for wrong in ({"inode": loan.inode + 1}, {"fd": 0}, {"pid": 1 << 22}):
        with pytest.raises(NotShared):
            borrower.blocks(loan.model_copy(update=wrong))


def test_elements_are_the_same_however_they_come():
    """Rows and batches through memory and, where compression was asked for, through the wire."""
    with Service(1) as service:
        for dataset in (inputs.from_arrow(TABLE), inputs.from_arrow(TABLE).batch(1000)):
            mapped = dataset.distribute(service.target)
            sent = dataset.distribute(service.target, compression="lz4")
            found = pieces(mapped)
            assert held() > 0
            assert pa.Table.from_batches(found) == pa.Table.from_batches(pieces(sent)) == TABLE
            del found


def answer(service, **terms):
    """What a worker answers to the first ticket of a split."""
    dataset = inputs.register_dataset(service.target, inputs.from_arrow(TABLE))
    ticket = {"split": 0, "dataset": dataset, "client": 1, "number": 0, "limit_bytes": 64 * MIB}
    worker = ServiceConnection(service.workers[0].address, Security())
    schema, blocks = worker.fetch(json.dumps({**ticket, **terms}).encode(), 20.0)
    return json.loads(schema.metadata[b"spanwise"]), blocks


def test_a_consumer_on_another_host_is_sent_what_it_wants(monkeypatch):
    """Memory is lent only to who names this host, user and process space."""
    monkeypatch.setattr(memory, "LEAST_BYTES", 0)
    with Service(1) as service:
        there, sent = answer(service, host="another boot pid:[1] 0")
        here, mapped = answer(service, host=memory.memory_host())

    assert there["loan"] is None
    assert sum(block.num_rows for block in sent) > 0
    assert here["loan"] is not None
    assert mapped == []


def test_who_cannot_map_it_is_sent_it(monkeypatch):
    """Though it seems to be on the same host; it asks once more, and the elements are the same."""

    def refused(loan):
        raise NotShared(f"the memory of process {loan.pid} cannot be opened")

    monkeypatch.setattr(memory, "_map", refused)
    with Service(1) as service:
        found = pa.Table.from_batches(inputs.from_arrow(TABLE).distribute(service.target).blocks())

    assert found == TABLE


def test_no_memory_is_lent_if_there_is_to_be_none():
    """With `shared_bytes=0`."""
    with Service(0) as service:
        service.add_worker(shared_bytes=0)
        elements = inputs.from_arrow(TABLE).batch(1000).distribute(service.target).iterator()
        next(elements)

        assert held() == 0
        elements.close()


def read_and_wait(target, told):
    elements = inputs.from_arrow(TABLE).repeat().batch(1000).distribute(target).iterator()
    batch = next(elements)
    told.send(batch.num_rows)
    told.recv()


@pytest.mark.slow
def test_nothing_is_left_of_a_consumer_that_was_killed(monkeypatch):
    """Its worker lets go of what it had lent when it has not been asked for a while."""
    monkeypatch.setattr("spanwise.pipelines.input.service.worker.worker._IDLE_S", 0.2)
    with Service(1) as service:
        ours, theirs = multiprocessing.Pipe()
        consumer = multiprocessing.get_context("spawn").Process(target=read_and_wait, args=(service.target, theirs))
        consumer.start()
        assert ours.recv() == 1000
        eventually(lambda: held() > 0)
        os.kill(consumer.pid, signal.SIGKILL)
        consumer.join()

        eventually(lambda: held() == 0)


def work_and_wait(target, told):
    with WorkerServer(WorkerConfig(dispatcher_address=target, heartbeat_s=0.1)) as worker:
        told.send(worker.address)
        worker.join()


@pytest.mark.slow
def test_what_was_taken_outlives_a_worker_that_was_killed():
    """The consumer keeps what it has mapped as long as it wants it; then nothing is left."""
    with Service(0) as service:
        ours, theirs = multiprocessing.Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=work_and_wait, args=(service.target, theirs))
        worker.start()
        ours.recv()
        elements = inputs.from_arrow(TABLE).repeat().batch(1000).distribute(service.target).iterator()
        batch = next(elements)
        assert held() > 0
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()

        assert batch.column(0).to_pylist() == list(range(1000))
        elements.close()
        del elements, batch
        eventually(lambda: held() == 0)
