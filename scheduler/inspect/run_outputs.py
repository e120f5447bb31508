"""Outputs of several runs: what their nodes published, the models that they trained, in a few queries for all."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from spanwise.orchestrator.artifact import Artifact, Model, Statistics, TransformCache, TransformGraph
from spanwise.orchestrator.lineage import Direction, passes_rows, walk
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.serving import channel_of, pushes
from spanwise.orchestrator.store import Address, Store

MOST_OUTPUTS = 100
"""Of one execution; a node that has more has ingested many spans at once, and trains nothing."""

_RUNS = 20  # the newest runs, which are searched for a channel of models
_FIRST = 3  # of them, which nearly always have one
_AGGREGATES = frozenset(kind.kind for kind in (Statistics, TransformCache, TransformGraph))  # of other spans as well


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


def find_model_channel(store: Store, pipeline: str) -> str | None:
    """The channel of the models that recent runs have trained; of several, that of the newest model."""
    return next(iter(find_model_channels(store, pipeline)), None)


def find_model_channels(store: Store, pipeline: str) -> list[str]:
    """The channels of the models that recent runs have trained, that of the newest model first."""
    recent = list(itertools.islice(store.runs(pipeline), _RUNS))
    for runs in (recent[:_FIRST], recent[_FIRST:]):
        made = list_made(store, runs)
        trained = (channel_of(a.name) for run in runs for e, a in reversed(made[run.name]) if is_trained(e, a))
        if channels := list(dict.fromkeys(trained)):
            return channels
    return []


def is_trained(execution: Execution, artifact: Artifact) -> bool:
    """Whether an execution has trained this model, rather than reused it."""
    return artifact.kind == Model.kind and execution.reused is None


def find_learned(store: Store, model: Artifact, address: Address) -> dict[int, Artifact]:
    """What a model has learned from at an address, by span: read itself, or what its features were made from."""
    read = walk(store, [model], Direction.UP, carries=_passes_examples).artifacts.values()
    return {
        span: artifact
        for artifact in sorted(read, key=lambda a: a.id)
        if artifact.name.startswith(f"{address}/") and isinstance(span := artifact.properties.get("span"), int)
    }


def _passes_examples(read: Artifact, made: Artifact) -> bool:
    """Whether a model learned from what it read here: an export from its model, but not one from its base."""
    if read.kind == made.kind == Model.kind:
        return made.properties.get("spans") is None
    return read.kind not in _AGGREGATES and passes_rows(read, made)


def read_learned(store: Store, address: Address) -> dict[int, list[Artifact]]:
    """By span, the artifacts at this address that the models which serve have learned from."""
    found: dict[int, list[Artifact]] = defaultdict(list)
    for channel in find_model_channels(store, address.pipeline):
        last = next(pushes(store, channel), None)
        learned = {} if last is None else find_learned(store, store.artifact(last.model), address)
        for span, artifact in learned.items():
            found[span].append(artifact)
    return dict(found)
