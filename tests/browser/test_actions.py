"""Each action is clicked, from the page on which a reader finds it, against a root in which pipelines really run."""

import contextlib
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spanwise.orchestrator.mlmd import open_store
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable
from tests.browser.conftest import Server
from tests.scheduler.cli.test_judge import PIPELINE, arrive
from tests.scheduler.conftest import FLOW

PUSHED = PIPELINE.replace("ExampleGen,", "ExampleGen, Pusher,", 1).replace(
    'return Pipeline("days", [ingest, gate, window, Learn(examples=window["examples"])])',
    """learn = Learn(examples=window["examples"])
    pusher = Pusher(model=learn["model"], destination="serving")
    return Pipeline("days", [ingest, gate, window, learn, pusher])""",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Days 1 and 2 of data, of which a gate refuses the second; a schedule; a pipeline that takes as long as it is told."""
    folder = tmp_path_factory.mktemp("actions")
    with contextlib.chdir(folder):
        Path("days.py").write_text(PUSHED)
        Path("flow.py").write_text(FLOW)
        nightly = 'from spanwise import Schedule\n\nnightly = Schedule(clock, cron="0 3 * * *", zone="UTC")\n'
        Path("clock.py").write_text(f"{FLOW.replace('flow', 'clock')}\n{nightly}")
        arrive(1, rows=10)
        arrive(2, rows=2)
        home = folder / ".spanwise"
        home.mkdir()
        with contextlib.closing(open_store(str(home / "metadata.db"), root=home)) as store:
            table = Timetable("days", cron="0 3 * * *", zone="UTC", span=days_before(1))
            put_schedule(store, ScheduleRecord(timetable=table, since=datetime.now(UTC), source="days.py", calendar=""))
            at = datetime(2026, 3, 1, 3, tzinfo=UTC)
            tick = Tick(at=at, name="2026-03-01T03:00", wall=at, span=3)
            claim_tick(store, "days", tick, holder=1, now=at, end=TickEnd(outcome=TickOutcome.MISSED, why="no power"))
    running = Server(folder)
    yield running
    running.stop()


class Reader:
    """One reader, who clicks and looks."""

    def __init__(self, server, page):
        self.server, self.page = server, page

    def look(self, path):
        self.page.goto(self.server.url + path)
        return self.page.inner_text("main")

    def follow(self, name):
        """Clicks a link that leads to the form of an action."""
        self.page.get_by_role("link", name=name, exact=True).first.click()
        self.page.wait_for_selector("form.form")

    def do(self, button, state="complete", **fields):
        """Fills in a form and sends it; returns what its job has printed when it has ended."""
        for name, value in fields.items():
            self.page.fill(f"main [name={name}]", value)
        self.page.get_by_role("button", name=button, exact=True).click()
        self.page.wait_for_url("**/jobs/*", timeout=60_000)
        self.page.wait_for_selector(".lead .state:not(.running)", timeout=120_000)
        printed = self.page.inner_text("#log")
        assert self.page.locator(f".lead .state.{state}").count() == 1, printed
        return printed


@pytest.fixture
def reader(served, tab):
    found = Reader(served, tab(served.url + "/"))
    yield found
    assert found.page.complaints == []


def test_a_refused_span_is_accepted_resumed_pushed_rolled_back_and_backfilled(served, reader):
    """From the first run of an empty root to a plan of what may be removed."""
    reader.look("/do/run?file=days.py&span=1")
    assert "span 1: complete" in reader.do("Run a pipeline")
    reader.look("/do/run?file=days.py")
    assert "2 rows; a day needs at least 5" in reader.do("Run a pipeline", state="failed", span="2")

    assert "refused" in reader.look("/p/days/spans/2")
    reader.follow("Accept")
    reader.do("Accept a span", because="a holiday")
    assert "a holiday" in reader.look("/p/days/spans/2")
    reader.look("/runs/days/2")
    reader.follow("Rerun Big and what follows")
    assert "complete" in reader.do("Resume a run")
    assert "pushed to" in reader.look("/runs/days/3")

    with contextlib.ExitStack() as opened:
        import spanwise

        client = opened.enter_context(spanwise.connect(served.folder / ".spanwise"))
        first, second = (client.artifact(f"days/Learn/model/{n}").id for n in (1, 2))
        for model, link, button in (
            (second, "Bless", "Bless a model"),
            (second, "Take the blessing back", "Take the blessing of a model back"),
            (first, "Push", "Push a model"),
            (first, "Pin", "Pin an artifact"),
        ):
            reader.look(f"/a/{model}")
            reader.follow(link)
            reader.do(button, because="2 is wrong for holidays")
        assert client.pipeline("days").serving().name == "days/Learn/model/1"
        assert client.model("days/Learn/model/2").blessed is False
        assert "2 is wrong for holidays" in reader.look(f"/a/{first}")
        reader.follow("Unpin")
        reader.do("Unpin an artifact")

    reader.look("/p/days/spans/1")
    reader.follow("Plan a backfill")
    reader.page.click("text=Show the plan")
    assert "1 span" in reader.page.locator("main pre").first.inner_text(timeout=60_000)
    assert "complete" in reader.do("Start this backfill")
    reader.look("/p/days/spans/2")
    reader.follow("Refuse")
    reader.do("Refuse a span", because="no holiday after all")
    assert "refused" in reader.look("/p/days/spans/2")
    reader.look("/do/gc")
    assert "would be removed" in reader.do("Plan a garbage collection") or "Nothing" in reader.page.inner_text("#log")
    activity = reader.look("/activity")
    assert activity.count("spanwise ") >= 12


def test_a_schedule_is_paused_and_resumed_and_a_missed_tick_is_given_up(reader):
    """By whom and why is on its page; what is due is run, and what was missed is listed until it is given up."""
    reader.look("/p/days/schedule")
    reader.follow("Pause")
    reader.do("Pause a schedule", because="new disks")
    assert "new disks" in reader.look("/p/days/schedule")
    reader.follow("Resume")
    reader.do("Resume a schedule")
    assert "1 missed" in reader.look("/p/days/schedule")
    reader.follow("Give up")
    reader.do("Give up missed ticks", because="a holiday")
    assert "1 missed" not in reader.look("/p/days/schedule")
    assert "new disks" not in reader.page.inner_text("main")
    reader.look("/do/tick?file=clock.py")
    assert "Nothing is due" in reader.do("Run what is due")


def test_of_two_readers_who_start_the_same_the_second_is_told_and_one_stops_it(served, reader, tab):
    """The loser's job says who holds the pipeline; what was stopped is shown as stopped to both."""
    command = [sys.executable, "-P", "-m", "spanwise", "run", "flow.py", "--param", "sleep_s=600", "--no-cache"]
    running = subprocess.Popen(command, cwd=served.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        reader.page.wait_for_selector("#row-flow", timeout=120_000)
        reader.look("/runs/flow/1")
        other = Reader(served, tab(served.url + "/do/run?file=flow.py"))
        held = other.do("Run a pipeline", state="refused")
        other.look("/runs/flow/1")
        reader.follow("Stop")
        reader.do("Stop a run")
        other.page.wait_for_selector(".lead .state.canceled", timeout=60_000)

        assert "run 1 of 'flow' is still going" in held
        assert running.wait(60) != 0
        assert other.page.complaints == []
    finally:
        running.kill()
        running.wait()
