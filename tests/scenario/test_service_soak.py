"""A soak: consumers come and go, a worker is restarted now and then; nobody is lost, and no memory or journal grows."""

import itertools
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.journal import COMPACT_RECORDS
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, Unreachable
from spanwise.pipelines.input.service.wire.requests import ExchangeSplits, JoinJob, LeaveJob, RegisterDataset
from spanwise.pipelines.input.service.wire.security import Security
from tests.scenario.served import Consumer, Servers
from tests.servers import eventually

SECONDS = float(os.environ.get("SPANWISE_TEST_SOAK_SERVICE_S", "4"))  # the full form: 3600
SEED = os.environ.get("SPANWISE_TEST_SEED", "spanwise")
ELEMENTS = 300
WIDTH = 2_048
SOON_S = 300.0
CLIENT_TIMEOUT_S = 10
MIB = 1 << 20
LONGEST_RECORD_BYTES = 200
LEASERS = 4 if SECONDS > 60 else 1
LONG_S = 1_500  # time enough to make a journal long
MODES = (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.AT_LEAST_ONCE, ShardingPolicy.EXACTLY_ONCE)


def wide(number):
    return np.full(WIDTH, number)


def narrow(numbers):
    return int(numbers[0])


def arrays(target, mode, name):
    """Numbers that travel as arrays of 16 KiB."""
    return inputs.range(ELEMENTS).map(wide).distribute(target, mode, name).map(narrow)


class Soak:
    """A service, whoever reads it, and what is measured of it after each lap."""

    def __init__(self, servers, folder, dice):
        self.servers, self.folder, self.dice = servers, folder, dice
        self.laps = 0
        self.acts = Counter()
        self.rss_bytes = {"dispatcher": [], "left": []}  # the worker on the left is never restarted
        self.journal_bytes = []

    def lap(self):
        """Three jobs side by side: one with a consumer, one with two, one whose consumer goes early."""
        self.laps += 1
        modes = [self.dice.choice(MODES) for _ in range(3)]
        alone = self.begin(modes[0], None)
        pair = [self.begin(modes[1], f"pair {self.laps}") for _ in range(2)]
        leaver = self.begin(modes[2], None, limit=self.dice.randrange(ELEMENTS))
        struck = self.strike(leaver)
        for consumer in (alone, *pair, leaver):
            consumer.process.join(SOON_S)
            assert consumer.process.exitcode is not None, f"lap {self.laps} {modes}: a consumer hangs"
        for consumer in (alone, *pair):
            assert consumer.has_ended, f"lap {self.laps} {modes}: a consumer was lost"
            self.acts["whole passes"] += 1
        self.check(modes[0], alone, struck=struck)
        self.check(modes[1], *pair, struck=struck)
        self.measure()

    def begin(self, mode, name, limit=None):
        path = self.folder / "consumers"
        path.mkdir(exist_ok=True)
        return Consumer(path / f"{len(list(path.iterdir()))}", arrays, self.servers.target, mode, name, limit=limit)

    def strike(self, leaver):
        """Kills what the dice say; whether it was a worker."""
        act = self.dice.choice(["kill a consumer", "kill a worker", "end a worker", *["leave all alone"] * 3])
        self.acts[act] += 1
        time.sleep(self.dice.uniform(0, 0.5))
        if act == "kill a consumer":
            leaver.kill()
        elif act.endswith("worker"):
            self.servers.kill("right", signal.SIGKILL if act == "kill a worker" else signal.SIGTERM)
            self.servers.start("right")
        return act.endswith("worker")

    def check(self, mode, *consumers, struck):
        """Counts every element that the consumers of one job have got."""
        seen = Counter(element for consumer in consumers for element, _ in consumer.given())
        what = f"lap {self.laps}, {mode}, {'a worker restarted' if struck else 'no worker restarted'}"
        assert seen.keys() <= set(range(ELEMENTS)), what
        assert len(seen) == ELEMENTS or (mode is ShardingPolicy.DYNAMIC and struck), what
        if mode in {ShardingPolicy.DYNAMIC, ShardingPolicy.EXACTLY_ONCE}:
            assert set(seen.values()) == {1}, what

    def measure(self):
        for path in (self.folder / "consumers").iterdir():
            path.write_text("")
        for name, found in self.rss_bytes.items():
            found.append(rss_bytes(self.servers.processes[name].pid))
        self.journal_bytes.append((self.servers.folder / "journal").stat().st_size)

    def growth_bytes(self, name):
        """From the second quarter of the laps, when all is warm, to the last one."""
        found, quarter = self.rss_bytes[name], self.laps // 4
        return statistics.median(found[-quarter:]) - statistics.median(found[quarter : 2 * quarter])


def lease(target, over):
    """Leases one split after the other of a dataset that nobody makes, so that the journal grows."""
    connection = ServiceConnection(target, Security())
    dataset = RegisterDataset(dataset="counted", structure="", splits=(1 << 40,))
    eventually(lambda: reached(connection, dataset), SOON_S)
    client = connection.ask(JoinJob(dataset="counted", mode="at_least_once", name="", epoch="0"))[0].client
    done = ()
    for number in itertools.count():
        if over.is_set():
            break
        held = connection.ask(ExchangeSplits(client=client, number=number, done=done, want=1))[0].held
        done = tuple(split for split, _ in held)
    connection.ask(LeaveJob(client=client))


def reached(connection, request):
    with suppress(Unreachable):
        connection.ask(request)
        return True
    return False


def rss_bytes(pid):
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


@pytest.mark.slow
def test_a_service_stays_as_it_is_while_consumers_come_and_go(tmp_path):
    """Every pass that nobody ended gives what its mode promises; members take no more memory, the journal no more disk."""
    end = time.monotonic() + SECONDS
    with Servers(tmp_path / "service", CLIENT_TIMEOUT_S) as servers:
        soak = Soak(servers, tmp_path, random.Random(SEED))
        over = threading.Event()
        leasers = [threading.Thread(target=lease, args=(servers.target, over), daemon=True) for _ in range(LEASERS)]
        for leaser in leasers:
            leaser.start()
        try:
            while time.monotonic() < end or soak.laps < 4:
                soak.lap()
                assert all(leaser.is_alive() for leaser in leasers), f"lap {soak.laps}: a leaser was lost"
        finally:
            over.set()  # before the servers are ended
            for leaser in leasers:
                leaser.join(SOON_S)
        jobs = servers.status()["jobs"]
    is_long = SECONDS >= LONG_S
    growth = {name: soak.growth_bytes(name) for name in soak.rss_bytes}
    shrunk = sum(after < before for before, after in zip(soak.journal_bytes, soak.journal_bytes[1:], strict=False))
    sys.stdout.write(
        f"{soak.laps} laps, {dict(soak.acts)}; journal at most {max(soak.journal_bytes) / MIB:.1f} MiB, made shorter "
        f"{shrunk} times; {len(jobs)} jobs left\n"
    )
    for name, found in soak.rss_bytes.items():
        tenths = [f"{found[at * (len(found) - 1) // 10] / MIB:.0f}" for at in range(11)]
        sys.stdout.write(f"{name}: {' '.join(tenths)} MiB, grown by {growth[name] / MIB:.1f}\n")

    assert shrunk or not is_long
    assert max(soak.journal_bytes) < COMPACT_RECORDS * LONGEST_RECORD_BYTES
    assert all(each < (32 if is_long else 256) * MIB for each in growth.values()), growth  # what is short is not warm
