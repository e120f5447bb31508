"""The law of datasets: stop after any element, keep the state, go on elsewhere, and the rest is the same."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.pipelines import input as inputs
from tests.pipelines.input.elements import DATASETS, all_of, contents

BLOCK_ROWS = [1, 7, 1024, 65_536]
EXAMPLES = int(os.environ.get("SPANWISE_TEST_DATASETS", "5"))  # a hundred and more find what is rare


def encoded(value):
    """A state as JSON takes it; only bytes have to be told how."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {key: encoded(each) for key, each in value.items()}
    return [encoded(each) for each in value] if isinstance(value, list) else value


def decoded(value):
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"]) if set(value) == {"bytes"} else {k: decoded(v) for k, v in value.items()}
    return [decoded(each) for each in value] if isinstance(value, list) else value


def stopped(dataset, count, epoch):
    """The first elements, as text what it takes to go on, and the rest."""
    with dataset.iterator(epoch=epoch) as elements:
        first = contents(itertools.islice(elements, count))
        state = json.dumps(encoded(elements.state()))
        return first, state, contents(elements)


@pytest.mark.parametrize("name", DATASETS)
@settings(max_examples=EXAMPLES, derandomize=True)
@given(data=st.data())
def test_a_restored_pass_gives_the_same_rest(name, data):
    """Whatever the op, wherever it stops, in whatever blocks the rows come before and after."""
    epoch = data.draw(st.integers(0, 2), label="epoch")
    optimize = data.draw(st.booleans(), label="optimize")
    before, after = (data.draw(st.sampled_from(BLOCK_ROWS), label="block_rows") for _ in "12")
    dataset = DATASETS[name]().options(seed=17, optimize=optimize, block_rows=before)
    total = len(all_of(dataset, epoch))
    count = data.draw(st.integers(0, total), label="stop")
    first, state, rest = stopped(dataset, count, epoch)

    again = DATASETS[name]().options(seed=18, optimize=optimize, block_rows=after)  # the state's seed counts
    with again.iterator().restore(decoded(json.loads(state))) as elements:
        restored = contents(elements)

    assert restored == rest
    assert len(first) + len(rest) == total


@pytest.mark.parametrize("name", DATASETS)
def test_the_size_of_blocks_changes_nothing(name):
    """Rows travel together one by one or by the thousand: the elements are the same."""
    expected = all_of(DATASETS[name]().options(seed=17))

    for block_rows in BLOCK_ROWS:
        assert all_of(DATASETS[name]().options(seed=17, block_rows=block_rows)) == expected


@pytest.mark.parametrize("name", DATASETS)
def test_rewrites_change_nothing(name):
    """The graph as it was written gives what the optimized one gives."""
    as_written = all_of(DATASETS[name]().options(seed=17, optimize=False))

    assert all_of(DATASETS[name]().options(seed=17)) == as_written


@pytest.mark.parametrize("name", DATASETS)
def test_the_cardinality_holds(name):
    """Where the number of elements is said beforehand, it is that."""
    dataset = DATASETS[name]()

    if dataset.cardinality is not None:
        assert dataset.cardinality == len(all_of(dataset))


def test_another_process_goes_on(tmp_path):
    """A state is all it takes: a process that has seen nothing of the pass gives the same rest, whatever the op."""
    states, rests = {}, {}
    for name in DATASETS:
        _, states[name], rests[name] = stopped(DATASETS[name]().options(seed=17), 1, 1)
    (tmp_path / "states.json").write_text(json.dumps(states))
    program = (
        "import json, sys; from tests.contract.test_dataset_law import *\n"
        "states = json.loads(open(sys.argv[1]).read())\n"
        "for name, state in states.items():\n"
        "    with DATASETS[name]().iterator().restore(decoded(json.loads(state)), check_files=False) as elements:\n"
        "        print(repr(contents(elements)))\n"
    )

    there = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "states.json")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )

    assert there.stdout.splitlines() == [repr(rests[name]) for name in DATASETS]


STEPS = {
    "map": lambda dataset, number: dataset.map(lambda value: value + number),
    "filter": lambda dataset, number: dataset.filter(lambda value: value % (number + 2) != 0),
    "take": lambda dataset, number: dataset.take(number * 3 - 1),
    "skip": lambda dataset, number: dataset.skip(number),
    "shard": lambda dataset, number: dataset.shard(number + 1, number),
    "repeat": lambda dataset, number: dataset.repeat(number),
    "shuffle": lambda dataset, number: dataset.shuffle(number + 1, seed=number),
    "interleave": lambda dataset, number: dataset.interleave(
        lambda value: inputs.range(int(value) % 3), cycle_length=number + 1, block_length=2
    ),
    "concatenate": lambda dataset, number: dataset.concatenate(inputs.range(number)),
    "batch": lambda dataset, number: dataset.batch(number + 1).unbatch(),
    "cache": lambda dataset, number: dataset.cache(),
    "prefetch": lambda dataset, number: dataset.prefetch(number),
    "scan": lambda dataset, number: dataset.scan(0, lambda total, value: (total + value, total)),
    "window": lambda dataset, number: dataset.window(number + 2, shift=number + 1).flat_map(lambda window: window),
}


def chained(steps):
    dataset = inputs.range(15)
    for name, number in steps:
        dataset = STEPS[name](dataset, number).take(300)
    return dataset


@settings(max_examples=10 * EXAMPLES, derandomize=True)
@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 4)), max_size=6),
    stop=st.integers(0, 20),
    optimize=st.booleans(),
)
def test_any_chain_of_ops_can_stop_and_go_on(steps, stop, optimize):
    """The law holds for ops on ops, not only for each by itself."""
    dataset = chained(steps).options(optimize=optimize)
    expected = all_of(dataset, 1)
    stop = min(stop, len(expected))
    _, state, rest = stopped(dataset, stop, 1)

    with chained(steps).options(optimize=optimize).iterator().restore(decoded(json.loads(state))) as elements:
        assert contents(elements) == rest
    assert expected[stop:] == rest
