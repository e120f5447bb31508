"""Workers and the dispatcher are killed while consumers read, and every element is counted: each mode keeps its word."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from pipelines import input as inputs
from tests.pipelines.input.service.servers import free_ports

ROUNDS = int(os.environ.get("SPANWISE_TEST_CHAOS", "1"))  # the full form: 200
ELEMENTS = 1_000
SOON_S = 60.0


class Servers:
    """A dispatcher and two workers as processes, each at its port, which are killed and started again."""

    def __init__(self, folder):
        self.ports = dict(zip(("dispatcher", "left", "right"), free_ports(3), strict=True))
        self.target = f"grpc://127.0.0.1:{self.ports['dispatcher']}"
        self.folder = folder
        self.processes = {}
        for name in self.ports:
            self.start(name)

    def start(self, name):
        if name == "dispatcher":
            words = ["dispatcher", "--port", str(self.ports[name]), "--work-dir", str(self.folder)]
        else:
            words = ["worker", self.target, "--port", str(self.ports[name])]
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", "scheduler", "service", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def kill(self, name):
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in self.processes:
            self.kill(name)


def slow(number):
    time.sleep(0.0005)
    return number


def read_through_kills(servers, dataset, dice):
    """What two consumers got, each its list, while one server after the other was killed and started again."""
    found = [[], []]
    readers = [threading.Thread(target=lambda each=each: each.extend(dataset()), daemon=True) for each in found]
    for reader in readers:
        reader.start()
    killed = []
    deadline = time.monotonic() + SOON_S
    for _ in range(dice.randint(1, 2)):
        time.sleep(dice.uniform(0.05, 0.6))
        killed.append(dice.choice(["dispatcher", "left", "right"]))
        servers.kill(killed[-1])
        servers.start(killed[-1])
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
        assert not reader.is_alive(), f"a consumer hangs after {killed} were killed"
    return found, killed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "dynamic", "at_least_once", "exactly_once"])
def test_each_mode_keeps_its_word_while_servers_are_killed(tmp_path, mode):
    """OFF: each worker's whole dataset. DYNAMIC: at most once, and all if no worker was killed. Leases: none missing;
    exactly once: none twice.
    """
    dice = random.Random(f"{mode} {ROUNDS}")
    with Servers(tmp_path) as servers:
        for number in range(ROUNDS):
            name = f"{mode}-{number}"

            def dataset(name=name):
                return inputs.range(ELEMENTS).map(slow).distribute(servers.target, mode, name)

            found, killed = read_through_kills(servers, dataset, dice)
            seen = Counter(found[0] + found[1])
            what = f"round {number}, {killed} killed"
            assert seen.keys() <= set(range(ELEMENTS)), what
            if mode == "off":
                assert len(seen) == ELEMENTS, what
            elif mode == "dynamic":
                assert max(seen.values(), default=1) == 1, what
                assert killed != ["dispatcher"] * len(killed) or len(seen) == ELEMENTS, what
            else:
                assert len(seen) == ELEMENTS, what
            if mode == "exactly_once":
                assert set(seen.values()) == {1}, what
