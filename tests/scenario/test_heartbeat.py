"""The heartbeat and the run loop write to one store from two threads."""

import logging

import pytest

from spanwise.orchestrator import Component, Input, Output, Pipeline, Report, State
from spanwise.orchestrator.lease import Clock, current
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Trial

pytestmark = pytest.mark.usefixtures("with_servers")


class Next(Component):
    def run(self, before: Input[Report | None], report: Output[Report]) -> None:
        (report.path / "x").touch()


def chain(length):
    nodes = [Next(name="n0")]
    for number in range(1, length):
        nodes.append(Next(name=f"n{number}", before=nodes[-1]["report"]))
    return Pipeline("p", nodes)


@pytest.mark.slow
def test_a_heart_that_races_disturbs_nothing(tmp_path, caplog):
    """With a beat every few milliseconds no beat is missed, no write is lost, and the lease ends as it should."""
    caplog.set_level(logging.WARNING, logger="spanwise")
    store = open_store(str(tmp_path / "metadata.db"))
    trial = Trial(tmp_path, store, Clock(ttl_s=0.01))
    for _ in range(3):
        assert trial.run(chain(15), RunRequest(cache=False)).run.state is State.COMPLETE
    holder = current(store, "p")
    journal = [store.find_claim("journal", f"p#3/{n}") for n in range(1, 33)]
    store.close()

    assert caplog.records == []
    assert holder.beat > 20
    assert (holder.released, holder.closed, holder.token) == (True, True, 3)
    assert all(journal)
