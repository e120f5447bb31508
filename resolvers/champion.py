"""Champions: the model in service, with which a new one is compared, and which predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spanwise.orchestrator import Artifact, Channel, Component, History, Node, PipelineError, PushedModel, Resolver
from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.scope import Scope
from spanwise.orchestrator.serving import Push, version_instead
from spanwise.orchestrator.store import Store


class Champion(Resolver):
    """The model that was pushed last; while none was, the newest blessed one; or none.

        champion = Champion(trainer["model"])

    The newest blessed model is not always the one that serves: a Trainer whose code was reverted pushes an older model
    again, a person rolls back, a model is blessed and its push fails. A model whose blessing a person has taken back
    (`spanwise unbless`) is passed over, even while it serves. Of several Pushers, `pushed_by` names the one that
    counts, by its name now: what it pushed under another is not its.

    Where it is compared with the model of the run, as by an Evaluator, it is never that model. Where it is only used,
    as by a BulkInferrer, it is the one that serves, also if the run has reused that one or pushes it before:

        serving = Champion(trainer["model"], name="Serving", after=[pusher])
    """

    def __init__(
        self,
        source: Channel,
        *,
        pushed_by: str | None = None,
        name: str | None = None,
        after: Sequence[Node] = (),
    ) -> None:
        super().__init__(source, name=name, after=after, many=False, optional=True)
        self.pushed_by = pushed_by
        self.parameters = {"pushed_by": pushed_by}

    def check_wiring(self, nodes: Mapping[str, Node], scopes: Mapping[str, Scope]) -> None:
        self._refuse_other_pusher(nodes)
        self._refuse_two_meanings(scopes[self.source.key])

    def resolve(self, history: History) -> Sequence[Artifact]:
        champion = history.champion(self.pushed_by)
        return () if champion is None else (champion,)

    def why(self, history: History, chosen: Sequence[Artifact]) -> str:
        """Whether it serves, and if not, why it was chosen all the same."""
        served = history.served(self.pushed_by)
        last = next(served, None)
        if last is None:
            return f"the newest blessed model; {self._describe_unpushed(history)}" if chosen else ""
        serving, push = last
        if chosen and serving.id == chosen[0].id:
            return _describe_served(history.store, push)
        if not chosen:
            what = "instead of"
        elif any(model.id == chosen[0].id for model, _ in served):
            what = "the champion before"
        else:
            by = f" by {self.pushed_by}" if self.pushed_by is not None else ""
            what = f"the newest blessed model, never pushed{by}, instead of"
        own = history.compared and serving.id in {mine.id for mine in history.mine}
        passed = (
            "which serves and is the model of this run" if own else "which serves, but whose blessing was taken back"
        )
        return f"{what} {serving.name}, {passed}"

    def _describe_unpushed(self, history: History) -> str:
        """That there is no push that counts, and which other there is: the Pusher may have been renamed."""
        other = next(history.served(), None)
        if other is None:
            return "none was pushed"
        _, push = other
        return f"{self.pushed_by} has pushed none, while {push.node} has pushed {push.model} last"

    def _refuse_other_pusher(self, nodes: Mapping[str, Node]) -> None:
        components = [node for node in nodes.values() if isinstance(node, Component)]
        pushers = [n.name for n in components if any(issubclass(c.kind, PushedModel) for c in n.outputs.values())]
        if self.pushed_by is not None and self.pushed_by not in pushers:
            raise PipelineError(
                f"{self.name} counts the pushes of {self.pushed_by!r} (pushed_by=), which is no Pusher of this "
                f"pipeline; its Pushers: {', '.join(pushers) or 'none'}."
            )

    def _refuse_two_meanings(self, scope: Scope) -> None:
        if scope.compared_by and scope.used_by and self.source.producer is not None:
            comparing, using = scope.compared_by[0], scope.used_by[0]
            raise PipelineError(
                f"{comparing} compares the choice of {self.name} with the model of the run, so it is never that model, "
                f"and {using} only uses it, so it is the one that serves. Give {using} a Champion of its own:  "
                f'Champion({self.source.node.lower()}[{self.source.key!r}], name="Serving")'
            )


def _describe_served(store: Store, push: Push) -> str:
    try:
        instead = version_instead(store, push)
    except StorageError as error:
        return f"pushed last by {push.run}; whether it serves cannot be seen: {error}"
    if instead is not None and instead.push is not None:
        since = f"where {instead.push.run} has pushed {instead.push.model} since"
        return f"pushed last by {push.run}; but {instead.place} serves, {since}"
    if instead is not None:
        since = "which is newer and was not pushed by a recorded run"
        return f"pushed last by {push.run}; but {instead.place} serves, {since}"
    return f"which serves, pushed by {push.run}"
