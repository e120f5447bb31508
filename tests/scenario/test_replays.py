"""A replay (`--as-of`) reads nothing that came later, and nothing that it makes is ever read by ordinary runs."""

import contextlib
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spanwise.components import Evaluator, ExampleGen, Pusher, Threshold, Trainer
from spanwise.orchestrator import Model, Pipeline, State, UsageError, past
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Lake, Trial
from spanwise.orchestrator.verdict import read_verdicts
from spanwise.resolvers import Latest, LatestBlessed, RollingWindow
from spanwise.scheduler.run.resume import resume_request
from tests.scenario.command_line import CommandLine


def train(task):
    told = {"spans": [f"{e.span}v{e.version}" for e in task.examples], "base": task.base.name if task.base else None}
    (task.model_dir / "told.json").write_text(json.dumps({**told, **task.parameters}))
    if task.parameters.get("fail"):
        raise RuntimeError("asked to fail")


def predict(_model, table):
    return [0.0] * len(table)


class Rides:
    """A pipeline with a warm start, an Evaluator and a Pusher, in the current folder."""

    def __init__(self, folder):
        self.folder, self.lake = folder, Lake(Path("lake"))
        self.store = open_store(str(folder / "metadata.db"))
        self.trial = Trial(folder / "root", self.store)

    def pipeline(self, base=LatestBlessed, bless=True, **parameters):
        ingest = ExampleGen(pattern=self.lake.pattern, ratios={"train": 1, "eval": 1})
        recent = RollingWindow(ingest["examples"], size=2, since=1)
        before = base(past("Trainer", "model", Model), name="Base")
        trainer = Trainer(examples=recent["examples"], base=before["model"], run_fn=train, parameters=parameters)
        champion = LatestBlessed(trainer["model"], name="Champion")
        evaluator = Evaluator(
            examples=recent["examples"],
            model=trainer["model"],
            baseline=champion["model"],
            label="row",
            predict_fn=predict,
            metrics=("mae",),
            thresholds={"mae": Threshold(at_most=1e9 if bless else -1.0)},
            replicates=0,
        )
        serving = "serving"
        pusher = Pusher(model=trainer["model"], blessing=evaluator["blessing"], destination=serving)
        return Pipeline("rides", [ingest, recent, before, trainer, champion, evaluator, pusher])

    def arrive(self, span, version=1):
        self.lake.arrive(span=span, version=version)

    def run(self, span=None, *, first=(), last=(), as_of=None, wiring=None, **request):
        pipeline = self.pipeline(**(wiring or {}))
        selection = pipeline.select(first=first, last=last) if first or last else None
        asked = RunRequest(selection=selection, span=span, as_of=as_of, replay=as_of is not None, **request)
        return self.trial.run(pipeline, asked)


@pytest.fixture(scope="module")
def two_days(tmp_path_factory):
    """A folder in which two days were run, and the moment between them."""
    folder = tmp_path_factory.mktemp("rides")
    with contextlib.chdir(folder):
        rides = Rides(folder)
        for span in (1, 2):
            rides.arrive(span)
            assert rides.run(span).outcome.succeeded
            if span == 1:
                then = datetime.now(UTC)
        rides.store.close()
    return folder, then


@pytest.fixture
def rides(two_days, tmp_path, monkeypatch):
    """A copy of the two days; `rides.then` is the moment between them."""
    folder, then = two_days
    for name in ("lake", "serving"):
        shutil.copytree(folder / name, tmp_path / name)
    shutil.copy(folder / "metadata.db", tmp_path)
    monkeypatch.chdir(tmp_path)
    found = Rides(tmp_path)
    found.then = then
    yield found
    found.store.close()


def told(ran):
    return json.loads((ran.artifact("Trainer", "model").path / "told.json").read_text())


def replayed(rides, **wiring):
    """A replay of the first day that trains another model."""
    ran = rides.run(first=["RollingWindow", "Base"], as_of=rides.then, wiring={"depth": 3, **wiring})
    assert ran.outcome.succeeded, ran.outcome.run.error
    return ran


def test_a_replay_reads_what_was_there_then(rides):
    """Its window and its base are those of the first day, and it pushes nothing."""
    served = len(list((rides.folder / "serving").iterdir()))

    ran = replayed(rides)

    assert told(ran) == {"spans": ["1v1"], "base": "rides/Trainer/model/1", "depth": 3}
    assert ran.artifact("Pusher", "pushed_model").properties["pushed"] == 0
    assert len(list((rides.folder / "serving").iterdir())) == served


def test_the_base_run_of_a_replay_is_of_its_time(rides):
    """What supplies the nodes left out was published by then: the first run, not the newest one."""
    ran = rides.run(first=["Trainer"], as_of=rides.then)

    assert ran.run.base == 1
    assert told(ran)["spans"] == ["1v1"]


def test_a_replay_before_the_first_run_has_no_base_run(rides):
    """Nothing supplies what it reads, and the message says as of when."""
    with pytest.raises(UsageError, match="2023-12-01"):
        rides.run(first=["Trainer"], as_of=datetime(2023, 12, 1, tzinfo=UTC))


def test_a_base_run_of_later_is_refused(rides):
    """`--base-run 2` in a replay of the first day would read the second."""
    with pytest.raises(UsageError, match="ended after"):
        rides.run(first=["Trainer"], as_of=rides.then, base=2)


@pytest.mark.parametrize("base", [Latest, LatestBlessed])
def test_no_run_starts_from_the_model_of_a_replay(rides, base):
    """The next ordinary run starts from the model before, as if the replay had never been."""
    replayed(rides)
    rides.arrive(3)

    third = rides.run(3, wiring={"base": base})

    assert told(third)["base"] == "rides/Trainer/model/2"
    assert third.artifact("Champion", "model").name == "rides/Trainer/model/2"
    assert third.artifact("Trainer", "model").name == "rides/Trainer/model/3"


def test_what_a_replay_made_is_named_after_it(rides):
    """The name says that it is of a replay, and of which."""
    ran = replayed(rides)

    assert ran.artifact("Trainer", "model").name == "rides/Trainer/model@3/1"
    assert rides.store.artifact("rides/Trainer/model@3/1").uri == ran.artifact("Trainer", "model").uri
    assert rides.store.producer(ran.artifact("Trainer", "model")).replay


def test_no_run_is_supplied_by_a_replay(rides):
    """A partial run takes the newest ordinary run; naming a replay is refused."""
    replayed(rides)

    partial = rides.run(first=["Evaluator"])

    assert partial.run.base == 2
    with pytest.raises(UsageError, match=r"is a replay"):
        rides.run(first=["Evaluator"], base=3)


def test_no_window_holds_what_a_replay_ingested(rides):
    """A correction that only a replay has ingested is not learned from until an ordinary run has ingested it."""
    rides.arrive(2, version=2)
    rides.run(2, as_of=rides.then, last=["ExampleGen"])
    rides.arrive(3)

    third = rides.run(3)

    assert told(third)["spans"] == ["2v1", "3v1"]


def test_an_ordinary_run_reuses_nothing_of_a_replay(rides):
    """Its results must be seen by later runs, so it makes its own; equal runs of the same time are reused."""
    rides.arrive(2, version=2)
    rides.run(2, as_of=rides.then, last=["ExampleGen"])

    again = rides.run(2, as_of=rides.then, last=["ExampleGen"])
    ordinary = rides.run(2)

    assert again.states["ExampleGen"] is State.CACHED
    assert ordinary.states["ExampleGen"] is State.COMPLETE
    assert told(ordinary)["spans"] == ["1v1", "2v2"]


def test_a_replay_reuses_the_same_result(rides):
    """The same inputs, code and parameters have the same result, whoever has computed it."""
    ran = rides.run(first=["RollingWindow"], as_of=rides.then)

    assert ran.artifact("Trainer", "model").name == "rides/Trainer/model/1"


def test_a_replay_judges_no_model_of_today(rides):
    """What a replay finds of an ordinary model is in its report alone: the model stays as it was judged."""
    before = read_verdicts(rides.store, "blessed", "rides/Trainer/model/2")

    ran = rides.run(first=["Evaluator"], as_of=datetime.now(UTC), wiring={"bless": False})

    assert ran.artifact("Evaluator", "blessing").properties["blessed"] == 0
    assert read_verdicts(rides.store, "blessed", "rides/Trainer/model/2") == before


def test_a_resumed_replay_is_a_replay(rides):
    """It goes on with what it has made, as of the same time."""
    failed = rides.run(first=["RollingWindow"], as_of=rides.then, wiring={"fail": True})
    assert failed.outcome.failed == ("Trainer",)
    pipeline = rides.pipeline(depth=5)

    request = resume_request(failed.run, rides.store.executions(failed.run), pipeline)
    resumed = rides.trial.run(pipeline, replace(request))

    assert resumed.run.replay
    assert told(resumed)["spans"] == ["1v1"]
    assert resumed.artifact("Trainer", "model").name == "rides/Trainer/model@4/1"


FEATURES = """
from spanwise import Component, Examples, Input, Model, Output, Pipeline, Report, RollingWindow
from tests.scenario.random_life import Ingest, read_text

class Prepare(Component):
    def run(self, examples: Input[list[Examples]], report: Output[Report]) -> None:
        (report.path / "text").write_text(" ".join(map(read_text, examples)))

class Learn(Component):
    def run(self, report: Input[Report], model: Output[Model]) -> None:
        (model.path / "text").write_text(read_text(report))

def flow() -> Pipeline:
    ingest = Ingest(lake="lake")
    window = RollingWindow(ingest["examples"], size=2, since=1, name="Window")
    prepare = Prepare(examples=window["examples"])
    return Pipeline("flow", [ingest, window, prepare, Learn(report=prepare["report"])])
"""


def test_a_collection_after_a_replay_keeps_what_a_partial_run_is_based_on(tmp_path, monkeypatch):
    """No run is based on the replay, though it is the newest that is complete."""
    bench = CommandLine(tmp_path, monkeypatch, FEATURES)
    bench.arrive(1, "a")
    bench.arrive(2, "b")
    assert bench("run", "flow.py", "--span", "1") == 0
    then = datetime.now(UTC).isoformat()
    assert bench("run", "flow.py", "--span", "2") == 0
    assert bench("run", "flow.py", "--span", "1", "--as-of", then) == 0

    assert bench("gc", "flow.py", "--keep-younger", "0s", "--keep-last", "0") == 0

    assert bench("run", "flow.py", "--from", "Learn") == 0


@pytest.mark.parametrize("damage", ["gone", "rotten"])
def test_a_replay_whose_data_is_damaged_names_the_way_that_helps(tmp_path, monkeypatch, capsys, damage):
    """What is created again now was not published then: the commands that were printed helped no replay."""
    bench = CommandLine(tmp_path, monkeypatch, FEATURES)
    bench.arrive(1, "a")
    assert bench("run", "flow.py", "--span", "1") == 0
    then = datetime.now(UTC).isoformat()
    for file in Path(".spanwise/flow/Ingest").rglob("text"):
        file.unlink() if damage == "gone" else file.write_text("z")
    capsys.readouterr()

    assert bench("run", "flow.py", "--from", "Prepare", "--as-of", then, "--no-cache") == 1

    said = capsys.readouterr()
    assert "Restore the files from a backup. This run reads only what was published by" in said.out + said.err
    assert "spanwise run" not in said.out + said.err
