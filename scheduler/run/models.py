"""What people decide about models: to bless one, to take its blessing back, and to push one by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from spanwise.orchestrator import lease
from spanwise.orchestrator.artifact import Artifact, Model, PushedModel
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.component import Component, Node
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.history import History
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import BaseRun, Run, Trigger
from spanwise.orchestrator.run_request import RunOutcome, RunRequest
from spanwise.orchestrator.serving import channel_of, pushes
from spanwise.orchestrator.storage import is_object_url
from spanwise.orchestrator.store import Address, Store, is_marked
from spanwise.orchestrator.verdict import Verdict, append_personal, find_standing
from spanwise.scheduler.inspect import find
from spanwise.scheduler.ledger.schedule_status import user_name
from spanwise.scheduler.project import root
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.launch import ExecutionOptions, run_loaded
from spanwise.scheduler.run.resume import reload_pipeline


@dataclass(frozen=True)
class Decision:
    """A person's verdict on a model, and what follows from it."""

    verdict: Verdict
    champion: Artifact | None  #: of the model's channel, from now on
    lost: bool  #: the files of that champion were garbage-collected
    serves: bool  #: whether the model is the one that was pushed last


def decide(store: Store, model: Artifact, *, given: bool, because: str, clock: lease.Clock | None = None) -> Decision:
    """Records that a person blesses a model, or takes its blessing back.

    Raises:
        UsageError: it is no model, or that of a replay, or one to bless whose files were collected; or no reason is
            given.
    """
    _refuse_others(store, model, because)
    if given:
        _refuse_collected(store, model, "blessed")
    verdict = Verdict(mark="blessed", artifact=model.name, given=given, by=user_name(), because=because)
    append_personal(store, verdict, model)
    # A collection that looked for verdicts before this one was given has released its lease by then.
    lease.current_after_collection(store, channel_of(model.name).split("/")[0], clock or lease.Clock())
    last = next(pushes(store, channel_of(model.name)), None)
    champion = find_champion(store, model.name)
    lost = champion is not None and is_marked(store, COLLECTED, champion)
    return Decision(verdict, champion, lost, last is not None and last.model == model.name)


def find_champion(store: Store, model: str) -> Artifact | None:
    """The champion among the models of the channel that this model is of."""
    address = Address(*channel_of(model).split("/"))
    return History(store, address, Model, Run(pipeline=address.pipeline)).champion()


def push(
    reference: str, settings: Settings, *, because: str, node: str | None, json: bool
) -> tuple[RunOutcome, Loaded, Artifact]:
    """Pushes a model by the Pusher of its pipeline, in a run of its own: the model that is named, or the champion.

    Raises:
        UsageError: there is no such model or Pusher, or the model is not blessed; nothing was started.
        Held: another run holds the pipeline.
    """
    with root.open_for_reading(settings) as store:
        model = _find_model(store, reference, settings)
        _refuse_others(store, model, because)
        _refuse_collected(store, model, "pushed")
        _refuse_unblessed(store, model)
        maker = store.producer(model)
        newest = _newest_from_file(store, maker.pipeline)
        loaded = reload_pipeline(newest, settings)
        pusher, channel = _find_pusher(loaded.pipeline, model, node)
        _refuse_elsewhere(store, loaded.pipeline.nodes[pusher], model)
        supplier = replace(maker, node=channel[0], outputs={channel[1]: (model,)})
        request = RunRequest(
            selection=loaded.pipeline.select(first=[pusher], last=[pusher]),
            trigger=Trigger.PUSH,
            cause=f"{user_name()}: {because}",
            supplied=BaseRun(store.run(maker.pipeline, maker.run), {supplier.node: supplier}),
            typed=newest.typed,
        )
    return run_loaded(loaded, lambda _: request, settings, ExecutionOptions(), json=json), loaded, model


def _find_model(store: Store, reference: str, settings: Settings) -> Artifact:
    """The model of that name or folder; of a pipeline or its file, the champion."""
    if reference not in store.pipelines() and not reference.partition(":")[0].endswith(".py"):
        return find.artifact(store, reference, settings.root)
    pipeline, _ = find.pipeline_or_file(store, reference, settings.params)
    newest = _newest_from_file(store, pipeline)
    made = (
        a
        for e in store.executions(newest)
        for artifacts in e.outputs.values()
        for a in artifacts
        if a.kind == Model.kind
    )
    first = next(made, None)
    champion = None if first is None else find_champion(store, first.name)
    if champion is None:
        raise UsageError(
            f"{pipeline!r} has no champion to push. List its models: spanwise artifacts {pipeline} --type Model"
        )
    return champion


def _refuse_others(store: Store, model: Artifact, because: str) -> None:
    if not because.strip():
        raise UsageError("--because takes the reason, for whoever reads it in a year.")
    if model.kind != Model.kind:
        raise UsageError(f"{model.name} is {model.kind}, not Model. List the models: spanwise artifacts --type Model")
    if store.producer(model).replay:
        raise UsageError(
            f"{model.name} was made by a replay (--as-of), so no other run may read or serve it. Choose the model of "
            "an ordinary run: spanwise artifacts --type Model"
        )


def _refuse_collected(store: Store, model: Artifact, verb: str) -> None:
    if is_marked(store, COLLECTED, model):
        pipeline = channel_of(model.name).split("/")[0]
        raise UsageError(
            f"{model.name} was garbage-collected, so it cannot be {verb}. Choose another model:  "
            f"spanwise artifacts {pipeline} --type Model"
        )


def _refuse_unblessed(store: Store, model: Artifact) -> None:
    standing = find_standing(store, "blessed", model)
    was_pushed = any(push.model == model.name for push in pushes(store, channel_of(model.name)))
    if standing.holds() or (was_pushed and not standing.by_judge):
        return
    why = standing.refusal()
    raise UsageError(
        f"{model.name} is {why if why is not None else 'not judged yet'}, so it was not pushed. To bless it:  "
        f"spanwise bless {model.name} --because TEXT"
    )


def _newest_from_file(store: Store, pipeline: str) -> Run:
    """The newest run that was started from a file: its file and arguments say where the pipeline pushes."""
    newest = next((run for run in store.runs(pipeline) if run.source and not run.replay), None)
    if newest is None:
        raise UsageError(f"No run of {pipeline!r} was started from a file, so its Pusher is not known.")
    return newest


def _find_pusher(pipeline: Pipeline, model: Artifact, node: str | None) -> tuple[str, tuple[str, str]]:
    """The node that pushes models like this one, and the (node, key) of the channel from which it reads them."""
    able: dict[str, tuple[str, str]] = {}
    for name, each in pipeline.nodes.items():
        if isinstance(each, Component) and any(output.kind is PushedModel for output in each.outputs.values()):
            for channel in (c for channels in each.inputs.values() for c in channels if c.kind is Model):
                able[name] = (channel.node, channel.key)
    if node is not None and node not in able:
        raise UsageError(f"{pipeline.name!r} has no Pusher {node!r}; it has: {', '.join(able) or 'none'}.")
    chosen = [node] if node is not None else list(able)
    if len(chosen) != 1:
        there = f"has {len(able)} Pushers; name one: " + " or ".join(f"--node {name}" for name in able)
        raise UsageError(f"{pipeline.name!r} {there if able else f'has no Pusher, so nothing can push {model.name}.'}")
    return chosen[0], able[chosen[0]]


def _refuse_elsewhere(store: Store, pusher: Node, model: Artifact) -> None:
    """Refuses a relative destination that is another folder from here than where this node has pushed to."""
    destination = str(pusher.parameters.get("destination"))
    if is_object_url(destination):
        return
    before = (p for p in pushes(store, channel_of(model.name)) if p.node == pusher.name and p.destination)
    last = next((p for p in before if not is_object_url(p.destination)), None)
    here = Path(destination).expanduser()
    if last is not None and not here.is_absolute() and here.absolute() != Path(last.destination).parent:
        raise UsageError(
            f"{pusher.name} pushes to {here}, which is {here.absolute()} from this folder; the last push went to "
            f"{Path(last.destination).parent}. Change to the folder that the pipeline runs in, and push again."
        )


def format_decision(decision: Decision) -> str:
    """What was recorded, what is the champion now, and how to roll back what serves."""
    verdict = decision.verdict
    lines = [f"{verdict.artifact} is {verdict}."]
    lines.append(
        f"The champion is {decision.champion.name}." if decision.champion is not None else "There is no champion now."
    )
    if decision.champion is not None and decision.lost:
        lines.append("Its files were garbage-collected, so nothing can be compared with it.")
        lines.append(f"Take its blessing back as well:  spanwise unbless {decision.champion.name} --because TEXT")
    if decision.serves and not verdict.given:
        lines.append(f"{verdict.artifact} still serves.")
        if decision.champion is not None and not decision.lost:
            lines.append(f"Roll back:  spanwise push {decision.champion.name} --because TEXT")
    return "\n".join(lines)
