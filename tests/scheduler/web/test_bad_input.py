"""Bad input: metadata that are locked, gone, replaced or newer, files that are gone, too many or too large of anything."""

import contextlib
import fcntl
import shutil
import sqlite3
from dataclasses import replace

import pytest

from spanwise.orchestrator import Execution, Run, State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Claim
from spanwise.scheduler.client import Client
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.project.settings import read
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.timetable import Timetable
from spanwise.scheduler.web.access import make_policy
from spanwise.scheduler.web.site import WebSite
from tests.scheduler.client.conftest import FIRST
from tests.scheduler.client.test_client import a_week
from tests.scheduler.web.conftest import ask
from tests.scheduler.web.test_actions import send
from tests.scheduler.web.test_pages import text_of

PAGES = ("/", "/p/flights/runs", "/p/flights/spans", "/p/flights/models", "/p/flights/schedule", "/runs/flights/3",
         "/a/1", "/search?q=flights", "/activity")  # fmt: skip


@pytest.fixture
def impatient(folder):
    """A site that soon says that the metadata is locked."""
    with Client(read(), deadline_s=0.1) as client:
        yield WebSite(client, make_policy("127.0.0.1", tokens={}))


@contextlib.contextmanager
def locked(folder):
    """Another process that writes and does not end."""
    with (folder / ".spanwise" / "metadata.db.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_metadata_that_are_locked_are_named_and_read_when_they_are_free(folder, past, impatient):
    """Also for what is to be recorded; who only reads an open database is not held up."""
    a_week(past)
    with ask(impatient) as browser:
        with locked(folder):
            held = browser.get("/")
            document = browser.get("/api/pipelines")
        free = browser.get("/")
        with locked(folder):
            read_on = browser.get("/p/flights/runs")
            refused = send(browser, "/do/pause", pipeline="flights", because="disks")

    assert held.status_code == document.status_code == 503
    assert refused.status_code == 400
    assert "was locked by another process" in text_of(held)
    assert document.json()["kind"] == "StoreUnavailable"
    assert free.status_code == read_on.status_code == 200
    assert "was locked by another process" in text_of(refused)


def test_metadata_that_are_gone_are_said_to_be_gone(folder, past, site):
    """Instead of showing what the removed file held, or an empty root; a restored file is read at once."""
    a_week(past)
    database = folder / ".spanwise" / "metadata.db"
    with ask(site) as browser:
        before = browser.get("/p/flights/runs")
        past.store.close()
        (folder / "backup").mkdir()
        for file in database.parent.glob("metadata.db*"):
            shutil.copy(file, folder / "backup")
            file.unlink()
        gone = [browser.get(path) for path in PAGES]
        again = browser.get("/")
        shutil.copytree(folder / "backup", database.parent, dirs_exist_ok=True)
        restored = browser.get("/p/flights/runs")

    assert {found.status_code for found in (*gone, again)} == {503}
    assert all("metadata.db is gone" in text_of(found) and "spanwise restore" in found.text for found in gone)
    assert restored.status_code == before.status_code == 200
    assert "2013-01-03" in text_of(restored)


@pytest.mark.parametrize("again", [1, 2, 3])
@pytest.mark.parametrize("server", [False, True])
def test_nothing_is_shown_of_what_a_restore_has_undone(folder, past, site, monkeypatch, server, again):
    """Its numbers are taken again: the page showed the model of the undone run beside the new one, and its span.

    A server is restored behind its address, where no file says that it is another database.
    """
    if server:
        monkeypatch.setattr(site.client.session, "_file", None)

    def train(span, auc):
        past.begin(span)
        model = past.train([past.ingest(span)])
        past.evaluate(model, [], auc=auc)

    database = folder / ".spanwise" / "metadata.db"
    train(FIRST, 0.5)
    with ask(site) as browser:
        past.store.close()
        shutil.copy(database, folder / "backup.db")
        past.store = open_store(str(database), root=database.parent)
        train(FIRST + 1, 0.6)
        train(FIRST + 1, 0.6)
        browser.get("/api/pipelines/flights/models")
        browser.get("/api/pipelines/flights/spans")
        past.store.close()
        for file in database.parent.glob("metadata.db*"):
            file.unlink()
        shutil.copy(folder / "backup.db", database)
        past.store = open_store(str(database), root=database.parent)
        if server:
            site.client.session.reset()  # its restore has closed all connections
        for _ in range(again):
            train(FIRST, 0.7)
        models = browser.get("/api/pipelines/flights/models").json()
        spans = browser.get("/api/pipelines/flights/spans").json()

    assert [(model["run"], model["metrics"]) for model in models] == [
        *((f"flights/{number}", {"auc": 0.7}) for number in range(1 + again, 1, -1)),
        ("flights/1", {"auc": 0.5}),
    ]
    assert [(span["span_label"], span["publications"]) for span in spans] == [("2013-01-01", 1 + again)]


def test_a_restore_of_a_server_is_noticed_by_what_a_run_had_recorded_since(folder, past, site, monkeypatch):
    """No run has begun since the backup; what is recorded again has the same name, and perhaps the same number."""
    session, forgotten = site.client.session, []
    monkeypatch.setattr(session, "_file", None)
    session.when_replaced.append(lambda: forgotten.append(len(forgotten)))
    database = folder / ".spanwise" / "metadata.db"
    past.begin(FIRST)
    past.store.close()
    shutil.copy(database, folder / "backup.db")

    def record():
        with contextlib.closing(open_store(str(database), root=database.parent)) as store:
            store.claim(Claim("journal", "flights/1/1"))

    record()
    session.look_back()
    session.look_back()
    before = len(forgotten)
    for file in database.parent.glob("metadata.db*"):
        file.unlink()
    shutil.copy(folder / "backup.db", database)
    session.reset()  # its restore has closed all connections
    record()
    session.look_back()

    assert (before, len(forgotten)) == (0, 1)


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_a_database_server_that_does_not_answer_is_named_without_its_password(folder, kind):
    """On pages and in documents."""
    settings = replace(read(), metadata=f"{kind}://trainer:hunter2-is-secret@127.0.0.1:1/metadata")
    policy = make_policy("127.0.0.1", tokens={})
    with Client(settings, deadline_s=0.1) as client, ask(WebSite(client, policy)) as browser:
        found = [browser.get(path) for path in ("/", "/p/flights/runs", "/api/pipelines")]

    assert {each.status_code for each in found} == {503}
    assert all("127.0.0.1:1" in each.text and "hunter2" not in each.text for each in found)


def test_metadata_that_are_newer_say_what_to_install(folder, site):
    """On every page."""
    root = folder / ".spanwise"
    root.mkdir()
    with contextlib.closing(open_store(str(root / "metadata.db"), root=root)) as store:
        store.begin_run(Run(pipeline="flights", state=State.COMPLETE, nodes=("A",)))
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as database, database:
        database.execute("UPDATE MLMDEnv SET schema_version = 99")
    with ask(site) as browser:
        found = [browser.get(path) for path in PAGES]

    assert {each.status_code for each in found} == {500}
    assert all("was written by a newer ml-metadata" in text_of(each) for each in found)
    assert all("pip install --upgrade ml-metadata" in each.text and "Traceback" not in each.text for each in found)


def test_a_root_whose_files_are_gone_still_shows_its_records(past, page):
    """What was collected is said to be gone, on the page of each artifact."""
    a_week(past)
    shutil.rmtree(past.folder / "root")
    found = {path: page(path) for path in PAGES}

    assert {each.status_code for each in found.values()} == {200}
    assert "garbage collection may have removed it" in text_of(found["/a/1"])
    assert page("/download/1/data.parquet").status_code == 404


def test_a_thousand_pipelines_are_listed_and_found(folder, site):
    """One is found by its name."""
    root = folder / ".spanwise"
    root.mkdir()
    with contextlib.closing(open_store(str(root / "metadata.db"), root=root)) as store:
        store.begin_run(Run(pipeline="p0000", state=State.COMPLETE, nodes=("A",)))
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as database, database:
        copy_pipeline(database, "p0000", [f"p{number:04}" for number in range(1, 1000)])
    with ask(site) as browser:
        overview = browser.get("/")
        one = browser.get("/search?q=p0777")

    assert len(site.client.pipelines()) == 1000
    assert overview.status_code == one.status_code == 200
    assert "1,000 pipelines" in text_of(overview)
    assert "/p/p0777/" in one.text


def copy_pipeline(database, name, others):
    """Copies what is recorded of a pipeline under other names: to record each would take seconds."""
    contexts = database.execute("SELECT * FROM Context WHERE name LIKE ?", (f"{name}%",)).fetchall()
    columns = [row[1] for row in database.execute("PRAGMA table_info(Context)")]
    for number, other in enumerate(others, start=1):
        for row in contexts:
            values = dict(zip(columns, row, strict=True))
            old, values["id"] = values["id"], values["id"] + number * 1000
            values = {key: v.replace(name, other) if isinstance(v, str) else v for key, v in values.items()}
            database.execute(f"INSERT INTO Context VALUES ({','.join('?' * len(row))})", list(values.values()))
            facts = database.execute("SELECT * FROM ContextProperty WHERE context_id = ?", (old,)).fetchall()
            for fact in facts:
                copied = [values["id"], *(v.replace(name, other) if isinstance(v, str) else v for v in fact[1:])]
                database.execute(f"INSERT INTO ContextProperty VALUES ({','.join('?' * len(fact))})", copied)


def test_a_log_of_two_gigabytes_is_shown_by_its_end(past, page):
    """And searched as far as its bound."""
    past.begin(FIRST, nodes=("Trainer",))
    log = past.folder / "log"
    with log.open("wb") as opened:
        opened.truncate(2 << 30)
        opened.seek(0, 2)
        opened.write(b"\nthe last line\n")
    begun = past.store.begin(Execution(pipeline="flights", run=1, node="Trainer", component="Trainer", log=str(log)))
    past.store.publish(replace(begun, state=State.FAILED, error="no memory"))
    found = page("/runs/flights/1/log/Trainer")

    assert found.status_code == 200
    assert "the last line" in text_of(found)
    assert len(found.content) < 1 << 20
    assert page("/runs/flights/1/log/Trainer?q=last").status_code == 200
    log.write_text("all of it\n")
    whole = page("/runs/flights/1/log/Trainer/download")
    assert whole.text == "all of it\n"
    assert "flights-1-Trainer.log" in whole.headers["content-disposition"]


@pytest.mark.parametrize("text", ["import nothing_like_it\n", None])
def test_the_past_of_a_file_that_no_longer_loads_is_shown(folder, past, page, text):
    """Or of one that is gone; only what has to load it says so."""
    a_week(past)
    file = folder / "flights.py"
    file.unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)
    table = Timetable("flights", cron="0 3 * * *", zone="America/New_York", span=days_before(1))
    put_schedule(
        past.store, ScheduleRecord(timetable=table, since=past.run.started, source=f"{file}:daily", calendar="day")
    )
    found = {path: page(path) for path in PAGES}
    simulated = page("/p/flights/schedule?from=2026-03-01&to=2026-03-15&duration=2h")

    assert {each.status_code for each in found.values()} == {200}
    assert simulated.status_code in (200, 400)
    assert "This is a bug" not in simulated.text
