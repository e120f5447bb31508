"""The Ray cluster of the demo and of tests: a real one, of which a daemon dies."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from spanwise.orchestrator import process
from tests.contract.ray_cluster import start_ray

pytestmark = pytest.mark.skipif("SPANWISE_TEST_RAY" not in os.environ, reason="make test-engines")


def raylets():
    """The daemons of machines that this process has started."""
    names = {pid: Path(f"/proc/{pid}/stat") for pid in process.descendants(os.getpid())}
    return {pid for pid, stat in names.items() if stat.exists() and "(raylet) S" in stat.read_text()}


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
