"""Small Ray clusters on this machine for tests, in processes of their own that end with the test."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spanwise.orchestrator import process


class RayCluster:
    """A head and, as asked for, more machines; `address` is what drivers connect to."""

    def __init__(self, cpus=4):
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets must be short
        self.machines = {}
        self._start("head", "--head", "--port=0", f"--num-cpus={cpus}")
        try:
            self.address = f"127.0.0.1:{_until(self._port)}"
        except BaseException:
            self.close()
            raise

    def add(self, name, *options):
        """Starts another machine, with resources of its own."""
        self._start(name, f"--address={self.address}", *options)

    def kill(self, name):
        """What becomes of a machine that is taken away: all its processes are gone at once."""
        machine = self.machines.pop(name)
        process.send([machine.pid, *process.descendants(machine.pid)], signal.SIGKILL)
        machine.wait()

    def close(self):
        for name in list(self.machines):
            self.kill(name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _port(self):
        """The port of the head, once it has said that it runs."""
        if "Ray runtime started" not in Path(self._folder, "head.log").read_text(errors="replace"):
            return 0
        return int(next(Path(self._folder).glob("session_latest/gcs_server_port_*")).read_text())

    def _start(self, name, *options):
        ray = Path(sys.executable).with_name("ray")
        command = [str(ray), "start", "--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats", *options]
        if name == "head":
            command += ["--include-dashboard=false", f"--temp-dir={self._folder}"]
        with Path(self._folder, f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000",
                     "RAY_raylet_start_wait_time_s": "600"},
            )  # fmt: skip
        self.machines[name] = started


def _until(condition, within_s=600.0):
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "Ray did not start"
        time.sleep(0.1)
    return found
