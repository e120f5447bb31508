"""Rollbacks: which models may be pushed by name, and which one serves again in the place of another. Reads only."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact, InfraBlessing, Model
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.history import History
from spanwise.orchestrator.lineage import Direction, passes_rows, walk
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.serving import Push, channel_of, list_pushers, pushes
from spanwise.orchestrator.store import Address, Store, is_marked
from spanwise.orchestrator.verdict import Verdict, find_origins, find_standing_of_model, find_standings
from spanwise.scheduler.formatting import format_span
from spanwise.scheduler.inspect.records import artifact_calendar

_LOOK_BACK = 50  # models that were pushed, and as many that are blessed


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """The push that serves another model in the place of one."""

    model: str  #: name of the artifact
    node: str  #: the Pusher; empty where no other one pushes its models

    @property
    def command(self) -> str:
        """What a person types."""
        return format_push(self.model, self.node)


def find_rollback(store: Store, push: Push, *, without: Collection[str] = ()) -> Rollback | None:
    """How its Pusher replaces what it pushed: by the last model that it pushed and may push again, or a blessed one.

    `without` are names of models that are not to serve.
    """
    try:
        store.artifact(push.model)
    except NotRecorded:  # another program has named it
        return None
    address = Address(*channel_of(push.model).split("/"))
    history = History(store, address, Model, Run(pipeline=address.pipeline))
    pushed = (model for model, _ in itertools.islice(history.served(push.node), _LOOK_BACK))
    candidates = itertools.chain(pushed, itertools.islice(history.blessed(), _LOOK_BACK))
    wanted = (model for model in candidates if model.name not in without)
    found = next((model for model in wanted if find_objection(store, model, push.node) is None), None)
    return None if found is None else Rollback(model=found.name, node=name_pusher(store, found.name, push.node))


def name_pusher(store: Store, model: str, node: str) -> str:
    """The Pusher as a push has to name it: empty where recent runs have no other one that was given such models."""
    channel = channel_of(model)
    for pusher in list_pushers(store, channel.split("/")[0]):
        last = next(store.newest(pusher), None)
        if pusher.node != node and last is not None and channel_of(str(last.properties.get("model"))) == channel:
            return node
    return ""


def format_push(model: str, node: str, elsewhere: Sequence[str] = ()) -> str:
    """The command that pushes a model; `elsewhere` is --root and --config as they were typed."""
    named = ["--node", node] if node else []
    return shlex.join(["spanwise", "push", model, *named, *elsewhere]) + " --because TEXT"


def find_objection(
    store: Store, model: Artifact, pusher: str, *, judges: Collection[tuple[str, str]] | None = None
) -> str | None:
    """Why a Pusher may not push a model by name, with the way out; None where it may.

    `judges` are the outputs, by node and key, in which an InfraValidator of the Pusher says whether a model serves;
    None are those of all.
    """
    return (
        _object_collected(store, model)
        or _object_unblessed(store, model, pusher)
        or _object_refused(store, model)
        or _object_unservable(store, model, judges)
    )


def _object_collected(store: Store, model: Artifact) -> str | None:
    return describe_collected(model, "pushed") if is_marked(store, COLLECTED, model) else None


def describe_collected(model: Artifact, verb: str) -> str:
    """That the files of a model are gone, and what to choose from."""
    pipeline = channel_of(model.name).split("/")[0]
    return (
        f"{model.name} was garbage-collected, so it cannot be {verb}. Choose another model:  "
        f"spanwise artifacts {pipeline} --type Model"
    )


def _object_unblessed(store: Store, model: Artifact, pusher: str) -> str | None:
    """That a model is not blessed; one that nobody has judged may be pushed where it was pushed before."""
    standing = find_standing_of_model(store, model)
    if standing.holds() or (not standing.by_judge and _was_pushed(store, model, pusher)):
        return None
    why = standing.refusal()
    return (
        f"{model.name} is {why if why is not None else 'not judged yet'}, so it was not pushed. To bless it:  "
        f"spanwise bless {model.name} --because TEXT"
    )


def _was_pushed(store: Store, model: Artifact, pusher: str) -> bool:
    return any((push.model, push.node) == (model.name, pusher) for push in pushes(store, channel_of(model.name)))


def _object_refused(store: Store, model: Artifact) -> str | None:
    """What a model learned that was refused; a person who has blessed it since has overruled that."""
    found = _find_refused(store, model, since=_blessed_at(store, model))
    if found is None:
        return None
    rows, verdict = found
    pipeline = channel_of(model.name).split("/")[0]
    counted = artifact_calendar(rows, Calendar.from_name(store.run(pipeline, store.producer(rows).run).calendar))
    tainted = ["spanwise", "tainted", pipeline, "--span", format_span(rows.properties.get("span"), counted)]
    return (
        f"{model.name} learned from {rows.name}, which was {verdict}, so it was not pushed. "
        f"See what else did:  {shlex.join(tainted)}\n"
        f"To push it all the same, bless it:  spanwise bless {model.name} --because TEXT"
    )


def _blessed_at(store: Store, model: Artifact) -> datetime | None:
    """When a person blessed a model; None where nobody has, or somebody has taken it back since."""
    person = find_standing_of_model(store, model).personal
    return person.created if person is not None and person.given else None


def _find_refused(store: Store, model: Artifact, *, since: datetime | None) -> tuple[Artifact, Verdict] | None:
    """The first rows that a model, or one that it was made of or trained on from, learned and that are refused."""
    above = walk(store, [model], Direction.UP, carries=passes_rows).artifacts
    standings = find_standings(store, "accepted", above.values())
    for _, rows in sorted(above.items()):
        verdict = standings[rows.name].refusal()
        if verdict is not None and (since is None or (verdict.created is not None and verdict.created > since)):
            return rows, verdict
    return None


def _object_unservable(store: Store, model: Artifact, judges: Collection[tuple[str, str]] | None) -> str | None:
    """Where an InfraValidator said last that a model does not serve; a person who has blessed it since overrules it."""
    found = (
        (execution, artifact)
        for each in (model, *find_origins(store, model))
        for execution in store.consumers(each)
        for key, artifacts in execution.outputs.items()
        for artifact in artifacts
        if artifact.is_a(InfraBlessing) and (judges is None or (execution.node, key) in judges) and not execution.replay
    )
    execution, last = max(found, key=lambda each: each[0].id, default=(None, None))
    if execution is None or last is None or last.properties.get("blessed") == 1:
        return None
    blessed = _blessed_at(store, model)
    if blessed is not None and last.created is not None and blessed > last.created:
        return None
    reasons = last.as_kind(InfraBlessing).reasons or ["its infra blessing is negative"]
    return (
        f"{model.name} was not served by {execution.node} in run {execution.run}: {reasons[0]}, so it was not pushed. "
        f"To push it all the same, bless it:  spanwise bless {model.name} --because TEXT"
    )
