"""The newest success of each node, from records alone."""

from dataclasses import replace

from spanwise.orchestrator.artifact import Report
from spanwise.orchestrator.node_history import find_newest_successes, find_renamed
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Address, MemoryStore


def done(store, nodes, *, times=1, state=State.COMPLETE, replay=False, **facts):
    """So many runs of these nodes; returns the number of the last."""
    for _ in range(times):
        run = store.begin_run(Run(pipeline="p", nodes=nodes, replay=replay))
        for node in nodes:
            begun = store.begin(
                Execution(pipeline="p", run=run.number, node=node, component=node.rstrip("123"), replay=replay)
            )
            store.publish(replace(begun, state=state, **facts))
    return run.number


def newest(store):
    return {node: execution.run for node, execution in find_newest_successes(store, "p").items()}


def test_the_newest_success_of_a_node_is_found_behind_many_runs_of_others():
    """And of its own that failed; the newest comes first, and a node that is gone is there still."""
    store = MemoryStore()
    trained = done(store, ("Ingest", "Train"))
    gone = done(store, ("Renamed",))
    done(store, ("Ingest", "Train"), times=30, state=State.FAILED)
    ingested = done(store, ("Ingest",), times=120)

    assert list(newest(store).items()) == [("Ingest", ingested), ("Renamed", gone), ("Train", trained)]


def test_what_was_not_done_is_no_success():
    """A choice, what a base run has supplied, and a replay; a result of the cache is one."""
    store = MemoryStore()
    done(store, ("Train",))
    cached = done(store, ("Train",), state=State.CACHED, reused=1, key="k")
    done(store, ("Train",), state=State.CACHED, reused=1)
    done(store, ("Window",), state=State.CACHED)
    done(store, ("Train", "Push"), replay=True)

    assert newest(store) == {"Train": cached}


def test_a_node_that_is_read_in_the_place_of_another_is_that_one_renamed():
    """Of the same component, and never beside it; renamed twice, it has its last name."""
    store = MemoryStore()
    for name in ("Ingest1", "Ingest2", "Ingest3"):
        learn(store, name)
    done(store, ("Ingest4",), replay=True)

    assert find_renamed(store, "p") == {"Ingest1": "Ingest3", "Ingest2": "Ingest3"}


def test_a_node_that_nobody_reads_yet_or_that_is_read_beside_another_is_a_node_of_its_own():
    """As the second source of a pipeline, which is ingested for the first time by itself."""
    store = MemoryStore()
    learn(store, "Ingest1")
    done(store, ("Ingest2",))
    assert find_renamed(store, "p") == {}

    learn(store, "Ingest2", beside="Ingest1")
    assert find_renamed(store, "p") == {}


def learn(store, name, beside=None):
    """A run in which a node ingests, and another reads that; beside it what another has ingested before."""
    run = store.begin_run(Run(pipeline="p", nodes=(name, "Train")))
    given = [next(store.newest(Address("p", beside, "report")))] if beside else []
    for node, read in ((name, []), ("Train", given)):
        begun = store.begin(Execution(pipeline="p", run=run.number, node=node, component=node.rstrip("123")))
        made = {"report": (Report("/", content=f"{run.number}"),)} if node == name else {}
        ended = replace(begun, state=State.COMPLETE, inputs={"read": tuple(read)} if read else {}, outputs=made)
        given += [a for found in store.publish(ended).outputs.values() for a in found]
