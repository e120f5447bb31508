"""The fingerprint of a span's input files: the same files give the same digest, whenever they were written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Mapping


def fingerprint(files: Mapping[str, tuple[str, ...]]) -> str:
    """A digest of split names, base names, sizes and contents; not of when the files were written.

    Every byte is read, at about 0.9 GB/s or the speed of the storage.

    Raises:
        UnreadableInput: a file cannot be read.
    """
    digest = hashlib.blake2b(b"spanwise ingest 1", digest_size=16)

    def add(text: str) -> None:
        raw = text.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "little") + raw)

    for split in sorted(files):
        add(split)
        digest.update(len(files[split]).to_bytes(8, "little"))
        for path in sorted(map(Path, files[split]), key=lambda path: (path.name, path)):
            add(path.name)
            try:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
                    digest.update(file.tell().to_bytes(8, "little"))
            except OSError as error:
                raise UnreadableInput(f"{path}: could not be read ({error.strerror}).") from error
            digest.update(content.digest())
    return digest.hexdigest()
