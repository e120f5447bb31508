"""The latest: the newest artifact of a channel, or the newest that was blessed.

Neither ever means what this very run has made (law 8), so a baseline is not compared with itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.orchestrator import Artifact, Channel, History, Node, Resolver


class Latest(Resolver):
    """The newest artifact, or none: of a kind with spans, the newest version of the highest span.

    To start a trainer from the newest model of an earlier run, choose from the past:
    `Latest(past("Trainer", "model", Model))["model"]`.
    """

    def __init__(self, source: Channel, *, name: str | None = None, after: Sequence[Node] = ()) -> None:
        super().__init__(source, name=name, after=after, many=False, optional=True)

    def resolve(self, history: History) -> Sequence[Artifact]:
        newest = history.latest()
        return () if newest is None else (newest,)


class LatestBlessed(Resolver):
    """The newest artifact that was blessed, or none. A blessing never goes away; a later, older one does not win.

    Both rules are those of TFX's LatestBlessedModelStrategy.
    """

    def __init__(self, source: Channel, *, name: str | None = None, after: Sequence[Node] = ()) -> None:
        super().__init__(source, name=name, after=after, many=False, optional=True)

    def resolve(self, history: History) -> Sequence[Artifact]:
        newest = next(history.marked("blessed"), None)
        return () if newest is None else (newest,)
