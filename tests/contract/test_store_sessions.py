"""The session that reads PostgreSQL: how it gets in, what ends it, and what is read without it."""

import contextlib
import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.mlmd import open_store, postgresql, silence, sql_reader
from spanwise.orchestrator.mlmd.location import parse_location
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Claim
from spanwise.scheduler.inspect import doctor
from spanwise.scheduler.project.settings import read
from tests.contract.conftest import IN_CHILD, SERVERS, fresh_url, session_of

pytestmark = pytest.mark.skipif("postgresql" not in SERVERS, reason="no SPANWISE_TEST_POSTGRESQL")

PID = "SELECT to_json(pg_backend_pid()) WHERE $1::json IS NOT NULL"
PASSWORD = "hünter 2's \\ host=nowhere"  # whatever is not quoted is taken for another option


@pytest.fixture
def url(tmp_path):
    return fresh_url("postgresql", tmp_path)


@pytest.fixture
def store(url):
    with contextlib.closing(open_store(url)) as store:
        yield store


@pytest.fixture
def administer():
    """Runs a statement as the owner of the server, and returns the first column of its rows."""
    import psycopg2

    with contextlib.closing(psycopg2.connect(SERVERS["postgresql"].rpartition("/")[0] + "/postgres")) as connection:
        connection.autocommit = True

        def administer(sql, *values):
            with connection.cursor() as cursor:
                cursor.execute(sql, values or None)
                return [row[0] for row in cursor.fetchall()] if cursor.description else []

        yield administer


@pytest.fixture
def role(administer):
    """The name of a role with a database of its own and a password that is always asked for, by SCRAM."""
    name = f"role{uuid.uuid4().hex[:12]}"
    administer("SET password_encryption = 'scram-sha-256'")
    administer(f"CREATE ROLE {name} LOGIN PASSWORD %s", PASSWORD)
    administer(f"CREATE DATABASE {name} OWNER {name}")
    (rules,) = map(Path, administer("SHOW hba_file"))
    before = rules.read_text()
    rules.write_text(f"host all {name} all scram-sha-256\n{before}")
    administer("SELECT pg_reload_conf()")
    yield name
    rules.write_text(before)
    administer("SELECT pg_reload_conf()")


def url_of(role, password):
    quoted = "".join(f"%{byte:02x}" for byte in password.encode())
    return f"postgresql://{role}:{quoted}@{urlsplit(SERVERS['postgresql']).netloc.rpartition('@')[2]}/{role}"


def test_a_server_that_asks_for_a_password_is_read_by_sql(role, reasons):
    """By SCRAM-SHA-256, whatever letters the password has."""
    with contextlib.closing(open_store(url_of(role, PASSWORD))) as store:
        store.begin_run(Run(pipeline="flights"))

        assert store.pipelines() == ["flights"]
        assert session_of(store) is not None
    assert reasons() == []


def test_a_wrong_password_is_an_error_that_says_what_to_check(role):
    """That of ml-metadata, which opens the database first; the password is not in it."""
    with pytest.raises(StoreUnavailable, match="Check that the server runs, and the user, password") as caught:
        open_store(url_of(role, "mistaken"), deadline_s=1)

    assert "mistaken" not in str(caught.value)


def test_a_password_that_was_changed_leaves_the_open_store_to_ml_metadata(role, administer, reasons):
    """The connections that it has go on, and the log says why reading is slower, without the password."""
    with contextlib.closing(open_store(url_of(role, PASSWORD))) as store:
        store.begin_run(Run(pipeline="flights"))
        store._reader.close()
        administer(f"ALTER ROLE {role} PASSWORD 'another'")

        assert store.pipelines() == ["flights"]
        assert session_of(store) is None
    (why,) = reasons()
    assert "password authentication failed" in why
    assert PASSWORD not in why


def test_a_refusal_that_passes_is_not_for_good(role, administer, reasons):
    """A full server is asked again after a minute, not at each question, and the log says it once."""
    now = 1000.0
    with contextlib.closing(open_store(url_of(role, PASSWORD))) as store:
        store._reader._clock = lambda: now
        administer(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        assert store.pipelines() == []
        now += sql_reader.RETRY_S
        assert store.pipelines() == []
        administer(f"ALTER ROLE {role} CONNECTION LIMIT -1")

        now += sql_reader.RETRY_S - 1
        store.pipelines()
        before = session_of(store)
        now += 1
        store.pipelines()

        assert before is None
        assert session_of(store) is not None
    (why,) = reasons()
    assert "too many connections for role" in why


def test_a_session_that_is_killed_is_opened_once_more(url, store, administer, reasons):
    """The question is still answered by SQL."""
    store.begin_run(Run(pipeline="flights"))
    (before,) = session_of(store).rows(PID, [])

    administer("SELECT pg_terminate_backend(%s, 10000)", before)

    assert store.pipelines() == ["flights"]
    assert session_of(store).rows(PID, []) != [before]
    assert reasons() == []


def test_the_last_of_numbered_records_is_found_in_one_question(store, monkeypatch):
    """However many there are; from one that is known to exist, up to numbers of 32 bits."""
    numbers = [*range(1, 70), 2**31 - 3, 2**31 - 2]
    store.claim(*(Claim("lease", f"flights#{number}") for number in numbers))
    store.pipelines()  # opens the session
    asked = []
    rows = postgresql.ReadSession.rows
    monkeypatch.setattr(postgresql.ReadSession, "rows", lambda *question: asked.append(question) or rows(*question))

    found = [store._reader.last_numbered("spanwise.claim", "lease:flights#", seen) for seen in (0, 40, 69, 2**31 - 3)]

    assert found == [69, 69, 69, 2**31 - 2]
    assert store._reader.last_numbered("no such type", "lease:flights#", 0) == 0
    assert len(asked) == 5


def test_an_interrupted_question_ends_the_session(url, store, monkeypatch):
    """What the server knows of its statements is unknown then."""
    store.pipelines()
    session = session_of(store)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(postgresql.json, "dumps", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.pipelines()
    store.pipelines()

    assert session_of(store) is not session


def test_a_fork_does_not_disturb_the_connections(url, store, administer):
    """A child that closes the store, or ends as Python does, ends no connection of its parent."""
    store.begin_run(Run(pipeline="flights"))
    program = f"""
import gc, json, os, sys
from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.mlmd import declarations, open_store
store = open_store({url!r})
def ask():
    assert store.pipelines() == ["flights"]
    assert [row.name for row in store._reader._otherwise.contexts_of_type(declarations.PIPELINE)] == ["flights"]
    pids = "SELECT to_json(pid) FROM pg_stat_activity WHERE datname = current_database() AND $1::json IS NOT NULL"
    return sorted(store._reader._idle[0].session.rows(pids, []))
{IN_CHILD}def refused():
    try:
        store.pipelines()
    except StoreError:
        store._reader._idle.clear()
        return
    raise AssertionError
before = ask()
in_child(store.close)
in_child(refused)
print(json.dumps([before, ask()]))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    before, after = json.loads(done.stdout)
    assert after == before


def test_without_psycopg2_all_is_read_by_ml_metadata(url, store, monkeypatch, reasons, tmp_path):
    """Nothing fails; the log and the doctor say what to install."""
    run = store.begin_run(Run(pipeline="flights"))
    settings = replace(read(root=tmp_path), metadata=url)
    there = {check.name for check in doctor.run_checks(settings)}

    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with contextlib.closing(open_store(url)) as other:
        found = other.run("flights", run.number)
        other.pipelines()
        assert session_of(other) is None
    (why,) = reasons()
    advice = {check.name: check for check in doctor.run_checks(settings)}["reading"]

    assert found.number == run.number
    assert why.endswith("pip install 'spanwise[postgresql]'")
    assert (advice.level, advice.fix) == ("warn", "pip install 'spanwise[postgresql]'")
    assert "reading" not in there


def test_encryption_is_never_weaker_than_asked_for(url, store):
    """The server has no encryption: the session that has to be encrypted is refused, as ml-metadata's is."""
    store.pipelines()
    where = parse_location(f"{url}?sslmode=require")

    with pytest.raises(postgresql.QueryRefused, match="does not support SSL"):
        postgresql.ReadSession(where)


def test_the_session_has_the_limits_for_silent_servers(url, store):
    """Those of the sockets of ml-metadata."""
    store.pipelines()

    said = session_of(store)._connection.info.dsn_parameters

    assert {name: said[name] for name in silence.LIBPQ_OPTIONS} == {
        name: str(value) for name, value in silence.LIBPQ_OPTIONS.items()
    }
