"""Latest artifacts: the newest of a channel, or the newest blessed one.

Neither ever means what this run itself has made (law 8), so that a baseline is not compared with itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.orchestrator import Artifact, Channel, History, Node, Resolver


class Latest(Resolver):
    """The newest artifact, or none: of a kind with spans, the newest version of the highest span.

    Models that were refused are among them: `LatestBlessed` chooses a model to start from or to compare with.
    """

    def __init__(self, source: Channel, *, name: str | None = None, after: Sequence[Node] = ()) -> None:
        super().__init__(source, name=name, after=after, many=False, optional=True)

    def resolve(self, history: History) -> Sequence[Artifact]:
        newest = history.latest()
        return () if newest is None else (newest,)


class LatestBlessed(Resolver):
    """The newest artifact that is blessed, or none. Blessing an older one later has no effect, as in TFX.

    A blessing lasts until its Evaluator, or a person, takes it back. To start a trainer from an earlier model:
    `LatestBlessed(past("Trainer", "model", Model))["model"]`.
    """

    def __init__(self, source: Channel, *, name: str | None = None, after: Sequence[Node] = ()) -> None:
        super().__init__(source, name=name, after=after, many=False, optional=True)

    def resolve(self, history: History) -> Sequence[Artifact]:
        newest = next(history.blessed(), None)
        return () if newest is None else (newest,)
