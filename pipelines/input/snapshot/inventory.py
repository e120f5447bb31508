"""The snapshots below a path: which there are, whether they are complete, and which can be removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from spanwise.orchestrator.errors import SnapshotDamaged, SnapshotNotFound
from spanwise.pipelines.input.snapshot.folder import FolderContent, SnapshotFolder, is_fingerprint
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata, SaveFailure
from spanwise.pipelines.input.snapshot.storage import Files


@dataclass(frozen=True, kw_only=True)
class RunListing:
    """One run's folder."""

    run_id: str
    is_snapshot: bool  #: whether `metadata.final` names it
    is_pending: bool  #: whether `snapshot.metadata` names it, and no snapshot is there
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class SnapshotListing:
    """One fingerprint's folder."""

    fingerprint: str
    final: Metadata | None
    pending: Metadata | None
    failed: SaveFailure | None
    runs: tuple[RunListing, ...]

    @property
    def state(self) -> Literal["whole", "pending", "failed", "leftovers"]:
        if self.final is not None:
            return "whole"
        if self.pending is not None:
            return "pending"
        return "failed" if self.failed is not None else "leftovers"

    @property
    def started(self) -> datetime | None:
        metadata = self.final or self.pending
        return None if metadata is None else datetime.fromtimestamp(metadata.started, UTC)

    @property
    def size_bytes(self) -> int:
        return sum(run.size_bytes for run in self.runs)


def snapshots(files: Files) -> Iterator[SnapshotListing]:
    """The snapshots below a path, by fingerprint. Other folders may lie beside them."""
    for fingerprint in filter(is_fingerprint, files.folders("")):
        folder = SnapshotFolder(files, fingerprint)
        found = folder.look()
        runs = tuple(_run(folder, found, run_id) for run_id in folder.run_ids())
        if found.final or found.pending or found.failed or runs:
            yield SnapshotListing(
                fingerprint=fingerprint, final=found.final, pending=found.pending, failed=found.failed, runs=runs
            )


def snapshot(files: Files, fingerprint: str) -> SnapshotListing:
    """One snapshot; the first letters of its fingerprint will do.

    Raises:
        SnapshotNotFound: there is none, or there are several.
    """
    matches = [listing for listing in snapshots(files) if listing.fingerprint.startswith(fingerprint)]
    if len(matches) == 1:
        return matches[0]
    there = ", ".join(listing.fingerprint for listing in matches or snapshots(files)) or "none"
    raise SnapshotNotFound(f"{len(matches)} snapshots in {files} begin with {fingerprint!r}; there are: {there}.")


def _run(folder: SnapshotFolder, found: FolderContent, run_id: str) -> RunListing:
    sizes = folder.files.sizes(f"{folder.fingerprint}/{run_id}")
    is_snapshot = found.final is not None and found.final.run_id == run_id
    return RunListing(
        run_id=run_id,
        is_snapshot=is_snapshot,
        is_pending=found.final is None and found.pending is not None and found.pending.run_id == run_id,
        files=len(sizes),
        size_bytes=sum(sizes.values()),
    )


@dataclass(frozen=True, kw_only=True)
class ChunkVerdict:
    """The result of verifying one chunk of a complete snapshot."""

    fingerprint: str
    run_id: str
    chunk: ChunkRecord
    problem: str  #: empty if it is what was written


def verify(files: Files, listing: SnapshotListing) -> Iterator[ChunkVerdict]:
    """Reads every byte of a complete snapshot; changes nothing."""
    if listing.final is None:
        return
    folder = SnapshotFolder(files, listing.fingerprint)
    for chunk in listing.final.chunks:
        problem = ""
        try:
            folder.read_chunk(listing.final.run_id, chunk)
        except SnapshotDamaged as error:
            problem = str(error)
        yield ChunkVerdict(fingerprint=listing.fingerprint, run_id=listing.final.run_id, chunk=chunk, problem=problem)


@dataclass(frozen=True, kw_only=True)
class UnknownFolder:
    """A folder below the path that is not a snapshot's, or not only; it is not touched."""

    name: str
    why: str


def unknown_folders(files: Files) -> Iterator[UnknownFolder]:
    """What lies beside the snapshots below a path, and folders of snapshots that hold something else, too."""
    for name in files.folders(""):
        if not is_fingerprint(name):
            yield UnknownFolder(name=name, why="no snapshot has such a name")
        elif foreign := SnapshotFolder(files, name).find_foreign():
            yield UnknownFolder(name=name, why=f"no snapshot holds {foreign}")


@dataclass(frozen=True, kw_only=True)
class SnapshotGarbage:
    """A file or folder that can be removed."""

    name: str  #: below the path
    why: str
    size_bytes: int


def garbage(
    files: Files, *, now: float, whole_s: float | None = None, expiry_s: float = 86_400
) -> Iterator[SnapshotGarbage]:
    """What nobody reads any longer, and nobody will complete; nothing of an unknown folder.

    Args:
        files: the place that holds the snapshots.
        now: seconds since 1970.
        whole_s: how long a complete snapshot stays after it was written; None for ever.
        expiry_s: how long an unfinished one stays after it was started, and how long one stays after something was
            written to it where nobody can mark what they use.
    """
    for listing in snapshots(files):
        below = listing.fingerprint
        if SnapshotFolder(files, below).find_foreign():
            continue
        attempts = [metadata for metadata in (listing.final, listing.pending) if metadata is not None]
        changed = _changed(files, listing)
        is_recent = now - changed <= expiry_s
        runs = {run.run_id for run in listing.runs} | {attempt.run_id for attempt in attempts}
        used = {run_id for run_id in runs if _is_used(files, f"{below}/{run_id}", default=is_recent)}
        limit_s = whole_s if listing.final is not None else expiry_s
        age_s = now - max((attempt.started for attempt in attempts), default=changed)
        if limit_s is not None and age_s > limit_s and not used:
            why = "written long ago" if listing.final is not None else "never finished"
            yield SnapshotGarbage(name=below, why=why, size_bytes=listing.size_bytes)
            continue
        for run in listing.runs:
            if attempts and not run.is_snapshot and not run.is_pending and run.run_id not in used:
                yield SnapshotGarbage(
                    name=f"{below}/{run.run_id}", why="replaced, or lost a race", size_bytes=run.size_bytes
                )
        for name in (below, *(f"{below}/{run.run_id}" for run in listing.runs)):
            for draft in files.drafts(name):
                written = files.changed(f"{name}/{draft}")
                if written is not None and now - written > expiry_s:
                    yield SnapshotGarbage(name=f"{name}/{draft}", why="its writer died", size_bytes=0)


def _changed(files: Files, listing: SnapshotListing) -> float:
    """When something was last written to a snapshot's folder; its writer's heartbeat counts."""
    names = (listing.fingerprint, *(f"{listing.fingerprint}/{run.run_id}" for run in listing.runs))
    return max(files.changed(name) or 0.0 for name in names)


def _is_used(files: Files, name: str, *, default: bool) -> bool:
    """Whether a run is marked as used; the default where there are no marks."""
    used = files.is_used(name)
    return default if used is None else used


def collect(
    files: Files, *, now: float, whole_s: float | None = None, expiry_s: float = 86_400
) -> list[SnapshotGarbage]:
    """Removes what `garbage` names."""
    found = list(garbage(files, now=now, whole_s=whole_s, expiry_s=expiry_s))
    for each in found:
        files.remove(each.name)
    return found
