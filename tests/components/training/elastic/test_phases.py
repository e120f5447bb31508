"""Phases: seconds are added where they were spent."""

import itertools

import pytest

from spanwise.components.training.elastic.phases import Phase, Phases


def test_a_phase_takes_what_its_block_took_also_if_it_raised():
    """Blocks of one phase add up, and an error loses no second."""
    clock = itertools.accumulate([10.0, 2.0, 1.0, 4.0]).__next__
    phases = Phases()

    with phases.during(Phase.COMPUTE, clock):
        pass
    with pytest.raises(ZeroDivisionError), phases.during(Phase.COMPUTE, clock):
        raise ZeroDivisionError

    assert phases.seconds[Phase.COMPUTE] == 6.0
    assert phases.shares() == {phase: float(phase is Phase.COMPUTE) for phase in Phase}


def test_shares_are_parts_of_all_phases():
    """Without measured time they are 0."""
    phases = Phases({"get_batch": 1.0, "compute": 3.0})

    assert phases.shares()[Phase.COMPUTE] == 0.75
    assert set(Phases().shares().values()) == {0.0}


def test_what_workers_report_is_added():
    """Seconds by phase, and batches."""
    both = Phases({"compute": 1.0}, 2) + Phases({"compute": 2.0, "report": 1.0}, 3)

    assert both.seconds[Phase.COMPUTE] == 3.0
    assert both.batches == 5
    assert str(both) == "compute 75%, report 25%"
