"""The fingerprint of a span's input files, and whether they are still those that it was taken of."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from spanwise.orchestrator.digest import digest
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.orchestrator.storage import machine_copies

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_NONE: Mapping[str, str] = MappingProxyType({})


def fingerprint(files: Mapping[str, tuple[str, ...]], sources: Mapping[str, str] = _NONE) -> str:
    """A digest of split names, base names, sizes and contents; not of when the files were written.

    Every byte is read, at about 0.9 GB/s or the speed of the storage. `sources` has the URL of each file that is a copy
    of an object: files of one name count in the order of their paths, and those of copies change with the revisions.

    Raises:
        UnreadableInput: a file cannot be read, or changes while it is.
    """
    before = stamp(files)
    found = _digest_contents(files, sources)
    refuse_changed(files, before, found, sources)
    return found


def stamp(files: Mapping[str, tuple[str, ...]]) -> str:
    """What changes with a file, without reading it: one digest of sizes and times of writing, one of times of change.

    The second also changes when an owner, a permission or a link does. File numbers do not count: not every network
    file system keeps them.

    Raises:
        UnreadableInput: a file is not there.
    """
    found = [(path, _stat(path)) for split in sorted(files) for path in files[split]]
    copies = f"{machine_copies().folder}/"
    written = digest("written", *(text for path, stat in found for text in _written(path, stat, copies)))
    changed = digest("changed", *(str(s.st_ctime_ns) for _, s in found))
    return f"{written} {changed}"


def refuse_changed(
    files: Mapping[str, tuple[str, ...]], before: str, contents: str | None, sources: Mapping[str, str]
) -> None:
    """Refuses files that are no longer those of the stamp; `contents` is the fingerprint that they had.

    Raises:
        UnreadableInput: names the file that was changed last.
    """
    after = stamp(files)
    if after == before:
        return
    same_times = after.split()[0] == before.split(maxsplit=1)[0]
    if same_times and contents is not None and _digest_contents(files, sources) == contents:
        return  # a permission or a link, not the contents
    paths = [path for split in files.values() for path in split]
    last = max(paths, key=lambda path: _stat(path).st_ctime_ns)
    raise UnreadableInput(
        f"{last} changed while it was read{f', or another of the {len(paths)} files' if len(paths) > 1 else ''}, so "
        "nothing was ingested. Write files under another name and rename them when they are complete; run again "
        "when they no longer change."
    )


def _written(path: str, stat: os.stat_result, copies: str) -> tuple[str, str, str]:
    """A copy of an object is named after its revision; where it is, and of when, differs between machines."""
    if path.startswith(copies):
        return path.removeprefix(copies), str(stat.st_size), ""
    return path, str(stat.st_size), str(stat.st_mtime_ns)


def _stat(path: str) -> os.stat_result:
    try:
        return Path(path).stat()
    except OSError as error:
        raise UnreadableInput(f"{path}: could not be read ({error.strerror}).") from error


def _digest_contents(files: Mapping[str, tuple[str, ...]], sources: Mapping[str, str]) -> str:
    total = hashlib.blake2b(b"spanwise ingest 1", digest_size=16)

    def add(text: str) -> None:
        raw = text.encode("utf-8", "surrogateescape")
        total.update(len(raw).to_bytes(8, "little") + raw)

    for split in sorted(files):
        add(split)
        total.update(len(files[split]).to_bytes(8, "little"))
        for path in sorted(map(Path, files[split]), key=lambda path: (path.name, Path(sources.get(str(path), path)))):
            add(path.name)
            try:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
                    total.update(file.tell().to_bytes(8, "little"))
            except OSError as error:
                raise UnreadableInput(f"{path}: could not be read ({error.strerror}).") from error
            total.update(content.digest())
    return total.hexdigest()
