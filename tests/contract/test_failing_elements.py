"""The law of failing elements: whatever op stands behind one, no other element is lost, also where a pass goes on."""

import itertools
import json
import os

import pyarrow as pa
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs
from tests.contract.test_dataset_law import decoded, encoded
from tests.pipelines.input.elements import plain

EXAMPLES = int(os.environ.get("SPANWISE_TEST_FAILURES", "40"))  # thousands in the long form
MOST = 80  #: elements and errors of a pass
ERROR = "an error"
SCHEMA = pa.schema([("v", pa.int64())])


def failing(number):
    def function(value):
        if value % 5 == number:
            raise ValueError("no")
        return value

    return function


def in_rows(dataset):
    return dataset.map(lambda value: {"v": value}).as_rows(SCHEMA)


def table(*values):
    return inputs.from_arrow(pa.table({"v": values}))


def value_of(row):
    return row["v"]


STEPS = {
    "map": lambda d, n: d.map(failing(n)),
    "map, parallel": lambda d, n: d.map(failing(n), num_parallel=2),
    "random_map": lambda d, n: d.random_map(lambda value, _: failing(n)(value), seed=1),
    "filter": lambda d, n: d.filter(lambda value: failing(n)(value) >= 0),
    "ignore_errors": lambda d, _: d.ignore_errors(),
    "take": lambda d, n: d.take(n * 3 + 2),
    "take_while": lambda d, n: d.take_while(lambda value: failing(n)(value) < 14),
    "skip": lambda d, n: d.skip(n),
    "shard": lambda d, n: d.shard(n + 1, n),
    "repeat": lambda d, n: d.repeat(n),
    "shuffle": lambda d, n: d.shuffle(n + 2, seed=n),
    "shuffle, of all": lambda d, n: d.shuffle(seed=n),
    "cache": lambda d, _: d.cache(),
    "prefetch": lambda d, n: d.prefetch(n),
    "enumerate": lambda d, _: d.enumerate().map(lambda _, value: value),
    "batch": lambda d, n: d.batch(n + 1).unbatch(),
    "window": lambda d, n: d.window(n + 2, shift=n + 1).flat_map(lambda window: window),
    "bucket": lambda d, n: d.bucket_by_sequence_length(failing(n), [3, 6], [2, n + 1, 2]).unbatch(),
    "group_by_window": lambda d, n: d.group_by_window(lambda v: failing(n)(v) % 3, lambda _, group: group, n + 1),
    "unique": lambda d, _: d.map(lambda value: value % 11).unique(),
    "scan": lambda d, n: d.scan(0, lambda total, value: (total + value, failing(n)(value))),
    "zip": lambda d, n: inputs.zip(d, inputs.range(20).map(failing(n))).map(lambda left, _: left),
    "interleave": lambda d, n: d.interleave(
        lambda value: inputs.range(failing(n)(value) % 4), cycle_length=n + 1, block_length=2
    ),
    "interleave, parallel": lambda d, n: d.interleave(
        lambda value: inputs.range(value % 4).map(failing(n)), cycle_length=n + 1, num_parallel=2
    ),
    "concatenate": lambda d, n: d.concatenate(inputs.range(6).map(failing(n))),
    "sample": lambda d, n: inputs.sample_from_datasets([d, inputs.range(7).map(failing(n))], [1, 1], seed=n),
    "choose": lambda d, n: inputs.choose_from_datasets([d, d.take(3)], inputs.range(20).map(failing(n)).map(is_odd)),
    "choose, rows": lambda d, _: inputs.choose_from_datasets([table(*range(8)), table(1, 2)], d.map(is_odd)).map(
        value_of
    ),
    "rejection_resample": lambda d, n: d.rejection_resample(is_odd, [1, 2], seed=n),
    "rows": lambda d, _: in_rows(d).map(value_of),
    "rows, skip": lambda d, n: in_rows(d).skip(n).map(value_of),
    "rows, shuffle": lambda d, n: in_rows(d).shuffle(n + 2, seed=1).map(value_of),
    "rows, batch": lambda d, n: in_rows(d).batch(n + 1).unbatch().map(value_of),
}


def is_odd(value):
    return value % 2


def made(steps, **options):
    dataset = inputs.range(12)
    for name, number in steps:
        dataset = STEPS[name](dataset, number)
    return dataset.options(**options)


def events(elements, most=MOST):
    """Elements, and errors where they came; the states before each of them, as text."""
    found, states = [], []
    while len(found) < most:
        states.append(json.dumps(encoded(elements.state())))
        try:
            found.append(repr(plain(next(elements))))
        except StopIteration:
            break
        except FunctionFailed:
            found.append(ERROR)
    return found, states


def is_same_rest(found, wanted):
    """The same elements. An error that was raised may be raised again, but none is left out."""
    if MOST in {len(found), len(wanted)}:  # they were cut
        pairs = zip(*([each for each in rest if each != ERROR] for rest in (found, wanted)), strict=False)
        return all(left == right for left, right in pairs)
    left, right = ([each for each in rest if each != ERROR] for rest in (found, wanted))
    return left == right and found.count(ERROR) >= wanted.count(ERROR)


steps = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3)), min_size=1, max_size=4)
block_rows = st.sampled_from([1, 3, 1024])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps, before=block_rows, after=block_rows, optimize=st.booleans(), every=st.integers(1, 4))
def test_a_pass_with_failing_elements_can_stop_and_go_on(steps, before, after, optimize, every):
    """At each of them and behind it, where errors are left out later and where they are not."""
    note(steps)
    with made(steps, seed=3, block_rows=before, optimize=optimize).iterator(epoch=0) as elements:
        try:
            wanted, states = events(elements)
        except DatasetError:  # a choice of which there is no dataset, values that make no batch
            return
    for at, state in itertools.islice(enumerate(states), 0, None, every):
        with (
            made(steps, block_rows=after, optimize=optimize).iterator().restore(decoded(json.loads(state))) as elements
        ):
            found, _ = events(elements, MOST - at)
        assert is_same_rest(found, wanted[at:]), (at, found, wanted[at:])
