import pytest

from spanwise.scheduler.schedule.overrun import KillThenStart, SkipTick, StartRun, decide_overrun
from spanwise.scheduler.schedule.timetable import OverrunPolicy


@pytest.mark.parametrize("policy", OverrunPolicy)
def test_a_tick_starts_a_run_when_none_is_running(policy: OverrunPolicy) -> None:
    """Whatever the policy."""
    assert decide_overrun(policy, None) == StartRun()


def test_killandrun_terminates_the_running_run_and_launches_a_new_one() -> None:
    """RFC, Concurrent Runs: "The current pipeline run to be terminated and a new run launched."."""
    assert decide_overrun(OverrunPolicy.KILL_AND_RUN, "flights/7") == KillThenStart("flights/7")


def test_allowtocomplete_leaves_the_running_run_and_launches_none() -> None:
    """RFC, Concurrent Runs: "The already-running job to remain untouched, without launching a new pipeline run."."""
    assert decide_overrun(OverrunPolicy.ALLOW_TO_COMPLETE, "flights/7") == SkipTick("flights/7")


def test_there_are_the_two_policies_of_the_rfc() -> None:
    """Under the names that it gives them."""
    assert {policy.value for policy in OverrunPolicy} == {"killandrun", "allowtocomplete"}
