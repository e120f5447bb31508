"""The law of all graphs: whatever the ops and the elements, every way to run a dataset gives what plain Python gives."""

import contextlib
import functools
import itertools
import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.op import list_ops
from spanwise.pipelines.input.service.client import coordinated
from spanwise.pipelines.input.service.worker import buffers
from spanwise.pipelines.input.stacking import unstack
from tests.contract import handed_over
from tests.contract.generated_graphs import Group, graphs, same
from tests.contract.served_graphs import fresh_job, mortal_service, running_service, slowly_whole
from tests.contract.shapes import whole
from tests.contract.test_dataset_law import decoded, encoded
from tests.pipelines.input.service.consumers import Consumers

GRAPHS = int(os.environ.get("SPANWISE_TEST_GRAPHS", "200"))  # 20,000 in the long form
RARELY = 3 if GRAPHS <= 200 else 0  # one of how many, beside the first, starts a process
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
LEASED = MODES[3:]


def through_a_service(graph, draw):
    """Computed by two workers, or refused when the graph is built; under leases in the dataset's order."""
    mode = draw(st.sampled_from(MODES))
    with contextlib.suppress(Refused), served(graph.dataset, running_service().target, mode) as elements:
        found = rows_of(graph, elements)
        expected = flat(graph.expected((0,)))
        if mode in LEASED and keeps_order(graph):
            check(found, expected)
        else:
            assert counts(found, expected, at_least=(times := 2 if mode == "off" else 1), at_most=times)


BOUNDS = {"off": (1, 3), "data": (1, 2), "dynamic": (0, 1), "at_least_once": (1, 1), "exactly_once": (1, 1)}


def while_a_worker_is_killed(graph, draw):
    """One of two workers is killed on the way, and another one takes its place: each mode keeps its word."""
    if draw(st.integers(0, RARELY)):
        return
    mode, victim = draw(st.sampled_from(MODES)), draw(st.integers(0, 1))
    dataset = graph.dataset if graph.batched else graph.dataset.map(slowly_whole)
    service = mortal_service()
    expected = flat(graph.expected((0,)))
    with contextlib.suppress(Refused), served(dataset, service.target, mode) as elements:
        before = list(itertools.islice(elements, draw(st.integers(0, len(expected)))))
        service.replace(victim)
        given = [*before, *elements]
        found = rows_of(graph, given) if graph.batched else [each.value for each in given]
        at_least, at_most = BOUNDS[mode]
        assert counts(found, expected, at_least=at_least, at_most=at_most)
        if mode in LEASED and keeps_order(graph):
            check(found, expected)


def coordinated_reads(graph, draw):
    """Each round is of one worker, which gives its rounds in the order of the dataset, repeated for ever."""
    mode, consumers = draw(st.sampled_from(["off", "data"])), draw(st.integers(1, 3))
    size = draw(st.integers(0, 3)) if graph.rows and not graph.batched else 0  # batches of rows travel in blocks
    rounds = 6
    needed = 2 * rounds * consumers * (size or 1)
    values = list(itertools.islice(endless_values(graph), needed))
    if len(values) < needed:  # nothing is repeated
        return
    endless = graph.dataset.repeat()
    if size:
        endless = endless.batch(size)
        values = [Group(values[at : at + size]) for at in range(0, needed, size)]
    shares = [values, values] if mode == "off" else [values[::2], values[1::2]]
    wanted = [[share[at : at + consumers] for at in range(0, rounds * consumers, consumers)] for share in shares]
    with pytest.MonkeyPatch.context() as patch:
        for module in (buffers, coordinated):
            patch.setattr(module, "MAX_ROUNDS_AHEAD", 8)
        make = functools.partial(endless.distribute, running_service().target, mode, fresh_job())
        with Consumers(consumers, make) as reading:
            found = reading.read(rounds)
    given = {(0, 0)}  # how many rounds the two workers may have given
    for round_ in found:
        given = {
            (left + 1 - worker, right + worker)
            for left, right in given
            for worker, at in enumerate((left, right))
            if all(map(same, round_, wanted[worker][at]))
        }
        assert given, (found, wanted)


def endless_values(graph):
    for number in itertools.count():
        values = graph.expected((0, number))
        if not values:
            return
        yield from values


def keeps_order(graph):
    """Whether each element comes of the next one of the source; else a split has an order of its own."""
    return all(op.by_element for op in list_ops(graph.dataset.op) if op.inputs)


class Refused(Exception):
    """A mode cannot mean the graph, and said so when it was built."""


@contextlib.contextmanager
def served(dataset, target, mode):
    try:
        elements = dataset.distribute(target, mode).iterator(epoch=0)
    except DatasetError as error:
        if not str(error).startswith("distribute("):
            raise
        raise Refused from error
    with elements:
        yield elements


def rows_of(graph, elements):
    """The elements; those of batches one by one, since workers may cut them elsewhere."""
    if not graph.batched:
        return list(elements)
    return [
        row
        for group in elements
        for row in (group.to_pylist() if isinstance(group, pa.RecordBatch) else unstack(group))
    ]


def flat(values):
    return [each for value in values for each in (value if isinstance(value, Group) else [value])]


def counts(found, wanted, *, at_least, at_most):
    """Whether each element was given at least and at most so many times, for each time that it is in the dataset."""
    rest, kinds = list(wanted), []
    while rest:
        kinds.append((rest[0], sum(same(each, rest[0]) for each in rest)))
        rest = [each for each in rest if not same(each, rest[0])]
    known = 0
    for kind, times in kinds:
        count = sum(same(each, kind) for each in found)
        assert at_least * times <= count <= at_most * times, (kind, count, times)
        known += count
    assert known == len(found), (found, wanted)
    return True


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
    while_a_worker_is_killed,
    coordinated_reads,
    *handed_over.WAYS * 3,
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
