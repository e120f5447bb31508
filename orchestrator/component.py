"""Components: what a node reads, makes and takes. The signature of `run` is the only specification.

    class RowCount(Component):
        def run(self, examples: Input[Examples], report: Output[Report], at_least: int) -> None: ...

`Input[X]` is exactly one artifact, `Input[list[X]]` one or more, `Input[X | None]` one or none.
`Output[X]` is one draft to fill, `Outputs[X]` as many as the work turns out to make, `Output[X | None]` is
published only when something was written. A trailing underscore is not part of an output's name, so that `run` can
read `examples` and make `examples_`, which others read as `node["examples"]`. An argument annotated `Attempt`
receives the facts of the run; every other argument is a parameter.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    ClassVar,
    Generic,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import ParameterError, PipelineError

if TYPE_CHECKING:
    from spanwise.orchestrator.history import History
    from spanwise.orchestrator.run import Run

T = TypeVar("T")
A = TypeVar("A", bound=Artifact)

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class _Role(Enum):
    INPUT = "Input"
    OUTPUT = "Output"


Input: TypeAlias = Annotated[T, _Role.INPUT]
Output: TypeAlias = Annotated[T, _Role.OUTPUT]


class Outputs(Generic[A]):
    """An output of as many artifacts as the work makes, in the order they were asked for."""

    def __init__(self, kind: type[A], uri: str) -> None:
        self._kind = kind
        self._uri = uri
        self.drafts: list[A] = []

    def new(self) -> A:
        """One more draft, with an empty folder of its own."""
        draft = self._kind(f"{self._uri}/{len(self.drafts)}")
        draft.path.mkdir(parents=True)
        self.drafts.append(draft)
        return draft


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an executor may know about the attempt it is."""

    run: Run
    node: str
    number: int  #: 1 for the first try
    scratch: Path  #: an empty folder, removed afterwards
    checkpoints: Path  #: kept from one attempt of this run to the next
    snapshots: Path  #: what datasets keep for the runs of all pipelines below this root
    check_fence: Callable[[], None]  #: raises Fenced when the lease is lost; call it before an effect outside the store


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
    many: bool = False  #: a list made with Outputs.new
    optional: bool = False  #: published only when something was written
    argument: str | None = None  #: the argument of `run`, where it is not called as the output


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
    """What a component reads, makes and takes."""

    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    outputs: Mapping[str, OutputSpec] = field(default_factory=dict)
    parameters: Mapping[str, ParameterSpec] = field(default_factory=dict)
    attempt: str | None = None  #: the argument that takes the Attempt


@dataclass(frozen=True, eq=False)
class Channel:
    """The promise of the artifacts that one output of one node will have made."""

    node: str  #: name of the node that makes them
    key: str
    kind: type[Artifact]
    producer: Node | None  #: None for `past` channels, which promise nothing of this run
    many: bool = False
    optional: bool = False

    def __repr__(self) -> str:
        return f"{self.node}[{self.key!r}]"


def past(node: str, key: str, kind: type[Artifact]) -> Channel:
    """What earlier runs have published under `key` of `node`, for a resolver to choose from.

    It waits for nothing of this run, so it may name a node downstream: a trainer that starts from the latest
    blessed model reads `LatestBlessed(past("Trainer", "model", Model))`.
    """
    return Channel(node, key, kind, producer=None, many=True)


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often a failed executor is tried again, and after how long."""

    times: int = 0
    backoff_s: float = 1.0  #: before the second try
    factor: float = 2.0  #: each further wait is this much longer
    limit_s: float = 300.0

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after this many failed tries."""
        return float(min(self.limit_s, self.backoff_s * self.factor ** (failures - 1)))


class Node:
    """A component or resolver with a name, its inputs connected to channels. Never changed after it was made."""

    name: str
    inputs: Mapping[str, tuple[Channel, ...]]
    parameters: Mapping[str, object]
    outputs: Mapping[str, Channel]
    after: tuple[Node, ...]  #: it waits for these too, and is skipped when they fail, though it reads nothing of them

    def __getitem__(self, key: str) -> Channel:
        """The channel of one output."""
        if key not in self.outputs:
            raise PipelineError(f"{self.name} has no output {key!r}; it has: {', '.join(self.outputs) or 'none'}.")
        return self.outputs[key]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    def _place(self, name: str | None, after: Sequence[Node]) -> None:
        self.name = name or type(self).__name__
        self.after = tuple(after)
        if not NAME.fullmatch(self.name):
            raise PipelineError(
                f"{self.name!r} cannot name a node: take a letter, then letters, digits, '_', '.' or '-', 64 at most."
            )
        for node in self.after:
            if not isinstance(node, Node):
                raise PipelineError(f"{self.name} can only come after nodes; {node!r} is none.")


class Component(Node):
    """Work, done in a process of its own. Subclasses define `run`; making one places it in a pipeline.

    The arguments are the inputs (channels) and parameters of `run`, by name, and five that every component takes:
    `name` (default: the class name), `retry` (a Retry, or how often), `timeout_s`, `cache=False` to do the work even
    when nothing has changed, and `after`, nodes to wait for without reading from them, such as a check that must pass.
    """

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules worth importing once, before the first node starts."""

    cacheable: ClassVar[bool] = True
    """False for work with effects outside the store: it is never served from cache (law 7)."""

    prepared: ClassVar[tuple[str, ...]] = ()
    """Parameters of `run` that `prepare` provides, and that the pipeline does not."""

    hints: ClassVar[tuple[str, ...]] = ()
    """Prepared parameters that can change how fast the work is done, never its result: recorded, but not in the key."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version can change the result: it becomes part of the cache key."""

    def __init__(
        self,
        *,
        name: str | None = None,
        retry: Retry | int = 0,
        timeout_s: float | None = None,
        cache: bool = True,
        after: Sequence[Node] = (),
        **arguments: object,
    ) -> None:
        self._place(name, after)
        self.retry = retry if isinstance(retry, Retry) else Retry(times=retry)
        self.timeout_s = timeout_s
        self.cache = cache and self.cacheable
        signature = signature_of(type(self))
        self._refuse_unknown(arguments, signature)
        self.inputs = {n: self._connect(n, s, arguments.get(n)) for n, s in signature.inputs.items()}
        self.parameters = {
            n: self._accept(n, s, arguments) for n, s in signature.parameters.items() if n not in self.prepared
        }
        self.outputs = {
            n: Channel(self.name, n, s.kind, self, s.many, s.optional) for n, s in signature.outputs.items()
        }
        self.check()

    def check(self) -> None:
        """Refuses arguments that do not fit together; called when the node is placed, once each is known to fit."""

    run: ClassVar[Callable[..., None]]
    """The work. Its signature says what it reads, makes and takes; it runs in a child process."""

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002
        """What only the run can know, as values for the `prepared` parameters; reads, never writes.

        Called in the controller before the cache is asked, so what it returns is part of the cache key, except for
        `hints`: the values are plain data. `history("examples")` is what this node has published as "examples" before.
        """
        return {}

    def _refuse_unknown(self, arguments: Mapping[str, object], signature: Signature) -> None:
        takes = [*signature.inputs, *(p for p in signature.parameters if p not in self.prepared)]
        for name in arguments:
            if name not in takes:
                raise PipelineError(f"{self.name} takes no {name!r}; it takes: {', '.join(takes) or 'nothing'}.")

    def _connect(self, name: str, spec: InputSpec, given: object) -> tuple[Channel, ...]:
        if given is None and spec.optional:
            return ()
        wanted = spec.kind.kind
        if given is None:
            raise PipelineError(f"{self.name} needs {name!r}, a channel of {wanted}; connect one: {name}=node['…'].")
        channels = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        for channel in channels:
            self._refuse_channel(name, spec, channel)
        if not channels and not spec.optional:
            raise PipelineError(f"{self.name} needs {name!r}, a channel of {wanted}; connect at least one.")
        if len(channels) != 1 and not spec.many:
            raise PipelineError(f"{self.name} takes one channel as {name!r}, not {len(channels)}.")
        return typing.cast("tuple[Channel, ...]", channels)

    def _refuse_channel(self, name: str, spec: InputSpec, channel: object) -> None:
        wanted = spec.kind.kind
        if isinstance(channel, Node):
            raise PipelineError(
                f"{self.name} was given the node {channel.name} as {name!r}; name the output: "
                f"{name}={channel.name.lower()}[{next(iter(channel.outputs), '…')!r}]."
            )
        if not isinstance(channel, Channel):
            raise PipelineError(f"{self.name} takes a channel of {wanted} as {name!r}, not {channel!r}.")
        if channel.producer is None:
            raise PipelineError(
                f"{self.name} cannot read {channel!r} of the past directly; a resolver chooses from it: "
                f"{name}=Latest({channel!r})[{channel.key!r}]."
            )
        if not issubclass(channel.kind, spec.kind):
            raise PipelineError(f"{self.name} takes {wanted} as {name!r}; {channel!r} gives {channel.kind.kind}.")
        if channel.many and not spec.many:
            raise PipelineError(
                f"{self.name} takes one {wanted} as {name!r}; {channel!r} gives a list. "
                f"Annotate it Input[list[{spec.kind.__name__}]] to take them all."
            )
        if channel.optional and not (spec.optional or spec.many):
            raise PipelineError(
                f"{self.name} needs {name!r}; {channel!r} may give nothing. "
                f"Annotate it Input[{spec.kind.__name__} | None] to do without."
            )

    def _accept(self, name: str, spec: ParameterSpec, arguments: Mapping[str, object]) -> object:
        if name not in arguments:
            if spec.required:
                raise PipelineError(f"{self.name} needs the parameter {name!r}, {shown(spec.annotation)}.")
            return spec.default
        if isinstance(arguments[name], Channel | Node):
            raise PipelineError(f"{self.name} takes {name!r} as a parameter ({shown(spec.annotation)}), not a channel.")
        return checked(f"{self.name}.{name}", spec.annotation, arguments[name])


class Resolver(Node):
    """Chooses, among what was published on a channel, what this run reads; it makes nothing."""

    def __init__(
        self,
        source: Channel,
        *,
        name: str | None = None,
        after: Sequence[Node] = (),
        many: bool,
        optional: bool = False,
    ) -> None:
        if not isinstance(source, Channel):
            raise PipelineError(f"{type(self).__name__} takes a channel, not {source!r}; name the output: node['…'].")
        if isinstance(source.producer, Resolver):
            raise PipelineError(f"{type(self).__name__} chooses from what a component made; {source!r} is a choice.")
        self._place(name, after)
        self.inputs = {source.key: (source,)}
        self.parameters = {}
        channel = Channel(self.name, source.key, source.kind, self, many, optional)
        self.outputs = {source.key: channel}

    @property
    def source(self) -> Channel:
        """The channel it chooses from."""
        (channels,) = self.inputs.values()
        return channels[0]

    def resolve(self, history: History) -> Sequence[Artifact]:
        """The artifacts this run reads, oldest span first.

        Raises:
            ResolutionError: it found less than it needs; the message says what and how to mend it.
        """
        raise NotImplementedError


def defaulted(node: Node) -> tuple[str, ...]:
    """The parameters of a node that are what they are when nothing is said."""
    if isinstance(node, Component):
        defaults = {n: s.default for n, s in signature_of(type(node)).parameters.items()}
    else:
        defaults = {n: p.default for n, p in inspect.signature(type(node).__init__).parameters.items()}
    return tuple(n for n, value in node.parameters.items() if n in defaults and _same(value, defaults[n]))


def _same(value: object, other: object) -> bool:
    try:
        return value is other or bool(value == other)
    except Exception:  # noqa: BLE001  a user's type may compare in its own way, as arrays do
        return False


def component(function: Callable[..., None]) -> type[Component]:
    """A component from a function: `@component def count(examples: Input[Examples], …): ...`."""
    body = {"run": staticmethod(function), "__doc__": function.__doc__, "__module__": function.__module__}
    return type(function.__name__, (Component,), body)


def signature_of(component: type[Component]) -> Signature:
    """Reads the signature of a component's `run`.

    Raises:
        PipelineError: an argument without an annotation, or one that names no kind of artifact.
    """
    return _signature(component)  # type: ignore[arg-type]  # mypy reads Node's instances where it should read the class


@functools.cache
def _signature(component: type[Component]) -> Signature:
    name = component.__name__
    run = inspect.getattr_static(component, "run", None)
    if run is None:
        raise PipelineError(f"{name} has no `run`; define it: its signature says what {name} reads, makes and takes.")
    bound = isinstance(run, staticmethod)
    function = run.__func__ if bound else run
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise PipelineError(f"{name}.run: {error}; annotations are read, so import what they name.") from error
    specs: dict[str, _Spec] = {}
    for argument in list(inspect.signature(function).parameters.values())[0 if bound else 1 :]:
        specs[argument.name] = _spec(f"{name}.run({argument.name})", argument, hints.get(argument.name))
    return Signature(
        inputs={n: s for n, s in specs.items() if isinstance(s, InputSpec)},
        outputs=dict(_output(name, n, s, specs) for n, s in specs.items() if isinstance(s, OutputSpec)),
        parameters={n: s for n, s in specs.items() if isinstance(s, ParameterSpec)},
        attempt=next((n for n, s in specs.items() if s is Attempt), None),
    )


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
        raise PipelineError(f"{where}: every argument is passed by its name; '*', '**' and '/' have no place here.")
    if hint is None:
        raise PipelineError(f"{where} has no annotation; say Input[…], Output[…] or the type of a parameter.")
    if hint is Attempt:
        return Attempt
    if get_origin(hint) is Outputs:
        kind, _, _ = _kind(where, get_args(hint)[0])
        return OutputSpec(kind, many=True)
    role = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, _Role)), None)
    if role is None:
        if argument.name in ("name", "retry", "timeout_s", "cache", "after"):
            raise PipelineError(f"{where}: every node takes {argument.name!r} already; call the parameter otherwise.")
        return ParameterSpec(hint, argument.default)
    kind, many, optional = _kind(where, get_args(hint)[0])
    if role is _Role.INPUT:
        return InputSpec(kind, many, optional)
    if many:
        raise PipelineError(f"{where}: an output of several artifacts is written Outputs[{kind.__name__}].")
    return OutputSpec(kind, optional=optional)


def _kind(where: str, base: object) -> tuple[type[Artifact], bool, bool]:
    parts = get_args(base) if get_origin(base) in (Union, types.UnionType) else (base,)
    optional = type(None) in parts
    parts = tuple(p for p in parts if p is not type(None))
    many = len(parts) == 1 and get_origin(parts[0]) is list
    kind = get_args(parts[0])[0] if many else parts[0]
    if len(parts) != 1 or not (isinstance(kind, type) and issubclass(kind, Artifact)):
        raise PipelineError(f"{where} is {shown(base)}; name a kind of artifact, such as Examples or Model.")
    return kind, many, optional


def checked(what: str, annotation: object, value: object) -> object:
    """The value, when it is what the annotation says; nothing is converted but int to float.

    Raises:
        ParameterError: it is something else; the message names `what`.
    """
    from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

    if isinstance(annotation, type) and type(value) is annotation:
        return value
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


def parsed(what: str, annotation: object, text: str) -> object:
    """A value typed on the command line, read as what the annotation says.

    Raises:
        ParameterError: it cannot be read as that; the message names `what`.
    """
    from pydantic import TypeAdapter, ValidationError

    if annotation in (str, inspect.Parameter.empty):
        return text
    adapter: TypeAdapter[object] = TypeAdapter(_form(annotation))
    try:
        return adapter.validate_strings(text)
    except ValidationError:
        try:
            return adapter.validate_json(text)
        except ValidationError as error:
            _refuse(what, annotation, text, error)


def _form(annotation: object) -> type[object]:
    return typing.cast("type[object]", annotation)


def _refuse(what: str, annotation: object, value: object, error: Exception) -> NoReturn:
    raise ParameterError(f"{what} takes {shown(annotation)}, not {type(value).__name__} {value!r}.") from error


def shown(annotation: object) -> str:
    """An annotation as its author wrote it."""
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
