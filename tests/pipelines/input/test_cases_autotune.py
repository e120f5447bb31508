"""The cases of autotune and of the training loop, each a test named by its id."""

import dataclasses
import time
from itertools import pairwise

import pytest

from spanwise.pipelines.input import sources
from spanwise.pipelines.input.op import AUTOTUNE, Opening, Options
from spanwise.pipelines.input.ops.batch import Batch
from spanwise.pipelines.input.ops.map import Map
from spanwise.pipelines.input.ops.range import Range
from spanwise.pipelines.input.sources import from_generator
from spanwise.pipelines.input.tuning import machine, stats
from spanwise.pipelines.input.tuning.latency import (
    LatencyKind,
    LatencyNode,
    Parameter,
    held_bytes,
    latency_s,
    wait_s,
    work_s,
)
from spanwise.pipelines.input.tuning.machine import Budget, machine_budget
from spanwise.pipelines.input.tuning.reading import CallTimes, OpReading
from spanwise.pipelines.input.tuning.search import Stop, climb, propose
from spanwise.pipelines.input.tuning.tuner import PERIOD_S, Tuner
from tests.pipelines.input.talk import F_S, G_S, SOURCE_S, free, one_after_another, tree

PLENTY = 1e12  # bytes


def budget(cores, memory_bytes=PLENTY):
    return Budget(cores=cores, memory_bytes=memory_bytes)


def test_AT_01_without_parallelism_the_stages_add_up():
    """20 + 100 + 200 ms: 320 ms an element."""
    assert latency_s(one_after_another(), {}) == pytest.approx(0.32)


def test_AT_02_with_parallelism_1_the_first_takes_all_and_the_rest_the_slowest():
    """320 ms, then 200 ms each."""
    graph = tree(1, 1)

    assert work_s(graph) == pytest.approx(0.32)
    assert latency_s(graph, {}) == pytest.approx(0.2)


def test_AT_03_with_enough_parallelism_the_source_remains():
    """5 and 10 at once: 20 ms."""
    assert latency_s(tree(5, 10), {}) == pytest.approx(0.02)


def test_AT_04_more_than_enough_gains_nothing_and_holds_more():
    """1,024 at once are as fast as 10, and hold a hundred times the memory."""
    enough, far_more = tree(5, 10, element_bytes=1.0), tree(1024, 1024, element_bytes=1.0)

    assert latency_s(far_more, {}) == pytest.approx(latency_s(enough, {}))
    assert held_bytes(far_more, {}) > 100 * held_bytes(enough, {})


def test_AT_05_with_16_cores_it_is_as_fast_as_by_hand():
    """At most a quarter above 20 ms; 5 to 16 and 10 to 16 at once."""
    found = propose(free(16), budget(16))

    assert found.latency_s <= 1.25 * 0.02
    assert 5 <= found.settings["f"] <= 16
    assert 10 <= found.settings["g"] <= 16


def test_AT_06_with_2_cores_it_stops_below_what_the_cores_can_do():
    """100 ms are below 320 / 2: more threads would only wait for each other."""
    found = propose(free(2), budget(2))

    assert found.settings == {"f": 1, "g": 2}
    assert found.latency_s == pytest.approx(0.1)
    assert found.stop is Stop.CORES


def test_AT_07_a_climb_starts_lowest_and_raises_one_by_one():
    """Each step raises one parameter by 1; one that gains nothing is taken too."""
    graph = free(16)

    path = [settings for settings, _ in climb(graph, budget(16))]

    assert path[0] == {"f": 1, "g": 1}
    assert all(sum(after[k] - before[k] for k in after) == 1 for before, after in pairwise(path))
    assert any(latency_s(graph, after) == latency_s(graph, before) for before, after in pairwise(path))


def test_AT_08_a_longer_buffer_needs_a_real_gain():
    """Where times are steady a second place gains nothing, so it is not taken."""
    source = LatencyNode(name="source", kind=LatencyKind.SOURCE, own_s=0.02)
    graph = LatencyNode(
        name="prefetch",
        kind=LatencyKind.ASYNC_KNOWN_RATIO,
        own_s=0.0,
        buffer=Parameter(key="buffer", maximum=64),
        inputs=(source,),
    )

    assert propose(graph, budget(2), busy_s=0.02).settings == {"buffer": 1}
    random = dataclasses.replace(graph, variability=1.0)
    assert propose(random, budget(2), busy_s=0.02).settings["buffer"] > 1


def test_AT_09_a_climb_stops_at_the_top_the_cores_or_the_memory():
    """Each of the three ends it, and the settings of that moment are kept."""
    heavy = free(16, element_bytes=1e6, cpu_s=0.0)

    assert propose(free(4, cpu_s=0.0), budget(16)).stop is Stop.TOP
    assert propose(free(64), budget(4)).stop is Stop.CORES
    stopped = propose(heavy, budget(64, memory_bytes=12e6))
    assert stopped.stop is Stop.MEMORY
    assert stopped.held_bytes <= 12e6


def test_AT_10_budgets_and_period():
    """Half of the free memory, the cores we may run on, every 10 ms at first and every minute in the end."""
    found = machine_budget()

    assert found.cores == machine.available_cores()
    assert 0 < found.memory_bytes <= machine._free_bytes() * 0.6
    assert PERIOD_S == (0.01, 60.0)


def test_AT_12_an_ops_latency_is_its_own_time_and_what_its_kind_makes_of_its_inputs():
    """All kinds in one tree; the wait at a buffer is that of M/M/1/K when times are random."""
    source = LatencyNode(name="source", kind=LatencyKind.SOURCE, own_s=0.02)
    ahead = LatencyNode(
        name="f",
        kind=LatencyKind.ASYNC_KNOWN_RATIO,
        own_s=0.1,
        parallelism=4,
        buffer=4,
        variability=1.0,
        inputs=(source,),
    )
    produced_s = 0.1 / 4 + wait_s(0.02, 0.1 / 4, 4)

    assert latency_s(LatencyNode(name="g", own_s=0.2, inputs=(ahead,)), {}) == pytest.approx(
        0.2 + wait_s(produced_s, 0.2, 4)
    )
    assert wait_s(0.03, 0.03, 9) == pytest.approx(0.003)


def test_AT_13_timing_reads_the_clock_twice_for_each_batch_and_op(clock):
    """Whatever is in the batch. That this takes less than 2 us is a limit of `benchmarks.input`."""
    op = Batch(input=Range(start=0, stop=4096), size=1024)
    seen = stats.Stats(op)

    batches = sum(1 for _ in Opening(observe=seen.observe).open(op))

    assert clock.readings == 2 * (batches + 1) + 2 * (4096 + 1)  # each op is asked once more, at the end


@pytest.mark.parametrize("start", [(1, 1), (16, 16), (1024, 1)])
def test_AT_14_where_the_settings_stood_does_not_matter(start, monkeypatch):
    """From the same measurements come the same settings, whatever the knobs stood at."""
    graph = Map(
        input=Map(input=Range(start=0, stop=9), function=abs, num_parallel=AUTOTUNE),
        function=abs,
        num_parallel=AUTOTUNE,
    )
    outer, inner, source = graph, graph.input, graph.input.input
    tuner = Tuner(graph, Options(cpu_budget=16), Opening().block)
    streams = Opening(tuner=tuner, observe=tuner.observe).open(graph)
    seen = {source: 0.02 * 100, inner: 0.1 * 100, outer: 0.2 * 100}
    tuner._before = dict.fromkeys(tuner.stats.ops, OpReading())
    monkeypatch.setattr(tuner.stats, "readings", lambda: {
        op: OpReading(calls=100, units=100, total_s=s, work=None if op is source else CallTimes(calls=100, took_s=s, cpu_s=s))
        for op, s in seen.items()
    })  # fmt: skip
    for knob, value in zip((tuner._knobs[inner], tuner._knobs[outer]), start, strict=True):
        knob.value = value

    tuner.tune()

    assert (tuner._knobs[inner].value, tuner._knobs[outer].value) == (6, 11)  # and a tenth to spare
    streams.close()


@pytest.mark.parametrize(
    ("cores", "f", "g", "output_s"),
    [(2, 1, 2, 0.1), (4, 2, 3, 0.0667), (8, 3, 6, 0.0333), (16, 5, 10, 0.02), (64, 5, 10, 0.02)],
)
def test_AT_15_no_more_than_is_needed_where_more_gains_nothing(cores, f, g, output_s):
    """Where a sequential stage is the floor, the climb ends on it instead of raising all to the top."""
    found = propose(free(cores), budget(cores))

    assert found.settings == {"f": f, "g": g}
    assert found.latency_s == pytest.approx(output_s, rel=0.01)
    assert found.latency_s >= max(SOURCE_S, F_S / f, G_S / g) * 0.999


def test_ED_02_overlap_alone_is_bounded_by_the_longer_part():
    """24.6 s of input hidden behind 26.4 s of the rest: 26.4 s, 1.93 times as fast, and no buffer makes it faster."""
    source = LatencyNode(name="input", kind=LatencyKind.SOURCE, own_s=24.6)
    ahead = LatencyNode(name="prefetch", kind=LatencyKind.ASYNC_KNOWN_RATIO, own_s=0.0, buffer=64, inputs=(source,))

    one_after_another_s = 26.4 + latency_s(source, {}, 26.4)
    overlapped_s = 26.4 + latency_s(ahead, {}, 26.4)

    assert one_after_another_s == pytest.approx(51.0)
    assert overlapped_s == pytest.approx(26.4)
    assert one_after_another_s / overlapped_s == pytest.approx(1.93, abs=0.005)


def test_ED_03_what_the_consumer_does_not_account_for_it_waits():
    """23.8 s in all, of which it is busy for 4.2 + 5.4 + 7.6: it waits for the other 6.6."""
    busy_s = 4.2 + 5.4 + 7.6
    ahead = LatencyNode(
        name="prefetch",
        kind=LatencyKind.ASYNC_KNOWN_RATIO,
        own_s=0.0,
        buffer=2,
        inputs=(LatencyNode(name="input", kind=LatencyKind.SOURCE, own_s=23.8),),
    )

    assert latency_s(ahead, {}, busy_s) == pytest.approx(6.6)


def profiled_step(clock, *phases, input_s):
    """The profile of ten steps that take so long in all, the phases of a step one after another."""

    def step(_element):
        for phase_s in phases:
            clock.advance(phase_s / 10)

    source = sources.range(10).map(lambda x: clock.advance(input_s / 10) or x).options(optimize=False)
    return source.profile(step, limit_s=1000)


def test_ED_03_a_profile_measures_the_rest_as_waiting(clock):
    """Of 23.8 s the step is busy for 4.2 + 5.4 + 7.6."""
    found = profiled_step(clock, 4.2, 5.4, 7.6, input_s=6.6)

    assert found.elapsed_s == pytest.approx(23.8)
    assert found.waited_s == pytest.approx(6.6)


def test_ED_01_a_profile_tells_the_shares_of_a_step(clock):
    """Input 48 %, computing 29 %, the parameter server 20 %: what of 51 s the input takes is what the step waits."""
    get_batch, input_fn, compute_loss, get_model, report_gradient, rest = 6.7, 17.9, 14.8, 5.0, 5.0, 1.6

    found = profiled_step(clock, compute_loss, get_model, report_gradient, rest, input_s=get_batch + input_fn)

    assert found.elapsed_s == pytest.approx(51.0)
    assert found.waited_s / found.elapsed_s == pytest.approx(0.482, abs=0.001)
    assert found.bottleneck == "input"
    assert "48% of the time the consumer waits" in found.verdict


def test_ED_04_the_next_task_is_asked_for_before_the_last_element_of_one_is_consumed():
    """One dataset over all tasks: no stall where they change; a task is done when its last element was consumed."""
    asked, done = [], []

    def tasks():
        for task in range(10):
            asked.append(task)
            yield from ((task, element) for element in range(3))

    elements = from_generator(tasks).prefetch(2).options(optimize=False)
    ahead = []
    for task, element in elements:
        deadline = time.monotonic() + 300
        while element == 2 and task < 9 and task + 1 not in asked and time.monotonic() < deadline:
            time.sleep(0.001)  # the thread may need a moment; it does not need us to take an element
        if element == 2:
            ahead.append(task == 9 or task + 1 in asked)
            done.append(task)

    assert all(ahead)
    assert done == list(range(10))
