"""The Ray cluster of the demo and of tests: a real one, of which a daemon dies."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from spanwise.orchestrator import Resources, process
from spanwise.orchestrator.agents import ray_engine
from spanwise.orchestrator.agents.engine import AgentLost
from tests.contract.ray_cluster import start_ray
from tests.servers import free_ports

pytestmark = pytest.mark.skipif("SPANWISE_TEST_RAY" not in os.environ, reason="make test-engines")


def raylets():
    """The daemons of machines that this process has started."""
    names = {pid: Path(f"/proc/{pid}/stat") for pid in process.descendants(os.getpid())}
    return {pid for pid, stat in names.items() if stat.exists() and "(raylet) S" in stat.read_text()}


def test_a_cluster_that_is_not_there_is_missed_at_once(monkeypatch):
    """Ray itself tries for a quarter of an hour; a run that had to look for what is left there said nothing meanwhile."""
    monkeypatch.setattr(ray_engine, "_KNOCK_S", 0.0)
    (port,) = free_ports(1)

    with pytest.raises(AgentLost, match=rf"No Ray cluster answers at 127\.0\.0\.1:{port}: .*refused"):
        ray_engine.RayEngine(f"127.0.0.1:{port}").launch(1, 1, Resources())


def test_a_machine_whose_daemon_dies_as_it_starts_is_started_again():
    """`ray start` would wait for the dead one until its time is up."""
    killed = []

    def kill_the_first(others):
        while not killed:
            for pid in raylets() - others:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.005)

    with start_ray(cpus=0) as cluster:
        head = raylets()
        killer = threading.Thread(target=kill_the_first, args=(head,), daemon=True)
        killer.start()
        cluster.add("one", cpus=1)
        killer.join()
        alive = raylets() - head

    assert len(head) == len(killed) == len(alive) == 1
    assert not alive & {*killed}
