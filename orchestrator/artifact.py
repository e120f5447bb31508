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
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Self, TypeAlias, TypeVar, Union, get_args, get_origin

from spanwise.orchestrator.errors import MissingProperty, ParameterError

Value: TypeAlias = "None | bool | int | float | str | list[Value] | dict[str, Value]"
"""What a property or a recorded parameter may hold: anything JSON can say."""


@dataclass(frozen=True)
class Property:
    """One declared property of a kind."""

    types: tuple[type, ...]  #: the accepted classes
    required: bool  #: a missing one is an error when the artifact is published


class Artifact:
    """One thing on storage.

    An executor receives its outputs as drafts (`id` 0), writes below `path` and sets the declared properties as
    attributes. What the store gives back is published: setting anything on it raises AttributeError. Reading a
    required property that is absent raises MissingProperty; an absent optional one reads as None.
    """

    kind: ClassVar[str] = "Artifact"

    uri: str  #: where its files are; a folder of its own
    id: int  #: the store's number; 0 for a draft
    name: str  #: `pipeline/node/key/…`, unique; empty for a draft
    created: datetime | None  #: when it was published, UTC
    content: str  #: digest of its files' names and bytes
    size_bytes: int
    properties: dict[str, Value]

    def __init__(
        self,
        uri: str,
        *,
        id: int = 0,  # noqa: A002  the field's word, here and in the metadata
        name: str = "",
        kind: str | None = None,
        created: datetime | None = None,
        content: str = "",
        size_bytes: int = 0,
        properties: Mapping[str, Value] | None = None,
    ) -> None:
        mine = self.__dict__
        mine.update(uri=uri, id=id, name=name, created=created, content=content, size_bytes=size_bytes)
        mine["properties"] = dict(properties or {})
        if kind is not None:
            mine["kind"] = kind

    def __init_subclass__(cls, kind: str | None = None) -> None:
        cls.kind = kind or cls.__name__

    @property
    def path(self) -> Path:
        """The local folder it lies in."""
        return Path(self.uri)

    def as_kind(self, kind: type[A]) -> A:
        """The same artifact, read as `kind`: what an executor asked for in its signature."""
        return kind(
            self.uri,
            id=self.id,
            name=self.name,
            created=self.created,
            content=self.content,
            size_bytes=self.size_bytes,
            properties=self.properties,
        )

    def with_content(self, content: str, size_bytes: int) -> Self:
        """The draft as it will be published, once its files are known."""
        copy = self.as_kind(type(self))
        copy.__dict__.update(content=content, size_bytes=size_bytes)
        return copy

    def marks(self) -> tuple[tuple[str, str], ...]:
        """What publishing this says of other artifacts, as (mark, artifact name): a blessing marks its model."""
        return ()

    def __getattr__(self, name: str) -> Value:
        declared = properties_of(type(self)).get(name)
        if declared is None:
            raise AttributeError(f"{self.kind} has no property {name!r}; it has: {_listed(type(self))}")
        value = self.__dict__["properties"].get(name)
        if value is None and declared.required:
            raise MissingProperty(f"{self} has no {name!r}, which every {self.kind} must have.")
        return typing.cast("Value", value)

    def __setattr__(self, name: str, value: object) -> None:
        if self.id:
            raise AttributeError(f"{self} is published; an artifact never changes.")
        declared = properties_of(type(self)).get(name)
        if declared is None:
            raise AttributeError(f"{self.kind} has no property {name!r}; it has: {_listed(type(self))}")
        accepted = (*declared.types, *(() if declared.required else (type(None),)))
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted and int in accepted):
            wanted = " or ".join(t.__name__ for t in declared.types)
            raise ParameterError(f"{self.kind}.{name} takes {wanted}, not {type(value).__name__} {value!r}.")
        self.properties[name] = typing.cast("Value", value)

    def __repr__(self) -> str:
        return f"{self.kind}({self.name or self.uri!r})"


A = TypeVar("A", bound=Artifact)


def properties_of(kind: type[Artifact]) -> Mapping[str, Property]:
    """The properties that `kind` and the kinds it extends declare."""
    return _properties(kind)  # type: ignore[arg-type]  # mypy reads Artifact.__hash__ where it should read type's


@functools.cache
def _properties(kind: type[Artifact]) -> Mapping[str, Property]:
    own = set(Artifact.__annotations__)
    hints = {n: h for n, h in typing.get_type_hints(kind).items() if n not in own and get_origin(h) is not ClassVar}
    return types.MappingProxyType({name: _property(kind, name, hint) for name, hint in hints.items()})


def missing_properties(artifact: Artifact) -> tuple[str, ...]:
    """Required properties that were not set: publishing such an artifact is refused."""
    declared = properties_of(type(artifact))
    return tuple(n for n, p in declared.items() if p.required and artifact.properties.get(n) is None)


def normalize_draft(draft: A) -> A:
    """The draft with its properties as they will be read back, however `run` came to set them.

    Raises:
        ParameterError: one of them holds what JSON cannot say.
    """
    copy = draft.as_kind(type(draft))
    copy.properties.clear()
    for name, value in draft.properties.items():
        try:
            plain = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            raise ParameterError(
                f"{draft.kind}.{name} takes what JSON can say: {error}. It was set to {value!r}."
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


def _listed(kind: type[Artifact]) -> str:
    return ", ".join(properties_of(kind)) or "none"


class SpanRows(Artifact):
    """Rows of one span, as Parquet files in one folder `Split-<name>` per split; the base of kinds that hold rows."""

    span: int
    version: int | None  #: None when the input has no versions
    split_names: list[str]
    rows: dict[str, int] | None  #: by split
    columns: dict[str, str] | None  #: Arrow type by column name
    calendar: str | None  #: how the span is shown: number, day or hour

    def split(self, name: str) -> Path:
        """The folder of one split's Parquet files."""
        if name not in self.split_names:
            raise ParameterError(f"{self} has no split {name!r}; it has: {', '.join(self.split_names)}.")
        return self.path / f"Split-{name}"


class Examples(SpanRows):
    """What models learn from."""

    fingerprint: str | None  #: of the input files, by name, size and content


class Rejects(Artifact):
    """Rows of one span that could not be parsed, as JSON lines with file, line and reason."""

    span: int
    version: int | None
    rows: int


class Statistics(Artifact, kind="ExampleStatistics"):
    """What was counted over the splits of one span, in a form that merges with that of other spans."""

    span: int
    version: int | None
    split_names: list[str]
    calendar: str | None  #: how the span is shown: number, day or hour


class Schema(Artifact):
    """What examples should look like, as a file that people edit."""


class Anomalies(Artifact, kind="ExampleAnomalies"):
    """How one span departs from the schema, or from the span before it."""

    span: int
    version: int | None
    found: int  #: how many anomalies
    severity: str | None  #: the worst of them: info, warning or error
    calendar: str | None  #: how the span is shown: number, day or hour


class TransformGraph(Artifact):
    """A user's preprocessing with the values of its analyzers, ready to be applied anywhere."""


class TransformCache(Artifact):
    """What the analyzers of a transform accumulated, by span, for later runs."""


class Model(Artifact):
    """A trained model, in whatever files its framework writes."""

    spans: list[int] | None  #: the spans it learned from
    base: str | None  #: name of the model it was warm-started from
    snapshots: dict[str, int] | None  #: of prepared examples: hits, misses, written, bytes_read, bytes_written


class Evaluation(Artifact, kind="ModelEvaluation"):
    """Metrics of a model, overall and by slice, as `metrics.json`."""

    metrics: dict[str, float] | None  #: overall
    baseline_metrics: dict[str, float] | None


class Blessing(Artifact, kind="ModelBlessing"):
    """The verdict on a model: the names of its properties are those of TFX."""

    blessed: int  #: 1 or 0
    current_model: str  #: artifact name of the model
    current_model_id: int
    baseline_model: str | None
    baseline_model_id: int | None
    reasons: list[str] | None  #: what kept it from being blessed

    def marks(self) -> tuple[tuple[str, str], ...]:
        return (("blessed", self.current_model),) if self.blessed else ()


class InfraBlessing(Artifact):
    """Whether a model loads and predicts where it will be served."""

    blessed: int  #: 1 or 0
    model: str  #: artifact name of the model
    reasons: list[str] | None  #: what went wrong


class InferenceResult(SpanRows):
    """What a model says of the rows of one span."""

    model: str  #: artifact name of the model


class PushedModel(Artifact):
    """A model put where it is served: the names of its properties are those of TFX."""

    pushed: int  #: 1 or 0
    pushed_destination: str | None
    pushed_version: str | None
    model: str  #: artifact name of the model
    reason: str | None  #: why it was not pushed

    def marks(self) -> tuple[tuple[str, str], ...]:
        return (("pushed", self.model),) if self.pushed else ()


class Report(Artifact):
    """Something for people to read."""
