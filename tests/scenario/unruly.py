"""A run of nodes that leave processes behind, in a process of its own: `python -m tests.scenario.unruly ROOT ENDING`.

Each node starts what it starts, says so with a file in ROOT, and then ends as it is told: `end`, `fail`, or not at all
(`hang`, with a time limit; `wait`, without).
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from orchestrator import Component, Output, Pipeline, Report, process
from orchestrator.executor import Executor
from orchestrator.runner import Request, run
from orchestrator.store import MemoryStore

say = partial(print, flush=True)


def ready(node, place, ending):
    Path(place, node).touch()
    if ending == "fail":
        raise ValueError("as told")
    if ending != "end":
        time.sleep(1000)


class Deaf(Component):
    """Does not listen to SIGTERM."""

    def run(self, report: Output[Report], place: str, ending: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda *_: Path(place, "interrupted").touch())
        ready("Deaf", place, ending)


class Forking(Component):
    """Leaves a child, which is deaf as well, and a grandchild."""

    def run(self, report: Output[Report], place: str, ending: str) -> None:
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.fork()
            time.sleep(1000)
        ready("Forking", place, ending)


class Daemon(Component):
    """Leaves a daemon in the session and process group of nobody."""

    def run(self, report: Output[Report], place: str, ending: str) -> None:
        child = os.fork()
        if not child:
            os.setsid()
            if not os.fork():
                os.setsid()
                Path(place, "daemon").write_text(str(os.getpid()))
                time.sleep(1000)
            os._exit(0)
        os.waitpid(child, 0)
        while not Path(place, "daemon").exists():
            time.sleep(0.01)
        ready("Daemon", place, ending)


class Shell(Component):
    """Leaves a shell with children, one of them in a session of its own."""

    def run(self, report: Output[Report], place: str, ending: str) -> None:
        subprocess.Popen(["sh", "-c", f"sleep 1000 & setsid sleep 1000 & touch {place}/started; wait"])
        while not Path(place, "started").exists():
            time.sleep(0.01)
        ready("Shell", place, ending)


NODES = [Deaf, Forking, Daemon, Shell]


def main(root: Path, ending: str) -> None:
    limit_s = 1.0 if ending == "hang" else None
    pipeline = Pipeline("unruly", [kind(place=str(root), ending=ending, timeout_s=limit_s) for kind in NODES])
    with Executor(pipeline) as executor:
        outcome = run(
            pipeline,
            executor=executor,
            store=MemoryStore(),
            root=root,
            request=Request(jobs=len(NODES), grace_s=0.3),
            observe=lambda event: say(event.what, event.node),
        )
        (server,) = children(executor.session)
        left = process.descendants(server)  # the dead that it has yet to collect left out
    states = {name: execution.state.value for name, execution in outcome.executions.items()}
    say("end", json.dumps({"states": states, "left": left, "error": outcome.run.error}))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
