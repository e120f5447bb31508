"""The store's contract: what SQL reads of the tables is what ml-metadata reads of them."""

import contextlib
import itertools
import logging
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

from spanwise.orchestrator import Examples, Model
from spanwise.orchestrator.mlmd import (
    connection,
    declarations,
    layout,
    open_store,
    postgresql,
    sql_reader,
    sqlite_reader,
)
from spanwise.orchestrator.mlmd.location import parse_location
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Claim
from tests.contract.conftest import SERVERS, fresh_url, session_of
from tests.contract.test_store import AWKWARD, properties

KINDS = ["sqlite", *(kind for kind in SERVERS if kind == "postgresql")]

of_a_server = pytest.mark.parametrize("url", KINDS[1:], indirect=True)

fresh = itertools.count()
keys = st.sampled_from(("examples", "model", "a key"))
few = settings(max_examples=6, suppress_health_check=list(HealthCheck), deadline=None, derandomize=True)


@pytest.fixture(scope="module", params=KINDS)
def url(request, tmp_path_factory):
    return fresh_url(request.param, tmp_path_factory.mktemp("readings"))


@pytest.fixture
def store(url, monkeypatch):
    monkeypatch.setattr(sqlite_reader, "LEAST_KEYS", 1)
    with contextlib.closing(open_store(url)) as store:
        yield store


def ask(reader):
    """Everything that can be asked, about everything there is."""
    ids = range(1, 400)
    names = [*(row.name for row in reader.artifacts_by_id(ids)), *(row.name for row in reader.executions_by_id(ids))]
    kinds = (declarations.PIPELINE, declarations.RUN, declarations.NODE, layout.CLAIM, layout.CACHE, "no such type")
    contexts = sorted(row for kind in kinds for row in reader.contexts_of_type(kind))
    names += [row.name for row in contexts]
    asked = {
        "artifacts": reader.artifacts_by_id(ids),
        "executions": reader.executions_by_id(ids),
        "named artifacts": reader.artifacts(names),
        "named executions": reader.executions(names),
        "named contexts": reader.contexts(names),
        "contexts": contexts,
        **{f"named {kind}": reader.named_contexts(kind, names[::3]) for kind in kinds},
        "one by one": [reader.context(kind, name) for kind in kinds for name in names[-1:-40:-13]],
        "events": reader.events(ids),
        **{f"links, {read}": reader.links_of_artifacts(ids, read) for read in (None, True, False)},
        **{f"links back, {read}": reader.links_of_executions(ids, read) for read in (None, True, False)},
        **{f"in {row.name}": reader.executions_in(row.id) for row in contexts[::9]},
        **{f"newest in {row.name}": reader.newest_in(row.id) for row in contexts[::9]},
    }
    return {what: sorted(plain(row) for row in rows) for what, rows in asked.items()}


def plain(row):
    """A row as text in which neither the order of properties nor the type of a sequence counts."""
    return repr([sorted(field.items()) if isinstance(field, dict) else field for field in map(as_list, row or ())])


def as_list(field):
    return list(field) if isinstance(field, tuple) else field


@few
@given(
    runs=st.lists(
        st.tuples(properties, st.lists(st.tuples(keys, st.integers(0, 3), st.booleans()), max_size=4)), max_size=4
    )
)
def test_both_readings_agree(store, runs):
    """Of any records, whatever their properties, states, reuses and empty outputs."""
    pipeline = f"p{next(fresh)}"
    made = []
    for facts, outputs in runs:
        run = store.begin_run(Run(pipeline=pipeline, parameters={}, error=str(facts) or None))
        begun = store.begin(Execution(pipeline=pipeline, run=run.number, node="A node", component="", key="k"))
        store.claim(Claim("tick", f"{pipeline}/{run.number}", {**facts, **AWKWARD}))
        drafts = {
            key: tuple(
                Model("", properties=facts) if model else Examples("", properties={**facts, "span": -n, "version": n})
                for n in range(count)
            )
            for key, count, model in outputs
        }
        reused = {"reused": tuple(made[:2])} if made else {}
        done = store.publish(
            replace(
                begun, state=State.COMPLETE, inputs={"x": tuple(made), "y": tuple(made[::2])}, outputs=drafts | reused
            )
        )
        made += [a for row in done.outputs.values() for a in row if a not in made][:3]

    by_sql = ask(store._reader)

    assert session_of(store) is not None, "SQL was asked"
    assert by_sql == ask(store._reader._otherwise)


def test_what_other_programs_record_is_read_by_ml_metadata(url, store):
    """Values that spanwise never writes, and records without names: floats, structs, an artifact of TFX."""
    theirs = MetadataStore(connection._config(parse_location(url)))
    kind = theirs.put_artifact_type(pb.ArtifactType(name="Theirs", properties={"score": pb.DOUBLE, "tree": pb.STRUCT}))
    artifact = pb.Artifact(type_id=kind, uri="elsewhere")
    artifact.properties["score"].double_value = 0.5
    artifact.properties["tree"].struct_value.update({"a": [1, 2]})
    bare = pb.Artifact(type_id=kind)
    ids = theirs.put_artifacts([artifact, bare])

    both = {row.id: row for row in store._reader.artifacts_by_id(ids)}

    assert both == {row.id: row for row in store._reader._otherwise.artifacts_by_id(ids)}
    assert both[ids[0]].typed["score"] == 0.5
    assert store._reader.artifacts_by_id(ids[1:]) == [(ids[1], "Theirs", "", "", {}, {})]


@of_a_server
def test_tables_of_an_unknown_version_are_read_by_ml_metadata(url, store, monkeypatch, caplog):
    """What the columns mean there, only ml-metadata knows; the log says why reading is slower."""
    run = store.begin_run(Run(pipeline="versions"))
    monkeypatch.setattr(sql_reader, "SCHEMA_VERSIONS", (9,))
    caplog.set_level(logging.INFO, logger=sql_reader.log.name)

    with contextlib.closing(open_store(url)) as other:
        found = other.run("versions", run.number)

    assert found.number == run.number
    assert [(record.message, record.reason) for record in caplog.records] == [
        ("sql-reading-refused", "The tables have version 10.")
    ]


@of_a_server
def test_the_reading_session_cannot_write(url, store):
    """Whatever statement it is given."""
    store.pipelines()  # opens the database
    session = postgresql.ReadSession(parse_location(url))

    with contextlib.closing(session), pytest.raises(postgresql.QueryRefused, match="read-only transaction"):
        session.rows("DELETE FROM mlmdenv WHERE $1::json IS NOT NULL", [])


@of_a_server
def test_a_statement_that_fails_leaves_the_session_usable(url, store):
    """The next question is answered."""
    store.pipelines()
    with contextlib.closing(postgresql.ReadSession(parse_location(url))) as session:
        with pytest.raises(postgresql.QueryRefused, match="does not exist"):
            session.rows("SELECT json_build_array(nothing, $1::json)", [])

        assert session.rows("SELECT json_build_array(1, $1::json)", ["ü\n"]) == [[1, ["ü\n"]]]
