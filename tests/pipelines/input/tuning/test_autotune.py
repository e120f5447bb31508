"""Tuning a graph that runs."""

import os
import time

import numpy as np
import pyarrow as pa
import pytest

import spanwise.pipelines.input as tfdata
from spanwise.pipelines.input import AUTOTUNE
from spanwise.pipelines.input.op import Knob, Opening
from spanwise.pipelines.input.op import Options as RunOptions
from spanwise.pipelines.input.tuning.autotune import BLOCK_BYTES, Tuner, next_block_rows

LONG = "SPANWISE_TEST_AUTOTUNE_S"  # seconds that the long form lets a graph run; without it, the short form runs


def stage(seconds):
    def wait(x):
        time.sleep(seconds)
        return x

    return wait


def talk(scale, first, second):
    """The talk's stages, so many times shorter, with so many calls at once."""
    source = tfdata.range(1_000_000).map(stage(0.02 * scale))
    return (
        source.map(stage(0.1 * scale), num_parallel=first)
        .map(stage(0.2 * scale), num_parallel=second)
        .options(optimize=False, autotune=AUTOTUNE in {first, second})
    )


def steady_s(dataset, run_s, share=0.4):
    """How long an element takes in the last part of a run."""
    with dataset.iterator() as elements:
        begun, times = time.perf_counter(), []
        while time.perf_counter() < begun + run_s:
            next(elements)
            times.append(time.perf_counter())
    late = [t for t in times if t > begun + run_s * (1 - share)]
    return (late[-1] - late[0]) / (len(late) - 1)


@pytest.mark.slow
def test_on_sleeping_stages_it_is_nearly_as_good_as_the_best_by_hand():
    """Within 5 s (the short form: half that, on stages half as long) it reaches 90 % of five and ten at once."""
    run_s = float(os.environ.get(LONG, "2.5"))
    scale = run_s / 5

    by_hand_s = steady_s(talk(scale, 5, 10), run_s / 2)
    tuned_s = steady_s(talk(scale, AUTOTUNE, AUTOTUNE), run_s)

    assert tuned_s <= by_hand_s / 0.9


def test_memory_stays_under_the_budget():
    """Whatever is on its way, in parallel maps and in prefetches, at any moment."""
    held, most = [0], [0]

    class Array(np.ndarray):
        def __del__(self):
            held[0] -= 1

    def megabyte(x):
        held[0] += 1
        most[0] = max(most[0], held[0])
        time.sleep(0.02)
        return np.zeros(131_072).view(Array)

    dataset = tfdata.range(200).map(megabyte, num_parallel=AUTOTUNE).prefetch(AUTOTUNE)
    for budget_megabytes in (6, 16):
        most[0] = 0
        tuned = dataset.options(optimize=False, memory_budget_bytes=budget_megabytes << 20, cpu_budget=64)
        with tuned.iterator() as elements:
            for _ in range(120):
                next(elements)
            proposal = elements.tuner.proposal

        assert proposal.held_bytes <= budget_megabytes << 20
        assert most[0] <= budget_megabytes
    assert most[0] > 1  # the larger budget has room for several calls at once; of the smaller, buffers may take all


def test_a_quick_function_is_called_by_the_consumer_itself():
    """A thread would cost more than it gains: none is started for it."""
    dataset = tfdata.range(20_000).map(lambda x: x + 1, num_parallel=AUTOTUNE).options(optimize=False)
    with dataset.iterator() as elements:
        found = [next(elements) for _ in range(10_000)]
        elements.tuner.tune()
        found += list(elements)
        elements.tuner.tune()

        assert set(elements.tuner.proposal.settings.values()) == {0}
    assert found == list(range(1, 20_001))


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
    tuner._found.settings["1.ParallelMap"] = 7
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


def test_another_pass_begins_with_what_was_found_before():
    """It need not find out again."""
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
