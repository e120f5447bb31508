"""Histories: the artifacts published on one channel, as one run may see them. Read only; resolvers choose from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Version
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Address, Store, is_marked
from spanwise.orchestrator.verdict import is_given


@dataclass(frozen=True)
class History:
    """The artifacts at one address of the store, as one run sees them.

    With `as_of`, artifacts that were published later do not exist. `mine` holds those that this run has published, so
    that "the latest model" never means the model that this run has just trained (law 8).
    """

    store: Store
    address: Address
    kind: type[Artifact]  #: of the artifacts
    run: Run
    mine: tuple[Artifact, ...] = ()

    @property
    def as_of(self) -> datetime | None:
        """Artifacts published later are hidden."""
        return self.run.as_of

    def spans(self, *, below: int | None = None) -> Iterator[int]:
        """The spans with visible artifacts, highest first, lower than `below`."""
        return (s for s in self.store.spans(self.address, below=below) if self.of_span(s))

    def of_span(self, span: int) -> list[Artifact]:
        """All artifacts of a span, of any version, oldest first."""
        return [a.as_kind(self.kind) for a in self.store.of_span(self.address, span) if self._is_visible(a)]

    def newest_version(self, span: int) -> Artifact | None:
        """The newest version of a span; of a version that was published twice, the later artifact."""
        return max(self.of_span(span), key=version_key, default=None)

    def newest(self) -> Iterator[Artifact]:
        """Artifacts without a span, newest first, except those of this run."""
        mine = {a.id for a in self.mine}
        found = (a for a in self.store.newest(self.address) if self._is_visible(a) and a.id not in mine)
        return (a.as_kind(self.kind) for a in found)

    def latest(self) -> Artifact | None:
        """The newest version of the newest span, or the newest artifact of a kind without spans."""
        highest = next(self.spans(), None)
        return next(self.newest(), None) if highest is None else self.newest_version(highest)

    def blessed(self) -> Iterator[Artifact]:
        """The artifacts that are blessed, newest first."""
        return (a for a in self.newest() if is_given(self.store, "blessed", a, as_of=self.as_of))

    def with_mark(self, mark: str) -> Iterator[Artifact]:
        """The artifacts with a permanent mark (`pushed`), newest first."""
        return (a for a in self.newest() if self._has_mark(mark, a))

    def _is_visible(self, artifact: Artifact) -> bool:
        return self.as_of is None or (artifact.created is not None and artifact.created <= self.as_of)

    def _has_mark(self, mark: str, artifact: Artifact) -> bool:
        if self.as_of is None:
            return is_marked(self.store, mark, artifact)
        claim = self.store.find_claim(mark, artifact.name)
        return claim is not None and datetime.fromisoformat(str(claim.facts["created"])) <= self.as_of


def version_of(artifact: Artifact) -> Version:
    """The version of the data; None if its span has no versions."""
    version = artifact.properties.get("version")
    return version if isinstance(version, int) else None


def version_key(artifact: Artifact) -> tuple[int, int]:
    """Orders the artifacts of one span: by version (none is lowest), then by order of publication."""
    version = version_of(artifact)
    return (-1 if version is None else version, artifact.id)
