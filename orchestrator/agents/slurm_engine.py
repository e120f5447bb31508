"""Slurm: an agent is a job of one task behind an `srun` of the controller, whose streams are the line to it.

When the controller ends, however it ends, the streams close, and the agent ends with its job. Another controller finds
jobs by their names. That none is listed any more proves that nothing is left: Slurm lists a job as completing until
each process in its cgroup has ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from spanwise.orchestrator.agents.engine import AgentLost
from spanwise.orchestrator.agents.messages import Command, Ping, Prepare, Ready, Report
from spanwise.orchestrator.agents.piped_line import PipedLine
from spanwise.orchestrator.errors import NodeFailed, PipelineError, SettingsError
from spanwise.orchestrator.job import FailureCause
from spanwise.orchestrator.resources import Resources

_COMMAND_S: Final = 30.0
_PROOF_S: Final = 60.0
"""How long Slurm may take to end a job: it asks first, and kills after its KillWait, 30 s by default."""

_POLL_S: Final = 0.2
_STDERR_BYTES: Final = 4096
_AGENT_BYTES: Final = 512 << 20
"""What a job is given beyond its node's memory: the agent needs some, and says who used too much before Slurm kills."""

_UNFINISHED: Final = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "SIGNALING"}
_TAKEN_AWAY: Final = {"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED", "REQUEUED"}


class SlurmEngine:
    """A partition of a Slurm cluster; without a name, the default one."""

    def __init__(self, partition: str = "") -> None:
        if shutil.which("srun") is None:
            raise SettingsError(
                "[executor] name = 'slurm' needs Slurm's commands, and there is no srun on the PATH. Start this where "
                "jobs are submitted, such as a login node of the cluster."
            )
        self._partition = partition

    @property
    def name(self) -> str:
        return f"slurm:{self._partition}"

    def refuse(self, node: str, asked: Resources) -> None:
        if asked.image:
            raise PipelineError(
                f"{node} asks for the image {asked.image!r}, and on Slurm nodes run without images: in the environment "
                f"{sys.prefix}, which every machine has to see. Leave image= out."
            )

    def launch(self, mark: int, number: int, asked: Resources) -> SlurmLine:
        options = [
            f"--job-name={_prefix(mark)}{number}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={1 if asked.cpus is None else math.ceil(asked.cpus)}",
        ]
        if asked.memory_bytes is not None:
            options.append(f"--mem={math.ceil((asked.memory_bytes + _AGENT_BYTES) / 1024)}K")
        if asked.gpus:
            options.append(f"--gpus={asked.gpus}")
        if self._partition:
            options.append(f"--partition={self._partition}")
        return SlurmLine(options)

    def end_all(self, mark: int) -> list[str]:
        return _end(lambda jobs: [job for job, name in jobs.items() if name.startswith(_prefix(mark))])

    def close(self) -> None:
        """Nothing is kept open."""


class SlurmLine:
    """The line to an agent in a job."""

    def __init__(self, options: Collection[str]) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        try:
            self._srun = subprocess.Popen(
                ["srun", *options, sys.executable, "-P", "-m", "spanwise.orchestrator.agents.piped_agent"],
                stdin=theirs_in, stdout=theirs_out, stderr=self._stderr, env=_environment(), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._line = PipedLine(ours_in, ours_out)
        self._job = ""
        self._place = ""

    @property
    def place(self) -> str:
        return self._place

    @property
    def agent(self) -> str:
        return self._job

    page_url = ""  #: Slurm has none

    def wait_started(self, timeout_s: float) -> bool:
        try:
            if not self._line.poll(timeout_s):
                return False
            self._job, machine = self._line.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        self._place = f"{machine} (job {self._job} of Slurm)"
        return True

    def send(self, message: Command | Prepare) -> None:
        try:
            self._line.send(message)
        except OSError as error:
            raise self._lost() from error

    def receive(self, timeout_s: float) -> list[Report]:
        found: list[Report] = []
        self.send(Ping())
        try:
            while self._line.poll(0.0 if found else timeout_s):
                found.append(self._line.recv())
        except (EOFError, OSError) as error:
            if not found:
                raise self._lost() from error
        return found

    def end(self, started: Ready | None) -> list[str]:
        self._line.close()
        if started is None and self._job:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._srun.wait(_COMMAND_S)  # the agent has ended, or ends by itself
        self._srun.terminate()  # it withdraws a job that waits
        try:
            return [] if not self._job else _end(lambda jobs: [self._job] if self._job in jobs else [])
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._srun.wait(_COMMAND_S)
            self._srun.kill()
            self._srun.wait()
            self._line.close_all()
            self._stderr.close()

    def _lost(self) -> AgentLost:
        """Why the streams have closed, as Slurm says."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._srun.wait(_COMMAND_S)
        if not self._job:
            return AgentLost(f"Slurm has not started its agent: {self._last_words()}")
        state, cause = _read_end(self._job)
        return AgentLost(f"{state} ({self._place}). {self._last_words()}".strip(), cause)

    def _last_words(self) -> str:
        if self._stderr.closed:
            return ""
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
        return self._stderr.read().decode(errors="replace").strip()


def _prefix(mark: int) -> str:
    return f"spanwise-{mark}-"


def _environment() -> Mapping[str, str]:
    """That of this process, but for the job in which it may run itself: srun would take that one's machines."""
    if "SLURM_JOB_ID" not in os.environ:
        return os.environ
    return {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith(("SLURM_", "SLURMD_"))}


def _read_end(job: str) -> tuple[str, FailureCause]:
    """What has become of a job that has ended, or is about to."""
    deadline = time.monotonic() + _PROOF_S
    while True:
        try:
            found = re.search(r"\bJobState=(\w+)", _call("scontrol", "show", "job", "--oneliner", job))
        except NodeFailed as error:
            return f"Its agent was lost, and Slurm does not say why: {error}", "died"
        state = found[1] if found else "UNKNOWN"
        if state not in _UNFINISHED or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    if state in _TAKEN_AWAY:
        return f"Its machine was taken away: Slurm ended its job as {state}", "preempted"
    if state == "OUT_OF_MEMORY":
        return "Slurm has killed it, since its job used more memory than it had asked for", "memory"
    if state == "TIMEOUT":
        return "Slurm has ended its job at the time limit of its partition", "died"
    return f"Its agent was lost: Slurm ended its job as {state}", "died"


def _end(choose: Callable[[Mapping[str, str]], Sequence[str]]) -> list[str]:
    """Cancels the jobs that are chosen by number and name, and returns those that are still listed after a while.

    Raises:
        NodeFailed: Slurm does not answer.
    """
    deadline = time.monotonic() + _PROOF_S
    cancelled: set[str] = set()
    while True:
        listed = _call("squeue", "--noheader", f"--user={os.getuid()}", "--format=%i %T %j")
        rows = [line.split(maxsplit=2) for line in listed.splitlines()]
        left = choose({job: name for job, state, name in rows if state in _UNFINISHED})
        if not left or time.monotonic() > deadline:
            return [f"job {job} of Slurm" for job in left]
        if new := [job for job in left if job not in cancelled]:
            with contextlib.suppress(NodeFailed):  # it has ended meanwhile, or is asked again
                _call("scancel", *new)
                cancelled.update(new)
        time.sleep(_POLL_S)


def _call(*command: str) -> str:
    """What a command of Slurm prints. Raises NodeFailed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMMAND_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeFailed(f"{command[0]} does not answer: {error}") from error
    if done.returncode:
        raise NodeFailed(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout
