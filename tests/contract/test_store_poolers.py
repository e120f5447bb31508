"""The store behind PgBouncer, which hands the sessions of the server from one client to another."""

import contextlib

import psycopg2
import pytest

from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Claim
from tests.contract.conftest import SERVERS, fresh_url, session_of
from tests.contract.poolers import PGBOUNCER, pooled
from tests.contract.records import MODELS, model, publish, told
from tests.contract.test_store_readings import ask

pytestmark = [
    pytest.mark.skipif("postgresql" not in SERVERS, reason="no SPANWISE_TEST_POSTGRESQL"),
    pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed: apt-get install pgbouncer"),
]


@pytest.fixture
def url(tmp_path):
    """A database with the tables: PgBouncer does not make one."""
    url = fresh_url("postgresql", tmp_path)
    open_store(url).close()
    return url


def end_sessions(url):
    """Ends all sessions of the server, of which the pooler's clients are not told."""
    others = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s AND usename IS NOT NULL"
    parts = url.rpartition("/")
    with contextlib.closing(psycopg2.connect(f"{parts[0]}/postgres")) as connection, connection.cursor() as cursor:
        cursor.execute(others, [parts[2]])


@pytest.mark.parametrize(
    "settings",
    [
        {"pool_mode": "session"},
        {"pool_mode": "transaction", "default_pool_size": 1},
        {"pool_mode": "transaction", "server_reset_query_always": 1, "ignore_startup_parameters": "options"},
    ],
    ids=["session", "transaction", "transaction, reset"],
)
def test_a_pooler_changes_no_answer(url, tmp_path, reasons, settings):
    """Two stores that share the sessions of the server, which end meanwhile, read by SQL what ml-metadata reads."""
    with (
        pooled(url, tmp_path, **settings) as through,
        contextlib.closing(open_store(through)) as one,
        contextlib.closing(open_store(through)) as other,
    ):
        made = publish(one, MODELS, model())
        again = publish(other, MODELS, model())
        end_sessions(url)
        one.claim(Claim("tick", "1", {"n": 1}))
        other.amend(Claim("tick", "1", {"n": 2}))

        assert told(other.execution(made.id)) == told(made)
        assert told(one.execution(again.id)) == told(again)
        assert one.find_claim("tick", "1").facts["n"] == 2
        for store in (one, other):
            assert ask(store._reader) == ask(store._reader._otherwise)
            assert session_of(store) is not None
    assert reasons() == []


def test_a_pooler_without_transactions_is_refused(url, tmp_path):
    """ml-metadata cannot write through it; the message says what to set."""
    with (
        pooled(url, tmp_path, pool_mode="statement") as through,
        pytest.raises(StoreUnavailable, match="pool_mode = transaction or session"),
    ):
        open_store(through, deadline_s=1)
