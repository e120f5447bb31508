"""Artifacts: things on storage, of a named kind, with typed properties. They never change once published.

A kind is a class; its annotations are its properties, and one without `| None` is required:

    class Forecast(Artifact):
        horizon_days: int
        note: str | None
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar, Union, get_args, get_origin

from spanwise.orchestrator.errors import MissingProperty, ParameterError

Value: TypeAlias = "None | bool | int | float | str | list[Value] | dict[str, Value]"
"""The value of a property or a recorded parameter: any JSON value."""


Mark: TypeAlias = Literal["accepted", "blessed"]
"""What a verdict gives to an artifact: examples are accepted, models are blessed."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What publishing one artifact says of another; the publisher records it as a verdict."""

    mark: Mark
    artifact: str  #: name of the other
    given: bool
    because: str = ""


class SharedCheckpoints(Protocol):
    """The checkpoints of a node in a run, for attempts on different machines."""

    def take_over(self, folder: Path) -> None:
        """Excludes earlier attempts, and makes a folder what they have committed, if they have committed anything."""

    def fetch(self, folder: Path) -> None:
        """Copies into a folder what an earlier attempt has committed last, if anything; excludes nobody."""

    def commit(self, folder: Path, *, settled: bool = False) -> bool:
        """Makes the files of a folder what the next attempt finds; `settled`: only if they do not change meanwhile."""


class ArtifactArchive(Protocol):
    """Keeps the files of artifacts elsewhere; what is below the root are then copies."""

    @property
    def url(self) -> str:
        """The place of the root, which all hosts name alike."""

    def claimed_by(self) -> str | None:
        """The identity of the metadata store that the artifacts belong to; None before the first run."""

    def keep(self, folder: Path, content: str = "") -> None:
        """Writes the files of a new artifact there, before it is published."""

    def has(self, uri: str) -> bool:
        """Whether all files of an artifact are there."""

    def has_copy(self, uri: str, content: str) -> bool:
        """Whether the artifact that was published with this digest is on this machine."""

    def fetch(self, uri: str, content: str) -> None:
        """Copies an artifact to its place below the root, unless it is there or the archive does not have it."""

    def list_files(self, uri: str) -> dict[str, int]:
        """The files of an artifact with their sizes; none where it is not there."""

    def find_lost(self, uri: str) -> list[str]:
        """The files of an artifact of which the archive does not have every byte, by name."""

    def open_file(self, uri: str, name: str) -> BinaryIO:
        """A file of an artifact, of which only what is read is fetched."""

    def remove(self, uri: str) -> None:
        """Deletes the files of an artifact."""

    def places(self, pipeline: str) -> Iterator[str]:
        """The places below the root of all artifacts that are there."""

    def keep_log(self, log: Path, sent: int) -> int:
        """Writes what a log below the root has beyond its first `sent` bytes; returns how many are there now."""

    def read_log(self, log: str, start: int = 0, most_bytes: int | None = None) -> bytes:
        """The bytes of a log from one on, as far as they are there, or about as many as are wanted."""

    def open_log(self, log: str) -> BinaryIO | None:
        """A log as a file, of which only what is read is fetched; None if there is nothing of it."""

    def count_log_bytes(self, folder: Path) -> int:
        """The size of all logs in a folder below the root."""

    def set_aside(self, folder: Path) -> None:
        """Moves what another history has left in the folder of a run to another name."""

    def run_folders(self, pipeline: str) -> list[str]:
        """The folders below the root with logs and checkpoints of runs."""

    def checkpoints(self, folder: Path, *, began: str, attempt: int) -> SharedCheckpoints:
        """What the attempts at a node share, by its folder below the root, as one of them sees it."""

    def remove_checkpoints(self, folder: Path) -> None:
        """Deletes the checkpoints of a node by its folder, or of all nodes by the folder of their run."""

    @property
    def snapshots(self) -> str:
        """The place of dataset snapshots."""


@dataclass(frozen=True)
class Property:
    """One declared property of a kind."""

    types: tuple[type, ...]  #: the accepted classes
    required: bool  #: if it is missing, publishing the artifact is an error


MOST_FILES = 1000
"""Artifacts with more files record no digest for each of them, only that of all together."""


class Artifact:
    """One thing on storage.

    An executor receives its outputs as drafts (`id` 0), writes below `path` and sets the declared properties as
    attributes. An artifact from the store is published: setting anything on it raises AttributeError. Reading a
    required property that is absent raises MissingProperty; an absent optional property reads as None.
    """

    kind: ClassVar[str] = "Artifact"
    base_kinds: ClassVar[tuple[str, ...]] = ()  #: names of what a kind of a project extends, the nearest first

    uri: str  #: where its files are; a folder of its own
    id: int  #: the store's number; 0 for a draft
    name: str  #: `pipeline/node/key/…`, unique; empty for a draft
    created: datetime | None  #: when it was published, UTC
    content: str  #: digest of its files' names and bytes
    files: Mapping[str, str]  #: digest of each file, by its path below the folder; empty where there are very many
    size_bytes: int
    properties: dict[str, Value]
    archive: ArtifactArchive | None  #: where its files are if they are not at `uri`

    def __init__(
        self,
        uri: str,
        *,
        id: int = 0,  # noqa: A002  the field's term, here and in the metadata
        name: str = "",
        kind: str | None = None,
        base_kinds: Iterable[str] = (),
        created: datetime | None = None,
        content: str = "",
        files: Mapping[str, str] | None = None,
        size_bytes: int = 0,
        properties: Mapping[str, Value] | None = None,
        archive: ArtifactArchive | None = None,
    ) -> None:
        mine = self.__dict__
        mine.update(uri=uri, id=id, name=name, created=created, content=content, size_bytes=size_bytes)
        mine["archive"] = archive
        mine["properties"] = dict(properties or {})
        mine["files"] = dict(files or {})
        if kind is not None:
            mine.update(kind=kind, base_kinds=tuple(base_kinds))

    def __init_subclass__(cls, kind: str | None = None) -> None:
        cls.kind = kind or cls.__name__
        extended = [each.kind for each in cls.__mro__[1:] if issubclass(each, Artifact) and each is not Artifact]
        cls.base_kinds = () if _is_ours(cls) else tuple(dict.fromkeys(extended))

    @property
    def path(self) -> Path:
        """Its local folder; fetched from the archive if it is not there.

        Raises:
            DamagedArtifact: the archive does not have what was published.
            StorageError: the archive cannot be reached.
        """
        if self.archive is not None and self.id:
            self.archive.fetch(self.uri, self.content)
        return Path(self.uri)

    @property
    def is_here(self) -> bool:
        """Whether its files are on this machine; of those in the archive, whether there is a copy."""
        if self.archive is not None and self.id:
            return self.archive.has_copy(self.uri, self.content)
        return Path(self.uri).exists()

    def is_a(self, *kinds: type[Artifact]) -> bool:
        """Whether it is of one of these kinds or of one that extends it, also where that class is not loaded.

        Of an artifact of an older spanwise, only the name of its kind is recorded.
        """
        names = _names_of(kinds)
        return self.kind in names or not names.isdisjoint(self.base_kinds) or Artifact in kinds

    def has_kind(self, name: str) -> bool:
        """The same of the name of a kind."""
        return name == self.kind or name in self.base_kinds

    def as_kind(self, kind: type[A]) -> A:
        """Returns the same artifact as `kind`, the class in an executor's signature; its recorded kind stays."""
        return kind(
            self.uri,
            id=self.id,
            name=self.name,
            kind=self.kind if self.id else None,
            base_kinds=self.base_kinds if self.id else (),
            created=self.created,
            content=self.content,
            files=self.files,
            size_bytes=self.size_bytes,
            properties=self.properties,
            archive=self.archive,
        )

    def with_content(self, content: str, size_bytes: int, files: Mapping[str, str] | None = None) -> Self:
        """Returns the draft as it will be published, with the digests and size of its files."""
        few = files if files is not None and len(files) <= MOST_FILES else {}
        return self._with(content=content, files=dict(few), size_bytes=size_bytes)

    def relocated(self, uri: str, archive: ArtifactArchive | None) -> Self:
        """Returns the same artifact as another machine finds it."""
        return self._with(uri=uri, archive=archive)

    def _with(self, **changes: object) -> Self:
        copy = self.as_kind(type(self))
        copy.__dict__.update(changes)
        copy.__dict__.update(kind=self.kind, base_kinds=self.base_kinds)
        return copy

    def judgements(self) -> tuple[Judgement, ...]:
        """What publishing this says of other artifacts: a blessing judges its model."""
        return ()

    def __getattr__(self, name: str) -> Value:
        declared = properties_of(type(self)).get(name)
        if declared is None:
            raise AttributeError(
                f"{type(self).kind} has no property {name!r}; it has: {_format_properties(type(self))}"
            )
        value = self.__dict__["properties"].get(name)
        if value is None and declared.required:
            raise MissingProperty(f"{self} has no {name!r}, which {type(self).kind} requires.")
        return typing.cast("Value", value)

    def __setattr__(self, name: str, value: object) -> None:
        if self.id:
            raise AttributeError(f"{self} is published; an artifact never changes.")
        declared = properties_of(type(self)).get(name)
        if declared is None:
            raise AttributeError(f"{self.kind} has no property {name!r}; it has: {_format_properties(type(self))}")
        accepted = (*declared.types, *(() if declared.required else (type(None),)))
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted and int in accepted):
            wanted = " or ".join(t.__name__ for t in declared.types)
            raise ParameterError(f"{self.kind}.{name} takes {wanted}, not {type(value).__name__} {value!r}.")
        self.properties[name] = typing.cast("Value", value)

    def __repr__(self) -> str:
        return f"{self.kind}({self.name or self.uri!r})"


A = TypeVar("A", bound=Artifact)


def is_readable_as(artifact: Artifact, kind: type[Artifact]) -> bool:
    """Whether it was published as this kind, as one that extends it, or as one that this kind extends.

    Every kind extends Artifact, so that what was published as Artifact is readable as nothing else.
    """
    extended = {each.kind for each in kind.__mro__ if issubclass(each, Artifact) and each is not Artifact}
    return artifact.is_a(kind) or artifact.kind in extended or artifact.kind in _extensions(kind)


def defined_kinds() -> set[str]:
    """The names of all kinds that the product and the loaded pipelines define."""
    return {Artifact.kind, *_extensions(Artifact)}


def _extensions(kind: type[Artifact]) -> set[str]:
    """The names of all kinds that extend this one."""
    return {each.kind for each in _subclasses(kind)}


def _subclasses(kind: type[Artifact]) -> Iterator[type[Artifact]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


@functools.cache
def _names_of(kinds: tuple[type[Artifact], ...]) -> frozenset[str]:
    """The names of these kinds, and of those of our own that extend one of them."""
    ours = (each for kind in kinds for each in _subclasses(kind) if _is_ours(each))
    return frozenset(each.kind for each in (*kinds, *ours))


def _is_ours(kind: type[Artifact]) -> bool:
    return kind.__module__ == __name__


def properties_of(kind: type[Artifact]) -> Mapping[str, Property]:
    """The properties that `kind` and the kinds it extends declare."""
    return _properties(kind)  # type: ignore[arg-type]  # mypy reads Artifact.__hash__ where it should read type's


@functools.cache
def _properties(kind: type[Artifact]) -> Mapping[str, Property]:
    own = set(Artifact.__annotations__)
    hints = {n: h for n, h in typing.get_type_hints(kind).items() if n not in own and get_origin(h) is not ClassVar}
    return types.MappingProxyType({name: _property(kind, name, hint) for name, hint in hints.items()})


def missing_properties(artifact: Artifact) -> tuple[str, ...]:
    """The required properties that are not set; publishing such an artifact is an error."""
    declared = properties_of(type(artifact))
    return tuple(n for n, p in declared.items() if p.required and artifact.properties.get(n) is None)


def normalize_draft(draft: A) -> A:
    """Returns the draft with its properties as they will be read back, however `run` set them.

    Raises:
        ParameterError: a property is not a JSON value.
    """
    copy = draft.as_kind(type(draft))
    copy.properties.clear()
    for name, value in draft.properties.items():
        try:
            plain = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            raise ParameterError(
                f"{draft.kind}.{name} takes a JSON value: {error}. It was set to {value!r}."
            ) from error
        setattr(copy, name, plain)
    return copy


def _property(kind: type[Artifact], name: str, hint: object) -> Property:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    classes = tuple(get_origin(p) or p for p in parts if p is not type(None))
    if not set(classes) <= {bool, int, float, str, list, dict}:
        raise ParameterError(f"{kind.__name__}.{name} is {hint}; a property is bool, int, float, str, list or dict.")
    if float in classes:
        classes = (*classes, int)
    return Property(typing.cast("tuple[type, ...]", classes), required=type(None) not in parts)


def _format_properties(kind: type[Artifact]) -> str:
    return ", ".join(properties_of(kind)) or "none"


class SpanRows(Artifact):
    """Rows of one span, as Parquet files in one folder `Split-<name>` per split; the base of kinds that hold rows."""

    span: int
    version: int | None  #: None when the input has no versions
    split_names: list[str]
    rows: dict[str, int] | None  #: by split
    columns: dict[str, str] | None  #: Arrow type by column name
    dropped_columns: list[str] | None  #: left out for good: a window that holds this span is read without them
    calendar: str | None  #: how the span is written: number, day or hour

    def split(self, name: str) -> Path:
        """The folder of one split's Parquet files."""
        if name not in self.split_names:
            raise ParameterError(f"{self} has no split {name!r}; it has: {', '.join(self.split_names)}.")
        return self.path / f"Split-{name}"


class Examples(SpanRows):
    """The rows that models learn from."""

    fingerprint: str | None  #: of the input files, by name, size and content
    graph_digest: str | None  #: of the transform graph that made the columns; None for the columns of the source


class Rejects(Artifact):
    """Rows of one span that could not be parsed, as JSON lines with file, line and reason."""

    span: int
    version: int | None
    rows: int
    calendar: str | None  #: how the span is written: number, day or hour


class Statistics(Artifact, kind="ExampleStatistics"):
    """Statistics of the splits of one span, which merge with those of other spans."""

    span: int
    version: int | None
    split_names: list[str]
    calendar: str | None  #: how the span is written: number, day or hour


class Schema(Artifact):
    """The expected columns of examples, as a file that people edit."""


class Anomalies(Artifact, kind="ExampleAnomalies"):
    """How one span deviates from the schema, or from the span before it."""

    span: int
    version: int | None
    found: int  #: number of anomalies
    severity: str | None  #: the worst of them: info, warning or error
    calendar: str | None  #: how the span is written: number, day or hour


class TransformGraph(Artifact):
    """A user's preprocessing with the values of its analyzers, ready to be applied anywhere."""


class TransformCache(Artifact):
    """The state that the analyzers of a transform accumulated, by span, for later runs."""


class Model(Artifact):
    """A trained model, in whatever files its framework writes."""

    spans: list[int] | None  #: the spans it learned from
    calendar: str | None  #: how those are written; None where it is not recorded, or they are of several calendars
    base: str | None  #: name of the model it was warm-started from
    graph_digest: str | None  #: of the transform graph that it was trained with, which is its folder `graph`
    snapshots: dict[str, int] | None  #: use of dataset snapshots: hits, misses, written, bytes_read, bytes_written


class Evaluation(Artifact, kind="ModelEvaluation"):
    """Metrics of a model, overall and by slice, as `metrics.json`."""

    metrics: dict[str, float] | None  #: overall
    baseline_metrics: dict[str, float] | None
    baseline_error: str | None  #: the baseline that failed and was ignored, and why


class Blessing(Artifact, kind="ModelBlessing"):
    """The verdict on a model; its properties have TFX's names."""

    blessed: int  #: 1 or 0
    current_model: str  #: artifact name of the model
    current_model_id: int
    baseline_model: str | None
    baseline_model_id: int | None
    baseline_error: str | None  #: the baseline that failed and was ignored, and why
    reasons: list[str] | None  #: why it was not blessed

    def judgements(self) -> tuple[Judgement, ...]:
        because = "\n".join(self.reasons or ())
        return (Judgement(mark="blessed", artifact=self.current_model, given=bool(self.blessed), because=because),)


class InfraBlessing(Artifact):
    """Whether a model loads and predicts in its serving environment."""

    blessed: int  #: 1 or 0
    model: str  #: artifact name of the model
    reasons: list[str] | None  #: what went wrong


class InferenceResult(SpanRows):
    """A model's predictions for the rows of one span."""

    model: str  #: artifact name of the model


class PushedModel(Artifact):
    """A model that was pushed to its destination; its properties have TFX's names."""

    pushed: int  #: 1 or 0
    pushed_destination: str | None
    pushed_version: str | None
    model: str  #: artifact name of the model
    reason: str | None  #: why it was not pushed, or why a person has pushed it


class Report(Artifact):
    """A report for people to read."""
