"""What is counted while a graph runs."""

import numpy as np
import pyarrow as pa
import pytest

import spanwise.pipelines.input as tfdata
from spanwise.pipelines.input.op import Opening
from spanwise.pipelines.input.tuning.latency import LatencyKind
from spanwise.pipelines.input.tuning.stats import Stats
from spanwise.pipelines.input.tuning.timing import Timeline


def ran(dataset):
    """The stats of a graph that has run to its end."""
    stats = Stats(dataset.op)
    for _ in Opening(observe=stats.observe).open(dataset.op):
        pass
    return stats


def test_every_op_is_counted_in_its_own_unit():
    """Rows where blocks travel, else elements."""
    dataset = tfdata.from_arrow(pa.table({"x": np.arange(1000)})).batch(64)

    source, batches = (ran(dataset).readings()[op] for op in reversed(Stats(dataset.op).ops))

    assert (source.calls, source.units) == (1, 1000)
    assert (batches.calls, batches.units) == (16, 16)


def test_the_model_takes_so_many_elements_from_below_as_were_taken():
    """A filter that keeps a tenth takes ten for one; a batch of 5 takes five."""
    dataset = tfdata.range(1000).filter(lambda x: x % 10 == 0).batch(5)
    stats = ran(dataset)

    batch = stats.tree(stats.readings(), {})
    kept = batch.inputs[0]

    assert (batch.kind, kept.kind, kept.inputs[0].kind) == (
        LatencyKind.UNKNOWN_RATIO,
        LatencyKind.UNKNOWN_RATIO,
        LatencyKind.SOURCE,
    )
    assert kept.taken == 5
    assert kept.inputs[0].taken == 10


def test_ops_that_only_hand_on_are_counted_with_their_input():
    """They would take less time than the clock; a profile, which shows everything, counts them all the same."""
    dataset = tfdata.range(1000).skip(10).batch(5).take(100)
    stats = ran(dataset)
    node = stats.tree(stats.readings(), {})

    assert [op.name for op in stats.ops] == ["Batch", "Range"]
    assert [(each.name, each.taken) for each in node.walk()] == [("Batch", 1.0), ("Range", 5.1)]
    assert [op.name for op in Stats(dataset.op, Timeline()).ops] == ["Take", "Batch", "Skip", "Range"]


def test_an_ops_own_time_is_without_that_of_its_inputs():
    """All own times together are the time that the consumer spent in the last op."""
    dataset = tfdata.range(2000).map(lambda x: x + 1).batch(10)
    stats = ran(dataset)
    readings = stats.readings()

    tree = stats.tree(readings, {})

    total_s = sum(node.own_s * readings[op].units for node, op in zip(tree.walk(), stats.ops, strict=True))
    assert total_s == pytest.approx(readings[stats.ops[0]].total_s)


def test_work_in_the_background_is_counted_by_its_calls():
    """Not by how long the consumer waits for it."""
    dataset = tfdata.range(100).map(lambda x: x, num_parallel=2)
    op = dataset.op
    stats = Stats(op)
    stream = Opening(observe=stats.observe).open(op)

    for _ in stream:
        pass

    work = stats.readings()[op].work
    assert work is not None
    assert work.calls == 100
    assert stats.tree(stats.readings(), {}).kind is LatencyKind.ASYNC_KNOWN_RATIO


def test_all_rounds_of_a_repeat_are_counted():
    """Each opens a stream of its own; those that are gone still count."""
    dataset = tfdata.range(10).map(lambda x: x).repeat(7)

    stats = ran(dataset)

    assert [stats.readings()[op].calls for op in stats.ops] == [70, 70, 70]
