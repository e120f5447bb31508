"""Law 1 and RFC, Concurrent Runs: a run that was frozen and has lost its turn publishes and pushes nothing more."""

import signal
import time

import pytest

from spanwise.orchestrator import State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Address
from tests.scenario.processes import Marked, kill

TTL_S = 1.0


def wait_for(path, *, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same machine", "another machine"])
def test_a_frozen_run_that_lost_its_lease_is_fenced(tmp_path, elsewhere):
    """Frozen for longer than the lease lasts, then thawed: it ends as Fenced, and neither published nor acted."""
    frozen = Marked("tests.scenario.controller", tmp_path, "act=1", f"ttl_s={TTL_S}")
    after = None
    try:
        frozen.read_until("node-started Act")
        wait_for(tmp_path / "waiting")
        kill(frozen.pid, signal.SIGSTOP)
        time.sleep(1.5 * TTL_S)  # or its heartbeat is young, and who comes is told that it is held
        after = Marked("tests.scenario.controller", tmp_path, "act=1", f"ttl_s={TTL_S}", f"elsewhere={int(elsewhere)}")
        after.read_until("abandoned-run-closed")
        (tmp_path / "go").touch()
        successor, _ = after.process.communicate(timeout=20)
        kill(frozen.pid, signal.SIGCONT)
        said, _ = frozen.process.communicate(timeout=20)
        left = frozen.gone_within(5.0)
    finally:
        frozen.end()
        if after is not None:
            after.end()

    assert "end complete" in successor
    assert "end Fenced" in said
    assert "node-completed Act" not in said
    assert left == []
    assert not (tmp_path / "acted-1").exists()
    assert (tmp_path / "acted-2").exists()
    store = open_store(str(tmp_path / "metadata.db"))
    assert [a.name for a in store.newest(Address("acting", "Act", "report"))] == ["acting/Act/report/1"]
    assert store.run("acting", 1).state is State.FAILED
    assert [e.state for e in store.executions(store.run("acting", 1))] == [State.COMPLETE, State.FAILED]
    store.close()


@pytest.mark.slow
def test_a_run_that_was_frozen_for_a_moment_goes_on(tmp_path):
    """Frozen for less than the lease lasts, it keeps its turn: who comes meanwhile is told that it is held."""
    frozen = Marked("tests.scenario.controller", tmp_path, "act=1", "ttl_s=30")
    try:
        frozen.read_until("node-started Act")
        kill(frozen.pid, signal.SIGSTOP)
        other = Marked("tests.scenario.controller", tmp_path, "act=1", "ttl_s=30")
        refused, _ = other.process.communicate(timeout=20)
        other.end()
        kill(frozen.pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        said, _ = frozen.process.communicate(timeout=20)
    finally:
        frozen.end()

    assert "end Held" in refused
    assert "end complete" in said
