"""Pushed versions: what a destination holds, which version comes next, and which are too many.

Whose a version is depends on whether the root that pushed it is still where it was; nothing else is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spanwise.components.serving.root_identity import was_copied
from spanwise.orchestrator.storage import ObjectUrl


@dataclass(frozen=True, kw_only=True)
class PushRecord:
    """A version's record: the model, and the run that pushed it."""

    model: str  #: name of the artifact
    content: str  #: its digest
    run: str  #: `pipeline/number`
    node: str
    home: str  #: folder or URL of the pipeline's artifacts; distinguishes installations with pipelines of the same name
    at: str  #: ISO 8601, UTC
    root: str = ""  #: the identity of the root; it stays the same when the root is moved
    began: str = ""  #: when the run began; after metadata were restored, another run may have its number

    def is_of(self, other: PushRecord) -> bool:
        """Whether the pipeline of this record is that of the other, also where its root was moved in between.

        Where its root is still there, that of the other is a copy, which is a root of its own.
        """
        if self.home == other.home:
            return True
        same_root = bool(self.root) and self.root == other.root and _pipeline(self) == _pipeline(other)
        return same_root and not was_copied(_root_of(self), self.root, to=_root_of(other))


@dataclass(frozen=True, kw_only=True)
class PushedVersion:
    """A version in a destination."""

    version: int
    place: Path | ObjectUrl
    record: PushRecord | None  #: None if no Pusher created it


def next_version(existing: Iterable[int], now_s: float) -> int:
    """The version to push: Unix seconds as in TFX, or one above the highest existing version. Pure."""
    return max(int(now_s), *(version + 1 for version in existing), 1)


def find_existing(versions: Iterable[PushedVersion], mine: PushRecord) -> PushedVersion | None:
    """The version that makes this push unnecessary: this run's own, or the newest if it is the same model."""
    newest_first = sorted(versions, key=lambda v: v.version, reverse=True)
    for place, pushed in enumerate(newest_first):
        theirs = pushed.record
        if theirs is None or (theirs.model, theirs.content) != (mine.model, mine.content) or not theirs.is_of(mine):
            continue
        if not place or (theirs.run, theirs.began, theirs.node) == (mine.run, mine.began, mine.node):
            return pushed
    return None


def surplus_versions(versions: Iterable[PushedVersion], keep: int | None, mine: PushRecord) -> list[PushedVersion]:
    """The versions beyond the newest `keep` of those that this pipeline pushed; others are not ours to remove."""
    if keep is None:
        return []
    ours = [v for v in versions if v.record is not None and v.record.is_of(mine)]
    return sorted(ours, key=lambda v: v.version, reverse=True)[max(keep, 1) :]


def _pipeline(record: PushRecord) -> str:
    return record.run.rpartition("/")[0]


def _root_of(record: PushRecord) -> str:
    return record.home.rpartition("/")[0]


def reason_to_skip(existing: PushedVersion, mine: PushRecord) -> str:
    by = (
        f"by {existing.record.run}"
        if existing.record is not None and (existing.record.run, existing.record.began) != (mine.run, mine.began)
        else "by this run"
    )
    return f"not pushed again: version {existing.version} is this model, pushed {by}"
