"""The states of local files while a pass reads them: a pass that has read two states of one file fails."""

from __future__ import annotations

import os
from typing import TypeAlias

from spanwise.orchestrator.errors import UnreadableInput

FileState: TypeAlias = "tuple[int, int, int, int]"


class FileStates:
    """The states of files when a pass began to read them.

    Files behind URLs are left out: a request for each of them would cost more than it finds, since stores replace
    objects as a whole.
    """

    def __init__(self) -> None:
        self._known: dict[str, FileState] = {}

    def begin(self, path: str) -> None:
        """Notes the file before it is opened; opened once more in the same pass, it must be as it was.

        Raises:
            UnreadableInput: it has changed since.
        """
        found = _state(path)
        if found is None:
            return  # whoever opens it says so
        before = self._known.get(path, found)
        if before[:2] != found[:2]:  # not every network file system gives a closed file its number again
            raise UnreadableInput(_message(path))
        self._known[path] = found

    def check(self, path: str) -> None:
        """Refuses what was read of a file that is no longer as it was. One that was deleted can be read to its end.

        Raises:
            UnreadableInput: it has changed.
        """
        before = self._known.get(path)
        if before is None:
            return
        found = _state(path)
        if found is not None and before != found:
            raise UnreadableInput(_message(path))


def _state(path: str) -> FileState | None:
    """Size, time of writing and identity; not the time of change, which a permission or a link sets too."""
    if "://" in path:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116  once for each block: a Path would cost more than the call
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev


def _message(path: str) -> str:
    return (
        f"{path} changed while it was read, so what was read of it may be of two states of the file. Write files under "
        "another name and rename them when they are complete; run again when it no longer changes."
    )
