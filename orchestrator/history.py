"""Histories: the artifacts published on one channel, as one run may see them. Read only; resolvers choose from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Version
from spanwise.orchestrator.renewal import current_of_span, current_without_span
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
        """All artifacts of a span, in the order of `versions_of`: the one that a window reads is the last."""
        found = versions_of(self.store, self.address, span, as_of=self.as_of)
        return [a.as_kind(self.kind) for a in found if self._is_visible(a)]

    def newest_version(self, span: int) -> Artifact | None:
        """The newest version of a span; of a version with several artifacts, the current one."""
        return next(reversed(self.of_span(span)), None)

    def newest(self) -> Iterator[Artifact]:
        """Artifacts without a span, the one that was published or reused last first, except those of this run."""
        mine = {a.id for a in self.mine}
        current = current_without_span(self.store, self.address, as_of=self.as_of)
        return (a.as_kind(self.kind) for a in current if self._is_visible(a) and a.id not in mine)

    def latest(self) -> Artifact | None:
        """The newest version of the newest span, or the newest artifact of a kind without spans."""
        highest = next(self.spans(), None)
        return next(self.newest(), None) if highest is None else self.newest_version(highest)

    def blessed(self) -> Iterator[Artifact]:
        """The artifacts that are blessed, the newest publication first; a reuse blesses nothing."""
        return (a for a in self._by_publication() if is_given(self.store, "blessed", a, as_of=self.as_of))

    def with_mark(self, mark: str) -> Iterator[Artifact]:
        """The artifacts with a permanent mark (`pushed`), the newest publication first."""
        return (a for a in self._by_publication() if self._has_mark(mark, a))

    def _by_publication(self) -> Iterator[Artifact]:
        mine = {a.id for a in self.mine}
        found = (a for a in self.store.newest(self.address) if self._is_visible(a) and a.id not in mine)
        return (a.as_kind(self.kind) for a in found)

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


def version_key(artifact: Artifact) -> int:
    """Orders versions: none is lowest."""
    version = version_of(artifact)
    return -1 if version is None else version


def versions_of(store: Store, address: Address, span: int, *, as_of: datetime | None = None) -> list[Artifact]:
    """All artifacts of a span: by version, and of the same version the current one last.

    The last of them is the one that windows read, and that supersedes the others.
    """
    return sorted(current_of_span(store, address, span, as_of=as_of), key=version_key)
