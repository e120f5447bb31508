"""A run whose nodes take slots of a pool, in a process of its own: `python -m tests.scenario.pooled ROOT NAME [WORK_S]`.

Each node notes in `diary` when it begins and ends. One with a name that begins with `stuck` never ends.
"""

import os
import sys
import time
from pathlib import Path

from spanwise.orchestrator import Attempt, Component, Output, Pipeline, Report, Resources
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run


def note(diary, text):
    with diary.open("a") as file:
        file.write(f"{text}\n")


class Train(Component):
    def run(self, report: Output[Report], attempt: Attempt, diary: str, work_s: float) -> None:
        who = f"{attempt.run.pipeline}/{attempt.node}"
        note(Path(diary), f"begin {who} {os.getpid()}")
        time.sleep(work_s)
        note(Path(diary), f"end {who}")


def main(root: Path, name: str, work_s: float) -> None:
    gpu = Resources(pool="gpu")
    nodes = [Train(diary=str(root / "diary"), work_s=work_s, name=f"Train{n}", resources=gpu) for n in range(3)]
    pipeline = Pipeline(name, nodes)
    with LocalExecutor(pipeline) as executor:
        store = open_store(str(root / "metadata.db"))
        request = RunRequest(cache=False, jobs=3, pools={"gpu": 1})
        outcome = run(
            pipeline,
            executor=executor,
            store=store,
            root=root,
            request=request,
            observe=lambda event: print(event.what, event.node, event.message, flush=True),  # noqa: T201
        )
        store.close()
    sys.exit(0 if outcome.succeeded else 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
