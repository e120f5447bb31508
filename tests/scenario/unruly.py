"""A run of nodes that leave processes behind, in a process of its own: `python -m tests.scenario.unruly ROOT ENDING`.

Each node starts what it starts, says so with a file in ROOT, and then ends as it is told: `end`, `fail`, or not at all
(`hang`, with a time limit; `wait`, without). What hides is noted by its id in ROOT, too. A node named after ENDING runs
alone.
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from spanwise.components import Command
from spanwise.orchestrator import Component, Output, Pipeline, Report, process
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run

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


class Hidden(Component):
    """Leaves a daemon that has no file open, another name and folder, and becomes a program without environment."""

    def run(self, report: Output[Report], place: str, ending: str) -> None:
        child = os.fork()
        if not child:
            os.setsid()
            if not os.fork():
                Path(place, "hidden.pid").write_text(str(os.getpid()))
                os.chdir("/")
                os.closerange(0, 1000)
                os.execve("/bin/sleep", ["cron", "1000"], {})
            os._exit(0)
        os.waitpid(child, 0)
        while not Path(place, "hidden.pid").exists():
            time.sleep(0.01)
        ready("Hidden", place, ending)


class Stopped(Component):
    """Leaves a child in a session of its own that is stopped, as a debugger or Ctrl-Z does it."""

    def run(self, report: Output[Report], place: str, ending: str) -> None:
        child = os.fork()
        if not child:
            os.setsid()
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        ready("Stopped", place, ending)


class Beaming(Component):
    """Works with Beam, in processes that Beam starts."""

    def run(self, report: Output[Report], place: str, ending: str) -> None:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        options = PipelineOptions(["--direct_running_mode=multi_processing", "--direct_num_workers=2"])
        with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
            _ = pipeline | beam.Create(["Beaming"]) | beam.Map(ready, place, ending)


def program(place: str, ending: str, timeout_s: float | None) -> Command:
    """Starts a service in a session of its own, as the client of a container engine does, with none of our variables."""
    service = "setsid sh -c 'echo $$ > $0; exec sleep 1000' {place}/service.pid >/dev/null 2>&1 & "
    waiting = "while ! [ -s {place}/service.pid ]; do sleep 0.01; done; echo 1 > {report}/n; touch {place}/Program; "
    return Command(
        shell=service + waiting + {"end": "", "fail": "exit 1"}.get(ending, "sleep 1000"),
        outputs={"report": Report},
        settings={"place": place},
        timeout_s=timeout_s,
        name="Program",
    )


NODES = [Deaf, Forking, Daemon, Shell, Hidden, Stopped, program]


def main(root: Path, ending: str, alone: str = "") -> None:
    limit_s = 1.0 if ending == "hang" else None
    kinds = [globals()[alone]] if alone else NODES
    pipeline = Pipeline("unruly", [kind(place=str(root), ending=ending, timeout_s=limit_s) for kind in kinds])
    with LocalExecutor(pipeline) as executor:
        store = open_store(str(root / "metadata.db"))
        outcome = run(
            pipeline,
            executor=executor,
            store=store,
            root=root,
            request=RunRequest(jobs=len(kinds), grace_s=0.3),
            observe=lambda event: say(event.what, event.node),
        )
        store.close()
        (server,) = children(executor.session)
        left = process.descendants(server)  # the dead that it has yet to collect left out
    states = {name: execution.state.value for name, execution in outcome.executions.items()}
    say("end", json.dumps({"states": states, "left": left, "error": outcome.run.error}))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
