"""Integrity: whether the files of artifacts are still those that were published, and the command to recreate them."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.artifact import Artifact, Model
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import DamagedArtifact, Unfingerprintable
from spanwise.orchestrator.run import Run, quote_pipeline

log = logging.getLogger("spanwise.integrity")

_MOST_NAMED = 3  # files in a message


Stamps: TypeAlias = dict[tuple[int, str], tuple[int, int, int]]
"""Size, time and inode of each file, by its artifact and name."""


@dataclass(frozen=True)
class Damage:
    """An artifact whose files are not those that were published."""

    artifact: Artifact
    found: str  #: which of its files, and what is there instead

    def __str__(self) -> str:
        return f"{self.artifact.name}, but its files are not those that were published: {self.found}"


def find_damage(artifact: Artifact) -> Damage | None:
    """Compares the names and bytes of an artifact's files with what was recorded when it was published.

    Returns None where no digest was recorded, as for artifacts of other programs.
    """
    if not artifact.content:
        return None
    found = _compare(artifact)
    if found is not None and artifact.archive is not None and artifact.archive.has(artifact.uri):
        log.warning("copy-damaged", extra={"artifact": artifact.name, "reason": found.found})
        shutil.rmtree(artifact.uri, ignore_errors=True)
        found = _compare(artifact)  # the copy that is fetched now
    return found


def _compare(artifact: Artifact) -> Damage | None:
    try:
        tree = fingerprint.of_tree(artifact.path)
    except (Unfingerprintable, DamagedArtifact) as error:
        return Damage(artifact, str(error).removesuffix("."))
    if tree.digest == artifact.content:
        return None
    differences = _differences(artifact, tree) if artifact.files else ["its digest differs"]
    more = [f"{len(differences) - _MOST_NAMED} more"] if len(differences) > _MOST_NAMED else []
    return Damage(artifact, f"{artifact.path}: {', '.join([*differences[:_MOST_NAMED], *more])}")


def find_damages(artifacts: Iterable[Artifact]) -> Iterator[Damage]:
    """Yields the damaged ones; reads several at a time, and holds no more than a buffer of each in memory."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1), "verify") as pool:  # hashing releases the interpreter
        yield from (damage for damage in pool.map(find_damage, artifacts) if damage is not None)


def verify_inputs(
    node: str,
    run: Run,
    inputs: Iterable[Artifact],
    judges: Mapping[str, Sequence[str]] | None = None,
    spans: Mapping[str, str] | None = None,
) -> None:
    """Refuses inputs whose files are not those that were published: the result would be wrong in silence.

    `judges` are the gates that have judged each of them, by its name, and `spans` the options that name the spans that
    it was made of, where several nodes ingest.

    Raises:
        DamagedArtifact: names the files, and the commands that create them again.
    """
    artifacts = list(inputs)
    if not artifacts:
        return
    began = time.monotonic()
    damages = list(find_damages(artifacts))
    facts = {"artifacts": len(artifacts), "size_bytes": sum(a.size_bytes for a in artifacts)}
    log.info("inputs-verified", extra={**facts, "damaged": len(damages), "took_s": round(time.monotonic() - began, 3)})
    if damages:
        raise DamagedArtifact(damage_message(node, run, damages, judges or {}, spans or {}))


def stamp(artifacts: Iterable[Artifact]) -> Stamps:
    """What changes with each published file when it is written to, without reading it."""
    found: Stamps = {}
    for artifact in artifacts:
        files = (artifact.path / name for name in artifact.files) if artifact.files else artifact.path.rglob("*")
        for file in files:
            with contextlib.suppress(OSError):
                seen = file.stat()
                found[artifact.id, str(file)] = (seen.st_size, seen.st_mtime_ns, seen.st_ino)
    return found


def refuse_written(
    node: str,
    run: Run,
    inputs: Sequence[Artifact],
    before: Stamps,
    judges: Mapping[str, Sequence[str]],
    spans: Mapping[str, str],
) -> None:
    """Refuses what a node has made if files that it reads are others than before: nobody else would see it in this run.

    Raises:
        DamagedArtifact: names the files, and the commands that create them again.
    """
    after = stamp(inputs)
    if after == before:
        return
    changed = {number for number, _ in dict(before.items() ^ after.items())}
    if damages := list(find_damages(artifact for artifact in inputs if artifact.id in changed)):
        raise DamagedArtifact(
            "The files of an input were written to while the node ran; it may write to its outputs alone.\n"
            + damage_message(node, run, damages, judges, spans)
        )


def damage_message(
    node: str, run: Run, damages: Iterable[Damage], judges: Mapping[str, Sequence[str]], spans: Mapping[str, str]
) -> str:
    """Who reads what, what is there instead, and what to type next."""
    found = list(damages)
    others = [damage.artifact for damage in found if not damage.artifact.is_a(Model)]
    commands = dict.fromkeys(
        recreate_command(run, other, judges.get(other.name, ()), spans=spans.get(other.name, ""), anew=True)
        for other in others
    )
    ways = ["Restore these files from a backup, or create them again:", *(f"  {command}" for command in commands)]
    lines = [
        *(f"{node} reads {damage}." for damage in found),
        *((ways if run.as_of is None else [describe_restore(run.as_of)]) if others else []),
        *describe_lost_models(damage.artifact for damage in found),
    ]
    return "\n".join(lines)


def describe_restore(as_of: datetime) -> str:
    """What helps a run that reads nothing that was published later."""
    moment = as_of.astimezone(UTC)
    return (
        f"Restore the files from a backup. This run reads only what was published by {moment:%Y-%m-%d %H:%M:%S} UTC, "
        "and so nothing that is created now."
    )


def describe_lost_models(artifacts: Iterable[Artifact]) -> list[str]:
    """What helps where models among these cannot be read: what is trained again is another model, of another name."""
    models = [artifact for artifact in artifacts if artifact.is_a(Model)]
    if not models:
        return []
    return [
        "Restore the model from a backup; to train again makes another one.",
        *(
            f"If it is a champion, the one before it is the baseline after:  {give_up_command(model)}"
            for model in models
        ),
    ]


def give_up_command(model: Artifact) -> str:
    """The command after which no run is compared with a model that cannot be read, and nobody looks for it."""
    return f"spanwise unbless {model.name} --because damaged"


def recreate_command(
    run: Run, artifact: Artifact, judges: Sequence[str] = (), *, spans: str = "", anew: bool = False
) -> str:
    """The command that publishes an artifact again: runs its node, and all before it, for its span.

    `judges` are the gates that have judged it: they judge what is published anew, or no window would read it. `spans`
    are the options that name the spans that it was made of, where these are known: nodes may have ingested others.
    `anew` also where a cached result looks whole, because its files have the right sizes.
    """
    span = artifact.properties.get("span", run.span)
    calendar = Calendar.from_name(artifact.properties.get("calendar", run.calendar))
    own = f" --span {calendar.label(span)}" if isinstance(span, int) else ""
    named = f" {spans}" if spans else own
    node = artifact.name.split("/")[1]
    again = " --no-cache" if anew else ""
    last = " ".join(f"--to {name}" for name in judges or [node])
    return f"spanwise run {quote_pipeline(run)}{named} {last}{again}"


def _differences(artifact: Artifact, tree: fingerprint.Tree) -> list[str]:
    """Which files are missing, new or changed; if none is, it is an empty folder or a link."""
    names = sorted(artifact.files.keys() | tree.files.keys())
    found = [
        f"{name} is missing"
        if name not in tree.files
        else f"{name} was not published"
        if name not in artifact.files
        else f"{name} has another content"
        for name in names
        if artifact.files.get(name) != tree.files.get(name)
    ]
    return found or ["its folders or links differ"]
