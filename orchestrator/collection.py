"""Collections: which artifacts' files may go, and why the others stay. Pure; looks at neither disk nor store.

The records stay in the metadata; what was collected is marked there, and whatever asks for it afterwards finds it gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.history import edition

COLLECTED = "collected"
"""The mark of an artifact whose files were given up; from then on nobody begins to read them."""

PINNED = "pinned"
"""The mark of an artifact that somebody wants to stay; its fact `pinned` says whether it still holds."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What stays, beside what somebody has a use for."""

    last: int = 10  #: of each channel: the newest edition of the highest spans; the newest, where there are no spans
    last_of: Mapping[str, int] = field(default_factory=dict)  #: by kind, where it is another number
    younger: timedelta = timedelta(days=30)  #: whatever was published so lately
    marked: tuple[str, ...] = ("blessed", "pushed")  #: whatever was marked so
    logs: timedelta = timedelta(days=90)  #: logs of runs that ended so lately

    def of(self, kind: str) -> int:
        """How many of a channel of this kind stay."""
        return self.last_of.get(kind, self.last)


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of one artifact."""

    artifact: Artifact
    stays: tuple[str, ...] = ()  #: every reason why; without one it goes

    @property
    def goes(self) -> bool:
        return not self.stays


def fates(
    artifacts: Sequence[Artifact],
    retention: Retention,
    now: datetime,
    *,
    told: Mapping[int, Sequence[str]],
    companions: Mapping[int, Sequence[int]],
) -> list[Fate]:
    """What becomes of each artifact of one pipeline, in the order given.

    `told` has reasons that only others know: who uses it, that it was pinned, pushed or blessed. `companions` has, by
    the id of a model, the ids of what it is of no use without. They stay with it; theirs do not, or a model would keep
    all that it ever descended from.
    """
    stays: dict[int, list[str]] = {a.id: list(told.get(a.id, ())) for a in artifacts}
    for artifact in artifacts:
        if artifact.created is not None and now - artifact.created < retention.younger:
            stays[artifact.id].append(f"younger than {_length(retention.younger)}")
    for channel, found in _channels(artifacts).items():
        count = retention.of(found[0].kind)
        for artifact in _last(found, count):
            stays[artifact.id].append(f"among the last {count} of {channel}")
    names = {a.id: a.name for a in artifacts if stays[a.id]}
    for model, name in names.items():
        for companion in companions.get(model, ()):
            if companion in stays:
                stays[companion].append(f"belongs to {name}")
    return [Fate(artifact=a, stays=tuple(stays[a.id])) for a in artifacts]


def channel_of(artifact: Artifact) -> str:
    """`pipeline/node/key`, of a published artifact."""
    return "/".join(artifact.name.split("/")[:3])


def _channels(artifacts: Iterable[Artifact]) -> dict[str, list[Artifact]]:
    found: dict[str, list[Artifact]] = defaultdict(list)
    for artifact in artifacts:
        found[channel_of(artifact)].append(artifact)
    return found


def _last(artifacts: Sequence[Artifact], count: int) -> list[Artifact]:
    """Of each of the highest spans the newest edition, which is all that resolvers choose; else the newest."""
    newest: dict[int, Artifact] = {}
    unspanned = []
    for artifact in sorted(artifacts, key=edition):
        span = artifact.properties.get("span")
        if isinstance(span, int):
            newest[span] = artifact
        else:
            unspanned.append(artifact)
    spanned = [newest[span] for span in sorted(newest)]
    return [*spanned[-count:], *sorted(unspanned, key=lambda a: a.id)[-count:]] if count else []


def _length(length: timedelta) -> str:
    if not length % timedelta(days=1):
        return f"{length // timedelta(days=1)} d"
    return f"{length.total_seconds() / 3600:g} h"
