"""Signatures: what a component reads, writes and takes as parameters. The signature of `run` is the only specification.

    class RowCount(Component):
        def run(self, examples: Input[Examples], report: Output[Report], at_least: int) -> None: ...

`Input[X]` is exactly one artifact, `Input[list[X]]` one or more, `Input[X | None]` one or none.
`Output[X]` is one draft to fill, `Outputs[X]` any number of drafts, `Output[X | None]` is published only when
something was written. A trailing underscore is not part of an output's name, so `run` can read `examples` and write
`examples_`, which other nodes read as `node["examples"]`. An argument annotated `Attempt` receives the facts of the
attempt; every other argument is a parameter.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, Literal, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import ParameterError, PipelineError
from spanwise.orchestrator.replica import NO_GANG, ReplicaPlace

if TYPE_CHECKING:
    from spanwise.orchestrator.run import Run
from spanwise.orchestrator.verdict import Verdict

T = TypeVar("T")
A = TypeVar("A", bound=Artifact)


class _Role(Enum):
    INPUT = "Input"
    OUTPUT = "Output"


Input: TypeAlias = Annotated[T, _Role.INPUT]
Output: TypeAlias = Annotated[T, _Role.OUTPUT]


class Outputs(Generic[A]):
    """An output of any number of artifacts, in the order in which `new` created them."""

    def __init__(self, kind: type[A], uri: str) -> None:
        self._kind = kind
        self._uri = uri
        self.drafts: list[A] = []

    def new(self) -> A:
        """Creates another draft, with an empty folder of its own."""
        draft = self._kind(f"{self._uri}/{len(self.drafts)}")
        draft.path.mkdir(parents=True)
        self.drafts.append(draft)
        return draft


def stay_here() -> None:
    """What committing checkpoints is where only one machine needs them."""


@dataclass(frozen=True)
class ModelOrigin:
    """How a model was made."""

    run: str  #: `pipeline/number`
    spans: Mapping[str, frozenset[tuple[int, int | None]]]  #: with their versions, of each channel that it read rows of


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The facts of the attempt that `run` is."""

    run: Run
    node: str
    number: int  #: 1 for the first try
    scratch: Path  #: an empty folder, removed after the attempt
    checkpoints: Path  #: a folder that the next attempt in this run finds as this one left it
    snapshots: str | Path  #: where dataset snapshots are, shared by all pipelines below this root; a URL if it is one
    check_fence: Callable[[], None]  #: raises Fenced when the lease is lost; call it before an external effect
    origins: Mapping[str, ModelOrigin] = field(default_factory=dict)  #: of each model that is read, by its name
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  #: of people, on models that are read, by their names
    damaged: Mapping[str, str] = field(default_factory=dict)  #: what was found of `may_be_damaged` inputs, by name
    commit_checkpoints: Callable[[], None] = stay_here
    """Returns when the next attempt finds `checkpoints` as they are now, also on another machine."""
    replica: ReplicaPlace = NO_GANG  #: which replica this is, of those that do the work together


@dataclass(frozen=True)
class InputSpec:
    """One input of a signature."""

    kind: type[Artifact]
    many: bool = False  #: one or more
    optional: bool = False  #: one or none


@dataclass(frozen=True)
class OutputSpec:
    """One output of a signature."""

    kind: type[Artifact]
    many: bool = False  #: a list, created with Outputs.new
    optional: bool = False  #: published only when something was written
    argument: str | None = None  #: the argument of `run`, where its name differs from the output's


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter of a signature."""

    annotation: object
    default: object = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class Signature:
    """The inputs, outputs and parameters of a component."""

    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    outputs: Mapping[str, OutputSpec] = field(default_factory=dict)
    parameters: Mapping[str, ParameterSpec] = field(default_factory=dict)
    attempt: str | None = None  #: the argument that takes the Attempt


def read_signature(component: type[object]) -> Signature:
    """Reads the signature of a component's `run`.

    Raises:
        PipelineError: an argument without an annotation, or one that names no kind of artifact.
    """
    name = component.__name__
    run = inspect.getattr_static(component, "run", None)
    if run is None:
        raise PipelineError(
            f"{name} has no `run`; define it: its signature declares the inputs, outputs and parameters of {name}."
        )
    return _read_run(name, run)


@functools.cache
def _read_run(name: str, run: Callable[..., None] | staticmethod[..., None]) -> Signature:
    static = isinstance(run, staticmethod)
    function = run.__func__ if isinstance(run, staticmethod) else run
    try:
        hints = typing.get_type_hints(function, _names_for(function), include_extras=True)
    except NameError as error:
        raise PipelineError(
            f"{name}.run: {error}; spanwise reads annotations, so import the names that they use."
        ) from error
    specs: dict[str, _Spec] = {}
    for argument in list(inspect.signature(function).parameters.values())[0 if static else 1 :]:
        specs[argument.name] = _spec(f"{name}.run({argument.name})", argument, hints.get(argument.name))
    return Signature(
        inputs={n: s for n, s in specs.items() if isinstance(s, InputSpec)},
        outputs=dict(_output(name, n, s, specs) for n, s in specs.items() if isinstance(s, OutputSpec)),
        parameters={n: s for n, s in specs.items() if isinstance(s, ParameterSpec)},
        attempt=next((n for n, s in specs.items() if s is Attempt), None),
    )


def _names_for(function: Callable[..., None]) -> dict[str, object] | None:
    """What its annotations are made of, also where it was pickled by value, which takes along what its code names."""
    home, own = sys.modules.get(function.__module__), getattr(function, "__globals__", None)
    return None if home is None or own is None or own is vars(home) else {**vars(home), **own}


def _output(component: str, argument: str, spec: OutputSpec, specs: Mapping[str, object]) -> tuple[str, OutputSpec]:
    name = argument.removesuffix("_")
    if name == argument:
        return name, spec
    if isinstance(specs.get(name), OutputSpec):
        raise PipelineError(f"{component}.run({argument}) and ({name}) are both the output {name!r}; rename one.")
    return name, replace(spec, argument=argument)


_Spec: TypeAlias = InputSpec | OutputSpec | ParameterSpec | type[Attempt]


def _spec(where: str, argument: inspect.Parameter, hint: object) -> _Spec:
    if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY):
        raise PipelineError(f"{where}: every argument is passed by name; remove '*', '**' and '/'.")
    if hint is None:
        raise PipelineError(f"{where} has no annotation; add Input[…], Output[…] or the type of a parameter.")
    if hint is Attempt:
        return Attempt
    if get_origin(hint) is Outputs:
        kind, _, _ = _kind(where, get_args(hint)[0])
        return OutputSpec(kind, many=True)
    role = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, _Role)), None)
    if role is None:
        if argument.name in ("name", "retry", "timeout_s", "cache", "after", "resources"):
            raise PipelineError(f"{where}: every node already takes {argument.name!r}; rename the parameter.")
        return ParameterSpec(hint, argument.default)
    kind, many, optional = _kind(where, get_args(hint)[0])
    if role is _Role.INPUT:
        return InputSpec(kind, many, optional)
    if many:
        raise PipelineError(f"{where}: write an output of several artifacts as Outputs[{kind.__name__}].")
    return OutputSpec(kind, optional=optional)


def _kind(where: str, base: object) -> tuple[type[Artifact], bool, bool]:
    parts = get_args(base) if get_origin(base) in (Union, types.UnionType) else (base,)
    optional = type(None) in parts
    parts = tuple(p for p in parts if p is not type(None))
    many = len(parts) == 1 and get_origin(parts[0]) is list
    kind = get_args(parts[0])[0] if many else parts[0]
    if len(parts) != 1 or not (isinstance(kind, type) and issubclass(kind, Artifact)):
        raise PipelineError(
            f"{where} is {format_annotation(base)}; name a kind of artifact, such as Examples or Model."
        )
    return kind, many, optional


_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})", re.ASCII)
_UNKNOWN = object()  # whether it fits, only pydantic can say


def _copy_plain(annotation: object, value: object) -> object:  # noqa: PLR0911  a table of annotations
    """The value as pydantic returns it, if it fits beyond doubt: most do, and importing pydantic takes long."""
    if annotation is object or (isinstance(annotation, type) and type(value) is annotation):
        return value
    if annotation is None:
        return None if value is None else _UNKNOWN
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        found = (_copy_plain(each, value) for each in inner)
        return next((each for each in found if each is not _UNKNOWN), _UNKNOWN)
    if origin is Literal:
        return value if any(value == each and type(value) is type(each) for each in inner) else _UNKNOWN
    if origin is Callable:  # also without what it takes
        return value if isinstance(value, types.FunctionType) else _UNKNOWN
    if not inner:
        return _UNKNOWN
    if origin in (dict, Mapping) and type(value) is dict:
        pairs = [(_copy_plain(inner[0], key), _copy_plain(inner[1], each)) for key, each in value.items()]
        return _UNKNOWN if any(any(each is _UNKNOWN for each in pair) for pair in pairs) else dict(pairs)
    is_many = (origin is tuple and inner[1:] == (...,)) or origin in (list, Sequence)
    if is_many and type(value) in ((list, tuple) if origin is Sequence else (origin,)):
        parts = [_copy_plain(inner[0], each) for each in typing.cast("Sequence[object]", value)]
        return _UNKNOWN if any(each is _UNKNOWN for each in parts) else type(value)(parts)  # type: ignore[call-arg]
    return _UNKNOWN


def check_value(what: str, annotation: object, value: object) -> object:
    """Returns the value if it fits the annotation; only int is converted, to float.

    Raises:
        ParameterError: it does not fit; the message names `what`.
    """
    plain = _copy_plain(annotation, value)
    if plain is not _UNKNOWN:
        return plain
    from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[object] = TypeAdapter(_form(annotation), config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        return value
    except Exception as error:
        if type(error).__name__ != "PydanticUserError":
            raise
        adapter = TypeAdapter(_form(annotation))
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        _refuse(what, annotation, value, error)


def parse_value(what: str, annotation: object, text: str) -> object:
    """Parses a value that was typed on the command line as the type of the annotation.

    Raises:
        ParameterError: the text is no such value; the message names `what`.
    """
    if annotation in (str, inspect.Parameter.empty):
        return text
    if annotation is int and _WHOLE.fullmatch(text):
        return int(text)
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[object] = TypeAdapter(_form(annotation))
    try:
        return adapter.validate_strings(text)
    except ValidationError:
        try:
            return adapter.validate_json(text, strict=True)  # `true` is no number
        except ValidationError as error:
            _refuse(what, annotation, text, error)


def _form(annotation: object) -> type[object]:
    return typing.cast("type[object]", annotation)


def _refuse(what: str, annotation: object, value: object, error: Exception) -> NoReturn:
    raise ParameterError(
        f"{what} takes {format_annotation(annotation)}, not {type(value).__name__} {value!r}."
    ) from error


def check_call(what: str, function: object, *arguments: str) -> None:
    """Refuses a function that cannot be called with these positional arguments; `what` is where it was given.

    A wrapper counts as it is, for it may pass on others than it takes.

    Raises:
        ParameterError: shows how it is called.
    """
    if not callable(function):
        return
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):  # of a function without Python code
        return
    name = getattr(function, "__name__", type(function).__name__)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ParameterError(
            f"{what} is called as {name}({', '.join(arguments)}), but {name} has the signature "
            f"{name}{signature}: {error}."
        ) from error


def check_least(node: str, parameters: Mapping[str, object], **least: int) -> None:
    """Refuses parameters of a node that are less than these numbers.

    Raises:
        ParameterError: names the parameter.
    """
    for name, lowest in least.items():
        value = parameters[name]
        if isinstance(value, int | float) and not value >= lowest:  # NaN is less too
            raise ParameterError(f"{node}.{name} is {value}; it is {lowest} or more.")


_MODULES = re.compile(r"""('[^']*'|"[^"]*")|\b(?:\w+\.)+(?=\w)""")


def format_annotation(annotation: object) -> str:
    """Formats an annotation as its author wrote it: names without their modules."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return _MODULES.sub(lambda found: found[1] or "", str(annotation))
