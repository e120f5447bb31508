"""Hosts on one machine: each with a network, a name and processes of its own, on a bridge from which it can be cut.

A host is a network, a name and a process namespace, so that a process of one is on another machine to the others. The
bridge is in the namespace of the test, which thereby reaches what hosts serve, and they reach what it serves. Needs
root, `ip`, `unshare`, and a C compiler for hosts whose clock is wrong.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.scenario.processes import environment, kill

NETWORK = "10.77.0"
CLOCK = Path(__file__).with_name("ahead.c")
MARKS = [
    pytest.mark.slow,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.skipif("SPANWISE_TEST_HOSTS" not in os.environ, reason="make test-hosts runs these"),
]


def missing():
    """What hosts cannot be made without, in words; empty if nothing is missing."""
    if os.geteuid() != 0:
        return "hosts are namespaces, which only root makes"
    wanted = [name for name in ("ip", "unshare", "cc") if shutil.which(name) is None]
    return f"no {' and no '.join(wanted)}" if wanted else ""


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Bridge:
    """A network with an address of its own, `address`, until it is closed."""

    def __init__(self, folder, network=NETWORK):
        self.network = network
        self.clock = folder / "ahead.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.clock, CLOCK, "-ldl"], check=True)
        self.name = f"sw{uuid.uuid4().hex[:6]}"
        self.address = f"{network}.1"
        self.hosts = []
        ip("link", "add", self.name, "type", "bridge")
        ip("address", "add", f"{self.address}/24", "dev", self.name)
        ip("link", "set", self.name, "up")

    def add_host(self, *, ahead_s=0):
        """A host, whose clock is so many seconds ahead."""
        host = Host(self, len(self.hosts) + 2, ahead_s)
        self.hosts.append(host)
        return host

    def close(self):
        for host in self.hosts:
            host.close()
        ip("link", "delete", self.name)


class Host:
    """A host of a bridge."""

    def __init__(self, bridge, number, ahead_s):
        self.name = f"{bridge.name}h{number}"
        self.port = f"{bridge.name}p{number}"
        self.address = f"{bridge.network}.{number}"
        self.mark = f"SPANWISE_TEST_MARK={uuid.uuid4().hex}"
        self._ahead = {"LD_PRELOAD": str(bridge.clock), "SPANWISE_TEST_AHEAD_S": str(ahead_s)} if ahead_s else {}
        self._started = []
        self._names = Path("/etc/netns") / self.name  # what `ip netns exec` mounts: a host knows its own name
        self._names.mkdir(parents=True)
        (self._names / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        ip("netns", "add", self.name)
        ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", self.port, "master", bridge.name, "up")
        ip("-netns", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-netns", self.name, "link", "set", device, "up")

    def start(self, module, *words, env=None, **options):
        """Starts a Python process on it, under a first process of its own, as on a real one."""
        name, _, value = self.mark.partition("=")
        apart = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        named = ["sh", "-c", 'hostname "$0"; "$@"; exit $?', self.name]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *apart, *named, sys.executable, "-m", module, *map(str, words)],
            env={**os.environ, **self._ahead, **(env or {}), name: value, "PYTHONPATH": os.pathsep.join(sys.path)},
            **options,
        )
        self._started.append(process)
        return process

    def cut(self):
        """No packet comes in or goes out any more, and nobody is notified."""
        ip("link", "set", self.port, "down")

    def join(self):
        """Ends a cut."""
        ip("link", "set", self.port, "up")

    def pause(self):
        """Stops all of its processes where they are."""
        for pid in self.alive():
            kill(pid, signal.SIGSTOP)

    def resume(self):
        """Ends a pause."""
        for pid in self.alive():
            kill(pid, signal.SIGCONT)

    def die(self):
        """Ends all of its processes at once, as when the power fails."""
        for pid in self.alive():
            kill(pid)
        for process in self._started:
            process.wait()

    def alive(self):
        """Its processes, the oldest first."""
        pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in pids if self.mark in environment(pid)]

    def terminate(self, module):
        """Asks the first process that runs the module to end."""
        kill(next(pid for pid in self.alive() if is_module(pid, module)), signal.SIGTERM)

    def close(self):
        self.die()
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("netns", "delete", self.name)
        shutil.rmtree(self._names)


def is_module(pid, module):
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[1:3] == [b"-m", module.encode()]
