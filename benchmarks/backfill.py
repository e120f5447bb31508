"""What a backfill costs: planning it when much has run, and its runs beyond the work of their nodes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.days import FIRST, days
from benchmarks.figures import Figure, at_most, show
from spanwise.orchestrator import Calendar, Examples, Execution, Run, State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill.inventory import take_inventory
from spanwise.scheduler.backfill.plan import BackfillOptions, median_durations_s, plan_backfill

PROJECT = Path(__file__).parents[1]
SPANS, RUNS, PLANNED = 31, 10_000, 365
WORK_S = 0.2
BEGAN = datetime(2024, 1, 1, tzinfo=UTC)


def measured() -> Iterator[Figure]:
    yield at_most(f"planning {PLANNED} spans, {RUNS:,} runs in the metadata", _planning_s(), "s", 1)
    took, rest, works = _backfilling_s(work_s=0.0)
    yield at_most(f"{SPANS} spans of 5 trivial nodes, from the shell", took, "s", 10)
    yield Figure(name="beyond what its nodes took, for each span", value=(rest - works) / (SPANS - 1) * 1000, unit="ms")
    _, rest, works = _backfilling_s(work_s=WORK_S)
    what = f"after the first span, two nodes of {WORK_S} s each: to the sum of what the nodes took"
    yield at_most(what, rest / works, "x", 1.1)


def _planning_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        data = _lake(Path(folder), PLANNED)
        store = open_store(str(Path(folder) / "metadata.db"))
        _history(store)
        pipeline = days(str(data), "serving")
        began = time.perf_counter()
        spans = range(FIRST, FIRST + PLANNED)
        sources = take_inventory(pipeline, store, spans)
        took = median_durations_s(store.executions_of([*itertools.islice(store.runs("days"), 10)]))
        plan = plan_backfill(
            BackfillOptions(spans=(spans[0], spans[-1]), force=True), pipeline, Calendar.DAY, store, sources, took
        )
        taken = time.perf_counter() - began
        assert len(plan.targets) == PLANNED
        store.close()
    return taken


def _history(store: Store) -> None:
    """A run for each of as many days, the last of which are to be planned."""
    for number in range(RUNS):
        span = FIRST + PLANNED - RUNS + number
        run = store.begin_run(Run(pipeline="days", span=span, calendar="day", started=BEGAN))
        draft = Examples("/nowhere")
        draft.span, draft.version, draft.split_names = span, 1, ["train"]
        begun = store.begin(
            Execution(pipeline="days", run=run.number, node="Ingest", component="Ingest", started=BEGAN)
        )
        ended = BEGAN + timedelta(seconds=1)
        store.publish(replace(begun, state=State.COMPLETE, outputs={"examples": (draft,)}, ended=ended))
        store.update_run(replace(run, state=State.COMPLETE, ended=ended))


def _backfilling_s(work_s: float) -> tuple[float, float, float]:
    """Seconds of the whole command; of its runs but the first; and of what the nodes of these took."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        data = _lake(home, SPANS)
        shutil.copy(PROJECT / "benchmarks" / "days.py", home / "days.py")
        last = Calendar.DAY.label(FIRST + SPANS - 1)
        words = ["backfill", "days.py", "--span", f"2024-01-01..{last}", "--json"]
        words += ["--param", f"data={data}", "--param", f"serving={home / 'serving'}", "--param", f"work_s={work_s}"]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "spanwise", *words],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(PROJECT / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        took = time.perf_counter() - began
        assert json.loads(done.stdout)["stage"] == "complete"
        store = open_store(str(home / ".spanwise" / "metadata.db"))
        runs = list(store.runs("days"))[::-1]
        executions = [e for run in runs[1:] for e in store.executions(run)]
        store.close()
    assert runs[1].started is not None
    assert runs[-1].ended is not None
    rest = (runs[-1].ended - runs[1].started).total_seconds()
    works = sum((e.ended - e.started).total_seconds() for e in executions if e.ended and e.started)
    return took, rest, works


def _lake(folder: Path, spans: int) -> Path:
    data = folder / "data"
    data.mkdir()
    for span in range(FIRST, FIRST + spans):
        (data / f"{span}.1").touch()
    return data


if __name__ == "__main__":
    sys.exit(show(measured()))
