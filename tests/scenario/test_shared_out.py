"""Trainings on hosts that share nothing but object storage, of which some die or are cut off. `make test-training`."""

import json
import os
import re

import pytest

from tests.contract.object_storage import serve_at
from tests.scenario import hosts
from tests.scenario.processes import Marked
from tests.scenario.shared_out import EPOCHS
from tests.servers import eventually

if not os.environ.get("SPANWISE_TEST_TRAINING"):
    pytest.skip("make test-training runs these", allow_module_level=True)

NETWORK = "10.79.0"  # not that of tests of schedulers
WHOLE = {"rows": 600 * EPOCHS, "sum": 2 * EPOCHS * sum(range(300))}

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hosts")]


class SharedOut:
    """A run in a process of its own, with hosts that see object storage and each other."""

    def __init__(self, bridge, folder, url, how, count):
        self.root, self.notes = folder / "root", folder / "notes"
        self.root.mkdir()
        self.notes.mkdir()
        self.hosts = [bridge.add_host() for _ in range(count)]
        places = [f"{each.name}:{each.mark}" for each in self.hosts]
        self.run = Marked("tests.scenario.shared_out", self.root, how, url, self.notes, *places)

    def await_rows(self, count, *others):
        """Waits until a worker on each of these hosts has computed on parameters of so many rows."""

        def has_come():
            assert self.run.process.poll() is None, self.run.process.stdout.read()
            return all(
                any((self.notes / f"{host.name}-{number}").exists() for number in range(count // 100, 100))
                for host in others
            )

        eventually(has_come, within_s=200)

    def model(self):
        """What was learned, once it has ended and no host has a process."""
        self.said, _ = self.run.process.communicate(timeout=400)
        eventually(lambda: not any(host.alive() for host in self.hosts), within_s=60)
        found = [line for line in self.said.splitlines() if line.startswith("model ")]
        assert found, self.said
        return json.loads(found[0].removeprefix("model "))

    def logs(self):
        return "".join(path.read_text() for path in sorted((self.root / "p").rglob("Trainer.*.log")))


@pytest.fixture
def start(tmp_path):
    missing = hosts.missing()
    assert not missing, missing
    bridge = hosts.Bridge(tmp_path, NETWORK)
    started = []
    try:
        with serve_at(bridge.address) as url:

            def start(how, count):
                started.append(SharedOut(bridge, tmp_path, f"{url}/root", how, count))
                return started[-1]

            yield start
    finally:
        for each in started:
            each.run.end()
        bridge.close()


def test_workers_leave_and_join(start):
    """A worker's host dies and another's is cut off for a while: every row counts once an epoch all the same."""
    training = start("workers", 3)
    _, second, third = training.hosts
    training.await_rows(0, second, third)
    second.die()
    training.await_rows(300, third)
    third.cut()
    eventually(lambda: "lease-expired" in training.logs() or training.run.process.poll() is not None, within_s=100)
    third.join()

    assert training.model() == WHOLE
    assert re.search(r'worker-joined worker="worker 1 \(2\)" master="?grpc\+tls://10.79.0.2:', training.logs())


def test_a_master_on_another_host_continues_from_object_storage(start):
    """Its folder is gone with its host; the tasks that were done are not done again."""
    training = start("workers", 3)
    first, second, third = training.hosts
    training.await_rows(500, second, third)
    first.die()

    assert training.model() == WHOLE
    assert "job-resumed version=" in training.logs()
    assert "job-resumed version=0 " not in training.logs()


def test_replicas_continue_from_object_storage(start):
    """Each goes on at its own place, with what rank 0 had learned, and copies the spans of its share alone."""
    training = start("replicas", 2)

    steps = training.model()

    halves = [list(range(300)), list(range(300))]
    assert steps == [sum(sum(half[at : at + 30]) for half in halves) for at in range(0, 300, 30)]
    copied = re.findall(r"\[rank (.)\] copied (.*)", training.logs())
    assert sorted(copied) == [("0", "1"), ("0", "1"), ("1", "2"), ("1", "2")]  # in two attempts
    assert training.logs().count("begins at step 3 of 10.79.0.2:") == 2
