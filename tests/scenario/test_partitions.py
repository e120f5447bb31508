"""Two hosts, a database and object storage between them, and a network that fails in many ways at once.

For a minute, or for `SPANWISE_TEST_PARTITIONS_S`, hosts die, pause, lose their network or only one of the servers, and
find these slow or silent. What is left is judged by `tests.scenario.audit`, which shares no code with spanwise.
`make test-hosts` runs this; it needs root, network namespaces, PostgreSQL and versitygw.
"""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from spanwise.orchestrator.storage import forget_buckets
from spanwise.pipelines.demo_servers import serve_s3
from tests import postgresql
from tests.scenario import hosts
from tests.scenario.processes import kill
from tests.scenario.relay import relayed
from tests.scenario.test_hosts import Shared

GATEWAY = os.environ.get("SPANWISE_TEST_VERSITYGW")
LIMIT_S = float(os.environ.get("SPANWISE_TEST_PARTITIONS_S", "60"))
FILE = Path(__file__).with_name("pushing.py")

pytestmark = hosts.MARKS


class Partitioned(Shared):
    """Two hosts with schedulers, which are started again when they have ended, and what can happen to them."""

    schedule = f"{FILE}:often"
    pipeline = "pushing"

    def __init__(self, folder, monkeypatch, bridge, url, far_url, relays):
        super().__init__(folder, monkeypatch, bridge, url)  # here without a relay: its threads wait while we ask
        monkeypatch.setenv("SPANWISE_METADATA", far_url)
        self.root = "s3://lake/root"
        self.relays = relays
        self.hosts = [bridge.add_host(), bridge.add_host()]
        self.schedulers = {}

    def begin(self, host):
        """Starts the scheduler of a host, unless it runs."""
        if host in self.schedulers and self.schedulers[host].poll() is None:
            return
        caches = {"XDG_CACHE_HOME": str(self.folder / host.name)}
        words = ["schedule", "start", self.schedule, "--root", self.root]
        with (self.folder / f"log.{len(self.started)}").open("w") as log:
            self.schedulers[host] = host.start(
                "spanwise", *words, env=caches, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.started.append(self.schedulers[host])

    def events(self, host, drawn):
        """What can happen to a host, each with what ends it."""
        yield "dies", host.die, nothing
        yield "loses a process", lambda: lose_process(host, drawn), nothing
        yield "is paused", host.pause, host.resume
        yield "is cut off", host.cut, host.join
        for name, relay in self.relays.items():
            who, slow = host.address, drawn.uniform(0.1, 0.5)
            yield f"waits for {name}", partial(relay.delays.update, {who: slow}), relay.delays.clear
            yield f"hears nothing of {name}", partial(relay.silent.add, who), partial(relay.silent.discard, who)
            yield f"is reset by {name}", partial(relay.reset, who), nothing

    def heal(self):
        """All is as it should be, for good."""
        for host in self.hosts:
            host.join()
            host.resume()
            self.begin(host)
        for relay in self.relays.values():
            relay.delays.clear()
            relay.silent.clear()


def nothing():
    """What ends by itself needs no end."""


def lose_process(host, drawn):
    if pids := host.alive()[3:]:  # after those that make the namespaces
        kill(drawn.choice(pids), signal.SIGKILL)


@pytest.fixture
def place(tmp_path, monkeypatch):
    assert not hosts.missing(), hosts.missing()
    assert GATEWAY, "SPANWISE_TEST_VERSITYGW names no gateway"
    bridge = hosts.Bridge(tmp_path)
    (tmp_path / "s3").mkdir()
    with postgresql.serve() as url, serve_s3(Path(GATEWAY).absolute(), tmp_path / "s3", "lake") as s3:
        database, far_url = relayed(url, bridge.address)
        storage, s3["AWS_ENDPOINT_URL"] = relayed(s3["AWS_ENDPOINT_URL"], bridge.address)
        for name, value in s3.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SPANWISE_TEST_SERVING", "s3://lake/serving")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        forget_buckets()
        place = Partitioned(
            tmp_path, monkeypatch, bridge, url, far_url, {"the database": database, "the storage": storage}
        )
        try:
            yield place
        finally:
            place.end()
            database.close()
            storage.close()


@pytest.mark.parametrize("policy", ["allowtocomplete", "killandrun"])
def test_what_two_hosts_leave_is_whole_whatever_their_network_does(place, policy, tmp_path):
    """No tick is lost or done twice, all that is published can be read, and no overtaken run has pushed."""
    seed = int(os.environ.get("SPANWISE_TEST_SEED") or random.randrange(10**6))
    drawn, history, ends = random.Random(seed), [f"seed {seed}"], []
    period_s = 3 if policy == "allowtocomplete" else 6
    place.every(period_s, policy)
    for host in place.hosts:
        place.begin(host)
    place.until(lambda entries: len(entries) >= 2)
    deadline = time.monotonic() + LIMIT_S
    while (left_s := deadline - time.monotonic()) > 0:
        host = drawn.choice(place.hosts)
        name, happen, end = drawn.choice(list(place.events(host, drawn)))
        history.append(f"{left_s:.1f} s before the end {host.name} {name}")
        happen()
        ends.append(end)
        time.sleep(drawn.uniform(0.5, 8))
        while ends and drawn.random() < 0.7:
            ends.pop(0)()
        for each in place.hosts:
            place.begin(each)
    place.heal()
    place.await_more(3)
    for each in place.hosts:
        each.die()
    place.settle()

    bucket = tmp_path / "s3" / "objects" / "lake"
    code, found = judge(place, bucket, period_s)
    (tmp_path / "audit").write_text("\n".join([found, *history]))
    assert code == 0, "\n".join([found, *history])
    next((bucket / "root" / "pushing" / "Learn").rglob("*.bin")).write_bytes(b"something else")
    code, found = judge(place, bucket, period_s)
    assert code == 1
    assert "is not what was published" in found, "an audit that finds nothing has to look"


def judge(place, bucket, period_s):
    """The exit code of the audit, and what it has found."""
    words = [sys.executable, "-m", "tests.scenario.audit", place.url, bucket, place.pipeline, str(period_s)]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr
