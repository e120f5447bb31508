"""Small Slurm clusters on this machine for tests: Debian's daemons, with several machines that are processes here.

Needs root, since slurmd keeps the processes of a job in a cgroup of their own, and munge vouches for its users.
"""

import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from spanwise.orchestrator import process
from tests.servers import end_process, eventually, free_ports

CONFIGURATION = """\
ClusterName=spanwise
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
SlurmdParameters=config_overrides
DefMemPerCPU=256
SchedulerParameters=sched_min_interval=100000
{machines}
PartitionName=main Nodes=ALL Default=YES State=UP
"""
MACHINE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000"
CGROUPS = "CgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nAllowedSwapSpace=0\n"

_until = functools.partial(eventually, within_s=60.0, every_s=0.1, otherwise="Slurm did not start")


class SlurmCluster:
    """A controller and machines of these names, of which some run; SLURM_CONF is the file that its commands read."""

    def __init__(self, *names, running=None):
        self._folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # paths of sockets must be short
        self._running = {}
        self.configuration = self._folder / "slurm.conf"
        try:
            self._start(names, names if running is None else running)
        except BaseException:
            self.close()
            raise

    def _start(self, names, running):
        host = socket.gethostname().partition(".")[0]
        ports = free_ports(len(names) + 1)
        machines = [MACHINE.format(name=n, host=host, port=port) for n, port in zip(names, ports[1:], strict=True)]
        self.configuration.write_text(
            CONFIGURATION.format(host=host, port=ports[0], folder=self._folder, machines="\n".join(machines))
        )
        (self._folder / "cgroup.conf").write_text(CGROUPS)
        munge = self._folder / "munge"
        munge.mkdir(mode=0o700)
        (munge / "key").write_bytes(secrets.token_bytes(128))
        (munge / "key").chmod(0o400)
        files = [
            f"--{name}={munge / name.partition('-')[0]}" for name in ("key-file", "log-file", "pid-file", "seed-file")
        ]
        self._run("munge", "munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *files)
        _until((munge / "socket").exists)
        self._run("controller", "slurmctld", "-D", "-i")
        _until(lambda: "UP" in self.call("scontrol", "ping"))
        for name in running:
            self.add(name)

    def add(self, name):
        """Starts a machine, again if it was killed."""
        self._run(name, "slurmd", "-D", "-N", name)
        _until(lambda: self.call("sinfo", "--noheader", "--Node", f"--nodes={name}", "--format=%t").strip() == "idle")

    def kill(self, name):
        """What becomes of a machine that is taken away: all its processes are gone at once."""
        machine = self._running.pop(name)
        process.send([machine.pid, *_pids_of_jobs(name)], signal.SIGKILL)
        machine.wait()

    def call(self, *command):
        """What a command of Slurm prints about this cluster."""
        done = subprocess.run(
            command,
            env={**os.environ, "SLURM_CONF": str(self.configuration)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def close(self):
        if "controller" in self._running:
            self.call("scancel", "--me")
        for name in reversed(list(self._running)):
            end_process(self._running.pop(name))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, name, *command):
        with (self._folder / f"{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env={**os.environ, "SLURM_CONF": str(self.configuration)},
            )  # fmt: skip


def _pids_of_jobs(name):
    """The processes of the jobs of a machine: they are no children of its slurmd."""
    folders = Path("/sys/fs/cgroup").glob(f"**/slurm_{name}/**/cgroup.procs")
    return sorted({int(line) for folder in folders for line in folder.read_text().split()})
