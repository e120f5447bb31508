"""The law of all graphs: whatever the ops and the elements, every way to run a dataset gives what plain Python gives."""

import json
import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from spanwise.pipelines.input.stacking import unstack
from tests.contract.generated_graphs import Group, graphs, same
from tests.contract.test_dataset_law import decoded, encoded

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
