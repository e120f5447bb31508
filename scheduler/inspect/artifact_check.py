"""Artifact checks: whether the files of recorded artifacts are there and, on request, as they were published.

They hold the artifacts of one run in memory at a time.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact, Model
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.driver import is_on_disk
from spanwise.orchestrator.history import find_parts, versions_of
from spanwise.orchestrator.integrity import Damage, find_damages, give_up_command, recreate_command
from spanwise.orchestrator.making import name_spans
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Address, Store, is_marked
from spanwise.orchestrator.verdict import find_standing_of_model, judges_of
from spanwise.scheduler.formatting import run_calendar
from spanwise.scheduler.inspect.records import artifact_calendar


@dataclass(kw_only=True)
class Checked:
    """What was checked so far."""

    artifacts: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class DamageReport:
    """A damaged artifact, and the command after which it is needed no more: one makes it again, one gives it up."""

    artifact: Artifact
    found: str
    command: str


def check_artifacts(
    store: Store,
    pipeline: str,
    checked: Checked,
    *,
    runs: int | None = None,
    deep: bool = False,
    elsewhere: Sequence[str] = (),
    copied: tuple[Path, Path] | None = None,
    progress: Callable[[Checked], None] = lambda _checked: None,
) -> Iterator[DamageReport]:
    """Yields the artifacts of the newest `runs` runs, or of all, whose files are missing or have another size.

    Those that have been made again, and models that were given up, are not counted.

    `deep` compares every byte with the digest, and looks in the archive for the files of those that have a copy here.
    Collected artifacts have no files, and are left out.
    `elsewhere` is --root and --config as typed, for the commands. `copied` are the folders of the project and of its
    copy that this store reads: the commands are for the project.
    """
    seen: set[int] = set()
    for run in itertools.islice(store.runs(pipeline), runs):
        made = itertools.chain(*(row for e in store.executions(run) if e.state.succeeded for row in e.outputs.values()))
        fresh = [a for a in {a.id: a for a in made}.values() if a.id not in seen]
        seen.update(artifact.id for artifact in fresh)
        there = [artifact for artifact in fresh if not is_marked(store, COLLECTED, artifact)]
        for damage in _find_damages(there) if deep else _find_missing(there):
            if is_marked(store, COLLECTED, damage.artifact):  # it may have been collected meanwhile
                continue
            if _is_settled(store, run, damage.artifact):
                there = [artifact for artifact in there if artifact.id != damage.artifact.id]
                continue
            words = [_command(store, _of_project(run, copied), damage.artifact), *map(shlex.quote, elsewhere)]
            yield DamageReport(artifact=damage.artifact, found=damage.found, command=" ".join(words))
        checked.artifacts += len(there)
        checked.size_bytes += sum(artifact.size_bytes for artifact in there)
        progress(checked)


def _is_settled(store: Store, run: Run, artifact: Artifact) -> bool:
    """Whether its span was published again since; or a person has taken back the blessing of the model."""
    if artifact.is_a(Model):
        person = find_standing_of_model(store, artifact).personal
        return person is not None and not person.given
    span = artifact.properties.get("span")
    if not isinstance(span, int):
        return False
    address = Address(*artifact.name.split("/")[:3])
    published = versions_of(store, address, span, artifact_calendar(artifact, run_calendar(run)))
    (current,) = find_parts(store, [published])
    return artifact.id not in {part.id for part in current}


def _command(store: Store, run: Run, artifact: Artifact) -> str:
    if artifact.is_a(Model):
        return give_up_command(artifact)
    judges = judges_of(store, "accepted", artifact)
    spans = name_spans(store, artifact, calendar=run.calendar)
    return recreate_command(run, artifact, judges, spans=spans, anew=True)


def _of_project(run: Run, copied: tuple[Path, Path] | None) -> Run:
    """The run with its pipeline file in the project, not beside the copy of the root."""
    if copied is None:
        return run
    project, copy = map(os.path.abspath, copied)  # as the store says it, without `..`
    inside = run.source.startswith(f"{copy}/")
    return replace(run, source=project + run.source.removeprefix(copy)) if inside else run


def _find_damages(artifacts: list[Artifact]) -> Iterator[Damage]:
    """A whole copy on this machine does not mean that others find the artifact."""
    damaged = set()
    for damage in find_damages(artifacts):
        damaged.add(damage.artifact.id)
        yield damage
    with ThreadPoolExecutor(8, "check") as pool:
        lost = list(pool.map(_find_lost, artifacts))
    for artifact, names in zip(artifacts, lost, strict=True):
        if names and artifact.id not in damaged:
            what = f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are"
            yield Damage(artifact, f"{what} gone from the object storage; the copy on this machine is whole")


def _find_lost(artifact: Artifact) -> list[str]:
    return [] if artifact.archive is None or not artifact.content else artifact.archive.find_lost(artifact.uri)


def _find_missing(artifacts: list[Artifact]) -> Iterator[Damage]:
    with ThreadPoolExecutor(8, "check") as pool:  # the archive is asked over the network
        there = list(pool.map(is_on_disk, artifacts))
    for artifact in (a for a, whole in zip(artifacts, there, strict=True) if not whole):
        if not Path(artifact.uri).exists():
            yield Damage(artifact, f"there is nothing at {artifact.uri}")
        elif artifact.content:
            yield Damage(artifact, f"{artifact.uri} does not have the {artifact.size_bytes} bytes that were published")
