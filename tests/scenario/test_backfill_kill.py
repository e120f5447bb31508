"""A backfill that is killed or interrupted at any moment: going on ends where an undisturbed one would have ended."""

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from subprocess import DEVNULL

import pytest

from spanwise.orchestrator import State
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.lease import current
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Address
from spanwise.scheduler.backfill.record import BackfillStage, find_backfill
from spanwise.scheduler.ledger.pauses import current_pause
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scenario.processes import Marked, kill
from tests.scheduler.backfill.conftest import DAYS

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "2"))  # of each kind of backfill; the full form: 30
SOON_S = 300.0  # on a machine that does other things too; alone it takes less than one
COUNT = 10
RANGE = f"2024-05-01..2024-05-{COUNT}"
PLACES = {("Ingest", "examples"), ("Check", "report"), ("Train", "model")}  # Push acts anew with each run
HOWS = {"full": (), "train once": ("--train-once", "--parallel", "2", "--force")}


@dataclass(frozen=True)
class Result:
    """What a backfill has come to."""

    contents: dict  #: of what was published at each address of the pipeline
    windows: list  #: what each model has learned from, and what it has made of it
    serving: str
    complete: Counter  #: complete runs of each span, and of the second part


class Place:
    """A folder with ten days of data, none of them ingested, and a schedule that would come between."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "days.py").write_text(DAYS)
        for day in range(1, COUNT + 1):
            place = folder / "data" / f"2024-05-{day:02}" / "v1"
            place.mkdir(parents=True)
            (place / "rows").write_text(f"the rows of {day}")
        (folder / ".spanwise").mkdir()
        known = ScheduleRecord(
            timetable=Timetable("days", cron="0 3 * * *", span=days_before(1)),
            since=datetime.now(UTC),
            source=str(folder / "days.py"),
            calendar="day",
        )
        with self.store() as store:
            put_schedule(store, known)

    @contextlib.contextmanager
    def store(self):
        with contextlib.closing(
            open_store(str(self.folder / ".spanwise" / "metadata.db"), root=self.folder / ".spanwise")
        ) as store:
            yield store

    def begin(self, how):
        """Starts the backfill, or goes on with it; not before its command has been understood."""
        words = ["--resume", "days"] if self.stage is not None else ["days.py", "--span", RANGE, *HOWS[how]]
        run = Marked("spanwise", "backfill", *words, "--param", "work_s=0.02", cwd=self.folder, stdin=DEVNULL)
        run.read_until("Backfill" if self.stage is None else "The schedule of days is paused.")
        return run

    def complete(self, how):
        """Has the backfill come to its end."""
        run = self.begin(how)
        try:
            said = run.process.communicate(timeout=SOON_S)[0]
        finally:
            run.end()
        assert run.process.returncode == 0, said

    @property
    def stage(self):
        """Where the backfill stands; None while it is not recorded."""
        try:
            with self.store() as store:
                return find_backfill(store, "days").stage
        except NotRecorded:
            return None

    @property
    def result(self):
        with self.store() as store:
            found = {(node, key): published(store, node, key) for node, key in PLACES}
            runs = list(store.runs("days"))
        models = [json.loads((m.path / "model.json").read_text()) for m in found["Train", "model"]]
        return Result(
            contents={place: sorted(a.content for a in artifacts) for place, artifacts in found.items()},
            windows=sorted((sorted(model["learned"].items()), model["from_scratch"]) for model in models),
            serving=(self.folder / "serving.json").read_text(),
            complete=Counter(
                "the model" if run.span is None else Calendar.DAY.label(run.span)
                for run in runs
                if run.state is State.COMPLETE
            ),
        )

    def check_left_in_order(self, what):
        """Holds that every record has ended, the lease is free, and nothing lies about that cannot be found."""
        with self.store() as store:
            for run in store.runs("days"):
                assert run.state.ended, what
                assert all(e.state.ended for e in store.executions(run)), what
            assert current(store, "days").released, what
            assert current_pause(store, "days", datetime.now(UTC)) is None, what
            places = [*PLACES, ("Push", "report")]
            seen = {a.uri for node, key in places for a in published(store, node, key)}
        root = self.folder / ".spanwise" / "days"
        assert {str(f) for node, key in places for f in (root / node / key).glob("*")} == seen, what


def published(store, node, key):
    """Everything that a node has published, with a span or without."""
    address = Address("days", node, key)
    return [*store.newest(address), *(a for span in store.spans(address) for a in store.of_span(address, span))]


@pytest.fixture(scope="module", params=HOWS)
def undisturbed(request, tmp_path_factory):
    """Which kind of backfill it is, what it comes to, and for how long it is busy."""
    place = Place(tmp_path_factory.mktemp("undisturbed"))
    began = time.monotonic()
    place.complete(request.param)
    whole_s = time.monotonic() - began
    assert len(place.result.complete) == COUNT + (request.param == "train once")
    with place.store() as store:
        runs = list(store.runs("days"))
    busy_s = min(whole_s, (runs[0].ended - runs[-1].started).total_seconds() + 0.5)
    return request.param, place.result, busy_s


def moments(dice, busy_s, wanted):
    """When to strike, as often as wanted; some more, while too few have struck anything, which goes into the list."""
    struck = []
    for number in range(3 * wanted):
        if number >= wanted and sum(struck) > wanted / 2:
            return
        moment = dice.uniform(0.0, busy_s)
        yield number, moment, struck
    assert sum(struck) > wanted / 2, "most came before it began or after it had ended, so they tried nothing"


@pytest.mark.slow
def test_a_backfill_killed_at_any_moment_comes_to_the_same_end(undisturbed, tmp_path):
    """Killed with all of its processes, or the controller alone: nothing runs on, the schedule is not paused for ever,
    and going on does what is left and nothing twice.
    """
    how, expected, busy_s = undisturbed
    dice = random.Random(f"{os.environ.get('SPANWISE_TEST_SEED', 'spanwise')} {how}")

    for number, moment, struck in moments(dice, busy_s, KILLS):
        (tmp_path / str(number)).mkdir()
        place = Place(tmp_path / str(number))
        told = []
        hit = False
        for again in range(dice.choice([1, 1, 2, 3])):
            if place.stage is BackfillStage.COMPLETE:
                break
            whom = dice.choice(["tree", "controller"])
            after_s = moment if not again else dice.uniform(0.0, busy_s)
            told.append(f"{whom} after {after_s:.3f} s")
            run = place.begin(how)
            try:
                time.sleep(after_s)
                victims = run.alive() if whom == "tree" else [run.pid]
                dice.shuffle(victims)
                for pid in victims:
                    kill(pid, signal.SIGKILL)
                run.process.wait(timeout=SOON_S)
                assert run.gone_within(SOON_S) == [], told
            finally:
                run.end()
            hit |= run.process.returncode == -signal.SIGKILL
            with place.store() as store:
                pause = current_pause(store, "days", datetime.now(UTC))
            assert pause is None or pause.until <= datetime.now(UTC) + timedelta(minutes=10), told
        struck.append(hit)
        if place.stage is not BackfillStage.COMPLETE:
            place.complete(how)

        assert place.result == expected, told
        assert set(place.result.complete.values()) == {1}, told
        place.check_left_in_order(told)


@pytest.mark.slow
def test_a_backfill_interrupted_at_any_moment_says_how_to_go_on(undisturbed, tmp_path):
    """Ctrl-C, or the signal of a machine that goes down: it ends by itself, in order, with the schedule resumed; the
    command that it prints goes on.
    """
    how, expected, busy_s = undisturbed
    dice = random.Random(f"{os.environ.get('SPANWISE_TEST_SEED', 'spanwise')} {how}")

    for number, moment, struck in moments(dice, busy_s, max(1, KILLS // 2)):
        (tmp_path / str(number)).mkdir()
        place = Place(tmp_path / str(number))
        by = dice.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
        what = f"{by.name} after {moment:.3f} s"
        run = place.begin(how)
        try:
            time.sleep(moment)
            kill(run.pid, by)
            said = run.process.communicate(timeout=SOON_S)[0]
            assert run.gone_within(SOON_S) == [], what
        finally:
            run.end()
        struck.append(run.process.returncode != 0)
        if run.process.returncode and place.stage is not None:
            assert run.process.returncode == (130 if by is signal.SIGINT else 1), said
            assert f"Backfill days/1: interrupted by {by.name}" in said, what
            assert said.endswith("Resume it:  spanwise backfill --resume days/1\n"), what
            assert place.stage is BackfillStage.INTERRUPTED, what
        with place.store() as store:
            assert current_pause(store, "days", datetime.now(UTC)) is None, what
            held = current(store, "days")
            assert held is None or held.released, what
        if place.stage is not BackfillStage.COMPLETE:
            place.complete(how)

        assert place.result == expected, what
        place.check_left_in_order(what)
