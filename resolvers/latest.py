"""Latest artifacts: the newest of a channel, or the newest blessed one.

Neither ever means what this run itself has made (law 8), so that a baseline is not compared with itself. What its base
run supplies may be meant, unless a node compares the choice with that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from spanwise.orchestrator import Artifact, Channel, History, Node, ParameterError, Resolver


class Latest(Resolver):
    """The newest artifact, or none: of a kind with spans, the newest version of the highest span.

    With `n` above 1, the `n` newest, oldest first, or fewer where there are fewer; for the spans of a gap, see
    `RollingWindow` and `LatestSpans`.

    Models that an Evaluator has refused are among them: where there is one, `LatestBlessed` chooses a model to start
    from or to compare with. Those whose blessing a person has taken back are not.
    """

    def __init__(self, source: Channel, *, n: int = 1, name: str | None = None, after: Sequence[Node] = ()) -> None:
        super().__init__(source, name=name, after=after, many=n > 1, optional=True)
        if n < 1:
            raise ParameterError(f"{self.name}.n is {n}; it must be at least 1.")
        self.n = n
        self.parameters = {"n": n} if n > 1 else {}

    def resolve(self, history: History) -> Sequence[Artifact]:
        spans = itertools.islice(history.earlier_spans(), self.n)
        by_span = [found for span in spans if (found := history.newest_version(span)) is not None]
        return tuple(reversed(by_span or list(itertools.islice(history.newest(), self.n))))


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
