"""The law of all graphs: whatever the ops and the elements, every way to run a dataset gives what plain Python gives."""

import atexit
import functools
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import DatasetError, ServiceError
from spanwise.pipelines.input.arrays import convert_arrays
from spanwise.pipelines.input.element import each_leaf
from spanwise.pipelines.input.stacking import unstack
from tests.contract.generated_graphs import Group, graphs, same
from tests.contract.shapes import whole
from tests.contract.test_dataset_law import decoded, encoded
from tests.pipelines.input.service.servers import listed

GRAPHS = int(os.environ.get("SPANWISE_TEST_GRAPHS", "200"))  # 20,000 in the long form
BLOCK_ROWS = [1, 3, 1024]


def check(found, wanted):
    assert len(found) == len(wanted), (found, wanted)
    for each, expected in zip(found, wanted, strict=True):
        assert same(each, expected), (each, expected)


def run(graph, **options):
    with graph.dataset.options(**options).iterator(epoch=0) as elements:
        return list(elements)


def as_written(graph, _):
    check(run(graph, optimize=False), graph.expected((0,)))


def optimized(graph, draw):
    check(run(graph, block_rows=draw(st.sampled_from(BLOCK_ROWS))), graph.expected((0,)))


def in_a_later_epoch(graph, _):
    with graph.dataset.iterator(epoch=2) as elements:
        check(list(elements), graph.expected((2,)))


def again(graph, _):
    """Twice from the same dataset: what the first pass put into caches serves the second."""
    run(graph)
    check(run(graph), graph.expected((0,)))


def stopped(graph, draw):
    """At each element, and restored in a dataset with blocks of another size."""
    optimize = draw(st.booleans())
    before, after = (draw(st.sampled_from(BLOCK_ROWS)) for _ in "12")
    expected = graph.expected((0,))
    states = []
    with graph.dataset.options(optimize=optimize, block_rows=before).iterator(epoch=0) as elements:
        states.append(json.dumps(encoded(elements.state())))
        states += [json.dumps(encoded(elements.state())) for _ in elements]
    for at, state in enumerate(states):
        other = graph.dataset.options(optimize=optimize, block_rows=after)
        with other.iterator().restore(decoded(json.loads(state))) as elements:
            check(list(elements), expected[at:])


def through_a_snapshot(graph, draw):
    """As it is written, read, and read again from its middle."""
    expected = graph.expected((0,))
    with tempfile.TemporaryDirectory() as folder:
        kept = graph.dataset.snapshot(folder)
        with kept.iterator(epoch=0) as elements:
            check(list(elements), expected)
        with kept.iterator() as elements:
            check(list(elements), expected)
        skipped = draw(st.integers(0, 5))
        check(list(kept.skip(skipped)), expected[skipped:])


def to_numpy(graph, _):
    if not graph.can_batch:
        return
    expected = [each for value in graph.expected((0,)) for each in (value if isinstance(value, Group) else [value])]
    if not graph.batched and expected and not graph.rows:
        check(list(unstack(graph.dataset.to_numpy())), expected)


def to_tables(graph, _):
    expected = [each for value in graph.expected((0,)) for each in (value if isinstance(value, Group) else [value])]
    if not graph.rows:
        return
    if not graph.batched:
        check([row for block in graph.dataset.blocks(epoch=0) for row in block.to_pylist()], expected)
    with graph.dataset.iterator(epoch=0):
        pass
    check(graph.dataset.take(-1).to_arrow().to_pylist(), expected)


def to_polars(graph, _):
    """What Polars has types for."""
    expected = graph.expected((0,))
    if not graph.rows or graph.batched or any(map(unknown_to_polars, graph.dataset.spec.schema.types)):
        return
    with graph.dataset.iterator(epoch=0):
        pass
    found = graph.dataset.to_polars()
    for name in found.columns:
        check(found[name].to_list(), [row[name] for row in expected])


def unknown_to_polars(type_):
    """It counts times of day in nanoseconds, has no maps, and its lists of one length are arrays."""
    plain = pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string, pa.types.is_float64
    return not any(is_plain(type_) for is_plain in plain)


def in_processes(graph, draw):
    """The elements sent to worker processes and back; seldom, since these take a second to start."""
    if graph.batched or draw(st.integers(0, 3)):
        return
    dataset = graph.dataset.map(whole, num_parallel=2, workers="processes")
    with dataset.iterator(epoch=0) as elements:
        found = [each.value for each in elements]
    check(found, graph.expected((0,)))


MODES = ["off", "data", "dynamic", "at_least_once", "exactly_once"]


def through_a_service(graph, draw):
    """Computed by two workers, or refused when the graph is built; each mode gives what it promises."""
    mode = draw(st.sampled_from(MODES))
    expected = flat(graph.expected((0,)))
    service = running_service()
    try:
        dataset = graph.dataset.distribute(service.target, mode)
        with dataset.iterator(epoch=0) as elements:
            found = list(elements)
    except (DatasetError, ServiceError) as error:
        if not str(error).startswith("distribute("):
            raise
        return
    if graph.batched:
        found = [
            row
            for group in found
            for row in (group.to_pylist() if isinstance(group, pa.RecordBatch) else unstack(group))
        ]
    check_any_order(found, expected * (2 if mode == "off" else 1))


def flat(values):
    return [each for value in values for each in (value if isinstance(value, Group) else [value])]


def check_any_order(found, wanted):
    rest = list(found)
    assert len(found) == len(wanted), (found, wanted)
    for each in wanted:
        at = next((place for place, value in enumerate(rest) if same(value, each)), None)
        assert at is not None, (each, rest)
        del rest[at]


@functools.cache
def running_service():
    service = listed(2)
    atexit.register(service.close)
    return service


def numbers_of(element):
    """What a library of tensors is given of an element: arrays of numbers, in the same structure."""
    return each_leaf(lambda leaf: np.asarray(leaf) if np.asarray(leaf).dtype.kind in "biufc" else leaf, element)


def to_torch(graph, _):
    """In this process; torch has a tensor for each type of number but float16's complex."""
    if graph.batched or graph.rows:
        return
    found = [each_leaf(from_tensor, element) for element in graph.dataset.to_torch()]
    for each, expected in zip(found, graph.expected((0,)), strict=True):
        assert same(numbers_of(each), numbers_of(convert_arrays(expected))), (each, expected)


def from_tensor(leaf):
    return leaf.numpy() if hasattr(leaf, "numpy") else leaf


WAYS = [
    as_written,
    optimized,
    optimized,
    in_a_later_epoch,
    again,
    stopped,
    stopped,
    through_a_snapshot,
    to_numpy,
    to_tables,
    to_polars,
    in_processes,
    through_a_service,
    *([to_torch] * 3 if os.environ.get("SPANWISE_TEST_FRAMEWORKS") else []),
]


@settings(max_examples=GRAPHS, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_way_to_run_a_graph_gives_what_plain_python_gives(data):
    """Each graph runs as it was written, and in one other way."""
    with tempfile.TemporaryDirectory() as folder:
        graph = data.draw(graphs(Path(folder)))
        way = data.draw(st.sampled_from(WAYS))
        note(f"{way.__name__}: {graph.dataset.explain()}")
        as_written(graph, data.draw)
        way(graph, data.draw)
