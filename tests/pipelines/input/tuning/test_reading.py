"""What an op has done so far, and between two readings."""

import pytest

from spanwise.pipelines.input.tuning.reading import CallTimes, OpReading


def test_a_reading_since_another_one_is_what_was_done_between():
    """And all there is, when nothing was done."""
    before = OpReading(calls=4, units=40, total_s=1.0, work=CallTimes(calls=4, took_s=0.5, squares=0.1, cpu_s=0.25))
    now = OpReading(calls=6, units=60, total_s=1.5, work=CallTimes(calls=6, took_s=0.75, squares=0.2, cpu_s=0.5))

    between = now.since(before)

    assert (between.calls, between.units, between.total_s) == (2, 20, 0.5)
    assert between.work == CallTimes(calls=2, took_s=0.25, squares=0.1, cpu_s=0.25)
    assert now.since(now) == now


def test_times_that_vary_are_told_from_steady_ones():
    """The squared coefficient of variation: 0 when all are alike."""
    steady, mixed = CallTimes(), CallTimes()
    for _ in range(4):
        steady.add(0.1)
    for took_s in (0.1, 0.3):
        mixed.add(took_s)

    assert steady.variability == pytest.approx(0)
    assert mixed.variability == pytest.approx(0.25)
