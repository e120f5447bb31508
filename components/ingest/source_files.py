"""Source files: finds the files of a pattern on this machine or behind URLs, and copies the latter to read them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.orchestrator.storage import (
    ObjectInfo,
    find_newest_span,
    is_object_url,
    is_readable_url,
    list_objects,
    machine_copies,
    parse_url,
)

Revision = tuple[str, int, int]
"""The etag, size and time of an object: what tells one revision of it from another."""


class SourceFiles:
    """Lists what matches patterns, and remembers the revisions of the objects that it found."""

    def __init__(self) -> None:
        self.revisions: dict[str, Revision] = {}  #: of objects, by URL; files on this machine have none
        self._listed: dict[str, list[str]] = {}  # objects, by pattern: one that was listed need not be asked for again

    def list(self, pattern: str) -> Sequence[str]:
        """The paths or URLs that match, in no particular order."""
        if is_readable_url(pattern):
            if pattern not in self._listed:
                found = list_objects(pattern)
                self.revisions |= {url: (info.etag, info.size_bytes, info.modified_ns) for url, info in found.items()}
                self._listed[pattern] = list(found)
            return self._listed[pattern]
        paths = glob.iglob(pattern, recursive=True)  # noqa: PTH207  keeps the spelling of the pattern, `./` and all
        return [path for path in paths if not Path(path).is_dir()]

    def mark(self, path: str) -> tuple[str | int, ...]:
        """Changes when the file does: its size and time, and the etag of an object; zeros if it is gone."""
        if is_readable_url(path):
            return self.revisions.get(path, ("", 0, 0))
        try:
            found = Path(path).stat()
        except OSError:
            return 0, 0
        return found.st_size, found.st_mtime_ns


def find_unreadable(pattern: SpanPattern, asked: int | None, chosen: int) -> Iterator[tuple[str, str]]:
    """Folders that may have files of a span and cannot be read, which a listing passes over without a word; and why.

    They are those of the chosen span; where none was asked for, those of newer spans too.
    """
    if is_readable_url(pattern.text):
        return
    names = pattern.glob(asked if pattern.has_span else None).split("/")
    for depth in range(1, len(names)):
        if not glob.has_magic("/".join(names[: depth + 1])):
            continue  # what is named in full is not listed
        for folder in glob.iglob("/".join(names[:depth]) or "/", recursive=True):  # noqa: PTH207  as above
            why = _why_unreadable(folder, names[depth], named=names[depth - 1] != "**")
            if why and pattern.may_hold(folder, depth, lambda s: s == chosen or (asked is None and s > chosen)):
                yield folder, why


def _why_unreadable(folder: str, name: str, *, named: bool) -> str | None:
    """Why it is not known what of this name a folder has; None if it is known, or if it is no folder.

    A link to nothing was a folder where the pattern names it; below `**` it may have been anything.
    """
    try:
        if glob.has_magic(name):
            os.scandir(folder).close()
        else:
            Path(folder, name).stat()
    except (FileNotFoundError, NotADirectoryError):
        return "a link to nothing" if named and Path(folder).is_symlink() and not Path(folder).exists() else None
    except OSError as error:
        return error.strerror
    return None


def newest_object_span(patterns: Mapping[str, SpanPattern], source: SourceFiles) -> int | None:
    """The newest span of objects in every split, where the names of folders tell it; else everything is listed."""
    if not all(pattern.has_span and is_object_url(pattern.text) for pattern in patterns.values()):
        return None
    newest = {find_newest_span(pattern, source.list) for pattern in patterns.values()}
    return newest.pop() if len(newest) == 1 else None


def copy_objects(files: Mapping[str, Sequence[str]], revisions: Mapping[str, Sequence[str | int]]) -> dict[str, str]:
    """Where to read each file of the splits: an object in a copy of its revision here, any other where it is.

    Raises:
        Conflict: an object has been replaced since it was listed.
        StorageError: one cannot be read.
    """
    every = [path for paths in files.values() for path in paths]
    wanted = {parse_url(path): _info(path, revisions[path]) for path in every if is_readable_url(path)}
    copies = machine_copies().get_all(wanted)
    return {path: str(copies[parse_url(path)]) if is_readable_url(path) else path for path in every}


def _info(url: str, revision: Sequence[str | int]) -> ObjectInfo:
    etag, size_bytes, modified_ns = revision
    return ObjectInfo(key=parse_url(url).key, etag=str(etag), size_bytes=int(size_bytes), modified_ns=int(modified_ns))
