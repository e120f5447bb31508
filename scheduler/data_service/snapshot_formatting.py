"""Formatting of snapshots: as text for people, and as documents for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spanwise.scheduler.formatting import Document, format_count, format_size, format_table, format_time, iso_time

if TYPE_CHECKING:
    from spanwise.pipelines.input.snapshot.inventory import (
        ChunkVerdict,
        SnapshotGarbage,
        SnapshotListing,
        UnknownFolder,
    )

_SHORT = 12  # letters of a fingerprint
_MOST_UNKNOWN = 20
_LEAST = datetime.min.replace(tzinfo=UTC)


def age_key(listing: SnapshotListing) -> tuple[float, str]:
    """A sort key: newest first."""
    return -(listing.started or _LEAST).timestamp(), listing.fingerprint


def format_listings(found: Sequence[SnapshotListing]) -> str:
    rows = [
        [
            listing.fingerprint[:_SHORT],
            listing.state,
            f"{listing.final.elements:,}" if listing.final is not None else "-",
            format_size(listing.size_bytes),
            str(len(listing.runs)),
            format_time(listing.started),
        ]
        for listing in found
    ]
    return format_table(["fingerprint", "state", "elements", "size", "runs", "started"], rows)


def format_listing(found: SnapshotListing) -> str:
    """One snapshot, its runs and its chunks."""
    metadata = found.final or found.pending
    lines = [f"snapshot {found.fingerprint}: {found.state}"]
    if metadata is not None:
        versions = ", ".join(f"{name} {version}" for name, version in metadata.versions.items() if version)
        lines += [f"  started  {format_time(found.started)}, with {versions}", f"  elements are  {metadata.spec}"]
    if found.state == "failed" and found.failed is not None:
        lines.append(f"  the save job failed: {found.failed.error}")
    runs = [
        [
            run.run_id,
            "read" if run.is_snapshot else "being written" if run.is_pending else "left over",
            str(run.files),
            format_size(run.size_bytes),
        ]
        for run in found.runs
    ]
    lines += ["", format_table(["run", "", "files", "size"], runs)]
    if found.final is not None and found.final.chunks:
        chunks = [
            [chunk.file, f"{chunk.first:,}", f"{chunk.elements:,}", format_size(chunk.size_bytes), chunk.checksum]
            for chunk in found.final.chunks
        ]
        lines += ["", format_table(["chunk", "from", "elements", "size", "checksum"], chunks)]
    return "\n".join(lines)


def listing_document(found: SnapshotListing, *, whole: bool = False) -> Document:
    metadata = found.final or found.pending
    document: Document = {
        "fingerprint": found.fingerprint,
        "state": found.state,
        "elements": found.final.elements if found.final is not None else None,
        "size_bytes": found.size_bytes,
        "started": iso_time(found.started),
        "error": found.failed.error if found.failed is not None else None,
        "runs": [dict(asdict(run)) for run in found.runs],
    }
    if whole and metadata is not None:
        document |= {"spec": metadata.spec, "versions": dict(metadata.versions)}
        document["chunks"] = [dict(asdict(chunk)) for chunk in metadata.chunks]
    return document


def format_verdicts(found: Sequence[ChunkVerdict]) -> str:
    damaged = [verdict for verdict in found if verdict.problem]
    lines = [verdict.problem for verdict in damaged]
    whole = len({verdict.fingerprint for verdict in found} - {verdict.fingerprint for verdict in damaged})
    read = format_size(sum(verdict.chunk.size_bytes for verdict in found))
    lines.append(
        f"{format_count(whole, 'snapshot')} intact, {format_count(len(damaged), 'chunk')} damaged, {read} read."
    )
    if damaged:
        lines.append("The next pass that reads a damaged snapshot rewrites it.")
    return "\n".join(lines)


def verdict_document(verdict: ChunkVerdict) -> Document:
    return {**asdict(verdict), "chunk": dict(asdict(verdict.chunk))}


def format_garbage(found: Sequence[SnapshotGarbage], unknown: Sequence[UnknownFolder], *, dry_run: bool) -> str:
    """What is removed and, before it, which folders are not touched."""
    lines = []
    if unknown:
        rows = [[each.name, each.why] for each in unknown[:_MOST_UNKNOWN]]
        lines.append(format_table(["unknown, not touched", "why"], rows))
        more = len(unknown) - len(rows)
        lines += [f"and {format_count(more, 'more folder')}", ""] if more else [""]
    if not found:
        return "\n".join([*lines, "Nothing to remove."])
    removed = [[each.name, each.why, format_size(each.size_bytes)] for each in found]
    total = format_size(sum(each.size_bytes for each in found))
    lines += [format_table(["", "why", "size"], removed), f"{total} {'would be removed' if dry_run else 'removed'}."]
    return "\n".join(lines)


def garbage_document(each: SnapshotGarbage) -> Document:
    return dict(asdict(each))
