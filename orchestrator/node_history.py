"""Node histories: the newest success of each node of a pipeline, however many runs of others came since. Reads only."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import Address, Store

_RUNS = 1000
"""How many of the newest runs are looked through."""

_RECENT_SPANS = 30
"""In how many of the newest spans of a node its readers are looked for."""

_AT_ONCE = (3, 17, 80, 300, 300, 300)  # runs; the first have most nodes


def find_newest_successes(store: Store, pipeline: str) -> dict[str, Execution]:
    """The newest success of each node in recent runs, by its name, without inputs and outputs; the newest first.

    Resolvers, which only choose, are left out, as are replays, and what a base run has supplied. Of a run, nothing is
    read where it has only nodes whose success is known.
    """
    runs = (run for run in store.runs(pipeline, limit=_RUNS) if not run.replay)
    found: dict[str, Execution] = {}
    for size in _AT_ONCE:
        unread = [run for run in itertools.islice(runs, size) if not found.keys() >= set(run.nodes)]
        executions = store.executions_of(unread) if unread else []
        done = {e.node: e for e in executions if e.state.succeeded and not (e.chosen or e.supplied)}
        found = {**done, **found}
    return dict(sorted(found.items(), key=lambda item: -item[1].id))


def find_renamed(store: Store, pipeline: str) -> dict[str, str]:
    """The nodes that seem to have been renamed, each with its name now.

    That is a node of the same component that ran first after the other had run last, in recent runs, and whose outputs
    are read in place of the other's: by a node that has read those before, and reads them no more.
    """
    newest = find_newest_successes(store, pipeline)
    if len({done.component for done in newest.values()}) == len(newest):
        return {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for run in store.runs(pipeline, limit=_RUNS):
        for node in () if run.replay else run.nodes:
            first[node] = run.number
            last.setdefault(node, run.number)
    later = {
        node: [other for other in newest if newest[other].component == done.component and first[other] > last[node]]
        for node, done in newest.items()
    }
    if not any(later.values()):
        return {}
    read = _list_read(store, newest)
    readers = {node: _list_readers(store, newest[node]) for node, others in later.items() if others}
    found = {
        node: next(
            (o for o in later[node] if any(o in read[r] and node not in read[r] for r in those if r in read)), None
        )
        for node, those in readers.items()
    }
    return {node: other for node, other in found.items() if other is not None}


def _list_read(store: Store, newest: Mapping[str, Execution]) -> Mapping[str, set[str]]:
    """The nodes whose outputs each node has read in its newest success."""
    by_id = {execution.id: node for node, execution in newest.items()}
    links = store.links(executions=list(by_id), read=True)
    names = {artifact.id: artifact.name for artifact in store.artifacts_by_id({link.artifact for link in links})}
    read: dict[str, set[str]] = {node: set() for node in newest}
    for link in links:
        read[by_id[link.execution]].add(names[link.artifact].split("/")[1])
    return read


def _list_readers(store: Store, made: Execution) -> set[str]:
    """The nodes that have read what an execution made, or what its node had made for recent spans."""
    outputs = {link.artifact for link in store.links(executions=[made.id], read=False)}
    for address in {Address(*artifact.name.split("/")[:3]) for artifact in store.artifacts_by_id(outputs)}:
        recent = store.of_spans(address, [*itertools.islice(store.spans(address), _RECENT_SPANS)])
        outputs |= {artifact.id for found in recent.values() for artifact in found}
    readers = store.executions_by_id({link.execution for link in store.links(artifacts=outputs, read=True)})
    return {execution.node for execution in readers if execution.pipeline == made.pipeline}


def list_outputs(
    store: Store, executions: Collection[Execution], *, most: int | None = None
) -> list[tuple[Execution, Sequence[Artifact]]]:
    """Executions with what they published, reused or chose; those with more than `most` outputs are left out."""
    outputs: Mapping[int, list[int]] = defaultdict(list)
    for link in store.links(executions=[execution.id for execution in executions]):
        if not link.read:
            outputs[link.execution].append(link.artifact)
    few = [e for e in executions if most is None or len(outputs[e.id]) <= most]
    artifacts = {a.id: a for a in store.artifacts_by_id({i for e in few for i in outputs[e.id]})}
    return [(e, [artifacts[i] for i in outputs[e.id] if i in artifacts]) for e in few]
