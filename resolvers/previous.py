"""Previous spans: what was published for the span before the one that this run makes."""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.orchestrator import Artifact, Channel, History, PipelineError, Resolver


class Previous(Resolver):
    """The newest version of the highest span below the one that this run has made, or none.

    So a backfill of an old span is compared with the span before it, not with the newest:
    `Previous(statistics["statistics"])["statistics"]`.
    """

    def __init__(self, source: Channel, *, name: str | None = None) -> None:
        super().__init__(source, name=name, many=False, optional=True)
        if source.producer is None:
            raise PipelineError(
                f"{self.name} needs the span that this run makes, but past channels make none; pass the node's "
                f"own channel: {source.node.lower()}[{source.key!r}]."
            )

    def resolve(self, history: History) -> Sequence[Artifact]:
        mine = [span for artifact in history.mine if isinstance(span := artifact.properties.get("span"), int)]
        below = next(history.spans(below=min(mine)), None) if mine else None
        found = None if below is None else history.newest_version(below)
        return () if found is None else (found,)
