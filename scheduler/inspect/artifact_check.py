"""Artifact checks: whether the files of recorded artifacts are there and, on request, as they were published.

They hold the artifacts of one run in memory at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.driver import is_on_disk
from spanwise.orchestrator.integrity import Damage, find_damages, recreate_command
from spanwise.orchestrator.store import Store, is_marked


@dataclass(kw_only=True)
class Checked:
    """What was checked so far."""

    artifacts: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class DamageReport:
    """A damaged artifact, and the command that recreates it."""

    artifact: Artifact
    found: str
    recreate: str


def check_artifacts(
    store: Store,
    pipeline: str,
    checked: Checked,
    *,
    runs: int | None = None,
    deep: bool = False,
    progress: Callable[[Checked], None] = lambda _checked: None,
) -> Iterator[DamageReport]:
    """Yields the artifacts of the newest `runs` runs, or of all, whose files are missing or have another size.

    `deep` compares every byte with the digest. Collected artifacts have no files, and are left out.
    """
    seen: set[int] = set()
    for run in itertools.islice(store.runs(pipeline), runs):
        made = itertools.chain(*(row for e in store.executions(run) if e.state.succeeded for row in e.outputs.values()))
        fresh = [a for a in {a.id: a for a in made}.values() if a.id not in seen]
        seen.update(artifact.id for artifact in fresh)
        there = [artifact for artifact in fresh if not is_marked(store, COLLECTED, artifact)]
        for damage in find_damages(there) if deep else _find_missing(there):
            if not is_marked(store, COLLECTED, damage.artifact):  # it may have been collected meanwhile
                command = recreate_command(run, damage.artifact, anew=True)
                yield DamageReport(artifact=damage.artifact, found=damage.found, recreate=command)
        checked.artifacts += len(there)
        checked.size_bytes += sum(artifact.size_bytes for artifact in there)
        progress(checked)


def _find_missing(artifacts: list[Artifact]) -> Iterator[Damage]:
    for artifact in artifacts:
        if not artifact.path.exists():
            yield Damage(artifact, f"there is nothing at {artifact.path}")
        elif artifact.content and not is_on_disk(artifact):
            yield Damage(artifact, f"{artifact.path} does not have the {artifact.size_bytes} bytes that were published")
