"""What timing a stream takes."""

import spanwise.pipelines.input as tfdata
from spanwise.pipelines.input.op import Opening
from spanwise.pipelines.input.tuning.stats import Stats
from spanwise.pipelines.input.tuning.timing import overhead_s


def test_timing_reads_the_clock_twice_for_each_element(clock):
    """And for nothing else; `benchmarks.input` limits what that takes."""
    op = tfdata.range(10).batch(5).op

    for _ in Opening(observe=Stats(op).observe).open(op):
        pass

    assert clock.readings == 2 * (10 + 1) + 2 * (2 + 1)  # each op is asked once more, at the end


def test_what_timing_costs_is_measured_on_a_stream_that_does_nothing(clock):
    """By the clock itself: where reading it takes no time, timing costs nothing."""
    assert overhead_s(elements=5, times=2) == 0
    assert clock.readings == 2 * 2 + 2 * 2 + 2 * 5 * 2
