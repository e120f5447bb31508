"""Law 1 and RFC, Concurrent Runs: a run that was frozen and has lost its turn publishes and pushes nothing more."""

import fcntl
import signal
import time
from pathlib import Path

import pytest

from spanwise.orchestrator import State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Address
from tests.scenario.processes import Marked, kill

TTL_S = 1.0


def wait_for(path, *, within_s=300.0):
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def freeze(pid, folder):
    """Stops a process while its heartbeat writes nothing: who holds the lock of the database lets nobody else write."""
    while True:
        kill(pid, signal.SIGSTOP)
        while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text():
            time.sleep(0.01)
        with (folder / "metadata.db.lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                kill(pid, signal.SIGCONT)
                time.sleep(0.05)
                continue
            return


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same machine", "another machine"])
def test_a_frozen_run_that_lost_its_lease_is_fenced(tmp_path, elsewhere):
    """Frozen for longer than the lease lasts, then thawed: it ends as Fenced, and neither published nor acted."""
    frozen = Marked("tests.scenario.controller", tmp_path, "act=1", f"ttl_s={TTL_S}")
    after = None
    try:
        frozen.read_until("node-started Act")
        wait_for(tmp_path / "waiting")
        freeze(frozen.pid, tmp_path)
        time.sleep(1.5 * TTL_S)  # or its heartbeat is young, and who comes is told that it is held
        after = Marked("tests.scenario.controller", tmp_path, "act=1", f"ttl_s={TTL_S}", f"elsewhere={int(elsewhere)}")
        after.read_until("abandoned-run-closed")
        (tmp_path / "go").touch()
        successor, _ = after.process.communicate(timeout=300)
        kill(frozen.pid, signal.SIGCONT)
        said, _ = frozen.process.communicate(timeout=300)
        left = frozen.gone_within(300.0)
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
    frozen = Marked("tests.scenario.controller", tmp_path, "act=1", "ttl_s=600")
    try:
        frozen.read_until("node-started Act")
        freeze(frozen.pid, tmp_path)
        other = Marked("tests.scenario.controller", tmp_path, "act=1", "ttl_s=600")
        refused, _ = other.process.communicate(timeout=300)
        other.end()
        kill(frozen.pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        said, _ = frozen.process.communicate(timeout=300)
    finally:
        frozen.end()

    assert "end Held" in refused
    assert "end complete" in said
