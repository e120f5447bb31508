"""A task on a worker: its answers, and how long they are kept."""

import time

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.op import Options
from spanwise.pipelines.input.service.wire.connection import UnknownTask
from spanwise.pipelines.input.service.wire.meter import ServerMeter
from spanwise.pipelines.input.service.wire.requests import Fetch
from spanwise.pipelines.input.service.worker.buffers import SharedQueue
from spanwise.pipelines.input.service.worker.task import TaskPass, WorkerTask
from tests.servers import eventually


@pytest.fixture
def task():
    task = WorkerTask(
        lambda: TaskPass(inputs.range(9).op, Options(), inputs.Dataset), SharedQueue(1 << 20), ServerMeter()
    )
    yield task
    task.stop()


def asking(number):
    return Fetch(task=1, client=7, number=number, limit_bytes=1)


def test_who_asks_again_is_answered_as_before(task):
    """Whose answer got lost, loses no element."""
    first = task.reply(asking(0))

    assert task.reply(asking(0)) is first
    assert (first.pieces, task.reply(asking(1)).pieces) == ([0], [1])


def test_what_has_not_arrived_is_not_over(task):
    """A worker that ends with its last answer on the way must not leave a task behind that was read to its end."""
    for number in range(9):
        task.reply(asking(number))
    eventually(lambda: task.is_drained)

    assert not task.is_delivered
    task.note_receipt(asking(8))
    assert task.is_delivered


def test_an_error_that_waits_holds_no_element():
    """Its traceback and its cause do; the consumer gets its text alone."""
    failing = inputs.range(9).map(lambda number: 1 // (number - number))
    task = WorkerTask(lambda: TaskPass(failing.op, Options(), inputs.Dataset), SharedQueue(1 << 20), ServerMeter())
    error = task.reply(asking(0)).error
    task.stop()

    assert "ZeroDivisionError at element 0" in str(error)
    assert (error.__cause__, error.__context__, error.__traceback__) == (None, None, None)


def test_old_answers_are_dropped(task):
    """What was held for a client that is gone is not held for ever; one that is only slow goes on."""
    task.reply(asking(0))
    task.drop_replies(time.monotonic())

    with pytest.raises(UnknownTask, match="continues answers of an earlier worker"):
        task.reply(asking(0))
    assert task.reply(asking(1)).pieces == [1]
