"""What the tests of the components share: a window on disk without an ingest, and runs by the real runner."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.orchestrator import Component, Examples, Execution, Outputs, Pipeline
from spanwise.orchestrator.run_request import RunOutcome, RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import MemoryStore
from tests.direct_executor import DirectExecutor

Columns = Mapping[str, object]


def written(place: Path, span: int, splits: Mapping[str, pa.Table]) -> Examples:
    """Examples of one span in a folder."""
    artifact = Examples(str(place), name=f"p/Lake/examples/{span}/1")
    for split, table in splits.items():
        (place / f"Split-{split}").mkdir(parents=True)
        pq.write_table(table, place / f"Split-{split}" / "part-00000.parquet")
    artifact.span, artifact.split_names, artifact.calendar = span, list(splits), "number"
    return artifact


class Lake(Component):
    """Publishes one Examples for each span of `rows`, the same rows in every split."""

    def run(self, *, examples: Outputs[Examples], rows: Mapping[int, Columns], splits: Sequence[str]) -> None:
        for span, columns in rows.items():
            draft = examples.new()
            for split in splits:
                draft.split_names = list(splits)
                draft.split(split).mkdir()
                pq.write_table(pa.table(dict(columns)), draft.split(split) / "part-00000.parquet")
            draft.span, draft.calendar = span, "number"


class Bench:
    """A store and a root, for one run after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = MemoryStore()

    def run(self, *nodes: object, span: int | None = None, **request: object) -> RunOutcome:
        """Runs these nodes as the pipeline `p`."""
        pipeline = Pipeline("p", nodes)
        for module in dict.fromkeys(module for node in nodes for module in getattr(node, "preload", ())):
            import_module(module)  # the server of each run is a fork of this process, and need not import it again
        with DirectExecutor(pipeline) as executor:
            asked = RunRequest(span=span, **request)
            return run(pipeline, executor=executor, store=self.store, root=self.root, request=asked)


def only(execution: Execution, key: str) -> object:
    """The one artifact of an output."""
    (artifact,) = execution.outputs[key]
    return artifact
