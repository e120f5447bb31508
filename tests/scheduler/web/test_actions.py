"""Actions: each is the command that a person would type, recorded with who asked, in a process that outlives the page."""

import html
import os
import re
import time
from dataclasses import replace

import pytest

from spanwise.orchestrator.process import identity
from spanwise.scheduler.web.access import WebRole, make_policy
from spanwise.scheduler.web.actions import jobs
from spanwise.scheduler.web.actions.catalog import ACTIONS
from spanwise.scheduler.web.views import actions as views
from tests.scheduler.cli.test_judge import PIPELINE, arrive
from tests.scheduler.client.conftest import FIRST
from tests.scheduler.client.test_client import a_week
from tests.scheduler.web.conftest import ask

FILLED = {
    "file": "f.py", "run": "flights/3", "model": "m/1", "because": "why; not", "pipeline": "flights", "span": "7",
    "artifact": "a/1", "first": "1", "last": "3",
}  # fmt: skip


def send(browser, path, **form):
    """Fills in the form of a page and sends it."""
    token = re.search(r'name="form_token" value="(\w+)"', browser.get(path).text)[1]
    return browser.post(path, data={"form_token": token, **form})


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_is_a_command_that_can_be_typed(name, monkeypatch):
    """Each word of it is one that the command line takes; what data holds is never an option."""
    from typer.main import get_command

    from spanwise.scheduler.cli import app

    program = get_command(app)
    words = ACTIONS[name].words({**FILLED, "file": "--root=/", "run": "--all"} if name != "backfill" else FILLED)
    command = program
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    context = command.make_context(name, list(words))

    assert context.params.get("root") is None
    if "because" in {f.name for f in ACTIONS[name].fields if f.required}:
        assert "why; not" in (context.params.get("because"), context.params.get("why"))


def test_a_range_of_one_node_is_backfilled_by_itself():
    """As it is shown on the page of its spans."""
    form = {"file": "f.py", "first": "2024-05-01", "last": "2024-05-03", "node": "clicks"}

    assert ACTIONS["backfill"].words(form) == ["backfill", "--span=clicks=2024-05-01..2024-05-03", "--", "f.py"]


def test_a_form_names_what_it_will_do_and_the_command(past, page):
    """Before anything is started; what is missing is asked for."""
    a_week(past)
    found = page("/do/refuse?file=flights.py&span=2013-01-02&because=wrong")

    assert "No window reads it from now on" in found.text
    assert "spanwise refuse --span=2013-01-02 --because=wrong -- flights.py" in found.text
    assert page("/do/launch").status_code == 404


def test_a_viewer_may_look_and_not_act(past, site):
    """The form says so, and sending it all the same is refused."""
    a_week(past)
    viewing = replace(site, policy=make_policy("127.0.0.1", tokens={}, role=WebRole.VIEWER))
    with ask(viewing) as browser:
        shown = browser.get("/do/stop?run=flights/5")
        visit = jobs.list_requests(site.store, 5)
        token = browser.get("/").cookies
        assert "You may look, not act" in shown.text
        assert 'name="form_token"' not in shown.text
        assert visit == []
        assert token is not None
        assert browser.post("/do/stop", data={"run": "flights/5"}).status_code == 403


def test_what_is_asked_for_is_recorded_and_done_in_a_process_of_its_own(folder, site, spanwise):
    """Accepting a refused span, by a form; a plan is shown first, and a second click starts it. The loser is refused."""
    (folder / "days.py").write_text(PIPELINE)
    arrive(1, rows=10)
    arrive(2, rows=2)
    spanwise("run", "days.py", "--span", "1")
    spanwise("run", "days.py", "--span", "2")
    with ask(site) as browser:
        refused = browser.get("/p/days/spans")
        accepted = send(browser, "/do/accept", file="days.py", span="2", because="a holiday <b>")
        job = browser.get(accepted.headers["location"])
        planned = send(browser, "/do/backfill", file="days.py", first="1", last="2", step="plan")
        wrong = send(browser, "/do/backfill", file="days.py", first="1..", step="plan")
        asked = jobs.list_requests(site.store, 5)

        assert 'class="cell refused' in refused.text
        assert accepted.status_code == 303
        assert "complete" in job.text
        assert "a holiday &lt;b&gt;" in browser.get("/p/days/spans/2").text
        assert 'class="cell refused' not in browser.get("/p/days/spans").text
        assert [a.line for a in asked] == ["spanwise accept --span=2 '--because=a holiday <b>' -- days.py"]
        assert "@" in asked[0].who
        assert "Start this backfill" in planned.text
        assert "1 to 2" in planned.text or "2 spans" in planned.text
        assert wrong.status_code == 400
        assert "range" in wrong.text
        assert browser.get("/activity").text.count("days.py") == 1
        assert "@" in site.client.artifact("days/ExampleGen/examples/2/1").verdicts()[-1].by


@pytest.fixture
def started(monkeypatch):
    """What would be started; the plan of a command names its words."""
    words = []
    monkeypatch.setattr(views, "run_text", lambda _session, planned, **_: f"the plan of {planned}")
    monkeypatch.setattr(views, "start_job", lambda _site, started, _who: words.append(started) or 1)
    return words


def planned_in(found):
    """What the form of a plan sends back."""
    return html.unescape(re.search(r'name="planned" value="([^"]+)"', found.text)[1])


def test_what_is_started_is_what_was_planned(past, site, started):
    """A form that was changed after its plan is planned anew, and starts nothing; so is one that shows no plan."""
    with ask(site) as browser:
        unseen = send(browser, "/do/backfill", file="days.py", first="1", last="2", step="start")
        planned = planned_in(send(browser, "/do/backfill", file="days.py", first="1", last="2", step="plan"))
        changed = send(browser, "/do/backfill", file="days.py", first="1", last="20", step="start", planned=planned)
        assert started == []
        again = planned_in(changed)
        send(browser, "/do/backfill", file="days.py", first="1", last="20", step="start", planned=again)

    assert planned_in(unseen) == planned
    assert "has changed since its plan was shown" in changed.text
    assert "1..20" in changed.text
    assert started == [["backfill", "--span=1..20", "--", "days.py"]]


def test_a_plan_that_is_old_is_not_started(past, site, started, monkeypatch):
    """A new version of another span has come since it was shown: the same command would do more."""
    form = {"file": "days.py", "stale": "yes"}
    with ask(site) as browser:
        planned = planned_in(send(browser, "/do/backfill", **form, step="plan"))
        monkeypatch.setattr(views, "run_text", lambda *_, **__: "2 spans")
        changed = send(browser, "/do/backfill", **form, step="start", planned=planned)
        assert started == []
        send(browser, "/do/backfill", **form, step="start", planned=planned_in(changed))

    assert "2 spans" in changed.text
    assert started == [["backfill", "--stale", "--", "days.py"]]


def test_what_a_plan_says_can_be_ticked():
    """It names the option that includes the spans which no window reads."""
    form = {"file": "f.py", "first": "1", "force": "yes"}

    assert ACTIONS["backfill"].words(form) == ["backfill", "--span=1", "--force", "--", "f.py"]


def test_a_job_that_finds_the_pipeline_held_says_so(past, site, monkeypatch):
    """Its exit code is that of the command, whoever reads it, and a job on another machine says that."""
    monkeypatch.setattr(jobs, "WAIT_S", 0.0)
    past.begin(FIRST)
    asked = jobs.record_request(site.store, ["run", "--", "flights.py"], "ann")
    number = asked.number
    elsewhere = jobs.read_job(site, number)
    folder = jobs.make_job_folder(site.root, asked)
    jobs.record_process(folder, os.getpid())
    (folder / "output").write_text("run 3 of 'flights' is still going")
    running = jobs.read_job(site, number)
    (folder / "exit").write_text("3\n")
    with ask(site) as browser:
        found = browser.get(f"/jobs/{number}").text

    assert (elsewhere.state, running.state) == ("unknown", "running")
    assert "another run holds the pipeline" in found
    assert "is still going" in found
    assert time.monotonic() > 0


def test_a_job_never_shows_what_another_history_has_left(past, site):
    """After the restore of an older database its number is given again: that folder is set aside, and never read."""
    left = jobs.job_folder(site.root, 1)
    left.mkdir(parents=True)
    (left / "output").write_text("of another job")
    (left / "exit").write_text("0\n")
    asked = jobs.record_request(site.store, ["push", "--because=bad", "--", "m/1"], "ann")

    before = jobs.read_job(site, asked.number)
    made = jobs.make_job_folder(site.root, asked)
    jobs.record_process(made, os.getpid())

    assert (before.state, before.output) == ("unknown", "")
    assert jobs.read_job(site, asked.number).state == "running"
    assert (left.with_name("1~1") / "output").read_text() == "of another job"
    assert not (made / "output").exists()


@pytest.mark.parametrize(
    ("change", "state", "says"),
    [
        ({"started": 1}, "failed", "It ended without an exit code"),
        ({"machine": "another/boot/pid"}, "unknown", "Its process cannot be seen from here"),
    ],
)
def test_a_job_whose_process_is_gone_is_not_running(past, site, monkeypatch, change, state, says):
    """It was killed with its shell, or its machine went down, so nothing has written its exit code."""
    asked = jobs.record_request(site.store, ["run", "--", "flights.py"], "ann")
    monkeypatch.setattr(jobs, "identity", lambda pid: replace(identity(pid), **change))
    jobs.record_process(jobs.make_job_folder(site.root, asked), os.getpid())
    with ask(site) as browser:
        assert browser.get("/api/jobs/1").json()["state"] == state
        assert says in browser.get("/jobs/1").text
