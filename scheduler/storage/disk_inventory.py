"""Holdings: what the folder of a pipeline holds on the disk, and which record each of it belongs to. Reads only.

What is on the disk is where the search begins, so it costs what lies there now and not what ever lay there. Links are
not followed, so nothing outside of the root is found.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import Store, marked

ASIDE = ".collected-"
"""The first letters of the name that something has between being given up and being removed."""

ROOMS = ".runs"
SCHEDULE = ".schedule"
_LINK = "a link, which is not followed"


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something that no artifact is in, and that nobody reads any more."""

    path: Path
    why: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """Something that no run of the pipeline has written; it is not touched."""

    path: Path
    why: str


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What a pipeline's folder holds. What a run that goes on is writing is left out."""

    artifacts: tuple[Artifact, ...] = ()  #: by id
    begun: tuple[Artifact, ...] = ()  #: marked as collected, and yet there: a collection was stopped
    places: Mapping[int, Path] = field(default_factory=dict)  #: where each of these lies, by id
    leftovers: tuple[Leftover, ...] = ()
    strangers: tuple[Stranger, ...] = ()


@dataclass(frozen=True)
class _Folder:
    """One folder that an execution has written an output to."""

    node: str
    execution: int
    path: Path


def holdings(store: Store, root: Path, pipeline: str, *, now: datetime, logs: timedelta) -> Holdings:
    """What lies in `root/pipeline`. Logs of runs that ended longer ago than `logs` count as left over."""
    home = root / pipeline
    if home.is_symlink():
        return Holdings(strangers=(Stranger(path=home, why=_LINK),))
    search = _Search(store, pipeline)
    search.nodes(home)
    search.rooms(home / ROOMS, lambda ended: now - ended >= logs)
    search.schedule(home / SCHEDULE, lambda written: now - written >= logs)
    artifacts = sorted(search.artifacts, key=lambda a: a.id)
    begun = {a.id for a in artifacts if marked(store, COLLECTED, a)}
    return Holdings(
        artifacts=tuple(a for a in artifacts if a.id not in begun),
        begun=tuple(a for a in artifacts if a.id in begun),
        places=search.places,
        leftovers=tuple(search.leftovers),
        strangers=tuple(search.strangers),
    )


class _Search:
    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self.artifacts: list[Artifact] = []
        self.places: dict[int, Path] = {}
        self.leftovers: list[Leftover] = []
        self.strangers: list[Stranger] = []

    def nodes(self, home: Path) -> None:
        """PIPELINE/NODE/OUTPUT/NUMBER: the number is that of the execution."""
        folders = [
            _Folder(node.name, int(entry.name), Path(entry.path))
            for node in self._folders(home, lambda name: not name.startswith("."), besides=(ROOMS, SCHEDULE))
            for output in self._folders(Path(node.path), lambda name: not name.startswith("."))
            for entry in self._folders(Path(output.path), _is_number)
        ]
        ids = {folder.execution for folder in folders}
        executions = {e.id: e for e in self._store.executions_by_id(ids)}
        made: dict[int, dict[str, Artifact]] = defaultdict(dict)  # by execution, then by where it lies
        links = [link for link in self._store.links(executions=ids) if not link.read]
        known = {a.id: a for a in self._store.artifacts_by_id({link.artifact for link in links})}
        for link in links:
            made[link.execution][_canonical(known[link.artifact].uri)] = known[link.artifact]
        for folder in folders:
            execution = executions.get(folder.execution)
            if execution is None or (execution.pipeline, execution.node) != (self._pipeline, folder.node):
                self._strange(folder.path, f"no execution {folder.execution} of {folder.node} is recorded")
            elif execution.state.succeeded:
                self._published(folder, execution, made[folder.execution])
            elif execution.state.ended:
                self._left(folder.path, f"{execution.name} {execution.state.value}")

    def rooms(self, home: Path, old: Callable[[datetime], bool]) -> None:
        """PIPELINE/.runs/NUMBER: the number is that of the run."""
        for entry in self._folders(home, _is_number):
            try:
                run = self._store.run(self._pipeline, int(entry.name))
            except NotRecorded:
                self._strange(Path(entry.path), f"no run {entry.name} of {self._pipeline} is recorded")
                continue
            if run.ended is None or not run.state.ended:
                continue
            parts = list(_entries(Path(entry.path)))
            if not parts:
                self._left(Path(entry.path), f"nothing is left of {run.name} here")
            for part in parts:
                if part.name.endswith((".scratch", ".checkpoints")):
                    self._left(Path(part.path), f"{run.name} has ended")
                elif part.name == "logs" and old(run.ended):
                    self._left(Path(part.path), f"logs of {run.name}, which ended {run.ended:%Y-%m-%d}")
                elif part.name.startswith(ASIDE):
                    self._aside(Path(part.path))

    def schedule(self, home: Path, old: Callable[[datetime], bool]) -> None:
        """PIPELINE/.schedule: what the children of schedulers have printed, a file for each attempt at a tick."""
        for entry in _entries(home):
            if entry.name.startswith(ASIDE):
                self._aside(Path(entry.path))
            elif entry.is_file(follow_symlinks=False) and entry.name.endswith(".log"):
                written = datetime.fromtimestamp(entry.stat().st_mtime, UTC)
                if old(written):
                    self._left(Path(entry.path), f"log of a tick, last written {written:%Y-%m-%d}")
            else:
                self._strange(Path(entry.path), "no scheduler puts such a thing there")

    def _published(self, folder: _Folder, execution: Execution, by_place: Mapping[str, Artifact]) -> None:
        """A folder is one artifact, or has several in it."""
        here = _canonical(str(folder.path))
        whole = by_place.get(here)
        if whole is not None:
            self._found(whole, folder.path)
            return
        inside = list(_entries(folder.path))
        if not any(place.startswith(f"{here}/") for place in by_place):
            self._strange(folder.path, f"{execution.name} has published nothing there")
            return
        if not inside:
            self._left(folder.path, f"nothing is left of {execution.name} here")
        for entry in inside:
            artifact = by_place.get(_canonical(entry.path))
            if artifact is not None and entry.is_dir(follow_symlinks=False):
                self._found(artifact, Path(entry.path))
            elif entry.name.startswith(ASIDE):
                self._aside(Path(entry.path))
            else:
                self._strange(Path(entry.path), f"{execution.name} has published nothing there")

    def _found(self, artifact: Artifact, place: Path) -> None:
        self.artifacts.append(artifact)
        self.places[artifact.id] = place

    def _left(self, path: Path, why: str) -> None:
        if path.is_symlink():
            self._strange(path, _LINK)
            return
        self.leftovers.append(Leftover(path=path, why=why, size_bytes=_size(path)))

    def _aside(self, path: Path) -> None:
        self._left(path, "a collection was stopped before it had removed this")

    def _strange(self, path: Path, why: str) -> None:
        self.strangers.append(Stranger(path=path, why=why))

    def _folders(
        self, home: Path, fits: Callable[[str], bool], *, besides: Collection[str] = ()
    ) -> Iterator[os.DirEntry[str]]:
        """The folders in one, those with a fitting name; what else is there is noted."""
        for entry in _entries(home):
            if entry.name.startswith(ASIDE):
                self._aside(Path(entry.path))
            elif entry.is_symlink():
                self._strange(Path(entry.path), _LINK)
            elif fits(entry.name) and entry.is_dir():
                yield entry
            elif entry.name not in besides:
                self._strange(Path(entry.path), "no run puts such a thing there")


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, by name; nothing where there is none, or where it is a link."""
    if folder.is_symlink():
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        yield from sorted(found, key=lambda entry: entry.name)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _canonical(path: str) -> str:
    """The path with the links above its last two parts resolved: a root may be reached by several names."""
    rest, last = os.path.split(path)
    above, before = os.path.split(rest)
    return f"{_real(above)}/{before}/{last}"


@functools.lru_cache(maxsize=1024)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _size(path: Path) -> int:
    """How much is in it; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size if os.path.lexists(path) else 0
    return sum(_size(Path(entry.path)) for entry in _entries(path))
