"""The store on a server whose connection breaks, or that cannot tell capitals from small letters."""

import contextlib
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from spanwise.orchestrator.errors import StoreError, StoreUnavailable
from spanwise.orchestrator.lease import TTL_S
from spanwise.orchestrator.mlmd import connection, open_store, sql_reader
from spanwise.orchestrator.mlmd.location import parse_location
from spanwise.orchestrator.mlmd.silence import SILENT_S
from spanwise.orchestrator.run import Run, State
from spanwise.orchestrator.store import AlreadyClaimed, Claim
from tests.contract.conftest import SERVERS, fresh_url
from tests.contract.records import MODELS, begin, model, publish, publish_one, told
from tests.contract.wire import Wire

pytestmark = pytest.mark.skipif(not SERVERS, reason="no SPANWISE_TEST_MYSQL or SPANWISE_TEST_POSTGRESQL")


@pytest.fixture(params=list(SERVERS))
def wire(request, tmp_path):
    wire = Wire(fresh_url(request.param, tmp_path))
    yield wire
    wire.close()


@pytest.fixture
def store(wire):
    store = open_store(wire.url, deadline_s=10)
    yield store
    store.close()


@pytest.mark.skipif("mysql" not in SERVERS, reason="no SPANWISE_TEST_MYSQL")
def test_a_role_that_may_not_make_databases_is_enough(tmp_path):
    """Once the tables are there, it reads and writes rows, and nothing else."""
    url = fresh_url("mysql", tmp_path)
    open_store(url).close()
    role = f"role_{os.getpid()}"
    where = parse_location(url)
    may = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {where.database}.* TO {role}@'%'"
    sql = f"CREATE USER {role}@'%' IDENTIFIED BY 'secret'; {may}"
    place = [f"--host={where.host}", f"--port={where.port}", f"--user={where.user}", f"--password={where.password}"]
    subprocess.run(["mariadb", "--no-defaults", *place, f"--execute={sql}"], check=True)

    store = open_store(f"mysql://{role}:secret@{where.host}:{where.port}/{where.database}")
    made = publish(store, MODELS, model())
    store.claim(Claim("tick", "1"))
    store.amend(Claim("tick", "1", {"n": 2}))

    assert told(store.execution(made.id)) == told(made)
    store.close()


@pytest.mark.skipif("postgresql" not in SERVERS, reason="no SPANWISE_TEST_POSTGRESQL")
@pytest.mark.parametrize("password", ["", ":secret"])
def test_a_connection_that_must_be_encrypted_is_never_a_plain_one(tmp_path, password):
    """The server has no encryption, so it is refused; also without a password."""
    url = fresh_url("postgresql", tmp_path)
    open_store(url).close()
    where = parse_location(url)
    place = f"{where.host}:{where.port}/{where.database}"

    with pytest.raises(StoreUnavailable, match="unavailable with sslmode=require"):
        open_store(f"postgresql://{where.user}{password}@{place}?sslmode=require", deadline_s=1)
    open_store(f"postgresql://{where.user}{password}@{place}?sslmode=prefer", deadline_s=1).close()


def break_off(wire, how):
    assert not wire.armed, "the last break did not happen"
    BREAKS[how](wire)


BREAKS = {
    "before": Wire.cut,
    "after the commit": Wire.lose_the_next_commits_answer,
    "during the commit": Wire.delay_the_next_commit,
}


def test_reading_goes_on_when_the_connection_was_cut(wire, store):
    """A question after the connection broke is answered on a new one."""
    made = publish(store, MODELS, model())

    wire.cut()

    assert told(store.execution(made.id)) == told(made)


def test_a_question_that_finds_nothing_leaves_no_transaction_open_when_the_connection_breaks(wire, monkeypatch):
    """Its answer has come, so nobody notices the break; the next question and the next write begin on a new one."""
    monkeypatch.setattr(sql_reader, "SCHEMA_VERSIONS", ())  # ml-metadata is asked everything
    with contextlib.closing(open_store(wire.url, deadline_s=10)) as store:
        store.claim(Claim("warm", "up"))
        for ask in (lambda: store.find_claim("warm", "up"), lambda: store.claim(Claim("tick", "1"))):
            wire.drop_the_next_rollback()
            assert list(store.newest(MODELS)) == []
            assert not wire.armed
            ask()
        assert store.find_claim("tick", "1") is not None


@pytest.mark.parametrize("how", BREAKS)
def test_every_write_is_made_once_when_the_connection_breaks(wire, store, how):
    """Whether a write was lost or only its answer, it is there once, and the caller is told so."""
    store.claim(Claim("warm", "up"))
    publish(store, MODELS, model())

    break_off(wire, how)
    store.claim(Claim("tick", "1", {"n": 1}))
    break_off(wire, how)
    store.amend(Claim("tick", "1", {"n": 2}))
    break_off(wire, how)
    run = store.begin_run(Run(pipeline="flights"), Claim("journal", "1"))
    break_off(wire, how)
    begun = begin(store, "Trainer", Claim("journal", "2"), run=run.number)
    break_off(wire, how)
    ended = store.publish(replace(begun, state=State.COMPLETE, outputs={"model": (model(),)}), Claim("journal", "3"))
    break_off(wire, how)
    store.update_run(replace(run, state=State.COMPLETE), Claim("journal", "4"))

    assert not wire.armed
    assert store.find_claim("tick", "1").facts["n"] == 2
    assert [store.find_claim("journal", n) is not None for n in "1234"] == [True] * 4
    assert [r.number for r in store.runs("flights")] == [2, 1]
    assert store.run("flights", 2).state is State.COMPLETE
    assert [told(e) for e in store.executions(run)] == [told(ended)]
    assert next(store.newest(MODELS)).id == ended.outputs["model"][0].id
    assert [a.name for a in store.newest(MODELS)] == [f"{MODELS}/2", f"{MODELS}/1"]


def test_a_server_that_is_restarted_is_waited_for(wire, store, monkeypatch):
    """A question and a write that come meanwhile are answered when it is back; the first connection is not waited for."""
    made = publish(store, MODELS, model())
    pauses = []

    def pause(most_s):
        pauses.append(most_s)
        if len(pauses) == 3:
            wire.come_back()

    monkeypatch.setattr(connection, "_pause", pause)

    wire.go_away()
    asked = told(store.execution(made.id))
    pauses.clear()
    wire.go_away()
    store.claim(Claim("tick", "1", {"n": 1}))
    pauses.clear()
    wire.go_away()
    with pytest.raises(StoreUnavailable, match="is unavailable"):
        open_store(wire.url)

    assert asked == told(made)
    assert pauses == []
    wire.come_back()
    assert store.find_claim("tick", "1").facts["n"] == 1


def test_a_taken_claim_is_refused_when_the_connection_breaks(wire, store):
    """What another has claimed is not taken for one's own write that landed."""
    store.claim(Claim("tick", "1", {"by": "another"}))

    wire.cut()
    with pytest.raises(AlreadyClaimed):
        store.claim(Claim("tick", "2"), Claim("tick", "1", {"by": "me"}))

    assert store.find_claim("tick", "1").facts["by"] == "another"
    assert store.find_claim("tick", "2") is None


@pytest.mark.skipif("SPANWISE_TEST_MYSQL_CAPITALS" not in os.environ, reason="no SPANWISE_TEST_MYSQL_CAPITALS")
def test_a_server_that_ignores_capitals_does_not_mix_names_up():
    """Where `Flights` and `flights` are one name to the server, the second is refused with the way out."""
    store = open_store(os.environ["SPANWISE_TEST_MYSQL_CAPITALS"])
    store.begin_run(Run(pipeline="flights"))
    publish_one(store, MODELS, model())

    for verb in (
        lambda: publish_one(store, replace(MODELS, key="Model"), model()),
        lambda: publish(store, MODELS, outputs={"report": (model(),), "Report": (model(),)}),
        lambda: store.begin_run(Run(pipeline="Flights")),
        lambda: store.run("Flights", 1),
        lambda: list(store.runs("Flights")),
    ):
        with pytest.raises(StoreError, match="utf8mb4_bin"):
            verb()

    store.close()


def test_a_server_that_falls_silent_is_given_up_before_a_lease_ends(wire):
    """The sockets of a store have the limits, also after a reconnect; those of others are left as they are."""
    port = urlsplit(wire.url).port
    other = socket.create_connection(("127.0.0.1", port))
    with contextlib.closing(open_store(wire.url, deadline_s=10)) as store:
        first = [silent_s(one) for one in sockets_to(port) if one != other.fileno()]
        wire.cut()
        list(store.pipelines())
        again = [silent_s(one) for one in sockets_to(port) if one != other.fileno()]

    assert set(first) == set(again) == {SILENT_S}
    assert silent_s(other.fileno()) != SILENT_S
    assert TTL_S > SILENT_S
    other.close()


def sockets_to(port):
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as one:
            if one.family == socket.AF_INET and one.getpeername()[1] == port:
                found.append(int(entry.name))
    return found


def silent_s(descriptor):
    with socket.socket(fileno=os.dup(descriptor)) as one:
        return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
