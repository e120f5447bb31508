"""Plans and results of garbage collections as text and as documents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.storage import UnfinishedUpload
from spanwise.scheduler.formatting import Document, as_document, format_count, format_size, format_table
from spanwise.scheduler.inspect import records
from spanwise.scheduler.inspect.disk_inventory import Leftover
from spanwise.scheduler.storage.gc import CollectionPlan, CollectionResult

MOST_LISTED = 1000
"""How many of a kind are listed of one pipeline, unless all are asked for: nobody reads more."""

_REASONS = 2  # that are printed of those to keep an artifact


def format_collection(plan: CollectionPlan, result: CollectionResult | None, *, whole: bool = False) -> str:
    """A plan or, with `result`, what came of it; `whole` lists all of it, and also what is kept, and why."""
    artifacts, leftovers = _removed(plan, result)
    kept = plan.kept if whole else ()
    limit = None if whole else MOST_LISTED
    listed = artifacts[:limit]
    parts = [
        records.format_artifacts(listed, {plan.pipeline: plan.calendar}) if listed else "",
        _format_rows(
            ("LEFTOVER", "SIZE", "WHY"), ((str(x.path), format_size(x.size_bytes), x.why) for x in leftovers[:limit])
        ),
        _format_rows(("UNFINISHED UPLOAD", "BEGUN"), ((str(u.url), _day(u)) for u in _uploads(plan, result))),
        _format_rows(
            ("KEPT", "SIZE", "WHY"),
            ((d.artifact.name, format_size(d.artifact.size_bytes), _format_reasons(d.reasons)) for d in kept),
        ),
        _format_rows(
            ("UNKNOWN, NOT TOUCHED", "WHY"), ((str(u.path), u.why) for u in plan.inventory.unknown_files[:limit])
        ),
        "" if whole else _count_unlisted(plan, result),
    ]
    parts += [f"Unfinished uploads of pushes are not known: {reason}" for reason in plan.unlisted]
    if result is not None and result.failures:
        parts.append("\n".join(f"Could not remove {failure}" for failure in result.failures))
    return "\n\n".join([*filter(None, parts), _summarize(plan, result, whole=whole)])


def collection_document(plan: CollectionPlan, result: CollectionResult | None) -> Document:
    """The same for programs, always with what is kept."""
    artifacts, leftovers = _removed(plan, result)
    return {
        "pipeline": plan.pipeline,
        "held": plan.held if result is None else result.held,
        "size_bytes": _total_bytes(artifacts, leftovers),
        "artifacts": records.artifact_documents(artifacts, plan.calendar),
        "leftovers": [as_document(leftover) for leftover in leftovers],
        "uploads": [{"place": str(u.url), "begun": _day(u)} for u in _uploads(plan, result)],
        "kept": [
            {"artifact": d.artifact.name, "why": list(d.reasons), "size_bytes": d.artifact.size_bytes}
            for d in plan.kept
        ],
        "unknown_files": [as_document(unknown) for unknown in plan.inventory.unknown_files],
        "failures": [] if result is None else list(result.failures),
    }


def _removed(plan: CollectionPlan, result: CollectionResult | None) -> tuple[Sequence[Artifact], Sequence[Leftover]]:
    if result is None:
        return (*plan.inventory.half_removed, *plan.removals), plan.inventory.leftovers
    return result.artifacts, result.leftovers


def _uploads(plan: CollectionPlan, result: CollectionResult | None) -> Sequence[UnfinishedUpload]:
    return plan.uploads if result is None else result.uploads


def _day(upload: UnfinishedUpload) -> str:
    return f"{datetime.fromtimestamp(upload.begun_s, UTC):%Y-%m-%d %H:%M} UTC"


def _format_rows(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty when it has no rows."""
    cells = list(rows)
    return format_table(headers, cells) if cells else ""


def _count_unlisted(plan: CollectionPlan, result: CollectionResult | None) -> str:
    """How many are not listed, and how to see them; empty when there are none."""
    artifacts, leftovers = _removed(plan, result)
    found = {"artifact": artifacts, "leftover": leftovers, "unknown file": plan.inventory.unknown_files}
    more = [format_count(len(row) - MOST_LISTED, noun) for noun, row in found.items() if len(row) > MOST_LISTED]
    if not more:
        return ""
    how = "See all: --dry-run --all" if result is None else "With --all, gc lists all that it removes."
    return f"Not listed: {', '.join(more)}. {how}"


def _format_reasons(reasons: Sequence[str]) -> str:
    more = f"; {len(reasons) - _REASONS} more" if len(reasons) > _REASONS else ""
    return f"{'; '.join(reasons[:_REASONS])}{more}"


def _total_bytes(artifacts: Iterable[Artifact], leftovers: Iterable[Leftover]) -> int:
    return sum(a.size_bytes for a in artifacts) + sum(leftover.size_bytes for leftover in leftovers)


def _summarize(plan: CollectionPlan, result: CollectionResult | None, *, whole: bool) -> str:
    artifacts, leftovers = _removed(plan, result)
    what = f"{format_count(len(artifacts), 'artifact')} and {format_count(len(leftovers), 'leftover')}"
    size = format_size(_total_bytes(artifacts, leftovers))
    kept = f"{format_count(len(plan.kept), 'artifact')} {'is' if len(plan.kept) == 1 else 'are'} kept"
    more = "" if whole or not plan.kept else " See why: --dry-run --all"
    verb = "would be removed" if result is None else "removed"
    lines = [f"{plan.pipeline}: {what} {verb}, {size}; {kept}.{more}"]
    if held := plan.held if result is None else result.held:
        lines.append(
            f"{held}, so {'nothing can be removed' if result is None else 'no more was removed'} now. "
            "To wait for it: --wait"
        )
    return "\n".join(lines)
