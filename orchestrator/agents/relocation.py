"""Relocations: where an agent finds what a job names by places below the root of its controller.

An agent that sees the same root uses it. One that does not has a root of its own, and an archive that both reach: then
inputs are fetched from there, and outputs are there before the controller publishes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spanwise.orchestrator.agents.messages import Prepare
from spanwise.orchestrator.artifact import Artifact, ArtifactArchive
from spanwise.orchestrator.errors import NodeFailed
from spanwise.orchestrator.job import JobEnded, NodeJob
from spanwise.orchestrator.storage.archive import BucketArchive


@dataclass(frozen=True)
class Relocation:
    """From the root of a controller to that of an agent."""

    theirs: Path
    ours: Path
    work: Path  #: where scratch folders are

    @classmethod
    def choose(cls, wanted: Prepare, folder: Path) -> Relocation:
        """The same root if it is seen here, or if none is needed, else one in the agent's own folder.

        Raises:
            NodeFailed: it is not seen, and there is no archive.
        """
        if not wanted.root:
            return cls(folder, folder, folder)
        theirs = Path(wanted.root)
        with contextlib.suppress(OSError):
            if Path(wanted.token_file).read_text(encoding="ascii") == wanted.token:
                return cls(theirs, theirs, folder)
        if not wanted.archived:
            raise NodeFailed(
                f"it does not see the root {wanted.root}, which is not in object storage. Mount the same folder there, "
                f"or set in spanwise.toml: root = 's3://…'"
            )
        return cls(theirs, folder / "root", folder)

    @property
    def shared(self) -> bool:
        return self.theirs == self.ours

    def arriving(self, job: NodeJob, log: Path) -> NodeJob:
        """The job as it is done here."""
        log.parent.mkdir(parents=True, exist_ok=True)
        moved = replace(job, log=str(log), scratch=str(self.work / f"{job.id}.scratch"), placed=True)
        if self.shared:
            return moved
        archive = _at(self.ours, job.archive)
        return replace(
            moved,
            archive=archive,
            inputs=_relocated_all(job.inputs, self),
            verify=tuple(self._here(artifact) for artifact in job.verify),
            outputs={name: self._path(place) for name, place in job.outputs.items()},
            checkpoints=self._path(job.checkpoints),
            snapshots=self._path(job.snapshots),
        )

    def leaving(self, ended: JobEnded) -> JobEnded:
        """The end of a job as its controller knows the places."""
        if self.shared or ended.outputs is None:
            return ended
        drafts = {
            name: tuple(
                each.relocated(str(self.theirs / Path(each.uri).relative_to(self.ours)), None) for each in found
            )
            for name, found in ended.outputs.items()
        }
        return replace(ended, outputs=drafts)

    def _here(self, artifact: Artifact) -> Artifact:
        return artifact.relocated(self._path(artifact.uri), _at(self.ours, artifact.archive))

    def _path(self, place: str) -> str:
        path = Path(place)
        return str(self.ours / path.relative_to(self.theirs)) if path.is_relative_to(self.theirs) else place


def _relocated_all(inputs: Mapping[str, tuple[Artifact, ...]], to: Relocation) -> dict[str, tuple[Artifact, ...]]:
    return {name: tuple(to._here(each) for each in found) for name, found in inputs.items()}  # noqa: SLF001


def _at(root: Path, archive: ArtifactArchive | None) -> ArtifactArchive | None:
    return replace(archive, root=root) if isinstance(archive, BucketArchive) else archive
