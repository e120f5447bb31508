"""A real server over a real root, and a headless Chromium that looks at it: `make test-ui`."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import Examples, Execution, Report, Run, State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.serving import claim_pushes
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.conftest import FLOW
from tests.scheduler.past import Past
from tests.scheduler.web.test_models_page import write_evaluation

collect_ignore = (
    [] if os.environ.get("SPANWISE_TEST_UI") else ["test_ui.py", "test_actions.py", "test_notebook.py"]
)  # `make test-ui` sets it

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FIRST = 15_706
HOSTILE = "<img src=x onerror=alert(1)>"


def record_times(store, past):
    """A run whose nodes waited, worked and published for a while each."""
    began = datetime.now(UTC) - timedelta(minutes=9)
    nodes = ("ExampleGen", "StatisticsGen", "Trainer")
    run = store.begin_run(Run(pipeline="timed", state=State.COMPLETE, nodes=nodes, started=began))
    read = ()
    for number, node in enumerate(nodes):
        begun = store.begin(Execution(pipeline="timed", run=run.number, node=node, component=node))
        at = began + timedelta(minutes=2 * number)
        made = store.publish(
            replace(
                begun,
                state=State.COMPLETE,
                inputs={"before": read},
                outputs={"report": (past.draft(Report),)},
                started=at + timedelta(seconds=20),
                work_started=at + timedelta(seconds=30),
                work_ended=at + timedelta(seconds=80),
                ended=at + timedelta(seconds=100),
            )
        )
        read = made.outputs["report"]


def record_spans(store, pipeline, calendar, spans):
    """A run that has ingested all of them."""
    run = store.begin_run(
        Run(pipeline=pipeline, calendar=calendar, span=spans[0], state=State.COMPLETE, nodes=("Ingest",))
    )
    begun = store.begin(Execution(pipeline=pipeline, run=run.number, node="Ingest", component="ExampleGen"))
    facts = {"version": 1, "split_names": ["train"], "calendar": calendar, "rows": {"train": 9}}
    examples = tuple(Examples("/nowhere", properties={"span": span, **facts}) for span in spans)
    store.publish(replace(begun, state=State.COMPLETE, outputs={"examples": examples}))


class Server:
    """`spanwise ui` in a process of its own."""

    def __init__(self, folder, *options, env=None):
        self.folder, self.options, self.env = folder, options, env or {}
        self.port = 0
        self.start()

    def start(self):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), **self.env}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "spanwise", "ui", "--port", str(self.port), *self.options],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = re.search(r"http\S+(?=/ )", self.process.stdout.readline())[0]
        self.port = int(self.url.rpartition(":")[2])

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A root with a past: days that were ingested, refused, failed; models; a schedule; names that are HTML."""
    folder = tmp_path_factory.mktemp("ui")
    home = folder / ".spanwise"
    home.mkdir()
    (folder / "flow.py").write_text(FLOW)
    with contextlib.chdir(folder):
        store = open_store(str(home / "metadata.db"), root=home)
        past = Past(folder, store)
        spans = []
        for number in range(12):
            nodes = ("ExampleGen", "StatisticsGen", "Trainer", "Evaluator", "Pusher")
            run = past.begin(FIRST + number, nodes=nodes, ended=datetime.now(UTC))
            if number in (3, 8):
                past.do("ExampleGen", state=State.FAILED)
                store.update_run(replace(run, state=State.FAILED, error=f"no such day {HOSTILE}"))
                continue
            spans.append(past.ingest(FIRST + number))
            past.count(spans[-1])
            model = past.train(spans[-3:])
            made = past.evaluate(model, spans[-3:], auc=0.7 + number / 100, log_loss=0.4)
            write_evaluation(made["evaluation"][0].path, 0.7 + number / 100)
            pushed = past.push(model, number)
            pusher = Execution(pipeline="flights", run=past.run.number, node="Pusher")
            store.claim(*claim_pushes(store, pusher, [pushed]))
        record_times(store, past)
        record_spans(store, "hourly", "hour", range(FIRST * 24, FIRST * 24 + 1300))  # too many for cells of their own
        record_spans(store, "daily", "day", range(FIRST, FIRST + 9))
        past.begin(FIRST + 10)
        past.ingest(FIRST + 10, version=2)  # models have learned from version 1
        (spans[-1].path / "report.html").write_text(
            "<style>h1{color:red}</style><h1>report</h1><script>alert(1)</script>"
        )
        (spans[-1].path / "notes.json").write_text(json.dumps({"name": HOSTILE}))
        table = Timetable("flights", cron="0 3 * * *", zone="America/New_York", span=days_before(1))
        put_schedule(
            store, ScheduleRecord(timetable=table, since=datetime.now(UTC), source="flights.py", calendar="day")
        )
        store.close()
    return folder


@pytest.fixture(scope="session")
def server(root):
    running = Server(root)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def chromium():
    if not CHROMIUM:
        pytest.skip("there is no Chromium; make test-ui installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium):
    """Opens a page and notes what its console says: errors, and what its Content-Security-Policy refused."""
    opened = contextlib.ExitStack()

    def open_tab(url, *, scheme="light", width=1280, height=800, **options):
        context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": height}, **options)
        opened.callback(context.close)
        page = context.new_page()
        page.complaints = []
        page.on("console", lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (page.complaints.append("a dialog"), dialog.dismiss()))
        page.goto(url)
        return page

    yield open_tab
    opened.close()
