"""What PostgreSQL refuses a role, says who has to do what, and holds nobody up."""

import contextlib
import logging
import signal
import uuid
from concurrent import futures
from urllib.parse import urlsplit

import psycopg2
import pytest

from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.mlmd import open_store, sql_reader
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Claim
from tests.contract.conftest import SERVERS, fresh_url, session_of
from tests.contract.test_store_readings import ask
from tests.servers import eventually

pytestmark = pytest.mark.skipif("postgresql" not in SERVERS, reason="no SPANWISE_TEST_POSTGRESQL")

GRANTS = """GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role};"""
"""Those of docs/how-to/set-up.md."""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A database with the tables, which its owner has made."""
    url = fresh_url("postgresql", tmp_path_factory.mktemp("refusals"))
    with contextlib.closing(open_store(url)) as store:
        store.claim(Claim("tick", "warm"))
    return url


@pytest.fixture
def own(url):
    """Runs statements in the database as its owner."""
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        yield cursor.execute


@pytest.fixture
def make_role(url, own):
    """Makes a role with these statements, and returns the URL with it."""

    def make_role(statements):
        role = f"role{uuid.uuid4().hex[:12]}"
        own(f"CREATE ROLE {role} LOGIN; {statements.format(role=role)}")
        parts = urlsplit(url)
        return parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl()

    return make_role


@pytest.fixture
def lock(url):
    """Holds a table, as ALTER TABLE or VACUUM FULL does, until the test has ended or releases it."""
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:

        def lock(table):
            cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            return connection

        yield lock


@pytest.mark.parametrize(
    ("statements", "advice"),
    [
        (
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
            r"permission denied for table context\).*GRANT SELECT",
        ),
        (f"{GRANTS} ALTER ROLE {{role}} SET default_transaction_read_only = on", "can only be read: the server is a"),
        (
            f"{GRANTS} ALTER ROLE {{role}} SET search_path = nowhere",
            "schema where role.* does not look.*SET search_path",
        ),
    ],
    ids=["select only", "read only", "another schema"],
)
def test_what_a_role_may_not_do_is_an_error_that_says_what_to_type(make_role, statements, advice):
    """And it repeats nothing of what was to be written."""
    with (
        pytest.raises(StoreUnavailable, match=advice) as caught,
        contextlib.closing(open_store(make_role(statements))) as store,
    ):
        store.claim(Claim("tick", "1", {"key": "of the record"}))

    assert "of the record" not in str(caught.value)
    assert "Check that the server runs" not in str(caught.value)


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_a_write_that_takes_too_long_for_the_role_names_the_limit(make_role, lock, limit):
    """Not a lost connection, and not a server that does not run."""
    with contextlib.closing(open_store(make_role(f"{GRANTS} ALTER ROLE {{role}} SET {limit} = 200"))) as store:
        store.pipelines()
        lock("contextproperty")

        with pytest.raises(StoreUnavailable, match=f"longer than the {limit} of role"):
            store.claim(Claim("tick", limit))


def test_tables_in_another_schema_are_read_where_the_role_looks(make_role):
    """By both readers, though the schema public has tables of these names, too."""
    schema = f"s{uuid.uuid4().hex[:12]}"
    there = make_role(
        f"CREATE SCHEMA {schema} AUTHORIZATION {{role}}; ALTER ROLE {{role}} SET search_path = {schema}, public"
    )
    with contextlib.closing(open_store(there)) as store:
        store.begin_run(Run(pipeline="flights"))

        assert store.pipelines() == ["flights"]
        assert ask(store._reader) == ask(store._reader._otherwise)
        assert session_of(store) is not None


def test_a_statement_that_is_refused_is_logged_once(own, make_role, caplog):
    """ml-metadata answers instead, each time."""
    caplog.set_level(logging.INFO, logger=sql_reader.log.name)
    own("REVOKE EXECUTE ON FUNCTION json_object_agg FROM PUBLIC")
    try:
        with contextlib.closing(open_store(make_role(GRANTS))) as store:
            store.begin_run(Run(pipeline="flights"))
            assert store.pipelines() == store.pipelines() == ["flights"]
    finally:
        own("GRANT EXECUTE ON FUNCTION json_object_agg TO PUBLIC")

    assert [(record.message, record.reason) for record in caplog.records if record.name == sql_reader.log.name] == [
        ("sql-reading-refused", "permission denied for aggregate json_object_agg")
    ]


def test_a_question_about_a_locked_table_is_given_up(url, lock):
    """After the time for which a store waits for the locks of others; ml-metadata would wait without an end."""
    with contextlib.closing(open_store(url, deadline_s=0.2)) as store:
        store.pipelines()
        lock("context")

        with pytest.raises(StoreUnavailable, match="was locked by others"):
            store.pipelines()


def test_a_question_waits_for_no_question_of_another_thread(url, lock):
    """One of them waits for a table that others have locked; further questions share a second session."""
    with (
        contextlib.closing(open_store(url, deadline_s=600)) as store,
        futures.ThreadPoolExecutor(3) as threads,
        contextlib.closing(lock("event")) as holder,
    ):
        waiting = threads.submit(store._reader.events, [1])
        eventually(lambda: is_waiting(url))

        answers = [*threads.map(lambda _: store.pipelines(), range(8))]

        assert answers == [store.pipelines()] * 8
        assert not waiting.done()
        holder.rollback()
        assert waiting.result(60) == []
        assert len(store._reader._idle) == 2


def test_where_no_second_session_is_let_in_questions_take_turns(url, own, make_role, lock, caplog):
    """The first that is refused is answered by ml-metadata, and the log says so; then they wait for one another."""
    caplog.set_level(logging.INFO, logger=sql_reader.log.name)
    there = make_role(GRANTS)
    with (
        contextlib.closing(open_store(there, deadline_s=600)) as store,
        futures.ThreadPoolExecutor(2) as threads,
        contextlib.closing(lock("event")) as holder,
    ):
        first = threads.submit(store._reader.events, [1])
        eventually(lambda: is_waiting(url))
        own(f"ALTER ROLE {urlsplit(there).username} CONNECTION LIMIT 0")
        expected = store.pipelines()

        second = threads.submit(store.pipelines)
        eventually(lambda: not second.running() or len(store._reader._changed._waiters) == 1)
        assert not second.done()
        holder.rollback()

        assert first.result(60) == []
        assert second.result(60) == expected
        assert session_of(store) is not None
    assert [record.reason for record in caplog.records if "too many connections" in record.reason]


def is_waiting(url):
    """Whether a session waits for a lock."""
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return cursor.fetchone() == (1,)


def test_a_signal_is_handled_while_a_question_waits(url, lock):
    """The lock is held until the test has ended."""

    class Stopped(Exception):
        pass

    def stop(*_):
        raise Stopped

    with contextlib.closing(open_store(url, deadline_s=600)) as store:
        store.pipelines()
        lock("context")
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(Stopped):
                store.pipelines()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
