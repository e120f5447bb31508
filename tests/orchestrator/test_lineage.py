"""Lineage: walks over what executions read and made, on the real store and on its double."""

import contextlib
from dataclasses import replace

import pytest

from spanwise.orchestrator import Artifact, Execution, Run, State
from spanwise.orchestrator.lineage import Direction, walk
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
        return
    with contextlib.closing(open_store(str(tmp_path / "metadata.db"))) as opened:
        yield opened


@pytest.fixture
def done(store):
    """Publishes one execution: its node, what it read, and the names of what it made, or the artifacts it gave on."""
    run = store.begin_run(Run(pipeline="flights"))
    attempts = iter(range(1, 100))

    def done(node, reads=(), makes=(), state=State.COMPLETE, reused=None):
        begun = store.begin(Execution(pipeline="flights", run=run.number, node=node, attempt=next(attempts)))
        outputs = tuple(m if isinstance(m, Artifact) else Artifact(f"/{m}", kind=m) for m in makes)
        ended = replace(begun, state=state, inputs={"in": tuple(reads)}, outputs={"out": outputs}, reused=reused)
        return store.publish(ended).outputs["out"]

    return done


@pytest.fixture
def chain(done):
    """A day, chosen by a resolver, transformed and learned from, by a second model from the first."""
    (day,) = done("Ingest", [], ["Day"])
    (other,) = done("Ingest", [], ["Other"])
    done("Window", [day, other], [day, other], State.CACHED)
    graph, rows = done("Transform", [day, other], ["Graph", "Rows"])
    (first,) = done("Trainer", [graph, rows], ["First"])
    (second,) = done("Trainer", [graph, first], ["Second"])
    return {a.kind: a for a in (day, other, graph, rows, first, second)}


def kinds(found):
    return {a.kind for a in found.artifacts.values()}


def test_up_leads_to_everything_that_it_was_made_of(store, chain):
    """With the execution that made each, also of what was made of nothing."""
    found = walk(store, [chain["Second"]], Direction.UP)

    assert kinds(found) == {"Second", "First", "Graph", "Rows", "Day", "Other"}
    assert [s.execution.node for s in found.steps] == ["Ingest", "Ingest", "Transform", "Trainer", "Trainer"]
    assert found.producer(chain["Graph"].id).inputs == (chain["Day"].id, chain["Other"].id)
    assert not found.cut


def test_down_leads_to_everything_that_was_made_of_it(store, chain):
    """And not to what merely was chosen beside it."""
    found = walk(store, [chain["Day"]], Direction.DOWN)

    assert kinds(found) == {"Day", "Graph", "Rows", "First", "Second"}
    assert [s.execution.node for s in found.steps] == ["Transform", "Trainer", "Trainer"]
    assert [s.execution.id for s in found.readers(chain["First"].id)] == [
        found.producer(chain["Second"].id).execution.id
    ]


def test_a_depth_counts_executions_and_says_where_it_ended(store, chain):
    """One execution up from the second model are the graph and the first; each may have more above."""
    found = walk(store, [chain["Second"]], Direction.UP, depth=1)

    assert kinds(found) == {"Second", "Graph", "First"}
    assert found.cut == {chain["Graph"].id, chain["First"].id}


def test_an_artifact_that_was_given_on_has_one_maker(store, chain, done):
    """A run that reuses a model is not who made it, and what it read is no origin of it."""
    (again,) = done("Ingest", [], ["Again"])
    done("Trainer", [again], [chain["First"]], State.CACHED, reused=1)

    up = walk(store, [chain["First"]], Direction.UP)
    down = walk(store, [again], Direction.DOWN)

    assert "Again" not in kinds(up)
    assert kinds(down) == {"Again", "First", "Second"}


def test_a_failed_execution_made_nothing(store, chain, done):
    """What it read leads nowhere through it."""
    (lone,) = done("Ingest", [], ["Lone"])
    done("Trainer", [lone], [], State.FAILED)

    found = walk(store, [lone], Direction.DOWN)

    assert kinds(found) == {"Lone"}
    assert found.steps == ()


def test_an_edge_that_does_not_carry_is_not_walked(store, chain):
    """Without the edges into graphs, what was made only by way of a graph is not come by."""
    found = walk(store, [chain["Day"]], Direction.DOWN, carries=lambda _read, made: made.kind != "Graph")

    assert kinds(found) == {"Day", "Rows", "First", "Second"}
    assert found.producer(chain["Second"].id).inputs == (chain["First"].id,)


def test_an_edge_is_tried_again_from_what_is_met_later(store, done):
    """What one input does not carry to, another input of the same execution may."""
    (day,) = done("Ingest", [], ["Day"])
    (rows,) = done("Transform", [day], ["Rows"])
    (model,) = done("Trainer", [day, rows], ["Model"])

    found = walk(store, [day], Direction.DOWN, carries=lambda read, made: (read.kind, made.kind) != ("Day", "Model"))

    assert found.producer(model.id).inputs == (rows.id,)


def test_a_long_chain_is_walked_to_its_end(store, done):
    """Sixty models, each from the one before."""
    (first,) = last = done("Trainer", [], ["Model"])
    for _ in range(59):
        last = done("Trainer", last, ["Model"])

    assert len(walk(store, last, Direction.UP).artifacts) == 60
    assert len(walk(store, [first], Direction.DOWN).steps) == 59
