"""Importer: publishes existing files as an artifact, such as a model to start from."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self, TypeAlias, cast

from spanwise.orchestrator.artifact import Artifact, Model, missing_properties
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, StorageError, Unfingerprintable, UnreadableInput
from spanwise.orchestrator.fingerprint import digest, of_tree
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import Output
from spanwise.orchestrator.storage import (
    ObjectInfo,
    ObjectUrl,
    is_readable_url,
    is_web_url,
    leave_out_markers,
    local_path,
    machine_copies,
    open_bucket,
    parse_url,
    refuse_url,
)

Revision: TypeAlias = tuple[str, int, int]
"""The etag, size and time of an object."""


class Importer(Component):
    """Publishes a copy of a file or folder as an artifact of any kind.

        Importer(uri="models/first", kind=Model, properties={"spans": [15706, 15707]})["artifact"]

    `uri` may be a URL: of an object, or of all that is below a folder, in object storage (`s3://`, `gs://`, `az://`);
    or of a web server's file (`https://`).

    As long as the content of `uri` does not change, every run uses the same artifact; after a change, the next run
    publishes a new one. The files are copied, because an artifact never changes and the source may; so an import takes
    the size of the files on disk and reads them once in each run.
    """

    prepared: ClassVar = ("content", "revisions")
    hints: ClassVar = ("revisions",)

    def __new__(cls, *, kind: type[Artifact] = Model, **_arguments: object) -> Self:
        """The kind of the output is part of the signature, so there is a class for each kind."""
        if cls is not Importer:
            return object.__new__(cls)
        return cast("Self", object.__new__(_importer_of(kind)))  # type: ignore[arg-type]  # see artifact.properties_of

    def check(self) -> None:
        uri = str(self.parameters["uri"])
        refuse_url(f"{self.name}.uri", local_path(uri), object_storage=True, web=True)
        given = self.parameters["properties"]
        draft = self.outputs["artifact"].kind("")
        _describe(self.name, draft, given if isinstance(given, Mapping) else {})
        missing = missing_properties(draft)
        if missing:
            raise ParameterError(
                f"{self.name}: {draft.kind} requires {', '.join(missing)}: properties={{{missing[0]!r}: …}}."
            )

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002  the port
        uri = str(self.parameters["uri"])
        try:
            if is_readable_url(uri):
                found = _list(uri)
                revisions = {str(url): (info.etag, info.size_bytes, info.modified_ns) for url, info in found.items()}
                return {"content": _digest(_copy(uri, revisions)), "revisions": revisions}
            return {"content": of_tree(_source(uri)).digest, "revisions": {}}
        except (Unfingerprintable, StorageError) as error:
            raise UnreadableInput(f"{self.name} could not import {uri}: {error}") from error


def _publish(  # the `run` of every Importer
    self: Importer,
    artifact: Artifact,
    uri: str,
    content: str,
    revisions: Mapping[str, Revision],
    properties: Mapping[str, object] | None,
) -> None:
    try:
        if is_readable_url(uri):
            copies = _copy(uri, revisions)
            copied = {name: artifact.path / name for name in copies}
            for name, place in copied.items():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(copies[name], place)
            digest = _digest(copied)
        else:
            digest = of_tree(_copy_files(_source(uri), artifact.path)).digest
    except (OSError, StorageError) as error:
        raise UnreadableInput(f"{self.name} could not import {uri}: {error}") from error
    if digest != content:
        raise UnreadableInput(f"{self.name}: {uri} changed while it was copied; run again when it is idle.")
    _describe(self.name, artifact, properties or {})


def _copy_files(source: Path, target: Path) -> Path:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        return target
    return Path(shutil.copy2(source, target))


def _list(uri: str) -> dict[ObjectUrl, ObjectInfo]:
    """The object of a URL, or those below it.

    Raises:
        StorageError: there is none, or the storage cannot be reached.
    """
    url = parse_url(uri)
    bucket = open_bucket(url.home)
    if url.key and (found := bucket.head(url.key)) is not None:
        return {url: found}
    below = [] if is_web_url(uri) else leave_out_markers(bucket, list(bucket.list(url.key)))
    if not below:
        raise StorageError(f"there is nothing at {url}.")
    if outside := [info.key for info in below if ".." in info.key.split("/")]:
        raise StorageError(f"{url.home / outside[0]} has `..` in its name, which is no name of a file.")
    return {replace(url, key=info.key): info for info in below}


def _copy(uri: str, revisions: Mapping[str, Revision]) -> dict[str, Path]:
    """Copies on this machine of these revisions, by their names below the URL."""
    key = parse_url(uri).key
    top = len(key) + 1 if key else 0
    wanted = {
        parse_url(text): ObjectInfo(key=parse_url(text).key, etag=etag, size_bytes=size, modified_ns=at)
        for text, (etag, size, at) in revisions.items()
    }
    return {each.key[top:] or each.name: path for each, path in machine_copies().get_all(wanted).items()}


def _digest(files: Mapping[str, Path]) -> str:
    return digest("import", *(text for name in sorted(files) for text in (name, of_tree(files[name]).digest)))


@functools.cache
def _importer_of(kind: type[Artifact]) -> type[Importer]:
    def run(
        self: Importer,
        *,
        artifact: Artifact,
        uri: str,
        content: str,
        revisions: Mapping[str, Revision],
        kind: type[Artifact] = Model,  # noqa: ARG001  read when the node is made
        properties: Mapping[str, object] | None = None,
    ) -> None:
        _publish(self, artifact, uri, content, revisions, properties)

    run.__annotations__["artifact"] = Output[kind]  # type: ignore[misc, valid-type]  # known only now
    return type("Importer", (Importer,), {"run": run, "__doc__": Importer.__doc__, "__module__": __name__})


def _source(uri: object) -> Path:
    return Path(local_path(str(uri))).expanduser()


def _describe(node: str, artifact: Artifact, properties: Mapping[str, object]) -> None:
    for name, value in properties.items():
        try:
            setattr(artifact, name, value)
        except AttributeError as error:
            raise ParameterError(f"{node}: {error}.") from error
