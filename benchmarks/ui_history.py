"""A long history for the web page: one run is recorded as runs record themselves, and its rows are copied many times.

Recording 120,000 executions one by one would take an hour; what is read is the same.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spanwise.orchestrator import Artifact, Blessing, Evaluation, Examples, Execution, Model, Report, Run, State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Store

NODES = ("Ingest", "Count", "Statistics", "Schema", "Validate", "Gate", "Window", "Transform", "Train", "Resolve",
         "Evaluate", "Push")  # fmt: skip
PIPELINE = "daily"
HOURLY = "hourly"
FIRST_HOUR = 400_000
_AT_ONCE = 1000


def make_history(file: Path, *, runs: int, hours: int) -> None:
    """A database with so many runs of one pipeline, and so many hourly spans of another."""
    with contextlib.closing(open_store(str(file))) as store:
        _record_run(store)
        _record_hours(store, hours)
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        _copy_runs(database, runs)


def _record_run(store: Store) -> None:
    began = datetime.now(UTC)
    facts = {"calendar": "day", "span": 15_000, "nodes": NODES, "started": began, "ended": began + timedelta(minutes=9)}
    run = store.begin_run(Run(pipeline=PIPELINE, state=State.COMPLETE, source="/work/daily.py:daily", **facts))  # type: ignore[arg-type]
    made: tuple[Artifact, ...] = ()
    for number, node in enumerate(NODES):
        begun = store.begin(Execution(pipeline=PIPELINE, run=run.number, node=node, component=node))
        outputs: dict[str, tuple[Artifact, ...]] = {"report": (Report("/nowhere"),)}
        if node == "Train":
            outputs = {"model": (Model("/nowhere", properties={"spans": [15_000]}),)}
        if node == "Evaluate":
            metrics: dict[str, float] = {"auc": 0.7, "log_loss": 0.4}
            blessed = {"blessed": 1, "current_model": made[0].name, "current_model_id": made[0].id}
            outputs = {
                "evaluation": (Evaluation("/nowhere", properties={"metrics": metrics}),),  # type: ignore[dict-item]
                "blessing": (Blessing("/nowhere", properties=blessed),),
            }
        ended = replace(
            begun,
            state=State.COMPLETE,
            inputs={"before": made},
            outputs=outputs,
            parameters={"number": str(number)},
            reason="no cached result matched",
            started=began + timedelta(seconds=40 * number),
            ended=began + timedelta(seconds=40 * number + 30),
        )
        made = tuple(a for row in store.publish(ended).outputs.values() for a in row)


def _record_hours(store: Store, hours: int) -> None:
    for first in range(0, hours, _AT_ONCE):
        run = store.begin_run(
            Run(pipeline=HOURLY, calendar="hour", span=FIRST_HOUR + first, state=State.COMPLETE, nodes=("ExampleGen",))
        )
        begun = store.begin(Execution(pipeline=HOURLY, run=run.number, node="ExampleGen", component="ExampleGen"))
        spans = range(FIRST_HOUR + first, FIRST_HOUR + min(first + _AT_ONCE, hours))
        store.publish(replace(begun, state=State.COMPLETE, outputs={"examples": tuple(map(_examples, spans))}))


def _examples(span: int) -> Examples:
    return Examples(
        "/nowhere",
        content=f"{span:032x}",
        properties={
            "span": span, "version": 1, "split_names": ["train", "eval"], "calendar": "hour",
            "rows": {"train": 600, "eval": 300}, "columns": {f"column_{n}": "int64" for n in range(20)},
        },
    )  # fmt: skip


def _copy_runs(database: sqlite3.Connection, runs: int) -> None:
    """Copies run 1 of the pipeline with all that hangs on it, under the numbers from 2 on."""
    run = database.execute("SELECT id FROM Context WHERE name = ?", (f"{PIPELINE}/1",)).fetchone()[0]
    executions = _ids(database, f"SELECT execution_id FROM Association WHERE context_id = {run}")
    marks = ",".join(map(str, executions))
    artifacts = _ids(database, f"SELECT DISTINCT artifact_id FROM Event WHERE execution_id IN ({marks})")
    tables = {
        "Context": ([run], "id"), "ContextProperty": ([run], "context_id"),
        "Execution": (executions, "id"), "ExecutionProperty": (executions, "execution_id"),
        "Artifact": (artifacts, "id"), "ArtifactProperty": (artifacts, "artifact_id"),
        "Association": (executions, "execution_id"), "Event": (executions, "execution_id"),
    }  # fmt: skip
    for table, (ids, column) in tables.items():
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        chosen = f"SELECT * FROM {table} WHERE {column} IN ({','.join(map(str, ids))})"
        rows = database.execute(chosen).fetchall()
        new = _Renumbering(run, executions, artifacts)
        holes = ",".join("?" * len(names))
        copies = (new.copy(table, names, row, number) for number in range(2, runs + 1) for row in rows)
        database.executemany(f"INSERT INTO {table} VALUES ({holes})", copies)
        if table == "Event":
            _copy_paths(database, rows, runs)


def _copy_paths(database: sqlite3.Connection, events: Sequence[tuple[object, ...]], runs: int) -> None:
    ids = [int(str(row[0])) for row in events]
    paths = database.execute(f"SELECT * FROM EventPath WHERE event_id IN ({','.join(map(str, ids))})").fetchall()
    names = [row[1] for row in database.execute("PRAGMA table_info(EventPath)")]
    place = {old: n for n, old in enumerate(ids)}
    at = names.index("event_id")

    def copies() -> Iterator[tuple[object, ...]]:
        for number in range(2, runs + 1):
            for row in paths:
                yield (*row[:at], _EVENTS + number * _MOST_OF_A_RUN + place[row[at]], *row[at + 1 :])

    database.executemany(f"INSERT INTO EventPath VALUES ({','.join('?' * len(names))})", copies())


_CONTEXTS, _EXECUTIONS, _ARTIFACTS, _EVENTS, _LINKS = 10**6, 10**7, 2 * 10**7, 3 * 10**7, 4 * 10**7
_MOST_OF_A_RUN = 100  # rows of one table


class _Renumbering:
    """The ids and names of copies."""

    def __init__(self, run: int, executions: Sequence[int], artifacts: Sequence[int]) -> None:
        self._run = run
        self._executions = {old: n for n, old in enumerate(executions)}
        self._artifacts = {old: n for n, old in enumerate(artifacts)}
        self._events: dict[int, int] = {}
        self._links: dict[int, int] = {}

    def copy(self, table: str, names: Sequence[str], row: Sequence[object], number: int) -> list[object]:
        return [self._value(table, name, value, number) for name, value in zip(names, row, strict=True)]

    def _value(self, table: str, name: str, value: object, number: int) -> object:
        if isinstance(value, int) and (name == "id" or name.endswith("_id")):
            return self._id(table if name == "id" else name.removesuffix("_id").capitalize(), value, number)
        if not isinstance(value, str) or not value.startswith(f"{PIPELINE}/"):
            return value
        if table.startswith("Artifact"):
            return f"{value.rpartition('/')[0]}/{number}"
        return value.replace(f"{PIPELINE}/1", f"{PIPELINE}/{number}", 1)

    def _id(self, table: str, value: object, number: int) -> object:
        old = int(str(value))
        if table == "Context":
            return _CONTEXTS + number if old == self._run else old
        starts = {
            "Execution": (_EXECUTIONS, self._executions), "Artifact": (_ARTIFACTS, self._artifacts),
            "Event": (_EVENTS, self._events), "Association": (_LINKS, self._links),
        }  # fmt: skip
        if table not in starts:  # of a type, or of another program
            return value
        start, known = starts[table]
        known.setdefault(old, len(known))
        return start + number * _MOST_OF_A_RUN + known[old]


def _ids(database: sqlite3.Connection, query: str) -> list[int]:
    return sorted(int(row[0]) for row in database.execute(query))
