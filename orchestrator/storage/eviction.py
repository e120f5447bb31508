"""Eviction: removes copies of artifacts below a root when they are too large together, the least recently used first.

Nothing is removed that the archive does not have, or that a process may read: who uses copies shares a lock, and what
was used within a day stays while anybody has it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from spanwise.orchestrator.storage.use_lock import UseLock

log = logging.getLogger("spanwise.storage")

MOST_BYTES = 20 << 30
"""Copies beyond this are removed, the least recently used first."""

ASIDE = ".fetching"
"""The folder below the root for what is on its way in or out."""

_RECORDS = ".copies"

SAFE_AGE_S = 86_400.0
"""No process reads one copy for longer without having asked for its path again, or fetches one without a new byte."""

_SPARE = 0.8  # removing stops at this share of the limit
_EVERY_S = 60.0
_STAMP = ".evicted"


def evict_sometimes(root: Path, most_bytes: int, lock: UseLock, has: Callable[[str], bool]) -> None:
    """Evicts, unless a process has done so within the last minute."""
    stamp = root / _STAMP
    with contextlib.suppress(FileNotFoundError):
        if 0 <= time.time() - stamp.stat().st_mtime < _EVERY_S:
            return
    stamp.touch()
    evict(root, most_bytes, lock, has)


def evict(root: Path, most_bytes: int, lock: UseLock, has: Callable[[str], bool]) -> int:
    """Removes copies until the others fit, and returns the bytes that they had. `has`: whether the archive has one."""
    sweep(lock, drafts_of(root))
    copies = sorted(_copies(root))
    total, removed = sum(size for _, size, _ in copies), 0
    if total <= most_bytes:
        return 0
    with lock.alone() as alone:
        for used_s, size, folder in copies:
            if total - removed <= most_bytes * _SPARE:
                break
            safe = alone or time.time() - used_s > SAFE_AGE_S
            if safe and _is_archived(folder, has) and _remove(root, folder, used_s):
                removed += size
    log.info("copies-removed", extra={"size_bytes": removed, "folder": root})
    return removed


def begin_use(lock: UseLock, drafts: Iterable[Path]) -> bool:
    """Shares the lock; True the first time, when what processes that died have left is removed before."""
    if lock.is_shared:
        return False
    sweep(lock, drafts)
    return lock.share()


def sweep(lock: UseLock, drafts: Iterable[Path]) -> None:
    """Removes what processes that died have left on its way in or out.

    The id of a process means nothing to another container or host, so all is left while anybody uses copies, unless
    it has not changed for a day.
    """
    with lock.alone() as alone:
        for draft in drafts:
            with contextlib.suppress(OSError):
                if alone or time.time() - _last_changed(draft) > SAFE_AGE_S:
                    shutil.rmtree(draft, ignore_errors=True)


def drafts_of(root: Path) -> Iterator[Path]:
    """What is on its way into the folder of a root, or out of it."""
    return (root / ASIDE).glob("*")


def record_of(root: Path, place: Path) -> Path:
    """The file with the digest of the copy at a place below the root."""
    return root / _RECORDS / place.relative_to(root).with_name(f"{place.name}.digest")


def _copies(root: Path) -> Iterator[tuple[float, int, Path]]:
    """When each folder of an artifact was last used, and its size: PIPELINE/NODE/OUTPUT/NUMBER, or one below."""
    for folder in root.glob("[!.]*/[!.]*/*/*"):
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # removed meanwhile
            yield _last_used(folder), _size(folder), folder


def _last_used(folder: Path) -> float:
    """Of an output with several artifacts, when one of them was."""
    return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))


def _is_archived(folder: Path, has: Callable[[str], bool]) -> bool:
    """Whether the archive has the artifact, or all artifacts of the output."""
    inside = list(folder.iterdir())  # nothing, while a node has yet to write
    return has(str(folder)) or (bool(inside) and all(each.is_dir() and has(str(each)) for each in inside))


def _size(folder: Path) -> int:
    return sum(os.lstat(f"{home}/{name}").st_size for home, _, names in os.walk(folder) for name in names)


def _remove(root: Path, folder: Path, used_s: float) -> bool:
    """By one rename first: what is removed in part must not be found. Puts back what has come into use meanwhile."""
    aside = root / ASIDE / uuid.uuid4().hex
    try:
        aside.parent.mkdir(exist_ok=True)
        folder.rename(aside)
        if _last_used(aside) != used_s:
            aside.rename(folder)
            return False
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    record = record_of(root, folder)
    record.unlink(missing_ok=True)
    shutil.rmtree(record.with_name(folder.name), ignore_errors=True)  # of an output with several artifacts
    return True


def _last_changed(draft: Path) -> float:
    """By the times that nobody can set: a copy gets that of its object, and one on its way out is old."""
    return max(path.lstat().st_ctime for path in (draft, *draft.rglob("*")))
