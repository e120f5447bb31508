"""An ingest without files: the examples of whichever span the run asks for."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.orchestrator import Component, Examples, History, Output, Run
from tests.components.flow import Columns


class Day(Component):
    """Publishes the rows of the run's span, split by split: `rows[span][split]`."""

    prepared: ClassVar = ("span",)

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:
        return {"span": run.span}

    def run(self, *, examples: Output[Examples], span: int, rows: Mapping[int, Mapping[str, Columns]]) -> None:
        examples.span, examples.split_names, examples.calendar = span, list(rows[span]), "number"
        for split, columns in rows[span].items():
            examples.split(split).mkdir()
            pq.write_table(pa.table(dict(columns)), examples.split(split) / "part-00000.parquet")
