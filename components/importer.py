"""Importer: publishes existing files as an artifact, such as a model to start from."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self, cast

from spanwise.orchestrator.artifact import Artifact, Model, missing_properties
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, Unfingerprintable, UnreadableInput
from spanwise.orchestrator.fingerprint import of_tree
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import Output
from spanwise.orchestrator.storage.url import refuse_url


class Importer(Component):
    """Publishes a copy of a local file or folder as an artifact of any kind.

        Importer(uri="models/first", kind=Model, properties={"spans": [15706, 15707]})["artifact"]

    As long as the content of `uri` does not change, every run uses the same artifact; after a change, the next run
    publishes a new one. The files are copied, because an artifact never changes and the source may; so an import takes
    the size of the files on disk and reads them once in each run.
    """

    prepared: ClassVar = ("content",)

    def __new__(cls, *, kind: type[Artifact] = Model, **_arguments: object) -> Self:
        """The kind of the output is part of the signature, so there is a class for each kind."""
        if cls is not Importer:
            return object.__new__(cls)
        return cast("Self", object.__new__(_importer_of(kind)))  # type: ignore[arg-type]  # see artifact.properties_of

    def check(self) -> None:
        refuse_url(f"{self.name}.uri", _source(self.parameters["uri"]))
        given = self.parameters["properties"]
        draft = self.outputs["artifact"].kind("")
        _describe(self.name, draft, given if isinstance(given, Mapping) else {})
        missing = missing_properties(draft)
        if missing:
            raise ParameterError(
                f"{self.name}: {draft.kind} requires {', '.join(missing)}: properties={{{missing[0]!r}: …}}."
            )

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002  the port
        source = _source(self.parameters["uri"])
        try:
            return {"content": of_tree(source).digest}
        except Unfingerprintable as error:
            raise UnreadableInput(f"{self.name} could not import {source}: {error}") from error


def _publish(  # the `run` of every Importer
    self: Importer, artifact: Artifact, uri: str, content: str, properties: Mapping[str, object] | None
) -> None:
    source = _source(uri)
    try:
        if source.is_dir():
            shutil.copytree(source, artifact.path, symlinks=True, dirs_exist_ok=True)
            copied = artifact.path
        else:
            copied = Path(shutil.copy2(source, artifact.path))
    except OSError as error:
        raise UnreadableInput(f"{self.name} could not import {source}: {error}") from error
    if of_tree(copied).digest != content:
        raise UnreadableInput(f"{self.name}: {source} changed while it was copied; run again when it is idle.")
    _describe(self.name, artifact, properties or {})


@functools.cache
def _importer_of(kind: type[Artifact]) -> type[Importer]:
    def run(
        self: Importer,
        *,
        artifact: Artifact,
        uri: str,
        content: str,
        kind: type[Artifact] = Model,  # noqa: ARG001  read when the node is made
        properties: Mapping[str, object] | None = None,
    ) -> None:
        _publish(self, artifact, uri, content, properties)

    run.__annotations__["artifact"] = Output[kind]  # type: ignore[misc, valid-type]  # known only now
    return type("Importer", (Importer,), {"run": run, "__doc__": Importer.__doc__, "__module__": __name__})


def _source(uri: object) -> Path:
    return Path(str(uri).removeprefix("file://")).expanduser()


def _describe(node: str, artifact: Artifact, properties: Mapping[str, object]) -> None:
    for name, value in properties.items():
        try:
            setattr(artifact, name, value)
        except AttributeError as error:
            raise ParameterError(f"{node}: {error}.") from error
