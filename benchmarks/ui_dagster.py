"""The same shape on Dagster's page, asked as its page asks.

One run and one partition are recorded through its own API, which takes some 50 ms each, and their rows are copied many
times, as the history of ours is made. Run by Python of an environment that has dagster and dagster-webserver; it
imports nothing of ours. Its runs have no events of steps, which spares it work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ASKED = 15
_START_S = 180.0

DEFINITIONS = """
from datetime import datetime, timedelta
from dagster import Definitions, HourlyPartitionsDefinition, asset, define_asset_job, job, op, partitioned_config

HOURS = {hours}
END = datetime(2018, 1, 1)
hourly = HourlyPartitionsDefinition(
    start_date=(END - timedelta(hours=HOURS)).strftime("%Y-%m-%d-%H:%M"), end_date=END.strftime("%Y-%m-%d-%H:%M")
)

@asset(partitions_def=hourly)
def examples() -> None: ...

by_hour = define_asset_job("by_hour", selection=[examples], partitions_def=hourly)

def step(number):
    @op(name="node_" + str(number))
    def made() -> None: ...
    return made

@job
def daily():
    for number in range(12):
        step(number)()

definitions = Definitions(assets=[examples], jobs=[daily, by_hour])
"""

QUERIES = {
    "runs": """query Runs { runsOrError(filter: {pipelineName: "daily"}, limit: 25) { ... on Runs { results {
        id runId status mode pipelineName startTime endTime updateTime canTerminate tags { key value }
        assetSelection { path } } } } }""",
    "all partitions": """query Partitions { assetNodeOrError(assetKey: {path: ["examples"]}) { ... on AssetNode { id
        partitionKeysByDimension { name type partitionKeys } assetPartitionStatuses { ... on TimePartitionStatuses {
        ranges { status startTime endTime startKey endKey } } } } } }""",
    "all partitions of a job": """query Job { partitionSetOrError(repositorySelector: {repositoryName: "__repository__",
        repositoryLocationName: "definitions.py"}, partitionSetName: "by_hour_partition_set") { __typename
        ... on PartitionSet { id partitionsOrError { ... on Partitions { results { name } } }
        partitionStatusesOrError { ... on PartitionStatuses { results { id partitionName runStatus runDuration } } } }
        } }""",
}


def make_history(home: Path, *, runs: int, hours: int) -> None:
    """Runs of a job of 12 ops, and an asset of which every partition is materialised."""
    (home / "definitions.py").write_text(DEFINITIONS.format(hours=hours), encoding="utf-8")
    os.environ["DAGSTER_HOME"] = str(home)
    sys.path.insert(0, str(home))
    import definitions  # type: ignore[import-not-found]
    from dagster import AssetKey, AssetMaterialization, DagsterInstance, DagsterRunStatus

    with DagsterInstance.get() as instance:
        job = definitions.definitions.get_job_def("daily")
        recorded = instance.create_run_for_job(job, status=DagsterRunStatus.SUCCESS).run_id
        *others, newest = definitions.hourly.get_partition_keys()
        event = AssetMaterialization(asset_key=AssetKey("examples"), partition=newest)
        instance.report_runless_asset_event(event)
    history = home / "history"
    copy_row(history / "runs.db", "runs", recorded, [str(uuid.uuid4()) for _ in range(runs - 1)])
    copy_row(history / "runs" / "index.db", "event_logs", newest, others)


def copy_row(file: Path, table: str, name: str, others: Sequence[str]) -> None:
    """Copies the one row of a table for each of the other names."""
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        row = dict(zip(columns, database.execute(f"SELECT * FROM {table}").fetchone(), strict=True))
        del row["id"]
        copies = ([v.replace(name, other) if isinstance(v, str) else v for v in row.values()] for other in others)
        holes = ",".join("?" * len(row))
        database.executemany(f"INSERT INTO {table} ({','.join(row)}) VALUES ({holes})", copies)


@contextlib.contextmanager
def serve(home: Path) -> Iterator[tuple[int, float]]:
    """Its page on a free port, and how long it took to answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("dagster-webserver")), "-f", str(home / "definitions.py")]
    began = time.perf_counter()
    server = subprocess.Popen(
        [*command, "-h", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "DAGSTER_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read()
                break
            if time.perf_counter() - began > _START_S:
                raise TimeoutError("dagster-webserver did not answer")
            time.sleep(0.05)
        yield port, time.perf_counter() - began
    finally:
        server.terminate()
        server.wait()


def ask(port: int, query: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql",
        data=json.dumps({"query": query}).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    assert "errors" not in found, found["errors"][0]["message"]
    data: dict[str, Any] = found["data"]
    assert all(answer.get("__typename") in (None, "PartitionSet") for answer in data.values()), str(data)[:500]
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--hours", type=int, default=33_662)
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        began = time.perf_counter()
        make_history(home, runs=options.runs, hours=options.hours)
        figures["making the history, s"] = time.perf_counter() - began
        with serve(home) as (port, started_s):
            figures["start to the first page, s"] = started_s
            for name, query in QUERIES.items():
                took = []
                for _ in range(ASKED):
                    began = time.perf_counter()
                    ask(port, query)
                    took.append((time.perf_counter() - began) * 1000)
                    if sum(took) > 120_000:  # noqa: PLR2004  two minutes say enough
                        break
                figures[f"{name}: the first time, ms"] = took[0]
                figures[f"{name}: median, ms"] = statistics.median(took)
                figures[f"{name}: slowest, ms"] = max(took)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
