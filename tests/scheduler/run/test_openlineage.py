"""OpenLineage: what is sent of a run, to a file and to a server, and that a run never fails by it."""

import http.server
import json
import logging
import socket
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise import __version__, connect
from spanwise.orchestrator import Examples, Execution, Run, SettingsError, State, lease, process
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.publisher import ABANDONED
from spanwise.orchestrator.run_request import Event
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run import openlineage, openlineage_delivery
from tests.scheduler.past import Past
from tests.scheduler.records import DAY, NOON


@pytest.fixture(autouse=True)
def _own_variables(monkeypatch):
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE_DISABLED", "OPENLINEAGE_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def scribe():
    return openlineage.EventConverter(namespace="flights-team", home="1")


@pytest.fixture
def server():
    """A receiver on this machine; its `events` are what came, and `answer` is what it says."""

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.server.answer < 400:
                self.server.events.append(json.loads(body))
                self.server.paths.append(self.path)
            self.send_response(self.server.answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        receiver.events, receiver.paths, receiver.answer = [], [], 201
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join()


def settings(folder, **events):
    return Settings(root=folder, metadata="", openlineage=events)


def to_http(server):
    host, port = server.server_address
    return {"type": "http", "url": f"http://{host}:{port}", "retry": {"total": 0}, "compression": None}


def told(message):
    from openlineage.client.serde import Serde

    return json.loads(Serde.to_json(message))


def started(past):
    return Event(what="run-started", run=past.run)


# --- what is said


def test_a_run_of_a_day_says_when_it_began_and_which_day_it_is_about(scribe, tmp_path):
    """The pipeline is the job; the day is the nominal time."""
    past = Past(tmp_path)
    past.begin(DAY, started=NOON, parameters={"window": 7})

    event = told(scribe.message(started(past)))

    assert (event["eventType"], event["eventTime"]) == ("START", NOON.isoformat())
    assert (event["job"]["namespace"], event["job"]["name"]) == ("flights-team", "flights")
    assert event["run"]["facets"]["nominalTime"]["nominalStartTime"] == "2013-01-05T00:00:00+00:00"
    assert event["run"]["facets"]["nominalTime"]["nominalEndTime"] == "2013-01-06T00:00:00+00:00"
    assert event["run"]["facets"]["executionParameters"]["parameters"][0]["value"] == "7"


def test_a_node_says_what_it_read_and_made(scribe, tmp_path):
    """A channel is a dataset; each span of a window is a partition of it, and rows and bytes are counted."""
    past = Past(tmp_path)
    past.begin(DAY)
    window = [past.ingest(DAY), past.ingest(DAY + 1, version=2)]
    model = past.train(window)
    execution = past.store.producer(model)

    event = told(scribe.message(Event(what="node-completed", run=past.run, node="Trainer", execution=execution)))

    assert event["eventType"] == "COMPLETE"
    assert event["job"]["name"] == "flights.Trainer"
    (read,), (made,) = event["inputs"], event["outputs"]
    assert (read["name"], made["name"]) == ("flights/ExampleGen/examples", "flights/Trainer/model")
    partitions = read["inputFacets"]["subset"]["inputCondition"]["partitions"]
    assert [p["dimensions"] for p in partitions] == [
        {"span": "2013-01-05", "version": 1}, {"span": "2013-01-06", "version": 2}
    ]  # fmt: skip
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 18
    assert made["outputFacets"]["outputStatistics"]["size"] == 7
    assert made["facets"]["version"]["datasetVersion"] == model.name
    assert made["facets"]["dataSource"]["uri"].startswith("file:///")


def test_a_partition_is_written_in_the_calendar_of_its_span(scribe, tmp_path):
    """Not in that of the run, which is of the first node that ingests: prices may come by the month."""
    past = Past(tmp_path)
    past.begin(DAY, spans={"ExampleGen": "2013-01-05", "Prices": "2013-01"})
    month = past.draft(Examples, span=516, calendar="month", split_names=["train"])
    past.do("Prices", examples=[month])
    (execution,) = past.store.executions(past.run)

    event = told(scribe.message(Event(what="node-completed", run=past.run, node="Prices", execution=execution)))

    partitions = event["outputs"][0]["outputFacets"]["subset"]["outputCondition"]["partitions"]
    assert [partition["dimensions"] for partition in partitions] == [{"span": "2013-01"}]


def test_a_node_names_the_run_that_it_is_part_of(scribe, tmp_path):
    """As its parent, by the id under which the run itself was told."""
    past = Past(tmp_path)
    past.begin(DAY)
    execution = past.store.producer(past.ingest(DAY))

    run = told(scribe.message(started(past)))["run"]["runId"]
    node = told(scribe.message(Event(what="node-started", run=past.run, node="ExampleGen", execution=execution)))

    assert node["run"]["facets"]["parent"]["run"]["runId"] == run
    assert node["run"]["runId"] != run


def test_a_failed_attempt_says_why(scribe):
    """The first line is the message, the rest the trace."""
    run = Run(pipeline="flights", number=3)
    failed = Execution(pipeline="flights", run=3, node="Trainer", state=State.FAILED, error="ValueError: no\n  line 3")

    event = told(scribe.message(Event(what="retry-scheduled", run=run, node="Trainer", execution=failed)))

    assert event["eventType"] == "FAIL"
    assert event["run"]["facets"]["errorMessage"]["message"] == "ValueError: no"
    assert event["run"]["facets"]["errorMessage"]["stackTrace"] == "  line 3"


@pytest.mark.parametrize(
    ("state", "word"), [(State.COMPLETE, "COMPLETE"), (State.FAILED, "FAIL"), (State.CANCELED, "ABORT")]
)
def test_the_end_of_a_run_is_told_in_the_words_of_the_specification(scribe, state, word):
    """A stopped run is aborted."""
    event = scribe.message(Event(what="run-ended", run=Run(pipeline="flights", number=3, state=state, ended=NOON)))

    assert told(event)["eventType"] == word


@pytest.mark.parametrize(("state", "word"), [(State.FAILED, "FAIL"), (State.CANCELED, "ABORT")])
def test_an_abandoned_run_is_ended_under_its_own_id_with_its_nodes(tmp_path, state, word):
    """Its server has seen both start; the run that closes it says how it ended: one that was stopped is aborted."""
    past, file = Past(tmp_path), tmp_path / "events"
    dead = past.begin(DAY)
    dying = past.store.begin(Execution(pipeline="flights", run=dead.number, node="Trainer"))
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    with openlineage.emitting(settings(tmp_path, transport=transport), past.store, lambda _: None) as observe:
        observe(Event(what="run-started", run=dead))
        observe(Event(what="node-started", run=dead, node="Trainer", execution=dying))
        past.store.publish(replace(dying, state=State.FAILED, error=ABANDONED))
        past.store.update_run(replace(dead, state=state, ended=NOON, error="it died"))
        observe(Event(what="abandoned-run-closed", run=past.begin(DAY + 1), message=dead.name))

    events = [json.loads(line) for line in file.read_text().splitlines()]

    assert [(event["job"]["name"], event["eventType"]) for event in events] == [
        ("flights", "START"),
        ("flights.Trainer", "START"),
        ("flights.Trainer", "FAIL"),
        ("flights", word),
    ]
    assert [event["run"]["runId"] for event in events[:2]] == [event["run"]["runId"] for event in events[:1:-1]]
    assert events[-1]["run"]["facets"]["errorMessage"]["message"] == "it died"


def test_a_node_that_had_ended_when_its_run_died_is_ended(tmp_path):
    """It was recorded, and the process died before its event was sent: its server showed it as running for ever."""
    past, file = Past(tmp_path), tmp_path / "events"
    dead = past.begin(DAY)
    past.ingest(DAY)
    past.do("Trainer", state=State.FAILED, error=ABANDONED)
    past.store.update_run(replace(past.run, state=State.FAILED, ended=NOON))
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    with openlineage.emitting(settings(tmp_path, transport=transport), past.store, lambda _: None) as observe:
        observe(Event(what="abandoned-run-closed", run=past.begin(DAY + 1), message=dead.name))

    events = [json.loads(line) for line in file.read_text().splitlines()]

    assert [(event["job"]["name"], event["eventType"]) for event in events] == [
        ("flights.ExampleGen", "COMPLETE"),
        ("flights.Trainer", "FAIL"),
        ("flights", "FAIL"),
    ]


def test_a_choice_makes_nothing(scribe, tmp_path):
    """A resolver reads what it chose; the datasets are others' output."""
    past = Past(tmp_path)
    past.begin(DAY)
    chosen = [past.ingest(DAY)]
    past.do("Window", {"examples": chosen}, State.CACHED, examples=chosen)
    execution = past.store.executions(past.run)[-1]

    event = told(scribe.message(Event(what="node-reused", run=past.run, node="Window", execution=execution)))

    assert len(event["inputs"]) == 1
    assert event["outputs"] == []


def test_two_installations_do_not_share_the_ids_of_their_runs(tmp_path):
    """Both have a run 1 of flights."""
    past = Past(tmp_path)
    past.begin(DAY)

    ids = {
        told(openlineage.EventConverter(namespace="n", home=home).message(started(past)))["run"]["runId"]
        for home in ("a", "b")
    }

    assert len(ids) == 2


def test_what_the_specification_has_no_word_for_is_not_sent(scribe):
    """A node that was skipped never began."""
    assert scribe.message(Event(what="node-skipped", run=Run(pipeline="f", number=1), node="N")) is None


# --- sending it


def test_nothing_is_sent_and_nothing_imported_when_nobody_asks(tmp_path):
    """The observer is the one that was given."""
    seen = []

    with openlineage.emitting(settings(tmp_path), MemoryStore(), seen.append) as observe:
        assert observe == seen.append


def test_the_standards_variables_ask_for_it_and_can_forbid_it(tmp_path, monkeypatch):
    """OPENLINEAGE_URL is enough; OPENLINEAGE_DISABLED has the last word."""
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    asked = openlineage.is_enabled(settings(tmp_path))
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "True")

    assert asked
    assert not openlineage.is_enabled(settings(tmp_path))


def test_a_server_gets_every_event_in_order(tmp_path, server):
    """As POSTs to the path of the specification."""
    past, seen = Past(tmp_path), []
    past.begin(DAY)
    events = [started(past), Event(what="run-ended", run=Run(pipeline="flights", number=1, state=State.COMPLETE))]

    with openlineage.emitting(settings(tmp_path, transport=to_http(server)), past.store, seen.append) as observe:
        for event in events:
            observe(event)

    assert seen == events
    assert [e["eventType"] for e in server.events] == ["START", "COMPLETE"]
    assert set(server.paths) == {"/api/v1/lineage"}
    assert server.events[0]["run"]["runId"] == server.events[1]["run"]["runId"]


def test_a_server_that_refuses_is_told_of_once_and_harms_nothing(tmp_path, server, caplog):
    """The first reason, and in the end how many events it has cost."""
    server.answer = 500
    past, seen = Past(tmp_path), []
    past.begin(DAY)

    with (
        caplog.at_level(logging.WARNING, "spanwise.openlineage"),
        openlineage.emitting(settings(tmp_path, transport=to_http(server)), past.store, seen.append) as observe,
    ):
        for _ in range(3):
            observe(started(past))

    mine = [r for r in caplog.records if r.name == "spanwise.openlineage"]
    assert len(seen) == 3
    assert [r.getMessage() for r in mine] == ["openlineage-send-failed", "openlineage-events-unsent"]
    assert mine[1].reason == "3 events not sent"


class SlowClient:
    """A client whose server answers when the test says so."""

    def __init__(self):
        self.asked, self.answered = threading.Event(), threading.Event()

    def emit(self, _message):
        self.asked.set()
        self.answered.wait(30)

    def close(self, _timeout):
        pass


def test_a_server_that_does_not_answer_holds_nobody_up(tmp_path, caplog, monkeypatch):
    """The end of the run waits no longer for the answer to one event, whatever it would wait for all."""
    monkeypatch.setattr(openlineage, "ANSWER_S", 0.05)
    monkeypatch.setattr(openlineage, "LINGER_S", 1e6)
    past, client = Past(tmp_path), SlowClient()
    past.begin(DAY)

    monkeypatch.setattr(openlineage, "_client", lambda _settings: client)
    with caplog.at_level(logging.WARNING, "spanwise.openlineage"):
        with openlineage.emitting(settings(tmp_path, transport={"type": "x"}), past.store, print) as observe:
            observe(started(past))
            observe(started(past))
            client.asked.wait(30)
        client.answered.set()

    assert "openlineage-events-unsent" in caplog.text


def test_a_server_that_answers_is_waited_for(tmp_path, caplog, monkeypatch):
    """Unsent events of a run that has ended are sent, as long as each is answered."""
    past, client = Past(tmp_path), SlowClient()
    past.begin(DAY)

    monkeypatch.setattr(openlineage, "_client", lambda _settings: client)
    with (
        caplog.at_level(logging.WARNING, "spanwise.openlineage"),
        openlineage.emitting(settings(tmp_path, transport={"type": "x"}), past.store, print) as observe,
    ):
        for _ in range(50):
            observe(started(past))
        client.asked.wait(30)
        client.answered.set()

    assert caplog.text == ""


def test_a_transport_that_cannot_be_made_is_a_mistake_in_the_settings(tmp_path):
    """It is said before anything runs."""
    wanted = settings(tmp_path, transport={"type": "file"})

    with (
        pytest.raises(SettingsError, match=r"openlineage\.transport: could not create the transport: .*log_file_path"),
        openlineage.emitting(wanted, MemoryStore(), print),
    ):
        pass


def test_variables_that_cannot_be_used_are_only_told(tmp_path, monkeypatch, caplog):
    """They may be meant for another program."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "carrier-pigeon")

    with (
        caplog.at_level(logging.WARNING, "spanwise.openlineage"),
        openlineage.emitting(settings(tmp_path), MemoryStore(), print) as observe,
    ):
        assert observe is print

    assert "openlineage-send-failed" in caplog.text


def test_a_real_run_is_written_to_a_file(project, spanwise):
    """START and an end for the run and for each of its nodes; paths in the settings count from their file."""
    (project / "spanwise.toml").write_text(
        '[openlineage]\nnamespace = "mine"\n'
        '[openlineage.transport]\ntype = "file"\nlog_file_path = "events.jsonl"\nappend = true\n'
    )

    code, _, err = spanwise("run", "flow.py")

    events = [json.loads(line) for line in Path("events.jsonl").read_text().splitlines()]
    assert code == 0, err
    kinds = Counter((e["job"]["name"], e["eventType"]) for e in events)
    jobs = ("flow", "flow.First", "flow.Second", "flow.Third")
    assert kinds == Counter((job, kind) for job in jobs for kind in ("START", "COMPLETE"))
    assert {e["job"]["namespace"] for e in events} == {"mine"}
    assert {e["producer"] for e in events} == {f"urn:spanwise:{__version__}"}
    assert events[0]["job"]["name"] == events[-1]["job"]["name"] == "flow"
    second = next(e for e in events if e["job"]["name"] == "flow.Second" and e["eventType"] == "COMPLETE")
    assert [d["name"] for d in second["inputs"]] == ["flow/First/report"]


def test_a_run_goes_well_though_nobody_listens(project, spanwise, monkeypatch):
    """And says that its events were not sent."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (project / "spanwise.toml").write_text(
        f'[openlineage.transport]\ntype = "http"\nurl = "http://127.0.0.1:{port}"\nretry = {{ total = 0 }}\n'
    )

    code, out, err = spanwise("run", "flow.py", "--only", "First")

    assert code == 0
    assert "warning: openlineage-send-failed" in out + err
    assert "4 events not sent" in out + err


def test_a_transport_without_a_type_is_refused(folder, spanwise):
    """By the settings, with the place."""
    Path("spanwise.toml").write_text('[openlineage.transport]\nurl = "http://localhost"\n')

    code, _, err = spanwise("runs")

    assert code == 2
    assert "openlineage.transport.type: field required" in err


def ended(past, **changes):
    past.store.update_run(replace(past.run, **changes))
    return Event(what="run-ended", run=past.store.run("flights", past.run.number))


def finish(past, server, *, span=DAY, events=None):
    """A run of one node begins and ends, and its events are sent; `events` are those that its process lives to see."""
    past.begin(span)
    begun = started(past)
    past.ingest(span)
    (node,) = past.store.executions(past.run)
    told_of = [begun, Event(what="node-completed", run=past.run, node=node.node, execution=node), ended(past)]
    known = settings(past.folder, transport=to_http(server))
    with openlineage.emitting(known, past.store, lambda _event: None) as observe:
        for event in told_of[:events]:
            observe(event)


def ends(server):
    """The job of each end that came, and whether it is of the first run, in order."""
    first = server.events[0]["run"]["runId"] if server.events else ""
    nodes = openlineage.EventConverter(namespace="spanwise", home="")._id("flights/1/ExampleGen/1")
    return [
        (e["job"]["name"], e["run"]["runId"] in (first, nodes)) for e in server.events if e["eventType"] == "COMPLETE"
    ]


@pytest.mark.parametrize("events", [1, 2])
def test_a_run_that_died_before_it_had_sent_its_end_is_ended_by_the_next(tmp_path, server, events):
    """It had recorded it. A server would show it as running for ever."""
    past = Past(tmp_path)
    finish(past, server, events=events)
    finish(past, server, span=DAY + 1)

    found = ends(server)
    assert found[-4:] == [
        ("flights.ExampleGen", True),
        ("flights", True),
        ("flights.ExampleGen", False),
        ("flights", False),
    ]
    assert len(found) == events + 3

    finish(past, server, span=DAY + 2)
    assert len(ends(server)) == events + 5, "what has arrived is not sent again"


def test_a_server_that_was_away_gets_the_ends_of_the_runs_that_it_missed(tmp_path, server):
    """When the next run of the pipeline begins, in the order of the runs."""
    past = Past(tmp_path)
    finish(past, server)
    server.answer = 503
    finish(past, server, span=DAY + 1)
    finish(past, server, span=DAY + 2)
    server.answer = 201
    finish(past, server, span=DAY + 3)

    came = [(e["eventType"], e["run"]["facets"]["nominalTime"]["nominalStartTime"][8:10]) for e in server.events]
    assert came == [
        ("START", "05"), ("COMPLETE", "05"), ("COMPLETE", "05"),
        ("START", "08"), ("COMPLETE", "06"), ("COMPLETE", "06"), ("COMPLETE", "07"), ("COMPLETE", "07"),
        ("COMPLETE", "08"), ("COMPLETE", "08"),
    ]  # fmt: skip


def test_what_a_server_refuses_is_not_sent_again(tmp_path, server):
    """It would refuse it for ever."""
    past = Past(tmp_path)
    server.answer = 422
    finish(past, server)
    server.answer = 201
    finish(past, server, span=DAY + 1)

    assert len(server.events) == 3


def test_runs_from_before_openlineage_are_not_sent(tmp_path, server):
    """Nobody has asked for them."""
    past = Past(tmp_path)
    past.begin(DAY)
    past.ingest(DAY)
    finish(past, server, span=DAY + 1)

    assert len(server.events) == 3


def test_of_many_missed_runs_the_last_are_sent(tmp_path, server, monkeypatch, caplog):
    """A run does not send the history of years, and says which it has given up."""
    monkeypatch.setattr(openlineage_delivery, "RESENT_RUNS", 2)
    past = Past(tmp_path)
    finish(past, server)
    server.answer = 503
    for day in range(1, 5):
        finish(past, server, span=DAY + day)
    server.answer = 201
    finish(past, server, span=DAY + 5)

    days = [e["run"]["facets"]["nominalTime"]["nominalStartTime"][8:10] for e in server.events[3:]]
    assert [*dict.fromkeys(days)] == ["10", "08", "09"]
    given_up = [r.reason for r in caplog.records if r.getMessage() == "openlineage-runs-given-up"]
    assert given_up == [f"1 run, the last of them flights/{number}, whose ends have not arrived" for number in (2, 3)]


@pytest.mark.parametrize("words", [("stop", "flights/1"), ("gc", "flights"), None])
def test_a_run_that_is_closed_by_who_comes_next_is_ended(folder, spanwise, monkeypatch, words):
    """Its controller has died, and no later run closes it any more; None: by a client."""
    (folder / "spanwise.toml").write_text(
        '[openlineage.transport]\ntype = "file"\nlog_file_path = "events.jsonl"\nappend = true\n'
    )
    root = folder / ".spanwise"
    root.mkdir()
    store = open_store(str(root / "metadata.db"), root=root)
    with monkeypatch.context() as patched:
        patched.setattr(process, "identity", lambda: Identity(process.machine(), 1 << 22, 1))
        lease.acquire(store, "flights", "run 1")
    store.begin_run(Run(pipeline="flights", token=1))
    store.close()

    if words is None:
        with connect() as client:
            client.stop("flights/1")
    else:
        assert spanwise(*words)[0] == 0

    (event,) = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert (event["job"]["name"], event["eventType"]) == ("flights", "FAIL")
