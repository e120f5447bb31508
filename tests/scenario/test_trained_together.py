"""Replicas on two hosts, which average their gradients by JAX over a network that can be cut.

`make test-training` runs these: they need root, network namespaces and JAX.
"""

import json
import os
import signal

import pytest

from tests.scenario import hosts
from tests.scenario.processes import Marked, kill
from tests.servers import eventually

if not os.environ.get("SPANWISE_TEST_TRAINING"):
    pytest.skip("make test-training runs these", allow_module_level=True)

NETWORK = "10.78.0"  # not that of tests of schedulers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hosts")]


@pytest.fixture
def bridge(tmp_path):
    missing = hosts.missing()
    assert not missing, missing
    bridge = hosts.Bridge(tmp_path, NETWORK)
    try:
        yield bridge
    finally:
        bridge.close()


class Training:
    """A run in a process of its own, with a host for each of two replicas."""

    def __init__(self, bridge, root, how):
        self.root = root
        self.hosts = [bridge.add_host(), bridge.add_host()]
        root.mkdir()
        self.run = Marked(
            "tests.scenario.trained_together", root, how, *(f"{each.name}:{each.mark}" for each in self.hosts)
        )

    def end(self):
        """Everything that it printed; its hosts have no process then."""
        said, _ = self.run.process.communicate(timeout=400)
        eventually(lambda: not any(host.alive() for host in self.hosts), within_s=60)
        self.said = said
        return said

    def model(self):
        return json.loads(
            next(line for line in self.said.splitlines() if line.startswith("model ")).removeprefix("model ")
        )

    def logs(self, attempt):
        return (self.root / "p" / ".runs" / "1" / "logs" / f"Trainer.{attempt}.log").read_text()

    def await_step(self):
        """Waits until both replicas have stored their second step."""

        def has_come():
            assert self.run.process.poll() is None, self.run.process.stdout.read()
            return all((self.root / f"working-{rank}").exists() for rank in range(2))

        eventually(has_come, within_s=200)

    def close(self):
        self.run.end()


@pytest.fixture
def start(bridge, tmp_path):
    started = []

    def start(how):
        started.append(Training(bridge, tmp_path / "root", how))
        return started[-1]

    try:
        yield start
    finally:
        for training in started:
            training.close()


def check_model(training):
    """It is what one process learns, after as many steps."""
    from tests.scenario import trained_together as it

    found = training.model()
    assert found["steps"] == it.EPOCHS * it.ROWS // 2 // it.BATCH
    assert found["weight"] == pytest.approx(it.expected(), rel=1e-4)


def test_gradients_are_summed_across_two_hosts(start):
    """Each host adds its rank, and the weights are those of a training in one process."""
    training = start("well")

    training.end()

    check_model(training)
    for rank, host in enumerate(training.hosts):
        assert f"[rank {rank}] {host.name}: rank {rank} of 2, the sum of ranks is 1.0\n" in training.logs(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_after_a_kill_the_second_attempt_continues_the_training(start, rank):
    """Whichever is killed, the error names it, and the model is whole."""
    training = start(f"killed-{rank}")

    said = training.end()

    assert f'retry-scheduled "rank {rank} of 2: It was killed by SIGKILL' in said
    assert "begins at step 2\n" in training.logs(2)
    check_model(training)


def test_a_link_that_is_cut_ends_the_attempt(start):
    """Within the time that JAX waits for a heartbeat; the next attempt finds the network whole, and the model is too."""
    training = start("waits")
    training.await_step()
    training.hosts[1].cut()
    failed = training.run.read_until("retry-scheduled")[-1]
    training.hosts[1].join()

    training.end()

    assert "of 2: It was killed by SIGABRT." in failed
    assert "heartbeat" in training.logs(1)
    assert "begins at step 2\n" in training.logs(2)
    check_model(training)


def test_nothing_is_left_on_the_hosts_when_the_controller_is_killed(start):
    """Its replicas end with their lines to it."""
    training = start("waits")
    training.await_step()

    kill(training.run.pid, signal.SIGKILL)

    eventually(lambda: not any(host.alive() for host in training.hosts), within_s=100)
