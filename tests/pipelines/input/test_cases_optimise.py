"""The cases of rewrites, each named after its id."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import FunctionFailed
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.graph.fingerprint import of_graph
from spanwise.pipelines.input.op import list_ops
from tests.pipelines.input.elements import DATASETS, all_of

HERE = Path(__file__).parent


@pytest.mark.parametrize("area", ["iterator", "optimise"])
def test_every_case_is_a_test_or_a_difference(area):
    """No case is left out, and none is both."""
    cases = json.loads((HERE.parents[1] / "conformance" / "cases" / "data.json").read_text())
    ids = {case["id"] for case in cases if case["area"] == area}
    tests = (HERE / f"test_cases_{area}.py").read_text()
    tested = {"-".join(found) for found in re.findall(r"^def test_([A-Z]{2})_(\d+)_", tests, re.MULTILINE)}
    differ = tomllib.loads((HERE / "differences.toml").read_text()).keys() & ids

    assert ids - tested == differ
    assert tested <= ids


def nodes(dataset):
    """The names of the ops behind the source, after the rewrites."""
    return [op.name for op in list_ops(dataset.explain().op)][1:]


def rows():
    return inputs.from_arrow(pa.table({"fare": np.arange(100.0), "tip": np.arange(100.0) / 10}))


def plus_one(number):
    return number + 1


def twice(number):
    return number * 2


def is_odd(number):
    return number % 2 == 1


def is_large(number):
    return number > 3


def doubled(columns):
    return {"tip": columns["tip"] * 2}


def test_OP_02_no_ops_vanish():
    """What changes nothing is left out, and the elements stay."""
    dataset = inputs.range(10).take(-1).skip(0).repeat(1).prefetch(0).shard(1, 0).map(plus_one)

    assert nodes(dataset) == ["Map"]
    assert list(dataset) == list(dataset.options(optimize=False)) == list(range(1, 11))


def test_OP_03_filters_fuse():
    """Two filters are one."""
    dataset = inputs.range(10).filter(is_odd).filter(is_large).map(plus_one)

    assert nodes(dataset) == ["Filter", "Map"]
    assert list(dataset) == list(dataset.options(optimize=False)) == [6, 8, 10]


def test_OP_04_maps_fuse():
    """Two maps are one."""
    dataset = inputs.range(4).map(plus_one).map(twice).prefetch(2)

    assert nodes(dataset) == ["Map", "Prefetch"]
    assert list(dataset) == list(dataset.options(optimize=False)) == [2, 4, 6, 8]


def test_OP_05_shuffle_and_repeat_fuse():
    """A shuffle that is repeated is one op, and gives what the two gave."""
    dataset = inputs.range(20).shuffle(7, seed=1).repeat(3)

    assert nodes(dataset) == ["ShuffleAndRepeat"]
    assert all_of(dataset) == all_of(dataset.options(optimize=False))


def test_stateless_maps_of_blocks_become_parallel_and_the_last_stage_gets_a_prefetch():
    """A function of blocks that is declared stateless runs in parallel, ahead of the consumer (OP-06, as far as we follow)."""
    dataset = rows().map(doubled, vectorized=True, stateless=True)
    stateful = rows().map(doubled, vectorized=True)

    assert nodes(dataset) == ["ParallelMap", "Prefetch"]
    assert nodes(stateful) == ["Map", "Prefetch"]
    assert nodes(inputs.range(3).map(plus_one)) == ["Map"]
    assert dataset.to_arrow() == dataset.options(optimize=False).to_arrow()


STEPS = {
    "map": lambda dataset, number: dataset.map(lambda value: 12 // (value % (number + 4))),
    "filter": lambda dataset, number: dataset.filter(lambda value: value % (number + 2) != 1),
    "batch": lambda dataset, number: dataset.batch(number + 1, drop_remainder=number % 2 == 0).unbatch(),
    "shuffle": lambda dataset, number: dataset.shuffle(number + 1, seed=number),
    "repeat": lambda dataset, number: dataset.repeat(number),
    "take": lambda dataset, number: dataset.take(number * 4 - 1),
    "skip": lambda dataset, number: dataset.skip(number),
    "shard": lambda dataset, number: dataset.shard(number + 1, number),
    "interleave": lambda dataset, number: dataset.interleave(lambda value: inputs.range(value % 3), cycle_length=2),
}
ROW_STEPS = {
    "map": lambda dataset, number: dataset.map(
        lambda columns: {"tip": columns["tip"] + number}, vectorized=True, reads=["tip"], writes=["tip"]
    ),
    "filter": lambda dataset, number: dataset.filter(inputs.col("fare") > 10 * number),
    "filter tip": lambda dataset, number: dataset.filter(inputs.col("tip") < 10 - number),
    "select": lambda dataset, number: dataset.select(*(["tip", "fare"] if number % 2 else ["fare", "tip"])),
    "shuffle": lambda dataset, number: dataset.shuffle(7 * number + 1, seed=number),
    "repeat": lambda dataset, number: dataset.repeat(number % 3),
    "take": lambda dataset, number: dataset.take(number * 40 - 1),
    "skip": lambda dataset, number: dataset.skip(number),
    "shard": lambda dataset, number: dataset.shard(number + 1, number),
    "concatenate": lambda dataset, number: dataset.concatenate(dataset.take(number)),
    "prefetch": lambda dataset, number: dataset.prefetch(number),
}


def drained(dataset):
    """Elements, and errors where they were met."""
    found = []
    with dataset.iterator(epoch=0) as elements:
        while len(found) < 400:
            try:
                found.append(next(elements))
            except StopIteration:
                break
            except FunctionFailed as error:
                found.append(type(error.__cause__).__name__)  # positions count what arrives, so they may move
    return found


def chained(dataset, steps, step):
    for name, number in steps:
        dataset = step[name](dataset, number)
    return dataset


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 4)), max_size=6))
def test_OP_07_rewrites_keep_elements_errors_and_cardinality(steps):
    """Random graphs give the same, with the same errors at the same places, before and after the rewrites."""
    dataset = chained(inputs.range(12), steps, STEPS)

    assert drained(dataset) == drained(dataset.options(optimize=False))
    assert dataset.explain().op.cardinality == dataset.cardinality


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(sorted(ROW_STEPS)), st.integers(0, 4)), max_size=6))
def test_OP_07_rewrites_keep_rows(steps):
    """Random graphs over rows give the same before and after the rewrites."""
    dataset = chained(rows(), steps, ROW_STEPS)

    assert drained(dataset.batch(9)) == drained(dataset.batch(9).options(optimize=False))


@pytest.mark.parametrize(
    ("dataset", "pushed"),
    [
        (lambda: rows().map(doubled, vectorized=True, writes=["tip"]).filter(inputs.col("fare") > 3), True),
        (lambda: rows().map(doubled, vectorized=True, writes=["tip"]).filter(inputs.col("tip") > 3), False),
        (lambda: rows().map(lambda columns: columns, vectorized=True).filter(inputs.col("fare") > 3), False),
        (
            lambda: (
                rows()
                .map(doubled, vectorized=True, writes=["tip"])
                .filter(lambda columns: columns["fare"] > 3, vectorized=True)
            ),
            False,
        ),
    ],
    ids=["not written", "written", "not declared", "a function"],
)
def test_OP_08_only_conditions_on_columns_that_are_not_written_are_pushed_down(dataset, pushed):
    """A filter goes below a map that is declared not to write its columns, and below no other."""
    names = nodes(dataset())

    assert (names.index("Filter") < names.index("Map")) is pushed
    assert dataset().to_arrow() == dataset().options(optimize=False).to_arrow()


@pytest.mark.parametrize("name", ["map", "filter", "repeat, of a shuffle", "a chain", "take, all", "as_numpy"])
def test_OP_09_rewrites_do_not_change_the_fingerprint(name):
    """What a graph is called does not depend on how it is run: options and rewrites leave the graph as written."""
    dataset = DATASETS[name]()
    before = of_graph(dataset.op)

    all_of(dataset)
    dataset.explain()

    assert of_graph(dataset.op) == before == of_graph(dataset.options(optimize=False).op)
