"""Outputs of several runs: what their nodes published, the models that they trained, in a few queries for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from spanwise.orchestrator.artifact import Artifact, Model, Statistics, TransformCache, TransformGraph
from spanwise.orchestrator.lineage import Direction, passes_rows, walk
from spanwise.orchestrator.node_history import find_renamed, list_outputs
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.serving import find_served
from spanwise.orchestrator.store import Address, Store

MOST_OUTPUTS = 100
"""Of one execution; a node that has more has ingested many spans at once, and trains nothing."""

_AGGREGATES = (Statistics, TransformCache, TransformGraph)  # of other spans as well


def list_made(store: Store, runs: Collection[Run]) -> dict[str, list[tuple[Execution, Artifact]]]:
    """By the name of the run: what its nodes published or reused, in the order in which they began."""
    made: dict[str, list[tuple[Execution, Artifact]]] = {run.name: [] for run in runs}
    executions = [e for e in store.executions_of(runs) if e.state.succeeded and not e.chosen]
    newest = {(e.pipeline, e.node): e for e in executions}
    few = {(e.pipeline, e.node) for e, _ in list_outputs(store, newest.values(), most=MOST_OUTPUTS)}
    executions = [e for e in executions if (e.pipeline, e.node) in few]  # of others, not even the events are read
    for execution, artifacts in list_outputs(store, executions, most=MOST_OUTPUTS):
        made[execution.run_name] += [(execution, artifact) for artifact in artifacts]
    return made


def is_trained(execution: Execution, artifact: Artifact) -> bool:
    """Whether an execution has trained this model, rather than reused it."""
    return artifact.is_a(Model) and execution.reused is None


def find_window(store: Store, model: Artifact, address: Address) -> frozenset[int]:
    """The spans at an address that a model has read: itself, or as what it was made of; not its base."""
    read = walk(store, [model], Direction.UP, carries=_passes_examples).artifacts.values()
    spans = (a.properties.get("span") for a in read if a.name.startswith(f"{address}/"))
    return frozenset(span for span in spans if isinstance(span, int))


def _passes_examples(read: Artifact, made: Artifact) -> bool:
    """Whether a model learned from what it read here: an export from its model, but not one from its base."""
    return made.properties.get("base") != read.name and not read.is_a(*_AGGREGATES) and passes_rows(read, made)


Learned: TypeAlias = Mapping[str, Mapping[int, Artifact]]
"""By the name of a model, the artifacts of a channel that it has learned from, by their ids."""


def find_names(store: Store, address: Address) -> frozenset[Address]:
    """An address with those that its channel had before, as far as its node was renamed."""
    renamed = find_renamed(store, address.pipeline)
    return frozenset([address, *(replace(address, node=old) for old, now in renamed.items() if now == address.node)])


def find_learned(store: Store, pipeline: str, names: Collection[Address], known: Learned) -> Learned:
    """What the models that serve have learned from at these addresses, also through their bases.

    `tainted` says the same. What a model has learned from never changes: of `known` ones, as that of an earlier look,
    nothing is read again.
    """
    found = {model.name: model for model, _ in find_served(store, pipeline)}
    return {name: known[name] if name in known else _walk_learned(store, found[name], names, known) for name in found}


def _walk_learned(store: Store, model: Artifact, names: Collection[Address], known: Learned) -> dict[int, Artifact]:
    def carries(read: Artifact, made: Artifact) -> bool:
        return made.name not in known and passes_rows(read, made)

    reached = walk(store, [model], Direction.UP, carries=carries).artifacts.values()
    places = tuple(f"{address}/" for address in names)
    learned = {a.id: a for a in reached if a.name.startswith(places)}
    return learned | {i: a for base in reached for i, a in known.get(base.name, {}).items()}
