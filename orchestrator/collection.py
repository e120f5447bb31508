"""Retention: which artifacts' files may be removed, and why the others are kept. Pure; reads neither disk nor store.

The records stay in the metadata, where collected artifacts are marked: readers treat a marked artifact as gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.history import version_key

COLLECTED = "collected"
"""The mark of an artifact whose files are removed; from then on no run begins to read them."""

PINNED = "pinned"
"""The mark of an artifact that somebody has protected; its fact `pinned` says whether the pin still holds."""

MARKS = ("blessed", "pushed")
"""The marks that can keep an artifact."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What is kept in addition to what is in use."""

    last: int = 10  #: per channel: the newest version of each of the highest spans; without spans, the newest artifacts
    last_of: Mapping[str, int] = field(default_factory=dict)  #: by artifact type, where another number applies
    younger: timedelta = timedelta(days=30)  #: everything published more recently
    marked: tuple[str, ...] = MARKS  #: everything with one of these marks
    logs: timedelta = timedelta(days=90)  #: logs of runs that ended more recently

    def of(self, artifact: Artifact) -> int:
        """How many artifacts are kept of the channel of this one: by its type, or the nearest that it extends."""
        named = (self.last_of[kind] for kind in (artifact.kind, *artifact.base_kinds) if kind in self.last_of)
        return next(named, self.last)


@dataclass(frozen=True, kw_only=True)
class RetentionDecision:
    """Whether one artifact is kept, and why."""

    artifact: Artifact
    reasons: tuple[str, ...] = ()  #: every reason to keep it; it is removed when there is none

    @property
    def removes(self) -> bool:
        return not self.reasons


def find_own_reasons(artifacts: Iterable[Artifact], retention: Retention, now: datetime) -> dict[int, list[str]]:
    """The reasons that the artifacts themselves have, of those that have any, by id: their age and their rank.

    The artifacts of each place come in the order in which they became current, the current one last (`renewal`).
    """
    reasons: dict[int, list[str]] = defaultdict(list)
    channels: dict[str, list[Artifact]] = defaultdict(list)
    young = f"younger than {_format_length(retention.younger)}"
    for artifact in artifacts:
        channels[channel_of(artifact)].append(artifact)
        if artifact.created is not None and now - artifact.created < retention.younger:
            reasons[artifact.id].append(young)
    for channel, members in channels.items():
        count = retention.of(members[0])
        for artifact in _last(members, count):
            reasons[artifact.id].append(f"among the last {count} of {channel}")
    return reasons


def combine_reasons(
    artifacts: Sequence[Artifact],
    known: Mapping[int, Sequence[str]],
    own: Mapping[int, Sequence[str]],
    *,
    companions: Mapping[int, Sequence[int]],
) -> list[RetentionDecision]:
    """Decides about each artifact by all reasons to keep it, by id, in the order of the arguments.

    `known` has those that only callers know: who uses it, that it is pinned, pushed or blessed; `own` those of
    `find_own_reasons`. `companions` has, by the id of a model, the ids of what it needs to be served. They are kept
    with it, but not their own companions, or a model would keep all of its ancestors.
    """
    reasons: dict[int, list[str]] = defaultdict(list)  # only of those that have any: most of many artifacts have none
    for artifact in artifacts:
        if artifact.id in known or artifact.id in own:
            reasons[artifact.id] = [*known.get(artifact.id, ()), *own.get(artifact.id, ())]
    _add_companions(reasons, artifacts, companions)
    return [RetentionDecision(artifact=a, reasons=tuple(reasons.get(a.id, ()))) for a in artifacts]


def _add_companions(
    reasons: dict[int, list[str]], artifacts: Iterable[Artifact], companions: Mapping[int, Sequence[int]]
) -> None:
    """Keeps with each kept model what it needs, as far as it is decided about."""
    if not companions:
        return
    names = {artifact.id: artifact.name for artifact in artifacts}
    for model in [artifact for artifact in names if artifact in reasons]:
        for companion in companions.get(model, ()):
            if companion in names:
                reasons[companion].append(f"belongs to {names[model]}")


def channel_of(artifact: Artifact) -> str:
    """`pipeline/node/key`, of a published artifact."""
    return "/".join(artifact.name.split("/", 3)[:3])


def _last(artifacts: Iterable[Artifact], count: int) -> list[Artifact]:
    """The newest version of each of the highest spans, which is all that resolvers choose; else the newest ones."""
    if not count:
        return []
    newest: dict[int, Artifact] = {}
    unspanned = []
    for artifact in artifacts:
        span = artifact.properties.get("span")
        if not isinstance(span, int):
            unspanned.append(artifact)
        elif span not in newest or version_key(artifact) >= version_key(newest[span]):
            newest[span] = artifact
    spanned = [newest[span] for span in sorted(newest)[-count:]]
    return [*spanned, *sorted(unspanned, key=version_key)[-count:]]


def _format_length(length: timedelta) -> str:
    if not length % timedelta(days=1):
        return f"{length // timedelta(days=1)} d"
    return f"{length.total_seconds() / 3600:g} h"
