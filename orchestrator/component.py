"""Components: the nodes of a pipeline, connected by channels; a component works, a resolver chooses."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import PipelineError
from spanwise.orchestrator.replica import ALONE, Gang
from spanwise.orchestrator.resources import NOTHING_ASKED, Resources
from spanwise.orchestrator.signature import (
    InputSpec,
    ParameterSpec,
    Signature,
    check_value,
    format_annotation,
    read_signature,
)

if TYPE_CHECKING:
    from spanwise.orchestrator.history import History
    from spanwise.orchestrator.run import Run
    from spanwise.orchestrator.scope import Scope

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, eq=False)
class Channel:
    """The future artifacts of one output of one node."""

    node: str  #: name of the node that produces them
    key: str
    kind: type[Artifact]
    producer: Node | None  #: None for `past` channels, which carry nothing of this run
    many: bool = False
    optional: bool = False

    def __repr__(self) -> str:
        return f"{self.node}[{self.key!r}]"


def published_channel(channel: Channel) -> Channel:
    """The channel that its artifacts are published on: of a resolver, the one that it chooses from."""
    return channel.producer.sources[channel.key] if isinstance(channel.producer, Resolver) else channel


def past(node: str, key: str, kind: type[Artifact]) -> Channel:
    """A channel of what earlier runs published under `key` of `node`, for a resolver to choose from.

    It waits for nothing in this run, so it may name a node downstream: a trainer that starts from the latest
    blessed model reads `LatestBlessed(past("Trainer", "model", Model))`.
    """
    return Channel(node, key, kind, producer=None, many=True)


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often a failed attempt is retried, and after how long."""

    times: int = 0
    backoff_s: float = 1.0  #: before the second attempt
    factor: float = 2.0  #: multiplies each further wait
    limit_s: float = 300.0

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after this many failed attempts."""
        return float(min(self.limit_s, self.backoff_s * self.factor ** (failures - 1)))


class Node:
    """A component or resolver with a name, its inputs connected to channels. Immutable."""

    name: str
    inputs: Mapping[str, tuple[Channel, ...]]
    parameters: Mapping[str, object]
    outputs: Mapping[str, Channel]
    after: tuple[Node, ...]  #: nodes to wait for without reading from them; skipped if one fails

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
                f"{self.name!r} cannot name a node: use a letter, then letters, digits, '_', '.' or '-'; at most 64."
            )
        for node in self.after:
            if not isinstance(node, Node):
                raise PipelineError(f"{self.name} can only come after nodes; {node!r} is not a node.")


class Component(Node):
    """A node that works, in a process of its own. Subclasses define `run`; an instance is a node of a pipeline.

    The arguments are the inputs (channels) and parameters of `run`, by name, and six that every component takes:
    `name` (default: the class name), `retry` (a Retry, or how often), `timeout_s`, `cache=False` to execute even
    when nothing has changed, `after`, nodes to wait for without reading from them, such as a check that must pass, and
    `resources`, what it needs while it runs.
    """

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules to import once, before the first node starts."""

    cacheable: ClassVar[bool] = True
    """False for work with external effects: its results are never reused (law 7)."""

    prepared: ClassVar[tuple[str, ...]] = ()
    """Parameters of `run` that `prepare` supplies instead of the pipeline."""

    hints: ClassVar[tuple[str, ...]] = ()
    """Parameters that affect the speed or the success, never the result: recorded, not in the cache key."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version can change the result: their versions are part of the cache key."""

    def __init__(
        self,
        *,
        name: str | None = None,
        retry: Retry | int = 0,
        timeout_s: float | None = None,
        cache: bool = True,
        after: Sequence[Node] = (),
        resources: Resources = NOTHING_ASKED,
        **arguments: object,
    ) -> None:
        own = set(vars(self))
        self._place(name, after)
        if not isinstance(resources, Resources):
            raise PipelineError(f"{self.name} takes Resources(…) as 'resources', not {resources!r}.")
        self.resources = resources
        self.retry = retry if isinstance(retry, Retry) else Retry(times=retry)
        self.timeout_s = timeout_s
        self.cache = cache and self.cacheable
        signature = read_signature(type(self))
        self._refuse_unknown(arguments, signature)
        self.inputs = {n: self._connect(n, s, arguments.get(n)) for n, s in signature.inputs.items()}
        self.parameters = {
            n: self._accept(n, s, arguments) for n, s in signature.parameters.items() if n not in self.prepared
        }
        self.outputs = self._make_outputs(signature)
        self.check()
        self._derived = frozenset({"_derived", *vars(self)} - own)

    @property
    def definition(self) -> Mapping[str, object]:
        """What can change its result beside its code and inputs: parameters, and what its own `__init__` has kept.

        The latter as `self.at_least`. Nodes and channels that it has kept count by what it reads.
        """
        own = {n: v for n, v in vars(self).items() if n not in self._derived and not isinstance(v, Node | Channel)}
        made_once = {n for cls in type(self).__mro__ for n, v in vars(cls).items() if isinstance(v, cached_property)}
        return {**self.parameters, **{f"self.{n}": v for n, v in own.items() if n not in made_once}}

    def check(self) -> None:
        """Refuses arguments that do not fit together; called when the node is created, after each was checked alone."""

    run: ClassVar[Callable[..., None]]
    """The work, done in a child process. Its signature declares the inputs, outputs and parameters."""

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002
        """Returns values, known only at run time, for the `prepared` parameters; reads, never writes.

        The controller calls it before it looks for a cached result, so the values, plain data, are part of the cache
        key, except for `hints`. `history("examples")` is what this node has published as "examples" before.
        """
        return {}

    def unread(self, run: Run) -> Sequence[str]:  # noqa: ARG002
        """Names the optional inputs that this run does not read: `run` gets nothing, and lineage and cache key too."""
        return ()

    @property
    def gang(self) -> Gang:
        """The processes that do its work together: `run` is called in each, at once. Most do it in one."""
        return ALONE

    def may_be_damaged(self) -> Sequence[str]:
        """Names the inputs without which `run` does its work when files of them are damaged.

        It finds them in `Attempt.damaged`, and must not read them. Any other damaged input fails the node.
        """
        return ()

    def refuse_reuse(self, outputs: Mapping[str, Sequence[Artifact]]) -> str | None:  # noqa: ARG002
        """Why these outputs of an earlier execution are made anew although its cache key is the same; None: reuse them.

        For what was made without something that the key takes for read, such as an input whose files were damaged.
        """
        return None

    def _make_outputs(self, signature: Signature) -> Mapping[str, Channel]:
        return {n: Channel(self.name, n, s.kind, self, s.many, s.optional) for n, s in signature.outputs.items()}

    def _refuse_unknown(self, arguments: Mapping[str, object], signature: Signature) -> None:
        takes = [*signature.inputs, *(p for p in signature.parameters if p not in self.prepared)]
        for name in arguments:
            if name not in takes:
                raise PipelineError(f"{self.name} takes no {name!r}; it takes: {', '.join(takes) or 'nothing'}.")

    def _connect(self, name: str, spec: InputSpec, value: object) -> tuple[Channel, ...]:
        if value is None and spec.optional:
            return ()
        wanted = spec.kind.kind
        if value is None:
            raise PipelineError(f"{self.name} needs {name!r}, a channel of {wanted}; connect one: {name}=node['…'].")
        channels = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
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
                f"{self.name} takes a channel as {name!r}, not the node {channel.name}; name the output: "
                f"{name}={channel.name.lower()}[{next(iter(channel.outputs), '…')!r}]."
            )
        if not isinstance(channel, Channel):
            raise PipelineError(f"{self.name} takes a channel of {wanted} as {name!r}, not {channel!r}.")
        if channel.producer is None:
            raise PipelineError(
                f"{self.name} cannot read the past channel {channel!r} directly; choose from it with a resolver: "
                f"{name}=Latest({channel!r})[{channel.key!r}]."
            )
        if not issubclass(channel.kind, spec.kind):
            raise PipelineError(
                f"{self.name} takes {wanted} as {name!r}; {channel!r} is a channel of {channel.kind.kind}."
            )
        if channel.many and not spec.many:
            raise PipelineError(
                f"{self.name} takes one {wanted} as {name!r}; {channel!r} yields a list. "
                f"Annotate it Input[list[{spec.kind.__name__}]] to take them all."
            )
        if channel.optional and not (spec.optional or spec.many):
            raise PipelineError(
                f"{self.name} needs {name!r}; {channel!r} may be empty. "
                f"Annotate it Input[{spec.kind.__name__} | None] to make it optional."
            )

    def _accept(self, name: str, spec: ParameterSpec, arguments: Mapping[str, object]) -> object:
        if name not in arguments:
            if spec.required:
                raise PipelineError(f"{self.name} needs the parameter {name!r}, {format_annotation(spec.annotation)}.")
            return spec.default
        if isinstance(arguments[name], Channel | Node):
            raise PipelineError(
                f"{self.name} takes {name!r} as a parameter ({format_annotation(spec.annotation)}), not a channel."
            )
        return check_value(f"{self.name}.{name}", spec.annotation, arguments[name])


class Resolver(Node):
    """A node that chooses, among the artifacts published on a channel, those that this run reads; it produces none."""

    is_fixed: ClassVar[bool] = False
    """Whether the pipeline says what it chooses, whatever is published later: so it is no window that moves."""

    def __init__(
        self,
        source: Channel,
        *,
        name: str | None = None,
        after: Sequence[Node] = (),
        many: bool,
        optional: bool = False,
    ) -> None:
        self._place(name, after)
        self.inputs, self.outputs, self.parameters = {}, {}, {}
        self._add_source(source, many=many, optional=optional)

    def _add_source(self, source: Channel, *, many: bool, optional: bool = False) -> None:
        """One more channel to choose from, under a key of its own; `choose` then answers for both."""
        if not isinstance(source, Channel):
            raise PipelineError(f"{type(self).__name__} takes a channel, not {source!r}; name the output: node['…'].")
        if isinstance(source.producer, Resolver):
            raise PipelineError(
                f"{type(self).__name__} chooses from the outputs of components; {source!r} is a resolver's choice."
            )
        if source.key in self.inputs:
            raise PipelineError(f"{self.name} chooses from two channels called {source.key!r}: their keys must differ.")
        self.inputs = {**self.inputs, source.key: (source,)}
        channel = Channel(self.name, source.key, source.kind, self, many, optional)
        self.outputs = {**self.outputs, source.key: channel}

    @property
    def sources(self) -> Mapping[str, Channel]:
        """The channels it chooses from, by key."""
        return {key: channels[0] for key, channels in self.inputs.items()}

    @property
    def source(self) -> Channel:
        """The channel it chooses from; of several, the first."""
        return next(iter(self.sources.values()))

    def check_wiring(self, nodes: Mapping[str, Node], scopes: Mapping[str, Scope]) -> None:
        """Refuses a pipeline of these nodes that it does not fit into; called when the pipeline is built."""

    def choose(self, histories: Mapping[str, History]) -> Mapping[str, Sequence[Artifact]]:
        """What this run reads, by key; of a resolver with one source, what `resolve` says."""
        return {self.source.key: self.resolve(histories[self.source.key])}

    def resolve(self, history: History) -> Sequence[Artifact]:
        """The artifacts this run reads, oldest span first.

        Raises:
            ResolutionError: it found less than it needs; the message names what is missing and the fix.
        """
        raise NotImplementedError

    def why(self, history: History, chosen: Sequence[Artifact]) -> str:  # noqa: ARG002
        """Why it chose these, in a few words, where their names do not say it."""
        return ""


def list_defaults(node: Node) -> tuple[str, ...]:
    """Lists the parameters of a node that have their default values."""
    if isinstance(node, Component):
        defaults = {n: s.default for n, s in read_signature(type(node)).parameters.items()}
    else:
        defaults = {n: p.default for n, p in inspect.signature(type(node).__init__).parameters.items()}
    return tuple(n for n, value in node.parameters.items() if n in defaults and _same(value, defaults[n]))


def _same(value: object, other: object) -> bool:
    try:
        return value is other or bool(value == other)
    except Exception:  # noqa: BLE001  a user's type may compare in its own way, as arrays do
        return False


def component(function: Callable[..., None]) -> type[Component]:
    """Turns a function into a component: `@component def count(examples: Input[Examples], …): ...`."""
    body = {"run": staticmethod(function), "__doc__": function.__doc__, "__module__": function.__module__}
    return type(function.__name__, (Component,), body)
