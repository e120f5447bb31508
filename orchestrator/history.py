"""Histories: what was published on one channel, as one run may see it. Read only; it is what resolvers choose from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Version
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Address, Store, is_marked


@dataclass(frozen=True)
class History:
    """What the store holds at one address, seen from one run.

    With `as_of`, what was published later does not exist. `mine` holds what this very run has published there, so
    that "the latest model" never means the model this run has just made (law 8).
    """

    store: Store
    address: Address
    kind: type[Artifact]  #: what is published there
    run: Run
    mine: tuple[Artifact, ...] = ()

    @property
    def as_of(self) -> datetime | None:
        """Nothing published later is seen."""
        return self.run.as_of

    def spans(self, *, below: int | None = None) -> Iterator[int]:
        """The spans that have something to see, highest first, lower than `below`."""
        return (s for s in self.store.spans(self.address, below=below) if self.of_span(s))

    def of_span(self, span: int) -> list[Artifact]:
        """Everything published for a span, of whatever version, oldest first."""
        return [a.as_kind(self.kind) for a in self.store.of_span(self.address, span) if self._seen(a)]

    def newest_version(self, span: int) -> Artifact | None:
        """The newest version of a span; of the same version published twice, the later one."""
        return max(self.of_span(span), key=version_key, default=None)

    def newest(self) -> Iterator[Artifact]:
        """Artifacts without a span, newest first, those of this run left out."""
        mine = {a.id for a in self.mine}
        found = (a for a in self.store.newest(self.address) if self._seen(a) and a.id not in mine)
        return (a.as_kind(self.kind) for a in found)

    def latest(self) -> Artifact | None:
        """The newest version of the newest span, or the newest artifact of a kind without spans."""
        highest = next(self.spans(), None)
        return next(self.newest(), None) if highest is None else self.newest_version(highest)

    def with_mark(self, mark: str) -> Iterator[Artifact]:
        """Those that were marked (`blessed`, `pushed`) by then, newest first."""
        return (a for a in self.newest() if self._marked(mark, a))

    def _seen(self, artifact: Artifact) -> bool:
        return self.as_of is None or (artifact.created is not None and artifact.created <= self.as_of)

    def _marked(self, mark: str, artifact: Artifact) -> bool:
        if self.as_of is None:
            return is_marked(self.store, mark, artifact)
        claim = self.store.find_claim(mark, artifact.name)
        return claim is not None and datetime.fromisoformat(str(claim.facts["created"])) <= self.as_of


def version_of(artifact: Artifact) -> Version:
    """The version it was published with; None when its span has no versions."""
    version = artifact.properties.get("version")
    return version if isinstance(version, int) else None


def version_key(artifact: Artifact) -> tuple[int, int]:
    """What orders the artifacts of one span: the version, none before all, then the order of publishing."""
    version = version_of(artifact)
    return (-1 if version is None else version, artifact.id)
