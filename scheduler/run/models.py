"""What people decide about models: to bless one, to take its blessing back, and to push one by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spanwise.orchestrator import lease
from spanwise.orchestrator.artifact import Artifact, InfraBlessing, Model, PushedModel
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.component import Channel, Component, Node, published_channel
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.history import History
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import BaseRun, Run, Trigger
from spanwise.orchestrator.run_command import format_run_command
from spanwise.orchestrator.run_request import RunOutcome, RunRequest
from spanwise.orchestrator.serving import Push, channel_of, find_serving, list_pushers, pushes, pushing_runs
from spanwise.orchestrator.store import Address, Store, is_marked
from spanwise.orchestrator.verdict import Verdict, append_personal, find_origins
from spanwise.scheduler.formatting import single_line
from spanwise.scheduler.inspect import find
from spanwise.scheduler.inspect.rollback import (
    Rollback,
    describe_collected,
    find_objection,
    find_rollback,
    format_push,
    name_pusher,
)
from spanwise.scheduler.ledger.schedule_status import user_name
from spanwise.scheduler.project import root
from spanwise.scheduler.project.load import Loaded, split
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.folder import refuse_elsewhere
from spanwise.scheduler.run.launch import ExecutionOptions, run_loaded
from spanwise.scheduler.run.resume import reload_pipeline

_LOOK_BACK = 50  # pushes


@dataclass(frozen=True)
class Decision:
    """A person's verdict on a model, and what follows from it."""

    verdict: Verdict
    champions: Mapping[str, Artifact | None]  #: of the model's channel now, by Pusher; by "" where none serves one
    lost: frozenset[str]  #: names of the champions of which the files were garbage-collected
    serving: tuple[tuple[Push, Rollback | None], ...]  #: the pushes by which it, or what was made of it, serves

    @property
    def champion(self) -> Artifact | None:
        """The champion of all Pushers; None where there is none, or where they have different ones."""
        found = {champion and champion.name: champion for champion in self.champions.values()}
        return next(iter(found.values())) if len(found) == 1 else None

    @property
    def serves(self) -> bool:
        """Whether the model, or what was made of it, serves."""
        return bool(self.serving)


def decide(store: Store, model: Artifact, *, given: bool, because: str, clock: lease.Clock | None = None) -> Decision:
    """Records that a person blesses a model, or takes its blessing back.

    Raises:
        UsageError: it is no model, or that of a replay, or one to bless whose files were collected; or no reason is
            given.
    """
    _refuse_without_reason(because)
    _refuse_others(store, model)
    if given and _is_collected(store, model):
        raise UsageError(describe_collected(model, "blessed"))
    verdict = Verdict(mark="blessed", artifact=model.name, given=given, by=user_name(), because=because)
    append_personal(store, verdict, model)
    # A collection that looked for verdicts before this one was given has released its lease by then.
    lease.current_after_collection(store, channel_of(model.name).split("/")[0], clock or lease.Clock())
    address = _address_of(model)
    serving = find_serving(store, address.pipeline)
    pushers = {push.node for name, found in serving.items() if channel_of(name) == str(address) for push in found}
    champions = {node: _find_champion(store, address, node or None) for node in sorted(pushers) or [""]}
    lost = (each.name for each in champions.values() if each is not None and _is_collected(store, each))
    return Decision(
        verdict=verdict,
        champions=champions,
        lost=frozenset(lost),
        serving=tuple((push, find_rollback(store, push)) for push in serving.get(model.name, [])),
    )


def _find_champion(store: Store, address: Address, pushed_by: str | None) -> Artifact | None:
    return History(store, address, Model, Run(pipeline=address.pipeline)).champion(pushed_by)


def _is_collected(store: Store, model: Artifact) -> bool:
    return is_marked(store, COLLECTED, model)


def _address_of(model: Artifact) -> Address:
    return Address(*channel_of(model.name).split("/"))


def _made_of(store: Store, model: Artifact) -> list[Artifact]:
    """The models that were made of a model by components that read no rows, such as exports, newest first."""
    made = (a for e in store.consumers(model) for found in e.outputs.values() for a in found if a.is_a(Model))
    direct = {a.name: a for a in made if model.id in {origin.id for origin in find_origins(store, a)}}
    found = {each.name: each for a in direct.values() for each in (a, *_made_of(store, a))}
    return sorted(found.values(), key=lambda artifact: artifact.id, reverse=True)


def push(
    reference: str, settings: Settings, *, because: str, node: str | None, json: bool
) -> tuple[RunOutcome, Loaded, Artifact]:
    """Pushes a model by the Pusher of its pipeline, in a run of its own: the model that is named, or the champion.

    Raises:
        UsageError: there is no such model or Pusher, or the model is not blessed; nothing was started.
        Held: another run holds the pipeline.
    """
    _refuse_without_reason(because)
    with root.open_for_reading(settings) as store:
        pipeline, model = _find_named(store, reference, settings)
        if model is not None:
            _refuse_others(store, model)
        last = find_pushing_run(store, pipeline, model=model, node=node)
        _refuse_elsewhere(last, model, node, settings, because)
        loaded = reload_pipeline(last, settings)
        pusher, channel = _find_pusher(store, loaded.pipeline, model, node)
        if model is None:
            model = _champion_to_push(store, loaded.pipeline, pusher, channel)
        judges = _judges_of(loaded.pipeline.nodes[pusher])
        if (objection := find_objection(store, model, pusher, judges=judges)) is not None:
            raise UsageError(objection)
        maker = store.producer(model)
        supplier = replace(maker, node=channel.node, outputs={channel.key: (model,)})
        request = RunRequest(
            selection=loaded.pipeline.select(first=[pusher], last=[pusher]),
            trigger=Trigger.PUSH,
            cause=f"{user_name()}: {because}",
            supplied=BaseRun(store.run(maker.pipeline, maker.run), {supplier.node: supplier}),
            typed=last.typed,
        )
    return run_loaded(loaded, lambda _: request, settings, ExecutionOptions(), json=json), loaded, model


def _find_named(store: Store, reference: str, settings: Settings) -> tuple[str, Artifact | None]:
    """The pipeline, and the model of that name or folder; None where a pipeline or its file is named."""
    if reference not in store.pipelines() and not reference.partition(":")[0].endswith(".py"):
        model = find.artifact(store, reference, settings.root)
        return channel_of(model.name).split("/")[0], model
    pipeline, _ = find.pipeline_or_file(store, reference, settings.params)
    return pipeline, None


def _champion_to_push(store: Store, pipeline: Pipeline, pusher: str, channel: Channel) -> Artifact:
    """The champion among the models that a Pusher reads, by its own pushes."""
    source = published_channel(channel)
    champion = _find_champion(store, Address(pipeline.name, source.node, source.key), pusher)
    if champion is None:
        raise UsageError(
            f"{pipeline.name!r} has no champion to push. List its models: spanwise artifacts {pipeline.name} "
            "--type Model"
        )
    return champion


def _refuse_without_reason(because: str) -> None:
    if not because.strip():
        raise UsageError("--because takes the reason, for whoever reads it in a year.")


def _refuse_others(store: Store, model: Artifact) -> None:
    """Refuses what is no model, and that of a replay."""
    if not model.is_a(Model):
        raise UsageError(f"{model.name} is {model.kind}, not Model. List the models: spanwise artifacts --type Model")
    if store.producer(model).replay:
        raise UsageError(
            f"{model.name} was made by a replay (--as-of), so no other run may read or serve it. Choose the model of "
            "an ordinary run: spanwise artifacts --type Model"
        )


def _judges_of(pusher: Node) -> set[tuple[str, str]]:
    """The outputs, by node and key, in which an InfraValidator tells a Pusher whether a model serves."""
    return {(c.node, c.key) for read in pusher.inputs.values() for c in read if issubclass(c.kind, InfraBlessing)}


def find_pushing_run(store: Store, pipeline: str, *, model: Artifact | None = None, node: str | None = None) -> Run:
    """The run whose file, arguments and folder a push by name has: the last in which the Pusher of the model pushed.

    What another run has tried with other arguments does not say where models serve. While that Pusher has pushed none,
    or where the file is gone, it is the newest run from a file.

    Raises:
        UsageError: no run was started from a file.
    """
    before = () if model is None else itertools.islice(pushes(store, channel_of(model.name)), _LOOK_BACK)
    named = {node} if node is not None else {push.node for push in before}
    pushers = [pusher for pusher in list_pushers(store, pipeline) if not named or pusher.node in named]
    last = [run for each in pushers if (run := _find_last(store, pushing_runs(store, each), pipeline)) is not None]
    if last:
        return max(last, key=lambda run: run.number)
    newest = next((run for run in store.runs(pipeline) if run.source and not run.replay), None)
    if newest is None:
        raise UsageError(f"No run of {pipeline!r} was started from a file, so its Pusher is not known.")
    return newest


def _find_last(store: Store, numbers: Iterable[int], pipeline: str) -> Run | None:
    """The first of these runs that was started from a file which is there."""
    runs = (store.run(pipeline, number) for number in numbers)
    there = (run for run in runs if run.source and run.folder and Path(run.folder, split(run.source)[0]).is_file())
    return next(there, None)


def _find_pusher(store: Store, pipeline: Pipeline, model: Artifact | None, node: str | None) -> tuple[str, Channel]:
    """The node that pushes, and the channel from which it reads; of several, the one that reads this model's."""
    pushers: dict[str, Channel] = {}
    for name, each in pipeline.nodes.items():
        if isinstance(each, Component) and any(
            issubclass(output.kind, PushedModel) for output in each.outputs.values()
        ):
            for channel in (c for channels in each.inputs.values() for c in channels if issubclass(c.kind, Model)):
                pushers[name] = channel
    if node is not None and node not in pushers:
        raise UsageError(f"{pipeline.name!r} has no Pusher {node!r}; it has: {', '.join(pushers) or 'none'}.")
    if not pushers:
        raise UsageError(
            f"{pipeline.name!r} has no Pusher, so nothing can push {'it' if model is None else model.name}."
        )
    named = pushers if node is None else {node: pushers[node]}
    able = {name: c for name, c in named.items() if model is None or _is_read(store, pipeline, model, c)}
    if model is not None and not able:
        raise UsageError(_describe_other(store, model, named))
    if len(able) > 1:
        names = " or ".join(f"--node {name}" for name in able)
        raise UsageError(f"{pipeline.name!r} has {len(able)} Pushers; name one: {names}")
    return next(iter(able.items()))


def _is_read(store: Store, pipeline: Pipeline, model: Artifact, channel: Channel) -> bool:
    """Whether a model is one of those on a channel: made by its node, or by one like it that is gone."""
    source, maker = published_channel(channel), _address_of(model)
    if maker.node in pipeline.nodes:
        return (maker.node, maker.key) == (source.node, source.key)
    return maker.key == source.key and store.producer(model).component == type(source.producer).__name__


def _describe_other(store: Store, model: Artifact, pushers: Mapping[str, Channel]) -> str:
    """Why these Pushers do not push a model of another channel, and the command that pushes what was made of it."""
    maker = _address_of(model)
    sources = {name: published_channel(channel) for name, channel in pushers.items()}
    pushed = " and ".join(f"{name} pushes {source!r}" for name, source in sources.items())
    readers = {Address(maker.pipeline, source.node, source.key): name for name, source in sources.items()}
    made = (
        format_push(each.name, name_pusher(store, each.name, node))
        for each in _made_of(store, model)
        if (node := readers.get(_address_of(each))) is not None and find_objection(store, each, node) is None
    )
    push = next(made, None)
    fix = (
        f"Push what was made of it:  {push}"
        if push is not None
        else f"List the models: spanwise artifacts {maker.pipeline} --type Model"
    )
    return f"{pushed}; {model.name} is of {maker.node}[{maker.key!r}], so it was not pushed. {fix}"


def _refuse_elsewhere(last: Run, model: Artifact | None, node: str | None, settings: Settings, because: str) -> None:
    """Refuses a push in another folder than the one that was pushed from last."""
    words = ["spanwise", "push", last.pipeline if model is None else model.name, f"--because={because}"]
    refuse_elsewhere(
        last.folder,
        settings,
        who=f"Run {last.name}",
        source=last.source,
        words=[*words, *([] if node is None else ["--node", node])],
        anew=format_run_command(last, last.pipeline),
    )


def format_decision(decision: Decision) -> str:
    """What was recorded, what is the champion now, and how to roll back what serves."""
    verdict = decision.verdict
    lines = [f"{verdict.artifact} is {single_line(str(verdict))}."]
    agreed = decision.champion is not None or not any(decision.champions.values())
    champions = {"": decision.champion} if agreed else decision.champions
    for node, champion in champions.items():
        of = f" of {node}" if node else ""
        is_now = f"There is no champion{of} now." if champion is None else f"The champion{of} is {champion.name}."
        lines.append(is_now)
        if champion is not None and champion.name in decision.lost:
            lines.append("Its files were garbage-collected, so nothing can be compared with it.")
            lines.append(f"Take its blessing back as well:  spanwise unbless {champion.name} --because TEXT")
    if not verdict.given:
        lines += dict.fromkeys(_describe_serving(verdict.artifact, push) for push, _ in decision.serving)
        lines += dict.fromkeys(_describe_rollback(push, rollback) for push, rollback in decision.serving)
    return "\n".join(lines)


def _describe_serving(model: str, push: Push) -> str:
    made = "" if push.model == model else ", which was made of it,"
    return f"{push.model}{made} still serves."


def _describe_rollback(push: Push, rollback: Rollback | None) -> str:
    if rollback is not None:
        return f"Roll back:  {rollback.command}"
    pipeline = channel_of(push.model).split("/")[0]
    return f"No other model may be pushed by {push.node}. List the models:  spanwise artifacts {pipeline} --type Model"
