"""What resolving a rolling window costs when much was published before."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, at_most, median_s, show
from spanwise.orchestrator import Component, Examples, Execution, History, Output, Run, State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Address, Store
from spanwise.resolvers import RollingWindow

SIZE = 7
FEW, MANY = 100, 100_000
AT_ONCE = 1000


class Ingest(Component):
    def run(self, examples: Output[Examples]) -> None: ...


def measured() -> Iterator[Figure]:
    few, many = _resolving_ms(FEW), _resolving_ms(MANY)
    yield Figure(name=f"a window of {SIZE} among {FEW} artifacts", value=few, unit="ms")
    yield Figure(name=f"a window of {SIZE} among {MANY:,} artifacts", value=many, unit="ms")
    yield at_most("among many, to among few", many / few, "x", 2)


def _resolving_ms(artifacts: int) -> float:
    window = RollingWindow(Ingest()["examples"], size=SIZE)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "metadata.db"))
        _publish(store, artifacts)
        history = History(store, Address("taxi", "Ingest", "examples"), Examples, Run(pipeline="taxi"))
        taken = median_s(lambda: window.resolve(history), times=50)
        store.close()
    return taken * 1000


def _publish(store: Store, artifacts: int) -> None:
    store.begin_run(Run(pipeline="taxi", state=State.COMPLETE))
    for first in range(0, artifacts, AT_ONCE):
        drafts = []
        for span in range(first, min(first + AT_ONCE, artifacts)):
            draft = Examples("/nowhere")
            draft.span, draft.version, draft.split_names = span, 1, ["train"]
            drafts.append(draft)
        begun = store.begin(Execution(pipeline="taxi", run=1, node="Ingest", attempt=first + 1, component="Ingest"))
        store.publish(replace(begun, state=State.COMPLETE, outputs={"examples": tuple(drafts)}))


if __name__ == "__main__":
    sys.exit(show(measured()))
