"""Inventory of the folder of a pipeline: what lies on disk, and which record each of it belongs to. Reads only.

The search begins on the disk, so it costs what is there now, not what ever was there. It does not follow links, so it
finds nothing outside of the root.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import Store

ASIDE = ".collected-"
"""The prefix of the name that a folder has between being collected and being removed."""

RUNS = ".runs"
SCHEDULE = ".schedule"
_LINK = "a link, which gc does not follow"


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A file or folder without artifacts that nobody reads any more."""

    path: Path
    why: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class UnknownFile:
    """A file or folder that no run of the pipeline has written; it is not touched."""

    path: Path
    why: str


@dataclass(frozen=True, kw_only=True)
class DiskInventory:
    """What the folder of a pipeline holds, except what a running run is writing."""

    artifacts: tuple[Artifact, ...] = ()  #: by id
    half_removed: tuple[Artifact, ...] = ()  #: marked as collected but still on disk: a collection was interrupted
    locations: Mapping[int, str] = field(default_factory=dict)  #: the paths of these artifacts, by id
    leftovers: tuple[Leftover, ...] = ()
    unknown_files: tuple[UnknownFile, ...] = ()


class _OutputFolder(NamedTuple):
    """A folder that an execution has written an output to."""

    node: str
    execution: int
    path: str


def take_inventory(store: Store, root: Path, pipeline: str, *, now: datetime, logs: timedelta) -> DiskInventory:
    """Lists what lies in `root/pipeline`. Logs of runs that ended longer ago than `logs` are leftovers."""
    home = root / pipeline
    if home.is_symlink():
        return DiskInventory(unknown_files=(UnknownFile(path=home, why=_LINK),))
    search = _DiskSearch(store, pipeline)
    search.nodes(home)
    search.archived(home)
    search.run_dirs(home / RUNS, lambda ended: now - ended >= logs)
    search.archived_run_dirs(lambda ended: now - ended >= logs)
    search.schedule(home / SCHEDULE, lambda written: now - written >= logs)
    artifacts = sorted(search.artifacts, key=lambda a: a.id)
    collected = store.find_claims(COLLECTED, [a.name for a in artifacts])
    half_removed = {a.id for a in artifacts if a.name in collected}
    return DiskInventory(
        artifacts=tuple(a for a in artifacts if a.id not in half_removed),
        half_removed=tuple(a for a in artifacts if a.id in half_removed),
        locations=search.locations,
        leftovers=tuple(search.leftovers),
        unknown_files=tuple(search.unknown_files),
    )


def find_leftovers(store: Store, root: Path, pipeline: str) -> list[Leftover]:
    """What nobody reads any more below the nodes of a pipeline: outputs that were never published, above all."""
    search = _DiskSearch(store, pipeline)
    search.nodes(root / pipeline)
    return search.leftovers


class _DiskSearch:
    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self.artifacts: list[Artifact] = []
        self.locations: dict[int, str] = {}
        self.leftovers: list[Leftover] = []
        self.unknown_files: list[UnknownFile] = []

    def nodes(self, home: Path) -> None:
        """PIPELINE/NODE/OUTPUT/NUMBER, where the number is an execution's."""
        folders = [
            _OutputFolder(node.name, int(entry.name), entry.path)
            for node in self._folders(home, lambda name: not name.startswith("."), ignore=(RUNS, SCHEDULE))
            for output in self._folders(Path(node.path), lambda name: not name.startswith("."))
            for entry in self._folders(Path(output.path), _is_number)
        ]
        published = self._find_published({folder.execution for folder in folders})
        others = [folder for folder in folders if not self._is_published(folder, published[folder.execution])]
        writers = self._find_writers(others)
        for folder in others:
            execution = writers.get((folder.node, folder.execution))
            if execution is None:
                self._add_unknown(Path(folder.path), _describe_unrecorded(folder))
            elif execution.state.succeeded:
                by_location = {_canonical(uri): artifact for uri, artifact in published[folder.execution].items()}
                self._published(folder, execution, by_location)
            elif execution.state.ended:
                self._add_leftover(Path(folder.path), f"{execution.name} {execution.state.value}")

    def _find_writers(self, folders: Collection[_OutputFolder]) -> Mapping[tuple[str, int], Execution]:
        """The executions that outputs are of, by node and number.

        After the restore of older metadata a number may be unknown, or have been given again, to another node.
        """
        found = self._store.executions_by_id({folder.execution for folder in folders})
        return {(e.node, e.id): e for e in found if e.pipeline == self._pipeline}

    def _find_published(self, executions: Collection[int]) -> Mapping[int, Mapping[str, Artifact]]:
        """What executions have published or reused, by execution, then by URI."""
        links = self._store.links(executions=executions, read=False)
        known = {a.id: a for a in self._store.artifacts_by_id({link.artifact for link in links})}
        published: dict[int, dict[str, Artifact]] = defaultdict(dict)
        for link in links:
            artifact = known[link.artifact]
            published[link.execution][artifact.uri] = artifact
        return published

    def _is_published(self, folder: _OutputFolder, by_uri: Mapping[str, Artifact]) -> bool:
        """Whether the folder is one artifact under the name that the metadata have, as nearly all are; adds it."""
        artifact = by_uri.get(folder.path)
        if artifact is None or not artifact.name.startswith(f"{self._pipeline}/{folder.node}/"):
            return False
        self._add_artifact(artifact, folder.path)
        return True

    def archived(self, home: Path) -> None:
        """What the archive has and the root has no copy of."""
        if self._store.archive is None:
            return
        known = {*self.locations.values()} | {str(left.path) for left in self.leftovers}
        known |= {str(unknown.path) for unknown in self.unknown_files}
        places = [place for place in self._store.archive.places(self._pipeline) if place not in known]
        ids = {_output_folder(home, place).execution for place in places}
        links = self._store.links(executions=ids, read=False)
        published = {a.uri: a for a in self._store.artifacts_by_id({link.artifact for link in links})}
        folders = [_output_folder(home, place) for place in _divided(places, published) if place not in known]
        writers = self._find_writers(folders)
        for folder in folders:
            execution = writers.get((folder.node, folder.execution))
            if folder.path in published:
                self._add_artifact(published[folder.path], folder.path)
            elif execution is None:  # also a folder of served models, whose name may look like that of an output
                self._add_unknown(Path(folder.path), f"in the archive: {_describe_unrecorded(folder)}")
            elif execution.state.succeeded:
                self._add_unknown(Path(folder.path), f"in the archive: {_describe_unpublished(execution)}")
            elif execution.state.ended:
                self._add_leftover(Path(folder.path), f"in the archive: {execution.name} {execution.state.value}")

    def archived_run_dirs(self, old: Callable[[datetime], bool]) -> None:
        """Logs and checkpoints that the archive has and the root has not."""
        if self._store.archive is None:
            return
        known = {str(left.path) for left in self.leftovers}
        for place in self._store.archive.run_folders(self._pipeline):
            number = Path(place).parent.name
            if place in known or not _is_number(number):
                continue
            with contextlib.suppress(NotRecorded):
                run = self._store.run(self._pipeline, int(number))
                if run.ended is None or not run.state.ended:
                    continue
                if place.endswith(".checkpoints"):
                    self._add_leftover(Path(place), f"in the archive: {run.name} has ended")
                elif old(run.ended):
                    self._add_leftover(Path(place), f"logs of {run.name}, which ended {run.ended:%Y-%m-%d}")

    def run_dirs(self, home: Path, old: Callable[[datetime], bool]) -> None:
        """PIPELINE/.runs/NUMBER, where the number is a run's."""
        for entry in self._folders(home, _is_number):
            try:
                run = self._store.run(self._pipeline, int(entry.name))
            except NotRecorded:
                self._add_unknown(Path(entry.path), f"no run {entry.name} of {self._pipeline} is recorded")
                continue
            if run.ended is None or not run.state.ended:
                continue
            parts = list(_entries(Path(entry.path)))
            if not parts:
                self._add_leftover(Path(entry.path), f"empty folder of {run.name}")
            for part in parts:
                if part.name.endswith((".scratch", ".checkpoints")):
                    self._add_leftover(Path(part.path), f"{run.name} has ended")
                elif part.name == "logs" and old(run.ended):
                    self._add_leftover(Path(part.path), f"logs of {run.name}, which ended {run.ended:%Y-%m-%d}")
                elif part.name.startswith(ASIDE):
                    self._add_half_removed(Path(part.path))

    def schedule(self, home: Path, old: Callable[[datetime], bool]) -> None:
        """PIPELINE/.schedule: the logs of scheduled runs, one file per attempt at a tick."""
        for entry in _entries(home):
            if entry.name.startswith(ASIDE):
                self._add_half_removed(Path(entry.path))
            elif entry.is_file(follow_symlinks=False) and entry.name.endswith(".log"):
                written = datetime.fromtimestamp(entry.stat().st_mtime, UTC)
                if old(written):
                    self._add_leftover(Path(entry.path), f"log of a tick, last written {written:%Y-%m-%d}")
            else:
                self._add_unknown(Path(entry.path), "no scheduler writes such a file")

    def _published(self, folder: _OutputFolder, execution: Execution, by_location: Mapping[str, Artifact]) -> None:
        """The folder of an output is one artifact, or holds several."""
        here = _canonical(folder.path)
        artifact = by_location.get(here)
        if artifact is not None:
            self._add_artifact(artifact, folder.path)
            return
        path = Path(folder.path)
        inside = list(_entries(path))
        if not any(location.startswith(f"{here}/") for location in by_location):
            self._add_unknown(path, _describe_unpublished(execution))
            return
        if not inside:
            self._add_leftover(path, f"empty folder of {execution.name}")
        for entry in inside:
            artifact = by_location.get(_canonical(entry.path))
            if artifact is not None and entry.is_dir(follow_symlinks=False):
                self._add_artifact(artifact, entry.path)
            elif entry.name.startswith(ASIDE):
                self._add_half_removed(Path(entry.path))
            else:
                self._add_unknown(Path(entry.path), _describe_unpublished(execution))

    def _add_artifact(self, artifact: Artifact, location: str) -> None:
        self.artifacts.append(artifact)
        self.locations[artifact.id] = location

    def _add_leftover(self, path: Path, why: str) -> None:
        if path.is_symlink():
            self._add_unknown(path, _LINK)
            return
        self.leftovers.append(Leftover(path=path, why=why, size_bytes=_size(path)))

    def _add_half_removed(self, path: Path) -> None:
        self._add_leftover(path, "an interrupted collection has not removed it yet")

    def _add_unknown(self, path: Path, why: str) -> None:
        self.unknown_files.append(UnknownFile(path=path, why=why))

    def _folders(
        self, home: Path, matches: Callable[[str], bool], *, ignore: Collection[str] = ()
    ) -> Iterator[os.DirEntry[str]]:
        """The subfolders with a matching name; whatever else is there is recorded as unknown."""
        for entry in _entries(home):
            if entry.name.startswith(ASIDE):
                self._add_half_removed(Path(entry.path))
            elif entry.is_symlink():
                self._add_unknown(Path(entry.path), _LINK)
            elif matches(entry.name) and entry.is_dir():
                yield entry
            elif entry.name not in ignore:
                aside = "~" in entry.name and "it was set aside: the metadata had forgotten the run that wrote it"
                self._add_unknown(Path(entry.path), aside or "no run writes such a file")


def _output_folder(home: Path, place: str) -> _OutputFolder:
    """The output that a place below the folder of the pipeline is, or is a part of."""
    node, _, number, *_ = Path(place).relative_to(home).parts
    return _OutputFolder(node, int(number), place)


def _describe_unrecorded(folder: _OutputFolder) -> str:
    return f"no execution {folder.execution} of {folder.node} is recorded"


def _describe_unpublished(execution: Execution) -> str:
    return f"{execution.name} has published nothing there"


def _divided(places: Collection[str], published: Mapping[str, Artifact]) -> Iterator[str]:
    """The places, and in place of an output that is several artifacts by now, each of these.

    After the restore of older metadata, a forgotten execution of that number may have left a manifest of the whole.
    """
    parts: dict[str, list[str]] = defaultdict(list)
    for uri in published:
        parts[uri.rpartition("/")[0]].append(uri)
    for place in places:
        yield from [place] if place in published or place not in parts else parts[place]


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder by name; none when it does not exist or is a link."""
    if folder.is_symlink():
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        yield from sorted(found, key=attrgetter("name"))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _canonical(path: str) -> str:
    """The path with links resolved, except in its last two parts: a root may have several names."""
    rest, last = os.path.split(path)
    above, before = os.path.split(rest)
    return f"{_real(above)}/{before}/{last}"


@functools.lru_cache(maxsize=1024)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _size(path: Path) -> int:
    """The size of a file or tree; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size if os.path.lexists(path) else 0
    return sum(_size(Path(entry.path)) for entry in _entries(path))
