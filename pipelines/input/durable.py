"""Durable files: what has been put in its place is whole and on the disk, whoever is killed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def put(path: Path, parts: Iterable[bytes]) -> None:
    """Writes a file; the one of that name gives way to it in one step. One process at a time may put a name."""
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
