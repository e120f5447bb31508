"""What a Trainer is fed: a window costs its new span, whoever asks for it: a daily run, a backfill, a part of a run."""

import json
import time
from pathlib import Path

import pytest

from spanwise.components import ExampleGen, Trainer
from spanwise.components.training.trainer_task import TrainerTask
from spanwise.orchestrator import Pipeline, Trigger
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Lake, Trial, TrialRun
from spanwise.pipelines.input.dataset import Dataset
from spanwise.resolvers import RollingWindow

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("feed")]  # one worker, for what the tests share

WINDOW, DAYS = 3, 5
TOGETHER_S = 300


def scaled(columns):
    return {"span": columns["span"], "share": columns["row"] / 10}


def prepared(rows: Dataset) -> Dataset:
    """What takes long."""
    return rows.map(scaled, vectorized=True)


def fed(task: TrainerTask) -> None:
    """The model is what was seen of each span, in one epoch after the other."""
    rows = task.examples.dataset("train", ["span", "version", "row"], prepare=prepared)
    tables = [rows.to_arrow() for _ in range(2)]
    assert tables[0] == tables[1]
    told = {"shares": tables[0]["share"].to_pylist(), "rows": task.table("train")["row"].to_pylist()}
    (task.model_dir / "model.json").write_text(json.dumps(told))


def fed_together(task: TrainerTask) -> None:
    """Begins when the other Trainer has begun too."""
    meeting = Path(str(task.parameters["meeting"]))
    (meeting / str(task.parameters["name"])).touch()
    limit = time.monotonic() + TOGETHER_S
    while len(list(meeting.iterdir())) < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    fed(task)


def days(pattern: str, *trainers: str, run_fn=fed, **parameters) -> Pipeline:
    """A pipeline over a rolling window."""
    ingest = ExampleGen(pattern=pattern)
    recent = RollingWindow(ingest["examples"], size=WINDOW, since=1)
    learning = [
        Trainer(name=name, examples=recent["examples"], run_fn=run_fn, parameters={"name": name, **parameters})
        for name in trainers or ["Trainer"]
    ]
    return Pipeline("days", [ingest, recent, *learning])


class World:
    """A lake to which spans come, and a root."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder / "lake")
        self.trial = Trial(folder / "root")

    def arrive(self, span: int, version: int = 1) -> None:
        rows = [{"span": span, "version": version, "row": span * 1000 + version * 100 + row} for row in range(20)]
        self.lake.arrive(span=span, version=version, rows=rows)

    def run(self, span: int, trigger: Trigger = Trigger.SCHEDULE) -> TrialRun:
        return self.trial.run(days(self.lake.pattern), RunRequest(span=span, trigger=trigger))

    def train(self, *trainers: str, **arguments) -> TrialRun:
        """Only the Trainers, on the window that was chosen last."""
        pipeline = days(self.lake.pattern, *trainers, **arguments)
        return self.trial.run(pipeline, RunRequest(selection=pipeline.select(first=trainers)))

    def runs_of_snapshots(self) -> list[int]:
        """How many runs have left something in each snapshot."""
        folders = (self.trial.root / "snapshots").iterdir()
        return [sum(each.is_dir() for each in folder.iterdir()) for folder in folders]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("feed"))


@pytest.fixture(scope="module")
def mornings(world):
    """A run for each day."""
    runs = []
    for span in range(1, DAYS + 1):
        world.arrive(span)
        runs.append(world.run(span))
    return runs


@pytest.fixture(scope="module")
def backfill(world, mornings):
    """A corrected version of a day in the middle of the window."""
    world.arrive(DAYS - 1, version=2)
    return world.run(DAYS - 1, Trigger.BACKFILL)


@pytest.fixture(scope="module")
def partial(world, backfill):
    """The same window, and another model."""
    return world.train("Trainer", depth=6)


def counts(ran: TrialRun, trainer: str = "Trainer") -> dict[str, int]:
    told = ran.artifact(trainer, "model").properties["snapshots"]
    return {name: told[name] for name in ("hits", "misses", "written")}


def right(ran: TrialRun, trainer: str = "Trainer") -> bool:
    """Whether the model has seen what was prepared of each row of its window."""
    said = json.loads((ran.artifact(trainer, "model").path / "model.json").read_text())
    return bool(said["rows"]) and said["shares"] == [row / 10 for row in said["rows"]]


def test_each_morning_prepares_its_new_day(mornings):
    """While the window grows, and when it rolls: all other days come from snapshots."""
    grown = [min(span, WINDOW) for span in range(1, DAYS + 1)]

    assert [counts(ran) for ran in mornings] == [{"hits": size - 1, "misses": 1, "written": 1} for size in grown]
    assert all(map(right, mornings))


def test_a_backfill_rewrites_the_span_whose_version_is_new(backfill):
    """The others of the window are read."""
    assert backfill.artifact("Trainer", "model").properties["spans"] == [3, 4, 5]
    assert counts(backfill) == {"hits": WINDOW - 1, "misses": 1, "written": 1}
    assert right(backfill)


def test_a_partial_run_prepares_nothing(partial):
    """Training again on a window that is there reads snapshots only."""
    assert counts(partial) == {"hits": WINDOW, "misses": 0, "written": 0}
    assert right(partial)
    assert partial.artifact("Trainer", "model").properties["snapshots"]["bytes_written"] == 0


def test_two_trainers_side_by_side_write_once(world, partial, tmp_path):
    """Who comes second takes the rows from the examples, or from the snapshot once it is whole."""
    for snapshot in list((world.trial.root / "snapshots").iterdir()):
        snapshot.rename(tmp_path / snapshot.name)
    (meeting := tmp_path / "meeting").mkdir()

    ran = world.train("Deep", "Wide", run_fn=fed_together, meeting=str(meeting))

    assert len(list(meeting.iterdir())) == 2
    assert sum(counts(ran, name)["written"] for name in ("Deep", "Wide")) == WINDOW
    assert world.runs_of_snapshots() == [1] * WINDOW
    assert right(ran, "Deep")
    assert right(ran, "Wide")
