"""A run on an engine, in a process of its own: `python -m tests.scenario.on_engine ROOT ENGINE`; ENGINE#FILE has a template of pods.

Its node names its process in the log, and ends once the file `go` is in the root.
"""

import os
import sys
import time
from pathlib import Path

from spanwise.orchestrator import Component, Output, Pipeline, Report
from spanwise.orchestrator.agents.engines import open_engine
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.agents.pod_settings import PodSettings
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run


class Wait(Component):
    def run(self, report: Output[Report], root: str) -> None:
        (report.path / "half").touch()
        with Path(root, "pids").open("a") as file:
            file.write(f"{os.getpid()}\n")
        sys.stdout.write("waiting\n")
        while not Path(root, "go").exists():
            time.sleep(0.05)


def main(root: Path, engine: str) -> None:
    pipeline = Pipeline("away", [Wait(root=str(root))])
    name, _, template = engine.partition("#")
    pods = PodSettings(template=Path(template)) if template else None
    with PlacedExecutor(pipeline, open_engine(name, pods), root=root, away=pipeline.order) as executor:
        store = open_store(str(root / "metadata.db"))
        outcome = run(
            pipeline,
            executor=executor,
            store=store,
            root=root,
            request=RunRequest(cache=False, grace_s=1.0),
            observe=lambda event: print(event.what, event.node, event.message, flush=True),  # noqa: T201
        )
        store.close()
    sys.exit(0 if outcome.succeeded else 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
