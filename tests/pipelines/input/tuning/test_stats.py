"""What is counted while a graph runs."""

import numpy as np
import pyarrow as pa
import pytest

import spanwise.pipelines.input as tfdata
from spanwise.pipelines.input.op import Opening
from spanwise.pipelines.input.tuning.latency import Kind
from spanwise.pipelines.input.tuning.stats import CallTimes, Reading, Stats, Trace, overhead_s, weight


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

    assert (batch.kind, kept.kind, kept.inputs[0].kind) == (Kind.UNKNOWN_RATIO, Kind.UNKNOWN_RATIO, Kind.SOURCE)
    assert kept.taken == 5
    assert kept.inputs[0].taken == 10


def test_ops_that_only_hand_on_are_counted_with_their_input():
    """They would take less time than the clock; a profile, which shows everything, counts them all the same."""
    dataset = tfdata.range(1000).skip(10).batch(5).take(100)
    stats = ran(dataset)
    node = stats.tree(stats.readings(), {})

    assert [op.name for op in stats.ops] == ["Batch", "Range"]
    assert [(each.name, each.taken) for each in node.walk()] == [("Batch", 1.0), ("Range", 5.1)]
    assert [op.name for op in Stats(dataset.op, Trace()).ops] == ["Take", "Batch", "Skip", "Range"]


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
    assert stats.tree(stats.readings(), {}).kind is Kind.ASYNC_KNOWN_RATIO


def test_all_rounds_of_a_repeat_are_counted():
    """Each opens a stream of its own; those that are gone still count."""
    dataset = tfdata.range(10).map(lambda x: x).repeat(7)

    stats = ran(dataset)

    assert [stats.readings()[op].calls for op in stats.ops] == [70, 70, 70]


def test_a_reading_since_another_one_is_what_was_done_between():
    """And all there is, when nothing was done."""
    before = Reading(calls=4, units=40, total_s=1.0, work=CallTimes(calls=4, took_s=0.5, squares=0.1, cpu_s=0.25))
    now = Reading(calls=6, units=60, total_s=1.5, work=CallTimes(calls=6, took_s=0.75, squares=0.2, cpu_s=0.5))

    between = now.since(before)

    assert (between.calls, between.units, between.total_s) == (2, 20, 0.5)
    assert between.work == CallTimes(calls=2, took_s=0.25, squares=0.1, cpu_s=0.25)
    assert now.since(now) == now


def test_times_that_vary_are_told_from_steady_ones():
    """The squared coefficient of variation: 0 when all are alike."""
    steady, mixed = CallTimes(), CallTimes()
    for _ in range(4):
        steady.add(0.1)
    for took_s in (0.1, 0.3):
        mixed.add(took_s)

    assert steady.variability == pytest.approx(0)
    assert mixed.variability == pytest.approx(0.25)


def test_an_element_weighs_what_its_arrays_hold():
    """Whatever structure they are in; of a slice of a table, only the slice."""
    block = pa.table({"x": np.arange(1000)}).slice(0, 10).to_batches()[0]

    assert weight({"a": np.zeros(100), "b": (np.zeros(50), np.zeros(50))}) == 1600
    assert weight(block) == 80
    assert weight(pa.record_batch({"x": ["ten bytes.", None, "a"]})) == pytest.approx(11, abs=32)


def test_timing_reads_the_clock_twice_for_each_element(clock):
    """And for nothing else; `benchmarks.input` limits what that takes."""
    dataset = tfdata.range(10).batch(5)

    ran(dataset)

    assert clock.readings == 2 * (10 + 1) + 2 * (2 + 1)  # each op is asked once more, at the end


def test_what_timing_costs_is_measured_on_a_stream_that_does_nothing(clock):
    """By the clock itself: where reading it takes no time, timing costs nothing."""
    assert overhead_s(elements=5, times=2) == 0
    assert clock.readings == 2 * 2 + 2 * 2 + 2 * 5 * 2
