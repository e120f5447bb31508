"""Previous spans: what was published for the spans before the one that this run makes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from spanwise.orchestrator import Artifact, Channel, History, ParameterError, PipelineError, Resolver


class Previous(Resolver):
    """The newest version of each of the `n` highest spans below the one that this run has made, or none.

    So a backfill of an old span is compared with the span before it, not with the newest:
    `Previous(statistics["statistics"])["statistics"]`. Where gates judge the spans, only accepted ones count.
    """

    def __init__(self, source: Channel, *, n: int = 1, name: str | None = None) -> None:
        super().__init__(source, name=name, many=n > 1, optional=True)
        if n < 1:
            raise ParameterError(f"{self.name}.n is {n}; it must be at least 1.")
        if source.producer is None:
            raise PipelineError(
                f"{self.name} needs the span that this run makes, but past channels make none; pass the node's "
                f"own channel: {source.node.lower()}[{source.key!r}]."
            )
        self.n = n
        self.parameters = {"n": n}

    def resolve(self, history: History) -> Sequence[Artifact]:
        mine = [span for artifact in history.mine if isinstance(span := artifact.properties.get("span"), int)]
        below = list(itertools.islice(history.spans(below=min(mine)), self.n)) if mine else []
        return tuple(found for span in reversed(below) if (found := history.newest_version(span)) is not None)
