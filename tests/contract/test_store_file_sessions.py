"""The process that reads an SQLite file for a store: what starts and ends it, and what is read without it."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from spanwise.orchestrator.mlmd import open_store, sql_reader, sql_session, sqlite, sqlite_process, sqlite_reader
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Claim
from tests.contract.conftest import IN_CHILD, fresh_url, session_of

MANY = range(sqlite_reader.LEAST_KEYS)


@pytest.fixture
def url(tmp_path):
    return fresh_url("sqlite", tmp_path)


@pytest.fixture
def store(url):
    with contextlib.closing(open_store(url)) as store:
        store.begin_run(Run(pipeline="flights"))
        store.claim(Claim("pinned", "7", {"why": "ü"}))
        yield store


def find_many(store):
    """The names of those among many claims that exist: a question that is worth a process."""
    return list(store.find_claims("pinned", list(map(str, MANY))))


def pid_of(store):
    return session_of(store)._process.pid


def in_another_process(program, *arguments):
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True)


def test_a_process_is_started_for_many_records_alone(store):
    """And only once; what others have written meanwhile is read as well."""
    store.runs("flights")
    store.find_claims("pinned", list(map(str, MANY[1:])))
    before = session_of(store)

    found = find_many(store)
    started = pid_of(store)
    store.claim(Claim("pinned", "9"))

    assert before is None
    assert found == ["7"]
    assert sorted(find_many(store)) == ["7", "9"]
    assert pid_of(store) == started


def test_closing_the_store_ends_the_process(store):
    """Nothing of it is left, not even a zombie."""
    find_many(store)
    pid = pid_of(store)

    store.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_process_ends_with_the_one_that_started_it(url, store):
    """However that one ends."""
    program = """
import os, sys
from spanwise.orchestrator.mlmd import open_store
store = open_store(sys.argv[1])
assert len(store.find_claims("pinned", list(map(str, range(int(sys.argv[2])))))) == 1
print(store._reader._idle[0].session._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", program, url, str(len(MANY))]
    pid = int(subprocess.run(command, capture_output=True, text=True, check=False).stdout)

    with contextlib.suppress(ProcessLookupError):  # it has ended already
        process = os.pidfd_open(pid)
        ended = select.select([process], [], [], 10)[0]
        os.close(process)
        assert ended


def test_a_process_that_nobody_asks_ends(store, monkeypatch, tmp_path, reasons):
    """It would outlive who started it where a fork of that one holds its stdin open; the next question starts another."""
    program = tmp_path / "impatient.py"
    program.write_text(
        f"import runpy, sys; names = runpy.run_path({sqlite_process.__file__!r}); main = names['main']\n"
        "main.__globals__['IDLE_S'] = 1\nmain(sys.argv[1])\n"
    )
    monkeypatch.setattr(sqlite, "_PROGRAM", program)
    find_many(store)
    first = session_of(store)._process

    first.wait(60)
    monkeypatch.undo()  # the next one does not end between two questions, however slow the machine is

    assert find_many(store) == ["7"]
    assert pid_of(store) != first.pid
    assert reasons() == []


def test_a_process_that_is_killed_is_started_once_more(store, reasons):
    """The question is still answered by SQL, on the connection that ml-metadata has."""
    find_many(store)
    killed = pid_of(store)

    os.kill(killed, signal.SIGKILL)

    assert find_many(store) == ["7"]
    assert pid_of(store) not in (None, killed)
    assert store._connection.reconnects == 0
    assert reasons() == []


def test_a_process_that_cannot_start_leaves_all_to_ml_metadata(store, monkeypatch, tmp_path, reasons):
    """The log says it once, and it is tried again after a minute."""
    now = 1000.0
    store._reader._clock = lambda: now
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "_PROGRAM", tmp_path / "nothing.py")
        assert find_many(store) == ["7"]
    assert find_many(store) == ["7"]
    assert session_of(store) is None

    now += sql_reader.RETRY_S

    assert find_many(store) == ["7"]
    assert session_of(store) is not None
    assert len(reasons()) == 1


def test_tables_of_an_unknown_version_are_read_by_ml_metadata(store, monkeypatch, reasons):
    """What the columns mean there, only ml-metadata knows; no process stays."""
    monkeypatch.setattr(sql_reader, "SCHEMA_VERSIONS", (9,))

    assert find_many(store) == find_many(store) == ["7"]
    assert session_of(store) is None
    assert reasons() == ["The tables have version 10."]


def test_an_sqlite_that_makes_other_json_is_not_asked(store, monkeypatch, reasons):
    """A condition that is a number there would be read as another value."""
    monkeypatch.setattr(sqlite_reader, "_VERSION", sqlite_reader._VERSION.replace("json('true')", "'true'"))

    assert find_many(store) == ["7"]
    assert session_of(store) is None
    assert reasons() == ["This SQLite makes other JSON."]


def test_a_file_that_the_process_may_not_open_is_read_by_ml_metadata(store, monkeypatch, reasons):
    """As where SQLite cannot write beside it, which it has to even to read."""
    begin = sqlite.FileSession.__init__
    monkeypatch.setattr(sqlite.FileSession, "__init__", lambda self, file: begin(self, file / "not there"))

    assert find_many(store) == find_many(store) == ["7"]
    assert reasons() == ["unable to open database file"]


def test_a_file_that_was_put_in_the_place_of_an_open_one_is_not_read(url, store, tmp_path, reasons):
    """ml-metadata goes on with the one that it has open, and both must read the same."""
    in_another_process("import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('VACUUM INTO ?', sys.argv[2:])",
                       url, tmp_path / "copy.db")  # fmt: skip
    store.claim(Claim("pinned", "9"))

    shutil.move(tmp_path / "copy.db", url)

    assert sorted(find_many(store)) == ["7", "9"]
    assert session_of(store) is None
    assert reasons() == ["Another file was put in its place since it was opened."]


def test_a_locked_file_is_left_to_ml_metadata(tmp_path, reasons, monkeypatch):
    """Without the write-ahead log, a writer locks readers out; ml-metadata waits for as long as the store may."""
    url = fresh_url("sqlite", tmp_path)
    with contextlib.closing(open_store(url)) as store:
        store.begin_run(Run(pipeline="flights"))
        store.claim(Claim("pinned", "7"))
    in_another_process("import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA journal_mode=DELETE')", url)
    program = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in ("BEGIN; SELECT 1 FROM Type", "COMMIT; BEGIN EXCLUSIVE", "COMMIT"):
    for each in statement.split("; "):
        database.execute(each).fetchall()
    print(flush=True)
    sys.stdin.readline()
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with writer:
        writer.stdout.readline()
        with contextlib.closing(open_store(url)) as store:
            find_many(store)
            ask = sqlite.FileSession.rows

            def rows(self, *question):
                try:
                    return ask(self, *question)
                except sql_session.QueryRefused:
                    print(file=writer.stdin, flush=True)
                    writer.stdout.readline()
                    raise

            monkeypatch.setattr(sqlite.FileSession, "rows", rows)
            print(file=writer.stdin, flush=True)
            writer.stdout.readline()

            found = find_many(store)

    assert found == ["7"]
    assert reasons() == ["database is locked"]


def test_an_interrupted_question_ends_the_process(store, monkeypatch):
    """Its answer would be taken for that of the next question."""
    find_many(store)
    session = session_of(store)

    with monkeypatch.context() as patched:
        patched.setattr(session, "_stdout", Interrupted(session._stdout))
        with pytest.raises(KeyboardInterrupt):
            find_many(store)

    assert find_many(store) == ["7"]
    assert session_of(store) is not session


class Interrupted:
    """A pipe of which nobody waits for the end of a line."""

    def __init__(self, pipe):
        self.close = pipe.close

    def readline(self):
        raise KeyboardInterrupt


def test_what_is_read_ahead_is_what_is_asked_next_or_nobody_s(store):
    """Whoever asks between two groups gets the answer to his own question, and so does the one who goes on."""
    find_many(store)
    session = session_of(store)
    statement = "SELECT json_array(value) FROM json_each(?1) WHERE value"
    asked = [session.rows(statement, [1], ahead=[2]), session.rows(statement, [3]), session.rows(statement, [2])]
    ahead = [session.rows(statement, [4], ahead=[5]), session.rows(statement, [5], ahead=[6])]
    written = session._stdin.write

    session._stdin = Silent(session._stdin)
    waiting = session.rows(statement, [6])
    session._stdin.write = written

    assert [*asked, *ahead, waiting] == [[[1]], [[3]], [[2]], [[4]], [[5]], [[6]]]
    assert find_many(store) == ["7"]


class Silent:
    """A pipe to which nothing may be written."""

    closed = False

    def __init__(self, pipe):
        self.flush, self.close = pipe.flush, pipe.close

    def write(self, question):
        raise AssertionError(question)


def test_nothing_is_read_ahead_while_another_thread_asks(store, monkeypatch):
    """Its question would come between, and what was read ahead would be read once more."""
    find_many(store)
    asked = []
    rows = type(session_of(store)).rows
    monkeypatch.setattr(
        type(session_of(store)), "rows", lambda *question: asked.append(question[3] is not None) or rows(*question)
    )
    ids = range(1, 4001)  # two questions

    list(store._reader.each_artifact(ids))
    with ThreadPoolExecutor(1) as other:
        other.submit(find_many, store).result()
    list(store._reader.each_artifact(ids))

    assert asked == [True, False, False, False, False]


def test_an_interrupt_from_the_keyboard_leaves_the_process_to_its_parent(store):
    """The terminal sends it to both."""
    find_many(store)
    pid = pid_of(store)

    os.kill(pid, signal.SIGINT)

    assert find_many(store) == ["7"]
    assert pid_of(store) == pid


def test_the_process_cannot_write(url, store):
    """Whatever statement it is given; the next one is answered."""
    with contextlib.closing(sqlite.FileSession(store._connection._where.path)) as session:
        with pytest.raises(sql_session.QueryRefused, match="readonly database"):
            session.rows("DELETE FROM MLMDEnv WHERE ?1 IS NOT NULL", [])

        assert session.rows("SELECT json_array(1, json(?1))", ["ü\n"]) == [[1, ["ü\n"]]]


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "what?.db", "no#1.db", "50%3f.db"])
def test_a_file_may_have_any_name(tmp_path, name, reasons):
    """What a URI has a meaning for is quoted."""
    with contextlib.closing(open_store(str(tmp_path / name))) as store:
        store.begin_run(Run(pipeline="flights"))
        store.claim(Claim("pinned", "7"))

        assert find_many(store) == ["7"]
        assert session_of(store) is not None
    assert reasons() == []


def test_a_fork_does_not_disturb_the_process(url, store):
    """A child that closes the store, or is refused, leaves it to its parent."""
    program = f"""
import gc, json, os
from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.mlmd import open_store
store = open_store({url!r})
def ask():
    assert len(store.find_claims("pinned", list(map(str, range({len(MANY)}))))) == 1
    return store._reader._idle[0].session._process.pid
{IN_CHILD}def refused():
    try:
        ask()
    except StoreError:
        store._reader._idle.clear()
        return
    raise AssertionError
before = ask()
in_child(store.close)
in_child(refused)
print(json.dumps([before, ask()]))
store.close()
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    before, after = json.loads(done.stdout)
    assert after == before
