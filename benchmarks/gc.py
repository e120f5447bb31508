"""What planning a garbage collection costs: a thousand to a hundred thousand artifacts on disk, nearly all unused."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.figures import Figure, Timed, at_most, growth, show
from benchmarks.ui_history import PIPELINE, make_history
from spanwise.orchestrator.collection import Retention
from spanwise.orchestrator.mlmd import open_store
from spanwise.scheduler.storage.formatting import format_collection
from spanwise.scheduler.storage.gc import CollectionContext, plan_collection

ARTIFACTS = (1_000, 10_000, 100_000)
OF_A_RUN = 13  # a run of the history makes so many
OUTPUT = 4  # the type of an event of ml_metadata


def measured() -> Iterator[Figure]:
    timed = [_plan(artifacts) for artifacts in ARTIFACTS]
    yield at_most(f"gc --dry-run of {ARTIFACTS[-1]:,} artifacts", timed[-1].wall_s, "s", 5)
    yield at_most("the same: processor", timed[-1].cpu_s, "s", 5)
    yield growth(f"gc, {ARTIFACTS[0]:,} to {ARTIFACTS[-1]:,} artifacts", ARTIFACTS, [t.cpu_s for t in timed])


def _plan(artifacts: int) -> Timed:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_history(root / "metadata.db", runs=-(-artifacts // OF_A_RUN), hours=0)
        _make_folders(root)
        with contextlib.closing(open_store(str(root / "metadata.db"))) as store:
            context = CollectionContext(
                store=store, root=root, retention=Retention(younger=timedelta(0)), now=datetime.now(UTC)
            )

            def plan() -> None:
                planned = plan_collection(context, PIPELINE)
                assert len(planned.removals) > len(planned.decisions) - 20 * OF_A_RUN
                format_collection(planned, None)

            return Timed.of(plan)


def _make_folders(root: Path) -> None:
    """The folder of each artifact, where a run would have written it."""
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as database, database:
        made = database.execute(
            "SELECT a.id, a.name, e.execution_id FROM Artifact a JOIN Event e ON e.artifact_id = a.id AND e.type = ?",
            (OUTPUT,),
        ).fetchall()
        places = [(f"{root}/{name.rpartition('/')[0]}/{execution}", number) for number, name, execution in made]
        for place, _ in places:
            os.makedirs(place)  # noqa: PTH103  a hundred thousand
        database.executemany("UPDATE Artifact SET uri = ? WHERE id = ?", places)


if __name__ == "__main__":
    sys.exit(show(measured()))
