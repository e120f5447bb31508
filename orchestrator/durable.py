"""Durable files: a file is on the disk and whole under its name, or not there at all, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


def find_full_disk(error: BaseException | None) -> OSError | None:
    """The error that said that a disk or a quota is full: this one, or one that it was raised from."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return error
        error = error.__cause__ or error.__context__
    return None


def put(path: Path, parts: Iterable[bytes | memoryview], *, draft: Path | None = None) -> None:
    """Writes a file and replaces the one of that name in a single step.

    The file is written as `draft` first, by default a fixed name beside it, which only one process at a time may use.
    """
    draft = draft or path.with_suffix(".draft")
    try:
        write(draft, parts)
        draft.replace(path)  # readers see the old file or the new one, never half of it
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Writes a file through to the disk; its name is on the disk only after `sync_folder`."""
    with path.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Writes the names in a folder through to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
