"""Samples of WebDataset tar files: files that follow each other and are named alike up to the first dot are one sample.

A sample is a dict: `__key__`, the common part of the names, and for each file its ending and its bytes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.element import UNKNOWN, Spec
from spanwise.pipelines.input.files import Paths, list_files, locate
from spanwise.pipelines.input.ops.file_source import ElementFiles
from spanwise.pipelines.input.readers.text import skip_bytes

_ENDINGS = {"gzip": (".gz", ".tgz"), "bz2": (".bz2",), "zstd": (".zst",), "lz4": (".lz4",)}


@dataclass(frozen=True, kw_only=True, eq=False)
class TarShards(ElementFiles):
    @property
    def spec(self) -> Spec:
        return UNKNOWN

    def read(self, path: str, place: Any) -> Iterator[tuple[dict[str, Any], Any]]:
        """The place is the byte of the decompressed file where the first file of the next sample begins."""
        if place == _END:
            return
        sample: dict[str, Any] = {}
        start = place or 0
        try:
            with _open_tar(path, start) as archive:
                for member in archive:
                    key, ending = _key_and_ending(member.name)
                    if not member.isfile() or not ending or _is_hidden(member.name):
                        continue
                    if sample and key != sample["__key__"]:
                        yield sample, start + member.offset
                        sample = {}
                    if ending in sample:
                        raise UnreadableInput(f"{path}: the file {member.name} is there twice in one sample.")
                    content = archive.extractfile(member)
                    assert content is not None, "it is a file"
                    sample = sample or {"__key__": key}
                    sample[ending] = content.read()
        except tarfile.TarError as error:
            raise UnreadableInput(f"{path}: is no tar file, or is damaged ({error}).") from error
        if sample:
            yield sample, _END


_END = -1
"""The place behind the last sample of a file."""


def tar_shards(paths: Paths) -> TarShards:
    return TarShards(paths=list_files("from_webdataset", paths))


def _is_hidden(name: str) -> bool:
    """Whether it describes the archive: WebDataset leaves out names such as `__meta__` and `.hidden`."""
    last = name.rpartition("/")[2]
    return last.startswith(".") or (last.startswith("__") and last.endswith("__"))


def _key_and_ending(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


@contextmanager
def _open_tar(path: str, start: int) -> Iterator[tarfile.TarFile]:
    """The archive from a byte on, at which a file begins."""
    compression = next((kind for kind, ends in _ENDINGS.items() if path.lower().endswith(ends)), None)
    system, name = locate(path)
    source: Any = system.open_input_file(name) if compression is None else None
    with source or system.open_input_stream(name, compression=compression) as stream:
        if compression is None:
            stream.seek(start)
        else:
            skip_bytes(stream, start)
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
            yield archive
