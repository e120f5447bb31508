"""All work on rows, on Beam's runners: the bytes are those of a run without Beam, with the root in a folder or on S3.

The engines are real, one at a time: `tests/contract/beam_engines.py` starts them.
"""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from pathlib import Path

import pytest

from spanwise.orchestrator.mlmd import open_store
from tests.contract.beam_engines import start, start_workers
from tests.contract.object_storage import serve
from tests.scenario.cli import call

pytestmark = pytest.mark.skipif("SPANWISE_TEST_BEAM_ENGINES" not in os.environ, reason="make test-engines")

PIPELINE = """
import polars as pl

from spanwise import (
    BulkInferrer, Evaluator, ExampleGen, Importer, Model, Pipeline, QueryExampleGen, RollingWindow, StatisticsGen,
    Transform, bucketize, scale_to_z_score, vocabulary,
)


def preprocess(columns):
    return {
        "value": scale_to_z_score(columns["value"]),
        "bucket": bucketize(columns["value"], 3),
        "name": vocabulary(columns["name"], top_k=3),
        "high": (columns["value"] > 3).cast(pl.Int8),
    }


def predict(model, rows):
    return rows["value"].to_numpy() * float((model / "factor").read_text())


def rows() -> Pipeline:
    ingest = ExampleGen(pattern="data/{SPAN}/*.csv", ratios={"train": 2, "eval": 1})
    query = QueryExampleGen(
        query="SELECT id, value FROM t WHERE day = {SPAN}", connection="sqlite:///data/t.db", calendar="number", name="Query"
    )
    recent = RollingWindow(ingest["examples"], size=1)
    model = Importer(uri="model", kind=Model)
    return Pipeline("rows", [
        ingest,
        query,
        recent,
        model,
        StatisticsGen(examples=ingest["examples"]),
        StatisticsGen(examples=query["examples"], name="QueryStatistics"),
        Transform(examples=recent["examples"], preprocessing_fn=preprocess),
        BulkInferrer(examples=ingest["examples"], model=model["artifact"], predict_fn=predict, columns=("name",)),
        Evaluator(examples=recent["examples"], model=model["artifact"], label="late", predict_fn=predict),
    ])
"""
ON_BEAM = {"ExampleGen", "Query", "StatisticsGen", "QueryStatistics", "Transform", "BulkInferrer", "Evaluator"}
PART = ("--to", "Transform")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The digests of all that a run without Beam makes."""
    project = lay_out(tmp_path_factory.mktemp("without"), None, {})
    return made(project)


@pytest.fixture(scope="module")
def expected_of_part(tmp_path_factory):
    """The same of a part of the pipeline; what Transform can reuse names the folders of a run."""
    return made(lay_out(tmp_path_factory.mktemp("part"), None, {}, *PART))


@pytest.fixture(scope="module")
def engine(request, tmp_path_factory):
    with start(request.param, tmp_path_factory.mktemp(request.param)) as options:
        yield options


def lay_out(folder, root, beam, *words):
    """The folder of a project whose pipeline has run, with these options, for one span."""
    data = folder / "data" / "1"
    data.mkdir(parents=True)
    for file in range(3):
        lines = [f"{n % 7 + file / 8},{'abcde'[n % 5]},{int(n % 7 > 3)}" for n in range(100)]
        (data / f"{file}.csv").write_text("value,name,late\n" + "\n".join(lines) + "\n")
    with sqlite3.connect(folder / "data" / "t.db") as database:
        database.execute("CREATE TABLE t (day INTEGER, id INTEGER, value REAL)")
        database.executemany("INSERT INTO t VALUES (1, ?, ?)", [(n, n / 3) for n in range(200)])
    (folder / "model").mkdir()
    (folder / "model" / "factor").write_text("0.125")
    (folder / "rows.py").write_text(PIPELINE)
    table = "".join(f"{name} = {json.dumps(value)}\n" for name, value in beam.items())
    place = f"root = {json.dumps(root)}\n" if root else ""
    (folder / "spanwise.toml").write_text(f"{place}\n[beam]\n{table}")
    call(folder, "run", "rows.py", "--span", "1", "--jobs", "1", *words, timeout_s=1800)
    return folder


def made(project: Path):
    """The digest of each artifact of the only run, by node and output."""
    store = open_store(str(project / ".spanwise" / "metadata.db"))
    run = store.run("rows", 1)
    contents = {
        (execution.node, key): [artifact.content for artifact in artifacts]
        for execution in store.executions(run)
        for key, artifacts in execution.outputs.items()
    }
    store.close()
    return contents


def worked_on_beam(project, runner):
    """The nodes whose logs tell of a job on the runner."""
    logs = project.glob(".spanwise/rows/.runs/1/logs/*.log")
    return {log.name.partition(".")[0] for log in logs if f"beam-job-started runner={runner}" in log.read_text()}


def run_on(engine, environment, folder, where, *words):
    """The folder of a project whose pipeline has run on the engine, with workers as the environment says."""
    with start_workers(environment, folder) as workers:
        beam = {**engine, **workers}
        if where == "folder":
            return lay_out(folder / "on", None, beam, *words)
        with serve("s3" if "SPANWISE_TEST_S3" in os.environ else "moto") as home:
            return lay_out(folder / "on", f"{home}/{uuid.uuid4().hex}", beam, *words)


@pytest.mark.parametrize("where", ["folder", "s3"])
@pytest.mark.parametrize("engine", ["prism", "flink", "spark"], indirect=True)
def test_every_component_makes_the_bytes_of_a_run_without_beam(engine, expected, tmp_path, where):
    """Ingest from files and from a database, statistics, transform, predictions and evaluation."""
    project = run_on(engine, "LOOPBACK", tmp_path, where)

    assert {node for node, _ in expected} >= ON_BEAM
    assert made(project) == expected
    if where == "folder":
        assert worked_on_beam(project, engine["runner"]) == ON_BEAM


@pytest.mark.parametrize(
    ("engine", "environment", "where"),
    [
        ("flink", "EXTERNAL", "folder"),
        ("flink-cluster", "PROCESS", "folder"),
        ("flink-cluster", "PROCESS", "s3"),
        ("spark-cluster", "PROCESS", "folder"),
        ("spark-cluster", "EXTERNAL", "s3"),
    ],
    indirect=["engine"],
)
def test_workers_in_other_processes_make_the_same_bytes(engine, expected_of_part, tmp_path, environment, where):
    """Started by the engine or by a pool: they get the user's function, and read and write the files of the node."""
    project = run_on(engine, environment, tmp_path, where, *PART)

    assert {node for node, _ in expected_of_part} >= {"ExampleGen", "Transform"}
    assert made(project) == expected_of_part
    assert "Starting worker" in (tmp_path / "workers").read_text()
    if where == "folder":
        assert worked_on_beam(project, engine["runner"]) == {"ExampleGen", "Transform"}
