"""Tuning a graph that runs."""

import threading
import time

import numpy as np
import pyarrow as pa

import spanwise.pipelines.input as tfdata
from spanwise.pipelines.input import AUTOTUNE
from spanwise.pipelines.input.op import Knob, Opening
from spanwise.pipelines.input.op import Options as RunOptions
from spanwise.pipelines.input.tuning import tuner as tuning
from spanwise.pipelines.input.tuning.latency import latency_s
from spanwise.pipelines.input.tuning.reading import CallTimes, OpReading
from spanwise.pipelines.input.tuning.search import next_block_rows
from spanwise.pipelines.input.tuning.tuner import BLOCK_BYTES, Tuner
from tests.pipelines.input.talk import F_S, G_S, SOURCE_S, free, tree


def stage(seconds):
    def wait(x):
        time.sleep(seconds)
        return x

    return wait


def record(monkeypatch, tuner, took_s, *, calls=100):
    """Has the tuner read that each op took so long for an element, its calls all of that."""
    monkeypatch.setattr(tuner, "_before", dict.fromkeys(tuner.stats.ops, OpReading()))
    readings = {
        op: OpReading(
            calls=calls,
            units=calls,
            total_s=calls * seconds,
            work=CallTimes(calls=calls, took_s=calls * seconds) if op.inputs else None,
        )
        for op, seconds in zip(tuner.stats.ops, took_s, strict=True)
    }
    monkeypatch.setattr(tuner.stats, "readings", lambda: readings)


def test_on_sleeping_stages_it_is_nearly_as_good_as_the_best_by_hand(monkeypatch):
    """From the times of the talk's stages; `benchmarks.input` measures the same on stages that sleep."""
    op = tfdata.range(9).map(abs, num_parallel=AUTOTUNE).map(abs, num_parallel=AUTOTUNE).op
    tuner = Tuner(op, RunOptions(), Opening().block)
    streams = Opening(tuner=tuner, observe=tuner.observe).open(op)
    record(monkeypatch, tuner, [G_S, F_S, SOURCE_S])

    tuner.tune()

    settings = {"f": tuner._knobs[op.inputs[0]].value, "g": tuner._knobs[op].value}
    assert latency_s(free(64), settings) <= latency_s(tree(5, 10), {}) / 0.9
    streams.close()


def test_memory_stays_under_the_budget():
    """Whatever is on its way, in parallel maps and in prefetches, at any moment."""
    held, most = [0], [0]

    class Array(np.ndarray):
        def __del__(self):
            held[0] -= 1

    def megabyte(x):
        held[0] += 1
        most[0] = max(most[0], held[0])
        time.sleep(0.005)
        return np.zeros(131_072).view(Array)

    dataset = tfdata.range(200).map(megabyte, num_parallel=AUTOTUNE).prefetch(AUTOTUNE)
    for budget_megabytes in (6, 16):
        most[0] = 0
        tuned = dataset.options(optimize=False, memory_budget_bytes=budget_megabytes << 20, cpu_budget=64)
        with tuned.iterator() as elements:
            for _ in range(60):
                next(elements)
                elements.tuner.tune()
            proposal = elements.tuner.proposal

        assert proposal.held_bytes <= budget_megabytes << 20
        assert most[0] <= budget_megabytes
    assert most[0] > 1  # the larger budget has room for several calls at once; of the smaller, buffers may take all


def test_a_quick_function_is_called_by_the_consumer_itself(monkeypatch):
    """A thread would cost more than it gains: none is started for it."""
    dataset = tfdata.range(2000).map(lambda x: x + 1, num_parallel=AUTOTUNE).options(optimize=False)
    monkeypatch.setattr(tuning, "PERIOD_S", (600.0, 600.0))
    before = set(threading.enumerate())
    with dataset.iterator() as elements:
        found = [next(elements) for _ in range(1000)]
        record(monkeypatch, elements.tuner, [1e-6, 1e-7], calls=1000)
        monkeypatch.setattr(elements.tuner, "_consumer_s", lambda _: 0.0)  # as it works on a machine that is not busy
        elements.tuner.tune()
        found += [next(elements) for _ in range(900)]

        assert set(elements.tuner.proposal.settings.values()) == {0}
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["autotune"]
    assert found == list(range(1, 1901))


def test_without_autotune_nothing_is_timed():
    """The option turns tuner and clocks off; settings left to be found get numbers that do."""
    dataset = tfdata.range(100).map(lambda x: x, num_parallel=AUTOTUNE).prefetch().options(autotune=False)
    with dataset.iterator() as elements:
        assert list(elements) == list(range(100))
        assert elements.tuner is None


def test_a_round_of_a_repeat_begins_with_what_was_found_before():
    """Its streams are new, the settings are not."""
    op = tfdata.range(3).map(stage(0.001), num_parallel=AUTOTUNE).repeat(2).op
    tuner = Tuner(op, RunOptions(), Opening().block)
    opening = Opening(tuner=tuner, observe=tuner.observe)
    repeated = op.inputs[0]

    first = opening.open(repeated)
    tuner._tuned.settings["1.ParallelMap"] = 7
    second = opening.open(repeated)

    assert tuner._knobs[repeated].value == 7
    first.close()
    second.close()


def test_a_part_that_has_ended_is_not_tuned():
    """The parts of a concatenation run one behind the other; the knobs of those that are over stay as they are."""
    rows = tfdata.from_arrow(pa.table({"x": np.arange(100)}))
    parts = [rows.map(lambda columns: {"x": columns["x"]}, vectorized=True, num_parallel=AUTOTUNE) for _ in range(2)]
    with parts[0].concatenate(parts[1]).batch(10).iterator() as batches:
        for batch in batches:
            assert batch.num_rows == 10
            batches.tuner.tune()


def test_another_pass_begins_with_what_was_found_before(monkeypatch):
    """It need not find out again."""
    monkeypatch.setattr(tuning, "PERIOD_S", (600.0, 600.0))  # nothing is tuned but here
    dataset = tfdata.range(1_000_000).map(stage(0.002), num_parallel=AUTOTUNE).options(optimize=False)
    with dataset.iterator() as elements:
        for _ in range(30):
            next(elements)
            elements.tuner.tune()
        (first,) = elements.tuner._knobs.values()

    with dataset.iterator() as elements:
        next(elements)
        (second,) = elements.tuner._knobs.values()

    assert first.value > 0
    assert second.value == first.value


def test_blocks_grow_while_a_row_gets_cheaper():
    """Twice and half of the best size are tried; of sizes that are as good, the smaller one holds less."""
    block = Knob(name="block_rows", kind="block", value=32, minimum=8, maximum=128)

    assert next_block_rows({32: 1.0}, block) == 64
    assert next_block_rows({32: 1.0, 64: 0.8}, block) == 128
    assert next_block_rows({32: 1.0, 64: 0.8, 128: 0.81}, block) == 64
    assert next_block_rows({32: 1.0, 64: 0.97}, block) == 16
    assert next_block_rows({32: 1.0, 64: 0.97, 16: 2.0}, block) == 32
    assert next_block_rows({128: 1.0, 64: 2.0}, block) == 128


def test_the_size_of_blocks_is_tuned_and_changes_no_row():
    """Within its bounds and below what a cache of a processor holds."""
    table = pa.table({f"c{i}": np.arange(400_000) for i in range(4)})
    dataset = tfdata.from_arrow(table).map(lambda c: {"s": c["c0"] + c["c1"]}, vectorized=True).batch(100)
    with dataset.iterator() as batches:
        total = 0
        for number, batch in enumerate(batches):
            total += int(batch.column("s").to_numpy().sum())
            if number % 300 == 0:
                batches.tuner.tune()
        block = batches.tuner._block

    assert total == 2 * sum(range(400_000))
    assert block.minimum <= block.value <= block.maximum
    assert block.value * 4 * 8 <= BLOCK_BYTES
