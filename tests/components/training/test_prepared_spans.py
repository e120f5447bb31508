"""A Trainer's dataset: the rows of its window, and what was prepared of each span, kept from run to run."""

import itertools
import json
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spanwise.components import Trainer
from spanwise.components.training.prepared_spans import SnapshotTally
from spanwise.components.training.trainer_task import ExamplesWindow, TrainerTask
from spanwise.orchestrator import Examples, Execution, Pipeline, Retry, State
from spanwise.orchestrator.errors import DatasetError, ParameterError, UnreadableInput
from spanwise.orchestrator.fingerprint import of_tree
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Trial
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import col
from spanwise.pipelines.input.dataset import Dataset
from tests.components.flow import Lake, only, written
from tests.pipelines.input.service.servers import Service

ROWS = {span: {"x": list(range(span * 100, span * 100 + 40)), "y": [0.5] * 40} for span in (1, 2, 3)}
FOURTH = {**ROWS, 4: {"x": [400, 401], "y": [0.5, 0.5]}}


def double(columns):
    return {"x": columns["x"] * 2}


def doubled(rows: Dataset) -> Dataset:
    return rows.map(double, vectorized=True)


def halved(rows: Dataset) -> Dataset:
    return rows.map(lambda columns: {"x": columns["x"] // 2}, vectorized=True)


def note(task: TrainerTask, found: object) -> None:
    (task.model_dir / "notes.json").write_text(json.dumps(found))


def two_epochs(task: TrainerTask) -> None:
    """Two passes over what was prepared; the model is what was seen."""
    rows = task.examples.dataset("train", ["x"], prepare=doubled)
    note(task, [[x for block in rows.blocks() for x in block["x"].to_pylist()] for _ in range(2)])


def one_epoch_halved(task: TrainerTask) -> None:
    note(task, task.examples.dataset("train", prepare=halved).to_arrow()["x"].to_pylist())


def unprepared(task: TrainerTask) -> None:
    note(task, task.examples.dataset("train").filter(col("x") > 130).take(12).to_arrow()["x"].to_pylist())


LOCK = threading.Lock()


def guarded(task: TrainerTask) -> None:
    def locked(columns):
        with LOCK:
            return columns

    task.examples.dataset("train", prepare=lambda rows: rows.map(locked, vectorized=True))


def trained(trial: Trial, run_fn: Callable[[TrainerTask], None] = two_epochs, rows=ROWS, **arguments) -> Execution:
    """The Trainer of one run over a window of these rows."""
    lake = Lake(rows=rows, splits=["train"])
    return trial.run(Pipeline("p", [lake, Trainer(examples=lake["examples"], run_fn=run_fn, **arguments)]))["Trainer"]


def notes(execution: Execution) -> object:
    return json.loads((only(execution, "model").path / "notes.json").read_text())


def counts(execution: Execution) -> tuple[int, int, int]:
    """Hits, misses, and how many were written."""
    told = only(execution, "model").properties["snapshots"]
    return told["hits"], told["misses"], told["written"]


def chunks(trial: Trial) -> list[Path]:
    return sorted((trial.root / "snapshots").rglob("*.snapshot"))


def xs(rows) -> list[int]:
    return [x for span in sorted(rows) for x in rows[span]["x"]]


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path / "root")


# What a dataset is


def test_without_preparing_it_is_a_dataset_of_the_rows_and_nothing_is_kept(trial):
    """Ops go on from there, and are pushed down into the files."""
    execution = trained(trial, unprepared)

    assert notes(execution) == xs(ROWS)[31:43]
    assert only(execution, "model").properties.get("snapshots") is None
    assert not (trial.root / "snapshots").exists()


def window(tmp_path, *tables: pa.Table) -> ExamplesWindow:
    """A window over tables, one for each span, that lies below a folder."""
    artifacts = []
    for span, table in enumerate(tables, start=1):
        place = tmp_path / str(span)
        artifact = written(place, span, {"train": table})
        tree = of_tree(place)
        facts = {"name": artifact.name, "content": tree.digest, "properties": artifact.properties}
        artifacts.append(Examples(str(place), **facts))
    return ExamplesWindow(artifacts=tuple(artifacts), snapshots=tmp_path / "snapshots", tally=SnapshotTally())


def test_every_span_is_prepared_with_the_columns_of_the_window(tmp_path):
    """A column that came later is null before, in what `prepare` is given too.

    They have the places that they have for `predict_fn`: a model that goes by them would be judged on others.
    """
    given = []

    def look(rows: Dataset) -> Dataset:
        given.append(rows.spec.schema.names)
        return rows

    examples = window(tmp_path, pa.table({"x": [1]}), pa.table({"x": [2], "new": [0.5]}))

    rows = examples.dataset("train", prepare=look).to_arrow()

    assert given == [["x", "new"], ["x", "new"]]
    assert rows.column_names == ["x", "new"]
    assert rows.to_pydict() == {"x": [1, 2], "new": [None, 0.5]}


def test_columns_in_another_order_prepare_only_their_own_span_where_they_are_named(tmp_path):
    """And so does a column more."""
    old = pa.table({"x": [1], "y": [2]})
    new = {"y": [4], "x": [3], "z": [5]}

    def prepared(place, *tables):
        examples = replace(window(tmp_path / place, *tables), snapshots=tmp_path / "snapshots")
        named = examples.dataset("train", columns=["x", "y"], prepare=lambda rows: rows.filter(col("x") > 0))
        rows = named.to_arrow()
        return rows.select(["x", "y"]).to_pylist(), len(list((tmp_path / "snapshots").iterdir()))

    assert prepared("a", old) == ([{"x": 1, "y": 2}], 1)
    assert prepared("b", pa.table(new), old) == ([{"x": 3, "y": 4}, {"x": 1, "y": 2}], 2)


@pytest.mark.parametrize(
    ("prepare", "snapshots"),
    [
        (lambda rows: rows.select("x"), 2),
        (lambda rows: rows.map(double, vectorized=True, reads=["x"], writes=["x"]).select("x"), 2),
        (lambda rows: rows.filter(col("y") > 0).shuffle(9, seed=1).select("x"), 2),
        (lambda rows: rows.select("x").concatenate(rows.filter(col("x") > 0).select("x")), 2),
        (lambda rows: rows.map(double, vectorized=True), 3),  # it may look at any column
    ],
    ids=["selected", "declared", "filtered", "twice", "unproved"],
)
def test_a_new_column_prepares_only_its_own_span_where_the_others_are_proved_to_do_without(
    tmp_path, prepare, snapshots
):
    """A graph that reads some columns is stored by these; one that may read all is prepared again."""
    old, new = pa.table({"x": [1], "y": [2]}), pa.table({"z": ["a"], "x": [3], "y": [4]})

    def prepared(place, *tables):
        examples = replace(window(tmp_path / place, *tables), snapshots=tmp_path / "snapshots")
        rows = examples.dataset("train", prepare=prepare).to_arrow()
        assert rows.select(["x"]).to_pylist() == [
            row for table in tables for row in prepare(inputs.from_arrow(table)).to_arrow().select(["x"]).to_pylist()
        ]
        return len(list((tmp_path / "snapshots").iterdir()))

    assert prepared("a", old) == 1
    assert prepared("b", new, old) == snapshots


def test_a_window_is_a_sequence_of_its_artifacts(tmp_path):
    """Oldest first, to be indexed, sliced and counted."""
    examples = window(tmp_path, pa.table({"x": [1]}), pa.table({"x": [2]}))

    assert [artifact.span for artifact in examples] == [1, 2]
    assert (len(examples), examples[-1].span, [a.span for a in examples[:1]]) == (2, 2, [1])


@pytest.mark.parametrize("prepare", [None, doubled], ids=["rows", "prepared"])
@pytest.mark.parametrize(
    ("split", "columns", "told"),
    [("test", None, "no split 'test'"), ("train", ["z"], "no column 'z'"), ("train", [], "leave it out")],
)
def test_what_the_examples_have_not_is_refused_at_once(tmp_path, prepare, split, columns, told):
    """A misspelt split or column is found when the dataset is made."""
    with pytest.raises(ParameterError, match=told):
        window(tmp_path, pa.table({"x": [1]})).dataset(split, columns, prepare=prepare)


def test_prepare_must_give_a_dataset(tmp_path):
    """A function of rows in the place of one of datasets is told so."""
    with pytest.raises(DatasetError, match="must return a Dataset"):
        window(tmp_path, pa.table({"x": [1]})).dataset("train", prepare=lambda _rows: None)


def test_what_cannot_be_fingerprinted_fails_with_what_to_do(trial):
    """A lock has no content; the step can be given a name."""
    execution = trained(trial, guarded)

    assert execution.state is State.FAILED
    assert "with_snapshot_fingerprint" in execution.error


# What is kept


def test_the_first_epoch_writes_and_the_second_reads(trial):
    """A snapshot of each span; it counts as missed once, however many passes read it later."""
    execution = trained(trial)

    assert notes(execution) == [[2 * x for x in xs(ROWS)]] * 2
    assert counts(execution) == (0, 3, 3)
    told = only(execution, "model").properties["snapshots"]
    assert told["bytes_read"] == told["bytes_written"] == sum(path.stat().st_size for path in chunks(trial))


def test_the_log_says_what_was_read_and_written(trial):
    """Also to those who look at nothing else."""
    assert "snapshots-used hits=0 misses=3 written=3 bytes_read=" in Path(trained(trial).log).read_text()


def test_a_service_prepares_what_options_change(tmp_path):
    """A training reads what the workers have written for it, and later what they wrote is found without them."""
    examples = window(tmp_path, pa.table({"x": range(9)}))

    def shuffled(rows: Dataset) -> Dataset:
        return rows.options(seed=3).shuffle()

    with Service(1) as service:
        made = examples.dataset("train", prepare=shuffled, service=service.target).to_arrow()

    assert sorted(made["x"].to_pylist()) == list(range(9))
    assert examples.dataset("train", prepare=shuffled).to_arrow() == made
    assert examples.tally.counts()["written"] == 1


def test_a_new_span_is_the_only_one_that_is_prepared(trial):
    """The artifacts of the others are new ones with the same content, at other places."""
    trained(trial)

    execution = trained(trial, rows=FOURTH)

    assert notes(execution) == [[2 * x for x in xs(FOURTH)]] * 2
    assert counts(execution) == (3, 1, 1)


def test_a_training_that_fails_keeps_what_it_prepared(trial):
    """The next one begins with what is there."""

    def fails(task: TrainerTask) -> None:
        two_epochs(task)
        raise RuntimeError("diverged")

    failed = trained(trial, fails)

    assert "snapshots-used hits=0 misses=3 written=3 " in Path(failed.log).read_text()
    assert counts(trained(trial)) == (3, 0, 0)


def test_other_preparation_is_another_snapshot(trial):
    """Each Trainer of a sweep finds what was prepared in its own way."""
    trained(trial)

    execution = trained(trial, one_epoch_halved)

    assert notes(execution) == [x // 2 for x in xs(ROWS)]
    assert counts(execution) == (0, 3, 3)


def test_a_damaged_snapshot_is_written_anew(trial):
    """Not one wrong element is given, and the next run reads it again."""
    trained(trial)
    damaged = chunks(trial)[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 1
    damaged.unlink()
    damaged.write_bytes(content)

    mended = trained(trial, parameters={"run": 2})

    assert notes(mended) == [[2 * x for x in xs(ROWS)]] * 2
    assert counts(mended) == (2, 1, 1)
    assert counts(trained(trial, parameters={"run": 3})) == (3, 0, 0)


def test_a_snapshot_that_was_removed_is_written_anew(trial):
    """Whoever needs the space removes them; nothing else is lost."""
    trained(trial)
    shutil.rmtree(chunks(trial)[0].parents[1])

    assert counts(trained(trial, parameters={"run": 2})) == (2, 1, 1)


def test_a_snapshot_is_not_served_for_examples_that_are_gone(trial):
    """It is there, and whole; but nobody trains on what cannot be looked at any more."""
    trained(trial)
    shutil.rmtree(next((trial.root / "p" / "Lake" / "examples").rglob("Split-train")))
    lake = Lake(rows=ROWS, splits=["train"])
    again = Pipeline("p", [lake, Trainer(examples=lake["examples"], run_fn=one_epoch_halved)])

    refused = trial.run(again, RunRequest(selection=again.select(first=["Trainer"])))["Trainer"]

    assert refused.state is State.FAILED
    assert "are missing or damaged" in refused.error


def damaging(task: TrainerTask) -> None:
    """Reads examples that are damaged while it runs."""
    part = task.examples[0].path / "Split-train" / "part-00000.parquet"
    part.chmod(0o644)
    part.write_bytes(part.read_bytes().replace((100).to_bytes(8, "little"), (107).to_bytes(8, "little")))
    two_epochs(task)


def test_what_is_printed_of_damaged_examples_can_be_pasted(trial):
    """The node that prepares them does not know how they are made; run again, it prints the command."""
    lake = Lake(rows=ROWS, splits=["train"])
    flow = Pipeline("p", [lake, Trainer(examples=lake["examples"], run_fn=damaging)])

    found = trial.run(flow)["Trainer"]
    again = trial.run(flow, RunRequest(selection=flow.select(first=["Trainer"])))["Trainer"]

    assert "run it again, and it prints the command" in found.error
    assert "spanwise run" not in found.error
    assert "create them again:\n  spanwise run p.py --span 1 --to Lake --no-cache" in again.error


def test_no_snapshot_is_made_of_damaged_examples(tmp_path):
    """It would stand for the content that was published, long after the examples were mended."""
    examples = window(tmp_path, pa.table({"x": [1, 2]}))
    part = tmp_path / "1" / "Split-train" / "part-00000.parquet"
    good = part.read_bytes()
    part.write_bytes(good.replace((2).to_bytes(8, "little"), (7).to_bytes(8, "little")))

    with pytest.raises(UnreadableInput, match="not those that were published"):
        examples.dataset("train", prepare=doubled).to_arrow()

    part.write_bytes(good)
    assert examples.dataset("train", prepare=doubled).to_arrow()["x"].to_pylist() == [2, 4]


def test_a_pass_that_is_cut_short_counts_what_it_had(tmp_path):
    """A sample is looked at, and the whole read afterwards: one snapshot for each span, missed once."""
    examples = window(tmp_path, pa.table({"x": [1]}), pa.table({"x": [2]}))
    rows = examples.dataset("train", prepare=doubled)
    with rows.blocks() as look:
        next(look)

    first = examples.tally.counts()
    rows.to_arrow()
    examples.dataset("train", prepare=doubled).to_arrow()

    assert (first["misses"], first["hits"]) == (1, 0)
    told = examples.tally.counts()
    assert (told["hits"], told["misses"], told["written"]) == (0, 2, 2)


def test_a_pass_that_goes_on_is_counted(tmp_path):
    """Who asks need not wait for its end, and does not count it twice."""
    examples = window(tmp_path, pa.table({"x": [1]}))
    rows = examples.dataset("train", prepare=doubled).blocks()
    next(rows)

    going_on = examples.tally.counts()
    rows.close()

    assert going_on == examples.tally.counts()
    assert going_on["misses"] == 1


def test_a_dataset_can_be_given_to_another_process(tmp_path):
    """A tally is not: passes there are not counted here."""
    examples = window(tmp_path, pa.table({"x": [1]}))

    copy = pickle.loads(pickle.dumps(examples.dataset("train", prepare=doubled)))

    assert copy.to_arrow()["x"].to_pylist() == [2]
    assert examples.tally.counts() == {}


# Stop and go on

STEPS_KEPT = 3  # after so many batches the state is kept


def resuming(task: TrainerTask) -> None:
    """Keeps the state of the input with what was learned, and is killed between two checkpoints."""
    rows = task.examples.dataset("train", ["x"], prepare=doubled).shuffle(50, seed=11).batch(16)
    kept = task.checkpoints / "state.pickle"
    first, seen, state = pickle.loads(kept.read_bytes()) if kept.exists() else (0, [], None)
    steps = 0
    for epoch in range(first, 2):
        batches = rows.iterator(epoch=epoch)
        if state is not None:
            batches.restore(state)
        state = None
        for batch in batches:
            seen.append(batch["x"].to_pylist())
            steps += 1
            if steps % STEPS_KEPT == 0:
                draft = task.checkpoints / "draft"
                draft.write_bytes(pickle.dumps((epoch, seen, batches.state())))
                draft.replace(kept)
            if task.attempt == 1 and steps == task.parameters["killed_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
    note(task, {"seen": seen, "steps": steps})


@pytest.mark.parametrize("killed_at", [4, 13], ids=["while it is written", "while it is read"])
def test_a_killed_training_goes_on_with_exactly_the_rest(trial, tmp_path, killed_at):
    """The state of the input is kept with the model's: no batch is seen twice, and none is left out."""
    resumed = trained(trial, resuming, parameters={"killed_at": killed_at}, retry=Retry(times=1, backoff_s=0))
    whole = trained(Trial(tmp_path / "whole"), resuming, parameters={"killed_at": 0})

    assert resumed.attempt == 2
    assert notes(resumed)["seen"] == notes(whole)["seen"]
    assert notes(resumed)["steps"] == 16 - killed_at // STEPS_KEPT * STEPS_KEPT
    assert sorted(itertools.chain(*notes(whole)["seen"][:8])) == [2 * x for x in xs(ROWS)]
