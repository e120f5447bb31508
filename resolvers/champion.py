"""Champions: the model that a new one is compared with, which is the one in service."""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.orchestrator import Artifact, Channel, History, Node, Resolver
from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.serving import Push, version_instead
from spanwise.orchestrator.store import Store


class Champion(Resolver):
    """The model that was pushed last; while none was, the newest blessed one; or none.

        champion = Champion(trainer["model"])

    The newest blessed model is not always the one that serves: a Trainer whose code was reverted pushes an older model
    again, a person rolls back, a model is blessed and its push fails. A model whose blessing a person has taken back
    (`spanwise unbless`) is passed over, even while it serves. Of several Pushers, `pushed_by` names the one that
    counts.
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

    def resolve(self, history: History) -> Sequence[Artifact]:
        champion = history.champion(self.pushed_by)
        return () if champion is None else (champion,)

    def why(self, history: History, chosen: Sequence[Artifact]) -> str:
        """Whether it serves, and if not, why it was chosen all the same."""
        serving = next(history.served(self.pushed_by), None)
        if not chosen:
            return ""
        if serving is None:
            return "the newest blessed model; none was pushed"
        model, push = serving
        if model.id == chosen[0].id:
            return _describe_served(history.store, push)
        if model.id in {mine.id for mine in history.mine}:
            return f"the champion before {model.name}, which serves and is the model of this run"
        return f"the champion before {model.name}, which serves, but whose blessing was taken back"


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
