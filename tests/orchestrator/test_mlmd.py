"""MlmdStore: what it leaves in ML Metadata for others to read, how much it asks, and what it says when it cannot."""

import json
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.metadata_store.pywrap import metadata_store_extension
from ml_metadata.proto import metadata_store_pb2

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import SettingsError, StoreCorrupt, StoreError, StoreTooNew, StoreUnavailable
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.mlmd.location import DatabaseServer, SqliteFile, parse_location
from spanwise.orchestrator.mlmd.text import decode, encode
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Address, Claim, find_last

NOW = datetime(2024, 1, 1, 3, tzinfo=UTC)


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "metadata.db")


@pytest.fixture
def store(url):
    store = open_store(url, clock=lambda: NOW)
    yield store
    store.close()


@pytest.fixture
def reader(store, url):
    """The same database as ML Metadata's own tools see it."""
    return MetadataStore(config_of(url))


def config_of(url):
    config = metadata_store_pb2.ConnectionConfig()
    config.sqlite.filename_uri = url
    config.sqlite.connection_mode = metadata_store_pb2.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    return config


def publish(store, node="ExampleGen", key="examples", *, span=None, inputs=None, claims=(), **fields):
    run = store.begin_run(Run(pipeline="flights"))
    begun = store.begin(Execution(pipeline="flights", run=run.number, node=node, component=f"{node}Component"))
    properties = {} if span is None else {"span": span, "version": 1, "split_names": ["train", "eval"], "rate": 0.1}
    drafts = (Artifact("/u/1", kind="Examples", properties=properties),)
    fields = {"state": State.COMPLETE, "outputs": {key: drafts}, "inputs": inputs or {}, **fields}
    return store.publish(replace(begun, **fields), *claims)


def python(code, *arguments, **options):
    """Runs code in a process of its own, which may open and close the database's file as it likes."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, **options)


def sql(file, statement):
    python(
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit(); c.close()",
        file,
        statement,
    )


# --- what others read


def test_contexts_are_those_of_tfx(store, reader):
    """A pipeline, its runs and its nodes are contexts of TFX's types and names, the pipeline parent of the others."""
    publish(store)

    parents = {}
    for kind, name in (("pipeline_run", "flights/1"), ("node", "flights.ExampleGen")):
        context = reader.get_context_by_type_and_name(kind, name)
        parents[name] = [(p.type, p.name) for p in reader.get_parent_contexts_by_context(context.id)]

    assert parents == {"flights/1": [("pipeline", "flights")], "flights.ExampleGen": [("pipeline", "flights")]}


@pytest.mark.parametrize(
    ("kind", "name"), [("pipeline", "flights"), ("pipeline_run", "flights/1"), ("node", "flights.ExampleGen")]
)
def test_an_execution_and_its_artifacts_are_in_their_contexts(store, reader, kind, name):
    """Executions are associated with, and artifacts attributed to, their pipeline, run and node."""
    publish(store, span=7)

    context = reader.get_context_by_type_and_name(kind, name)

    assert [e.name for e in reader.get_executions_by_context(context.id)] == ["flights/1/ExampleGen/1"]
    assert [a.name for a in reader.get_artifacts_by_context(context.id)] == ["flights/ExampleGen/examples/7/1"]


def test_an_artifact_has_the_properties_of_tfx(store, reader):
    """An artifact is live, of its kind as type, with span, version and split names as typed properties."""
    publish(store, span=7)

    found = reader.get_artifact_by_type_and_name("Examples", "flights/ExampleGen/examples/7/1")

    assert found.state == metadata_store_pb2.Artifact.LIVE
    assert found.uri == "/u/1"
    assert (found.properties["span"].int_value, found.properties["version"].int_value) == (7, 1)
    assert json.loads(found.properties["split_names"].string_value) == ["train", "eval"]
    assert set(found.custom_properties) == {"rate", "name", "pipeline_name", "producer_component"}


def test_an_execution_has_the_type_and_state_of_tfx(store, reader):
    """An execution's type is its component, and its last known state is ML Metadata's own."""
    publish(store, key="abc", span=7)
    store.begin(Execution(pipeline="flights", run=1, node="Trainer", component="Trainer"))

    states = {e.type: metadata_store_pb2.Execution.State.Name(e.last_known_state) for e in reader.get_executions()}

    assert states == {"ExampleGenComponent": "COMPLETE", "Trainer": "RUNNING"}


def test_an_event_holds_key_and_index(store, reader):
    """An event's path is the key and the index, once for each place the artifact has."""
    made = publish(store, span=7).outputs["examples"][0]
    ended = publish(store, "Trainer", "model", inputs={"examples": (made,), "baseline": (made,)})

    events = reader.get_events_by_execution_ids([ended.id])

    told = {
        metadata_store_pb2.Event.Type.Name(e.type): [s.key if s.HasField("key") else s.index for s in e.path.steps]
        for e in events
    }
    assert told == {"INPUT": ["examples", 0, "baseline", 0], "OUTPUT": ["model", 0]}


def test_a_cache_key_is_a_context(store, reader):
    """As in TFX, a cache key names a context of type `execution_cache`."""
    ended = publish(store, key="examples")
    ended = publish(store, key="examples")
    begun = store.begin(Execution(pipeline="flights", run=1, node="Trainer", component="Trainer"))
    ended = store.publish(replace(begun, state=State.COMPLETE, key="abc"))

    context = reader.get_context_by_type_and_name("execution_cache", "abc")

    assert [e.id for e in reader.get_executions_by_context(context.id)] == [ended.id]


def test_publishing_keeps_what_contexts_and_inputs_say(store, reader):
    """A publication takes nothing away from the run, the cache key and the artifacts that it names."""
    made = publish(store, span=7).outputs["examples"][0]
    before = [
        reader.get_context_by_type_and_name("pipeline_run", "flights/1"),
        reader.get_artifacts_by_id([made.id])[0],
    ]
    begun = store.begin(Execution(pipeline="flights", run=1, node="Trainer", component="Trainer"))

    store.publish(replace(begun, state=State.COMPLETE, inputs={"examples": (made,)}, outputs={"same": (made,)}))

    after = [reader.get_context_by_type_and_name("pipeline_run", "flights/1"), reader.get_artifacts_by_id([made.id])[0]]
    assert [dict(x.custom_properties) for x in after] == [dict(x.custom_properties) for x in before]
    assert dict(after[1].properties) == dict(before[1].properties)


def test_a_database_of_others_is_shared(url):
    """Types, pipelines and artifacts that another program has recorded are left alone and are in nobody's way."""
    other = MetadataStore(config_of(url))
    theirs = metadata_store_pb2.ArtifactType(name="Examples", properties={"span": 1, "state": 3})
    type_id = other.put_artifact_type(theirs)
    other.put_artifacts([metadata_store_pb2.Artifact(type_id=type_id, name="examples", uri="/x")])
    run_type = other.put_context_type(metadata_store_pb2.ContextType(name="pipeline_run"))
    other.put_contexts([metadata_store_pb2.Context(type_id=run_type, name="2024-01-01T00:00:00")])
    del other

    store = open_store(url)
    publish(store, span=7)

    assert [a.name for a in store.of_span(Address("flights", "ExampleGen", "examples"), 7)] == [
        "flights/ExampleGen/examples/7/1"
    ]
    assert [r.number for r in store.runs("flights")] == [1]
    store.close()


# --- how much it asks


@pytest.fixture
def calls(monkeypatch):
    """The calls into ML Metadata, by name, as they are made."""
    made = []
    ask = MetadataStore._call

    def counted(self, method, *arguments):
        made.append(method)
        return ask(self, method, *arguments)

    monkeypatch.setattr(MetadataStore, "_call", counted)
    return made


def a_history(url, runs):
    store = open_store(url)
    for number in range(runs):
        publish(store, span=20130101 + number)
    made = store.artifact("flights/ExampleGen/examples/20130101/1")
    publish(store, "Trainer", "model", inputs={"examples": (made,)})
    store.close()
    return made.name


VERBS = {
    "open": lambda store, made: None,
    "begin_run": lambda store, made: store.begin_run(Run(pipeline="flights")),
    "update_run": lambda store, made: store.update_run(store.run("flights", 1)),
    "run": lambda store, made: store.run("flights", 2),
    "runs": lambda store, made: next(store.runs("flights")),
    "pipelines": lambda store, made: store.pipelines(),
    "publish": lambda store, made: publish(store, span=7),
    "executions": lambda store, made: store.executions(store.run("flights", 3)),
    "execution": lambda store, made: store.execution(1),
    "find_cached": lambda store, made: store.find_cached("abc"),
    "artifact": lambda store, made: store.artifact(made),
    "newest": lambda store, made: next(store.newest(Address("flights", "Trainer", "model"))),
    "spans": lambda store, made: next(store.spans(Address("flights", "ExampleGen", "examples"))),
    "of_span": lambda store, made: store.of_span(Address("flights", "ExampleGen", "examples"), 20130105),
    "producer": lambda store, made: store.producer(store.artifact(made)),
    "consumers": lambda store, made: store.consumers(store.artifact(made)),
    "claim": lambda store, made: store.claim(Claim("tick", "1")),
    "find_claim": lambda store, made: store.find_claim("tick", "1"),
}


def questions(url, calls, verb):
    """How many calls a store that was just opened makes for one verb."""
    store = open_store(url)
    calls.clear()
    VERBS[verb](store, "flights/ExampleGen/examples/20130101/1")
    store.close()
    return len(calls)


@pytest.mark.slow
def test_no_verb_asks_more_when_the_history_is_long(tmp_path, calls):
    """After 640 runs each verb makes the calls it makes after 20, and two more per doubling to find a number."""
    few, many = str(tmp_path / "few.db"), str(tmp_path / "many.db")
    a_history(few, 20)
    a_history(many, 640)

    asked = {verb: (questions(few, calls, verb), questions(many, calls, verb)) for verb in VERBS}

    searched = {"begin_run", "publish", "runs"}
    assert {verb: counts for verb, counts in asked.items() if verb not in searched and counts[0] != counts[1]} == {}
    assert all(asked[verb][1] - asked[verb][0] <= 2 * 5 for verb in searched), asked  # 640 is 20 doubled 5 times
    assert max(counts[0] for counts in asked.values()) < 40, asked


def test_a_store_that_knows_the_last_number_looks_for_the_next_one_only(store, calls):
    """An open store begins and publishes with a fixed number of calls, and one of them writes."""
    for number in range(9):
        publish(store, span=10 + number)
    run = store.begin_run(Run(pipeline="flights"))
    calls.clear()

    begun = store.begin(
        Execution(pipeline="flights", run=run.number, node="ExampleGen", component="ExampleGenComponent")
    )
    began = list(calls)
    calls.clear()
    store.publish(
        replace(
            begun,
            state=State.COMPLETE,
            outputs={"examples": (Artifact("/u", kind="Examples", properties={"span": 19}),)},
        )
    )

    assert (began.count("PutExecution"), len(began)) == (1, 2)
    assert (calls.count("PutExecution"), len(calls)) == (1, 5)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 1000])
def test_the_last_number_is_found_by_galloping(count):
    """`find_last` finds the last of 1..n, asking about twice the logarithm of n."""
    asked = []

    found = find_last(lambda n: asked.append(n) or n <= count)

    assert found == count
    assert len(asked) <= 2 * max(count, 1).bit_length() + 1


# --- the file


def test_importing_the_package_loads_no_ml_metadata():
    """ml_metadata, a quarter of a second, is imported when a store is opened, not before."""
    told = python("import sys, spanwise.orchestrator.mlmd; print('ml_metadata' in sys.modules)")

    assert told.stdout == "False\n"


def test_a_new_file_has_a_write_ahead_log_and_its_folders(tmp_path):
    """A new database is made with its folders, and readers of it wait for no writer."""
    file = tmp_path / "a" / "b" / "metadata.db"

    open_store(str(file)).close()

    told = python(
        "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('PRAGMA journal_mode').fetchone()[0])", file
    )
    assert told.stdout == "wal\n"


def test_a_file_without_the_log_gets_it(tmp_path, url):
    """A database that another program has made is switched to the log when it is opened."""
    MetadataStore(config_of(url)).get_contexts()

    open_store(url).close()

    assert Path(url).read_bytes()[18:20] == b"\2\2"


def test_opening_a_file_again_takes_no_lock_away(tmp_path, url):
    """What was acknowledged after a second store was opened in the process is there when the process is killed."""
    code = """
import os, signal, sys
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Claim
first = open_store(sys.argv[1])
for number in range(40):
    first.claim(Claim("n", str(number)))
    open_store(sys.argv[1]).claim(Claim("m", str(number)))
print("acknowledged", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=False)

    store = open_store(url)
    assert (ended.stdout, ended.returncode) == ("acknowledged\n", -signal.SIGKILL)
    assert all(store.find_claim(kind, str(number)) for kind in "nm" for number in range(40))
    store.close()


def test_a_child_does_not_use_its_parents_store(store, url):
    """After a fork the child is told to open the store itself, and the parent's goes on working."""
    pid = os.fork()
    if pid == 0:
        told = 1
        try:
            store.claim(Claim("child", "1"))
        except StoreError as refusal:
            told = 0 if "open it in the child" in str(refusal) else 2
        os._exit(told)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    store.claim(Claim("parent", "1"))
    assert store.find_claim("child", "1") is None


def test_a_closed_store_says_so(url):
    """Using a store that was closed is a StoreError, and closing it twice is none."""
    store = open_store(url)
    store.close()
    store.close()

    with pytest.raises(StoreError, match="was closed"):
        store.pipelines()
    with pytest.raises(StoreError, match="was closed"):
        store.claim(Claim("a", "b"))


# --- what it says when it cannot


def test_a_file_that_is_no_database_is_corrupt(tmp_path):
    """Another file is refused as StoreCorrupt, and is left as it was."""
    file = tmp_path / "notes.txt"
    file.write_text("these are notes, not metadata\n" * 100)

    with pytest.raises(StoreCorrupt, match=r"notes\.txt is not a metadata database.*mv "):
        open_store(str(file))

    assert file.read_text() == "these are notes, not metadata\n" * 100


def test_a_database_of_something_else_is_refused(tmp_path):
    """An SQLite database with other tables is refused, named, and gets none of ours."""
    file = tmp_path / "browser.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE cookies (name)")
    database.close()

    with pytest.raises(StoreCorrupt, match="cookies"):
        open_store(str(file))

    with sqlite3.connect(file) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("cookies",)]
    database.close()


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_database_is_corrupt(url, damage):
    """A file that was cut, or overwritten in the middle, is StoreCorrupt when it is opened or first read."""
    open_store(url).close()
    content = Path(url).read_bytes()
    Path(url).write_bytes(
        content[: len(content) // 2] if damage == "cut" else content[:4096] + b"\xab" * (len(content) - 4096)
    )

    with pytest.raises(StoreCorrupt, match="damaged"):
        open_store(url).pipelines()


def test_a_database_of_a_newer_library_is_too_new(url):
    """A schema above the library's is StoreTooNew and says what to install."""
    open_store(url).close()
    sql(url, "UPDATE MLMDEnv SET schema_version = 99")

    with pytest.raises(StoreTooNew, match="pip install --upgrade ml-metadata"):
        open_store(url)


def test_a_database_of_an_older_library_is_brought_up_to_date_when_asked(url):
    """An older schema is refused with the command that migrates it, and migrated with everything in it by that."""
    store = open_store(url)
    store.claim(Claim("a", "b"))
    store.close()
    options = metadata_store_pb2.MigrationOptions(downgrade_to_schema_version=9)
    with pytest.raises(RuntimeError, match="Downgrade migration was performed"):
        metadata_store_extension.metadata_store.CreateMetadataStore(
            config_of(url).SerializeToString(), options.SerializeToString()
        )

    with pytest.raises(StoreError, match="spanwise doctor --migrate"):
        open_store(url)
    migrated = open_store(url, migrate=True)

    assert migrated.find_claim("a", "b") is not None
    migrated.close()


@pytest.mark.parametrize("path", ["/proc/metadata.db", "/dev/null/metadata.db", "{folder}"])
def test_a_place_that_cannot_be_written_is_unavailable(tmp_path, path):
    """A folder that takes no files, a file for a folder and a folder for a file are StoreUnavailable."""
    with pytest.raises(StoreUnavailable, match="ls -ld"):
        open_store(path.format(folder=tmp_path))


def test_a_locked_database_is_unavailable_after_the_deadline(url):
    """Who cannot get the lock in time is told which file is locked and how to see by whom."""
    store = open_store(url, deadline_s=0.05)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(); sys.stdout.close(); sys.stdin.read()",
            f"{url}.lock",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        holder.stdout.readline()

        with pytest.raises(StoreUnavailable, match=r"locked by another process for 0.05 s.*fuser -v"):
            store.claim(Claim("a", "b"))
        read_meanwhile = store.pipelines()
        holder.stdin.close()

    store.claim(Claim("a", "b"))
    assert read_meanwhile == []
    store.close()


def test_a_writer_that_takes_no_turns_is_waited_for_too(url):
    """Another program that writes without our lock makes writers wait, and StoreUnavailable after the deadline."""
    store = open_store(url, deadline_s=0.05)
    store.claim(Claim("a", "a"))
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE'); print(); sys.stdout.close(); sys.stdin.read()",
            url,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        holder.stdout.readline()

        with pytest.raises(StoreUnavailable, match="locked by another process"):
            store.claim(Claim("a", "b"))
        holder.stdin.close()

    store.claim(Claim("a", "b"))
    store.close()


def test_a_full_disk_is_unavailable(url):
    """Where a file cannot grow the write is StoreUnavailable; with room again the same store writes on."""
    open_store(url).close()
    code = """
import resource, signal, sys
from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Claim
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(sys.argv[1])
store.claim(Claim("a", "a"))
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
try:
    for number in range(100):
        store.claim(Claim("n", str(number), {"much": "x" * 10_000}))
except StoreUnavailable as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.claim(Claim("n", str(number)))
print(store.find_claim("a", "a") is not None)
"""

    told = python(code, url)

    unavailable, there = told.stdout.splitlines()
    assert "df -h" in unavailable
    assert there == "True"


@pytest.mark.parametrize("name", ["x" * 256, "back\\slash", "nul\0"])
def test_a_name_that_not_every_database_keeps_is_refused(store, name):
    """Names that are too long or that some database would bend are a StoreError, not a surprise later."""
    with pytest.raises(StoreError, match="The name"):
        store.begin_run(Run(pipeline=name))

    assert store.pipelines() == []


def test_a_server_that_is_not_there_is_unavailable():
    """A server that does not answer is told by host, port, user and database, without the password."""
    for scheme in ("mysql", "postgresql"):
        with pytest.raises(StoreUnavailable, match=rf"{scheme}://me@127\.0\.0\.1:9/runs") as caught:
            open_store(f"{scheme}://me:s3cret@127.0.0.1:9/runs", deadline_s=0.1)

        assert "s3cret" not in "".join(map(str, (caught.value, caught.value.__cause__, repr(caught.value))))


# --- the url


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("/data/m.db", SqliteFile(Path("/data/m.db"))),
        ("m.db", SqliteFile(Path.cwd() / "m.db")),
        ("sqlite:////data/a%20b.db", SqliteFile(Path("/data/a b.db"))),
        ("sqlite:///m.db", SqliteFile(Path.cwd() / "m.db")),
        ("mysql://u:p@h/db", DatabaseServer(kind="mysql", host="h", port=3306, database="db", user="u", password="p")),
        (
            "postgresql://u:p%40%2Fss@h:99/db",
            DatabaseServer(kind="postgresql", host="h", port=99, database="db", user="u", password="p@/ss"),
        ),
        ("postgresql://h/db", DatabaseServer(kind="postgresql", host="h", port=5432, database="db")),
    ],
)
def test_a_url_says_where_the_metadata_is(url, where):
    """Paths, SQLite's and the servers' urls are read; parts that are quoted are unquoted."""
    assert parse_location(url) == where


@pytest.mark.parametrize(
    "url",
    [
        "",
        ":memory:",
        "sqlite:///",
        "sqlite://m.db",
        "redis://h/1",
        "mysql://u:s3cret@/db",
        "mysql://u:s3cret@h",
        "mysql://u:s3cret@h:x/db",
        "postgresql://u:s3cret@[h/db",
        "a\0b",
    ],
)
def test_a_url_that_says_nothing_is_refused_without_its_password(url):
    """What cannot be opened is a SettingsError that shows the forms there are, and never the password."""
    with pytest.raises(SettingsError, match="postgresql://user:password@host") as caught:
        parse_location(url)

    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_password_is_never_shown(caplog):
    """Neither a location's text nor its representation nor what is logged when it is opened holds the password."""
    where = parse_location("mysql://me:s3cret@127.0.0.1:9/runs")
    caplog.set_level(logging.DEBUG)
    logging.getLogger("absl").setLevel(logging.DEBUG)
    try:
        with pytest.raises(StoreUnavailable):
            open_store("mysql://me:s3cret@127.0.0.1:9/runs", deadline_s=0.1)
    finally:
        logging.getLogger("absl").setLevel(logging.NOTSET)

    assert "s3cret" not in f"{where} {where!r} {caplog.text}"


# --- values


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("plain 'text' ☃", "plain 'text' ☃"),
        (7, 7),
        (True, True),
        (2**31, "json:2147483648"),
        (0.1, "json:0.1"),
        (None, "json:null"),
        ([1, 1.0, "a"], 'json:[1, 1.0, "a"]'),
        ("json:1", 'json:"json:1"'),
        ("a\\b", 'json:"a%5C%5Cb"'),
        ("100%\0", 'json:"100%25%5Cu0000"'),
    ],
)
def test_values_are_kept_as_these_texts(value, kept):
    """The form of a value in the database does not drift: what is recorded today is read by tomorrow's program."""
    assert encode(value) == kept
    assert type(decode(kept)) is type(value)
    assert decode(kept) == value


def test_a_type_that_others_declared_otherwise_is_refused_at_once(url):
    """No registration could ever succeed; the message names the property, and is not about a race."""
    other = MetadataStore(config_of(url))
    other.put_artifact_type(metadata_store_pb2.ArtifactType(name="Examples", properties={"span": 3}))
    del other

    store = open_store(url)

    with pytest.raises(
        StoreError, match="declared the property 'span' of the artifact type 'Examples' as STRING; span"
    ):
        publish(store, span=7)
    store.close()


def test_marks_that_an_older_spanwise_has_recorded_are_found(tmp_path):
    """They have no external ids, so they are looked up one by one."""
    file = tmp_path / "metadata.db"
    store = open_store(str(file))
    store.claim(Claim("pinned", "flights/Trainer/model/1", {"pinned": True}))
    store.close()
    forget = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    database.execute("UPDATE Context SET external_id = NULL WHERE name LIKE 'pinned:%'")
    database.execute("DELETE FROM TypeProperty WHERE name = 'by_external_id'")
"""
    subprocess.run([sys.executable, "-c", forget, str(file)], check=True)
    store = open_store(str(file))

    store.claim(Claim("pinned", "flights/Trainer/model/2", {"pinned": True}))

    found = store.find_claims("pinned", [f"flights/Trainer/model/{number}" for number in range(4)])
    assert [name[-1] for name in found] == ["1", "2"]
    store.close()


def test_a_url_says_how_the_connection_is_encrypted():
    """As the programs of the servers name it."""
    one = parse_location("postgresql://ann:secret@db/runs?sslmode=verify-full&sslrootcert=/etc/ca.pem")
    other = parse_location("mysql://ann@db/runs?ssl_ca=/etc/ca.pem")

    assert isinstance(one, DatabaseServer)
    assert one.options == {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}
    assert isinstance(other, DatabaseServer)
    assert other.options == {"ssl_ca": "/etc/ca.pem"}
    assert "?" not in str(one)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://db/runs?sslmod=require", "'sslmod', which is unknown. It takes: sslmode, sslrootcert"),
        ("postgresql://db/runs?sslmode=on", "sslmode is 'on'. It is one of: disable, allow, prefer, require"),
        ("mysql://db/runs?sslmode=require", "'sslmode', which is unknown. It takes: ssl_ca"),
    ],
)
def test_an_option_that_is_not_understood_is_refused(url, said):
    """A misspelled one might have been the one that encrypts."""
    with pytest.raises(SettingsError, match=re.escape(said)):
        parse_location(url)


def test_grpc_attrs_and_absl_are_imported_when_they_are_first_used(url):
    """Opening a store does without; other modules, and ml_metadata when it does need one, get the library itself."""
    code = """
import sys
from spanwise.orchestrator.mlmd import open_store
open_store(sys.argv[1]).close()
assert not {"grpc", "asyncio", "attr", "absl.logging"} & sys.modules.keys()
from ml_metadata.metadata_store import ListOptions, metadata_store
assert ListOptions(limit=1) == ListOptions(limit=1) != ListOptions()
assert issubclass(metadata_store.grpc.RpcError, Exception)
import grpc
assert metadata_store.grpc.RpcError is grpc.RpcError
import attr
from absl import logging
assert attr.evolve and logging.use_absl_handler
"""
    ended = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
