"""What is verified when written is verified when read: a rotten byte is found before anything is learned from it."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sqlite3
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from spanwise.components import ExampleGen, rows
from spanwise.components.training.trainer import Trainer
from spanwise.orchestrator.artifact import Artifact, Examples, Model, Report
from spanwise.orchestrator.component import Component, past
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import State
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.signature import Input, Output
from spanwise.orchestrator.testing import Lake, Trial
from spanwise.resolvers import Latest, RollingWindow
from tests.scenario.cli import call, lay_out


class Total(Component):
    """A user's component that reads Parquet in its own way, without checksums."""

    def run(self, examples: Input[list[Examples]], report: Output[Report], salt: int = 0) -> None:
        frames = [pl.read_parquet(each.split("train") / "*.parquet") for each in examples]
        total = int(pl.concat(frames)["value"].sum()) + salt
        (report.path / "total.json").write_text(json.dumps(total))


def fit(task) -> None:
    (task.model_dir / "model.json").write_text(json.dumps(task.table("train")["value"].to_pylist()))


class Compare(Component):
    """Reads the newest model of earlier runs, as an Evaluator reads its baseline."""

    def run(self, model: Input[Model], baseline: Input[Model | None], report: Output[Report]) -> None:
        (report.path / "same").write_text(str(baseline is not None and model.content == baseline.content))


def totals(lake: Lake, salt: int = 0) -> Pipeline:
    ingest = ExampleGen(pattern=lake.pattern, ratios={"train": 1})
    recent = RollingWindow(ingest["examples"], size=2, since=1)
    return Pipeline("totals", [ingest, recent, Total(examples=recent["examples"], salt=salt)])


def models(lake: Lake) -> Pipeline:
    ingest = ExampleGen(pattern=lake.pattern, ratios={"train": 1})
    trainer = Trainer(examples=ingest["examples"], run_fn=fit)
    champion = Latest(past("Trainer", "model", Model))
    return Pipeline("models", [ingest, trainer, champion, Compare(model=trainer["model"], baseline=champion["model"])])


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    for span in (1, 2, 3):
        lake.arrive(span=span, rows=[{"value": 1000 * span + row} for row in range(500)])
    return lake


def rot(artifact: Artifact, pattern: str = "*.parquet", *, seed: int = 0) -> Path:
    """Flips a bit of one file; its size stays."""
    file = next(path for path in sorted(artifact.path.rglob(pattern)) if path.is_file())
    content = bytearray(file.read_bytes())
    bit = random.Random(seed).randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    file.unlink()
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("seed", range(3))
def test_a_rotten_span_in_the_window_is_never_learned(tmp_path, lake, seed):
    """A bit flips in a span of an earlier run: the run that reads it fails, names the file and the cure, which works."""
    trial = Trial(tmp_path / "root")
    first = trial.run(totals(lake), span=1)
    file = rot(first.artifact("ExampleGen", "examples"), seed=seed)

    second = trial.run(totals(lake), span=2)

    assert second.states["Total"] is State.FAILED
    error = second["Total"].error or ""
    assert error.startswith("Total reads totals/ExampleGen/examples/1/1, but its files are not those")
    assert f"{file.relative_to(first.artifact('ExampleGen', 'examples').path)} has another content" in error
    assert "--span 1 --to ExampleGen --no-cache" in error
    trial.run(totals(lake), RunRequest(span=1, selection=Selection(run=("ExampleGen",)), cache=False))
    assert trial.run(totals(lake), span=2).states["Total"] is State.COMPLETE


def test_a_rotten_champion_is_not_a_baseline(tmp_path, lake):
    """A model of an earlier run whose file changed is refused where it is loaded, by name."""
    trial = Trial(tmp_path / "root")
    champion = trial.run(models(lake), span=1).artifact("Trainer", "model")
    rot(champion, "model.json")

    second = trial.run(models(lake), span=2)

    assert second.states["Compare"] is State.FAILED
    assert f"Compare reads {champion.name}, but its files are not those that were published" in (
        second["Compare"].error or ""
    )
    assert f"spanwise unbless {champion.name} --because" in (second["Compare"].error or "")


def test_what_this_run_has_verified_is_not_read_again(tmp_path, lake):
    """Two nodes of a run that read the same artifact verify it once: the first names it in its log, the second none."""
    trial = Trial(tmp_path / "root")
    trial.run(totals(lake), span=1)
    ingest = ExampleGen(pattern=lake.pattern, ratios={"train": 1})
    recent = RollingWindow(ingest["examples"], size=2, since=1)
    one = Total(examples=recent["examples"], salt=1, name="One")
    two = Total(examples=recent["examples"], salt=2, name="Two", after=[one])

    found = trial.run(Pipeline("totals", [ingest, recent, one, two]), span=2)

    assert "inputs-verified" in found.log("One")
    assert "artifacts=1 " in found.log("One"), "the span that this run has ingested was hashed as it was published"
    assert "inputs-verified" not in found.log("Two")


def test_examples_that_are_read_outside_a_run_are_verified_page_by_page(tmp_path, lake):
    """Whatever reads our Parquet files finds a changed page: each flip is found or changes no value."""
    trial = Trial(tmp_path / "root")
    lake.arrive(span=4, rows=[{"value": random.Random(row).random()} for row in range(4000)])
    examples = trial.run(totals(lake), RunRequest(span=4, selection=Selection(run=("ExampleGen",)))).artifact(
        "ExampleGen", "examples"
    )
    examples = examples.as_kind(Examples)
    (file,) = examples.split("train").glob("*.parquet")
    whole, content = rows.read_table([examples], "train"), file.read_bytes()
    with pq.ParquetFile(file) as parquet:
        pages = range(
            parquet.metadata.row_group(0).column(0).dictionary_page_offset
            or parquet.metadata.row_group(0).column(0).data_page_offset,
            len(content) - parquet.metadata.serialized_size - 8,
        )

    found = 0
    for bit in random.Random(7).sample(range(8 * pages.start, 8 * pages.stop), 150):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.unlink()
        file.write_bytes(flipped)
        try:
            assert rows.read_table([examples], "train").equals(whole)
        except UnreadableInput:
            found += 1
    assert found > 100


def test_recorded_digests_survive_the_metadata(tmp_path, lake):
    """The digest of each file is read back as it was published, so that an error can name the file."""
    from spanwise.orchestrator.mlmd import open_store

    store = open_store(str(tmp_path / "metadata.db"))
    trial = Trial(tmp_path / "root", store)
    made = trial.run(totals(lake), span=1).artifact("ExampleGen", "examples")

    again = store.artifact(made.name)

    assert set(again.files) == {"Split-train/part-00000.parquet"}
    assert again.files == made.files
    store.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A project after 2 runs; each test has a copy of its own."""
    folder = lay_out(tmp_path_factory.mktemp("built") / "project", spans=3)
    for span in "12":
        call(folder, "run", "rides.py", "--span", span)
    return folder


@pytest.fixture
def project(tmp_path, built):
    return Path(shutil.copytree(built, tmp_path / "project", symlinks=True))


def test_doctor_finds_a_missing_artifact_folder(project):
    """It fails, names the artifact, and the command that it prints recreates the span."""
    shutil.rmtree(project / ".spanwise" / "rides" / "ExampleGen" / "examples" / "1")

    said = call(project, "doctor", code=1)

    assert "fail  artifact rides/ExampleGen/examples/1/1: there is nothing at" in said
    assert "spanwise run rides.py --span 1 --to ExampleGen --no-cache" in said


def test_doctor_deep_finds_every_changed_byte(project):
    """Same-size damage passes the quick check; the deep one names artifact and file, and is well after the repair."""
    file = min((project / ".spanwise" / "rides" / "Trainer" / "model").glob("*/model.json"))
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"sum", b"sun"))

    assert "artifacts of rides: 6 of 6 from recent runs on disk" in call(project, "doctor")
    said = call(project, "doctor", "--deep", code=1)
    assert "fail  artifact rides/Trainer/model/1: " in said
    assert "model.json has another content" in said
    file.write_bytes(whole)
    assert "artifacts of rides: 6 of 6 verified" in call(project, "doctor", "--deep")


def test_doctor_finds_a_damaged_database(project):
    """The database's own check runs, in a process of its own; today's metadata with a torn page are not called ok."""
    database = project / ".spanwise" / "metadata.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'EventPath'").fetchone()
    content = bytearray(database.read_bytes())
    content[4096 * (page - 1) : 4096 * (page - 1) + 64] = bytes(64)
    database.write_bytes(content)

    said = call(project, "doctor", code=1)

    assert "fail  metadata: " in said
    assert "is damaged: " in said
    assert "spanwise restore" in said
