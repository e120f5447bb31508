"""The model of latency: kinds of ops, waiting at buffers, and that more of anything never waits longer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.pipelines.input.tuning.latency import (
    LatencyKind,
    LatencyNode,
    Parameter,
    cpu_s,
    held_bytes,
    latency_s,
    wait_s,
    work_s,
)

SECONDS = st.floats(min_value=0, max_value=1)


def node(own_s, *inputs, kind=LatencyKind.KNOWN_RATIO, **more):
    return LatencyNode(name="op", kind=kind, own_s=own_s, inputs=inputs, **more)


def grown(below):
    """A tree on the trees below it."""
    return st.builds(
        lambda own_s, inputs, kind, taken, variability, buffer: node(
            own_s,
            *inputs,
            kind=kind,
            taken=taken,
            variability=variability,
            parallelism=Parameter(key=f"{id(inputs)}", maximum=16) if kind.runs_ahead else 1,
            buffer=buffer,
        ),
        SECONDS,
        st.lists(below, min_size=1, max_size=2),
        st.sampled_from([kind for kind in LatencyKind if kind is not LatencyKind.SOURCE]),
        st.floats(min_value=0, max_value=4),
        st.floats(min_value=0, max_value=2),
        st.none() | st.integers(min_value=1, max_value=8),
    )


#: Any tree whose parallel stages have a parameter each.
TREES = st.recursive(SECONDS.map(lambda own_s: node(own_s, kind=LatencyKind.SOURCE)), grown, max_leaves=3)


def test_a_wait_at_a_buffer_is_the_chance_that_it_is_empty_times_the_producers_time():
    """With equal rates and k places the buffer is empty once in k + 1 times (M/M/1/K)."""
    assert wait_s(0.1, 0.1, 4) == pytest.approx(0.1 / 5)
    assert wait_s(0.1, 0.05, 1) == pytest.approx(0.1 / 1.5)
    assert wait_s(0.1, 0.2, 1) == pytest.approx(0.1 / 3)


def test_a_wait_has_its_limits():
    """Nobody waits for a producer that takes no time, or at a full buffer; who takes no time waits all of it."""
    assert wait_s(0.0, 0.1, 3) == 0
    assert wait_s(0.1, 0.0, 3) == 0.1
    assert wait_s(1e-9, 1e3, 64) == 0


def test_a_known_ratio_pays_for_all_it_takes():
    """A batch of 32 waits for 32 elements."""
    batch = node(0.001, node(0.01, kind=LatencyKind.SOURCE, taken=32))

    assert latency_s(batch, {}) == pytest.approx(0.001 + 32 * 0.01)


def test_an_unknown_ratio_pays_for_what_was_measured():
    """A filter that keeps every fourth element takes four for one."""
    filtered = node(0.001, node(0.01, kind=LatencyKind.SOURCE, taken=4.0), kind=LatencyKind.UNKNOWN_RATIO)

    assert latency_s(filtered, {}) == pytest.approx(0.041)


def test_an_interleave_pays_for_the_mean_of_its_inputs():
    """Its first input names the others; these take turns."""
    outer = node(0.5, kind=LatencyKind.SOURCE, taken=0.01)
    turns = [node(0.02, kind=LatencyKind.SOURCE), node(0.04, kind=LatencyKind.SOURCE)]

    assert latency_s(node(0.001, outer, *turns, kind=LatencyKind.INTERLEAVE), {}) == pytest.approx(0.001 + 0.005 + 0.03)


def test_a_parallel_interleave_divides_the_reading():
    """Four datasets read at once give an element four times as often."""
    outer = node(0.0, kind=LatencyKind.SOURCE, taken=0.01)
    tree = node(0.0, outer, node(0.04, kind=LatencyKind.SOURCE), kind=LatencyKind.ASYNC_INTERLEAVE, parallelism=4)

    assert latency_s(tree, {}) == pytest.approx(0.01)


def test_a_prefetch_hides_what_the_consumer_is_busy_for():
    """What is left is what the producer is slower than the consumer."""
    prefetch = node(0.0, node(0.03, kind=LatencyKind.SOURCE), kind=LatencyKind.ASYNC_KNOWN_RATIO, buffer=2)

    assert latency_s(prefetch, {}, busy_s=0.02) == pytest.approx(0.01)
    assert latency_s(prefetch, {}, busy_s=0.05) == 0


def test_a_longer_buffer_helps_against_times_that_vary():
    """A steady producer needs no second place, a random one is evened out."""
    for variability, helps in ((0.0, False), (1.0, True)):
        prefetch = node(
            0.0,
            node(0.02, kind=LatencyKind.SOURCE),
            kind=LatencyKind.ASYNC_KNOWN_RATIO,
            buffer=Parameter(key="buffer", maximum=8),
            variability=variability,
        )

        assert (latency_s(prefetch, {"buffer": 8}, 0.02) < latency_s(prefetch, {"buffer": 1}, 0.02)) == helps


def test_a_quick_element_is_not_worth_a_thread():
    """Without a thread nothing has to be handed over."""
    tree = node(
        1e-6, kind=LatencyKind.ASYNC_KNOWN_RATIO, handing_s=3e-5, parallelism=Parameter(key="p", minimum=0, maximum=8)
    )

    assert latency_s(tree, {"p": 0}) < latency_s(tree, {"p": 1})


@given(TREES, st.integers(min_value=1, max_value=15), SECONDS)
def test_AT_11_more_parallelism_never_raises_the_latency(tree, parallelism, busy_s):
    """Of any tree, at any stage."""
    for parameter in tree.parameters():
        less, more = ({parameter.key: p} for p in (parallelism, parallelism + 1))

        assert latency_s(tree, more, busy_s) <= latency_s(tree, less, busy_s) * (1 + 1e-9) + 1e-12


@given(TREES)
def test_no_setting_takes_longer_than_one_thing_after_another(tree):
    """What runs ahead saves time, or at least costs none, when times are steady."""
    steady = _steady(tree)

    assert latency_s(steady, {}) <= work_s(steady) + 1e-9
    assert cpu_s(steady) == pytest.approx(work_s(steady))


def _steady(tree):
    return LatencyNode(**{**vars(tree), "variability": 0.0, "inputs": tuple(map(_steady, tree.inputs))})


def test_what_is_on_its_way_holds_memory():
    """Each place of each buffer, and what the consumer has in its hands."""
    parallel = node(
        0.1,
        kind=LatencyKind.ASYNC_KNOWN_RATIO,
        element_bytes=1000.0,
        parallelism=Parameter(key="p", minimum=0, maximum=8),
    )
    tree = node(0.0, parallel, kind=LatencyKind.ASYNC_KNOWN_RATIO, element_bytes=10.0, buffer=3)

    assert held_bytes(tree, {"p": 4}) == 9 * 1000 + 4 * 10
    assert held_bytes(tree, {"p": 0}) == 1000 + 40
