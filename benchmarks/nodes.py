"""What a node costs beside its own work: driver, child process, transactional publish to SQLite; and after history."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.chain import chain
from benchmarks.figures import Figure, at_most, median_s, show
from spanwise.orchestrator import Artifact, Execution, Pipeline, Run, State
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import Store

NODES = 20
HISTORY = 1000  # runs


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        pipeline = chain(NODES)
        with LocalExecutor(pipeline) as executor:
            store = open_store(str(root / "metadata.db"))
            first = _per_node_ms(pipeline, executor, store, root)
            yield at_most("a node in a chain of 20", first, "ms", 30)
            yield Figure(
                name="a node in a chain of 20, reused from the cache",
                unit="ms",
                value=_cached_ms(pipeline, executor, store, root),
            )
            _age(store, pipeline, HISTORY)
            later = _per_node_ms(pipeline, executor, store, root)
            yield Figure(name=f"a node in a chain of 20, after {HISTORY} runs", value=later, unit="ms")
            yield at_most(f"after {HISTORY} runs, to the first", later / first, "x", 1.2)
            store.close()
    for nodes, limit in ((5, 0.30), (20, 0.45)):
        yield at_most(f"{nodes} nodes from the shell", _shell_s(nodes), "s", limit)


def _per_node_ms(pipeline: Pipeline, executor: LocalExecutor, store: Store, root: Path) -> float:
    def once() -> None:
        outcome = run(pipeline, executor=executor, store=store, root=root, request=RunRequest(cache=False))
        assert outcome.succeeded

    return median_s(once, times=7) / len(pipeline.order) * 1000


def _cached_ms(pipeline: Pipeline, executor: LocalExecutor, store: Store, root: Path) -> float:
    return median_s(lambda: run(pipeline, executor=executor, store=store, root=root)) / len(pipeline.order) * 1000


def _age(store: Store, pipeline: Pipeline, runs: int) -> None:
    """Writes the records of so many runs, as the run loop does, without their processes."""
    for _ in range(runs):
        begun = store.begin_run(Run(pipeline=pipeline.name, nodes=pipeline.order, state=State.COMPLETE))
        for node in pipeline.order:
            execution = store.begin(Execution(pipeline=pipeline.name, run=begun.number, node=node, component="Next"))
            draft = Artifact(f"/nowhere/{execution.id}", kind="Report")
            store.publish(replace(execution, state=State.COMPLETE, outputs={"report": (draft,)}))


def _shell_s(nodes: int) -> float:
    taken = []
    for _ in range(6):
        root = tempfile.mkdtemp()
        command = [
            sys.executable, "-m", "spanwise", "run", f"{Path(__file__).parent / 'chain.py'}:chain",
            "--param", f"nodes={nodes}", "--root", root,
        ]  # fmt: skip
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
        shutil.rmtree(root)
    return statistics.median(taken[1:])


if __name__ == "__main__":
    sys.exit(show(measured()))
