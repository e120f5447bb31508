"""Command: a node that runs a program of any kind, or a container, with paths in and out."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NoReturn, Self, TypeAlias, cast

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.component import Attempt, Channel, Component, Input, InputSpec, Output
from spanwise.orchestrator.errors import NodeFailed, ParameterError, PipelineError, UnreadableInput
from spanwise.orchestrator.fingerprint import of_tree
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run

Setting: TypeAlias = "str | int | float | bool"
Engine: TypeAlias = Literal["docker", "podman"]

#: The variables that a program gets of ours; all others are its own business.
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
#: How much of what a program printed is shown when it fails.
LAST_LINES = 20
#: How long the last of its output is waited for, when something that it has started holds on to it.
_OUTPUT_S = 2.0

_PLACE = re.compile(r"\{\{|\}\}|(?<!\$)\{(?P<name>[A-Za-z_]\w*)(?P<properties>\.properties)?\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENGINES: tuple[Engine, ...] = ("docker", "podman")


class Command(Component):
    """Runs a program, and makes artifacts of what it writes.

        Command(
            command=["python", "train.py", "--rows", "{examples}/Split-train", "--out", "{model}", "--depth={depth}"],
            inputs={"examples": ingest["examples"]},
            outputs={"model": Model},
            settings={"depth": 6},
        )

    `{examples}` is the folder of an input, `{model}` an empty folder to write into, `{depth}` a setting; a literal
    brace is doubled. `{examples.properties}` is a JSON file with an input's properties; what the program writes to
    `{model.properties}` becomes the output's. An input that gives several is several arguments, and one that gives
    nothing is none: each is to be an argument of its own.

    No shell is involved, unless the command is written as `shell="…"`. With `image` it runs in a container, in which
    the same paths are mounted.

    The program is part of the cache key by its arguments and by the content of each file that an argument names; name
    in `reads` what else it reads. It gets no variables of the environment but a few (`PASSED_ON`), those that `env`
    sets, and those that `env_names` lets through, whose values are neither recorded nor part of the key.
    """

    prepared: ClassVar = ("contents",)

    def __new__(
        cls,
        *,
        inputs: Mapping[str, object] | None = None,
        outputs: Mapping[str, object] | None = None,
        **_arguments: object,
    ) -> Self:
        """What it reads and makes is part of the signature, so there is a class for each."""
        if cls is not Command:
            return object.__new__(cls)
        read, made = _inputs(inputs or {}), _outputs(outputs or {})
        if twice := sorted({*dict(read)} & {*dict(made)}):
            raise PipelineError(f"Command reads and makes {twice[0]!r}; rename one.")
        return cast("Self", object.__new__(_command_of(read, made)))

    def __init__(self, *, inputs: Mapping[str, object] | None = None, **arguments: object) -> None:
        for name in inputs or {}:
            if name in arguments:
                raise PipelineError(f"Command takes {name!r} itself; call the input otherwise.")
        super().__init__(**{**arguments, **(inputs or {})})  # type: ignore[arg-type]  # checked by Component

    def check(self) -> None:
        given = self.parameters
        if (given["command"] is None) == (given["shell"] is None):
            raise ParameterError(
                f"{self.name} takes a command or a shell line, one of the two: command=['python', 'train.py'], or "
                "shell='sort {rows}/* > {sorted}/rows.txt'."
            )
        if given["command"] == []:
            raise ParameterError(f"{self.name}.command is empty; its first item is the program.")
        settings = cast("Mapping[str, Setting]", given["settings"] or {})
        if twice := sorted({*settings} & {*self.inputs, *self.outputs}):
            raise ParameterError(f"{self.name}: {twice[0]!r} is a setting and an input or output; rename one.")
        for text in self._texts():
            self._check_places(text, {*self.inputs, *self.outputs, *settings}, settings)
        if given["engine"] is not None and given["image"] is None:
            raise ParameterError(f"{self.name} runs no container, so it has no engine; name an image: image='…'.")

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002  the port
        named = [Path(text) for text in self._texts() if self.parameters["shell"] is None and _is_file(text)]
        reads = [Path(str(path)) for path in cast("Sequence[str]", self.parameters["reads"])]
        for path in reads:
            if not path.exists():
                raise UnreadableInput(f"{self.name}.reads: there is nothing at {path}.")
        return {"contents": {str(path): of_tree(path).digest for path in (*named, *reads)}}

    def _texts(self) -> Sequence[str]:
        shell, command = self.parameters["shell"], self.parameters["command"]
        return [str(shell)] if shell is not None else cast("Sequence[str]", command)

    def _check_places(self, text: str, known: set[str], settings: Mapping[str, Setting]) -> None:
        for place in _PLACE.finditer(text):
            name = place["name"]
            if name is None:
                continue
            if name not in known or (place["properties"] and name in settings):
                raise ParameterError(
                    f"{self.name}: {place[0]} is none of its inputs, outputs and settings: "
                    f"{', '.join(sorted(known)) or 'there are none'}. A brace that is meant literally is doubled."
                )
            channels = self.inputs.get(name, ())
            loose = any(channel.many or channel.optional for channel in channels) and not place["properties"]
            if loose and self.parameters["shell"] is None and place[0] != text:
                raise ParameterError(
                    f"{self.name}: {place[0]} may be several paths, or none, so it must be an argument of its own, "
                    f"not {text!r}."
                )


@dataclass(frozen=True, kw_only=True)
class Places:
    """What the placeholders of one attempt stand for."""

    paths: Mapping[str, Sequence[str]]  #: of inputs and outputs
    properties: Mapping[str, str]  #: the JSON file of each
    settings: Mapping[str, Setting]

    def argument(self, text: str) -> list[str]:
        """An argument with its placeholders filled in; several or none where an input is."""
        whole = _PLACE.fullmatch(text)
        if whole and whole["name"] in self.paths and not whole["properties"]:
            return list(self.paths[whole["name"]])
        return [_PLACE.sub(self._filled, text)]

    def line(self, text: str) -> str:
        """A shell line with its placeholders filled in and quoted, so that no value is anything but a value."""
        return _PLACE.sub(lambda place: self._filled(place, quoted=True), text)

    def _filled(self, place: re.Match[str], *, quoted: bool = False) -> str:
        name = place["name"]
        if name is None:
            return place[0][0]
        if place["properties"]:
            values: Sequence[object] = [self.properties[name]]
        else:
            values = self.paths.get(name) or ([self.settings[name]] if name in self.settings else [])
        return " ".join(shlex.quote(str(value)) if quoted else str(value) for value in values)


def container(
    engine: Engine,
    image: str,
    command: Sequence[str],
    *,
    name: str,
    reads: Sequence[str],
    writes: Sequence[str],
    env: Sequence[str],
    user: str,
) -> list[str]:
    """The command line that runs a command in a container, with the same paths inside as outside.

    What it reads cannot be written there. Of `env` only the names are given, so that no value shows in a list of
    processes. The user is ours, so that what is written is ours.
    """
    mounts = [f"--volume={path}:{path}:ro" for path in reads] + [f"--volume={path}:{path}" for path in writes]
    rights = ["--userns=keep-id"] if engine == "podman" else [f"--user={user}"]
    options = ["--rm", "--init", f"--name={name}", *rights, *mounts, *(f"--env={variable}" for variable in env)]
    return [engine, "run", *options, image, *command]


def _run(self: Command, arguments: Mapping[str, object]) -> None:
    """The `run` of every Command."""
    attempt = cast("Attempt", arguments["attempt"])
    given = {name: _several(arguments[name]) for name in self.inputs}
    drafts = {name: cast("Artifact", arguments[name]) for name in self.outputs}
    notes = attempt.scratch / "properties"
    notes.mkdir()
    places = Places(
        paths={
            **{name: [str(artifact.path.absolute()) for artifact in found] for name, found in given.items()},
            **{name: [str(draft.path.absolute())] for name, draft in drafts.items()},
        },
        properties={name: str(notes / f"{name}.json") for name in (*given, *drafts)},
        settings=cast("Mapping[str, Setting]", arguments["settings"] or {}),
    )
    for name, found in given.items():
        described = [artifact.properties for artifact in found]
        many = any(channel.many for channel in self.inputs[name])
        text = json.dumps(described if many else next(iter(described), None))
        Path(places.properties[name]).write_text(text, encoding="utf-8")
    env = _environment(self.name, arguments, attempt.scratch)
    line = _command_line(arguments, places)
    if arguments["image"] is None:
        _await(self.name, line, env)
    else:
        _await_container(self, line, env, places, attempt)
    for name, draft in drafts.items():
        if not any(draft.path.iterdir()):
            raise NodeFailed(f"{self.name} ended well and wrote nothing to {{{name}}}, {draft.uri}.")
        _describe(self.name, name, draft, Path(places.properties[name]))


def _several(value: object) -> list[Artifact]:
    if value is None:
        return []
    return cast("list[Artifact]", value if isinstance(value, list) else [value])


def _command_line(arguments: Mapping[str, object], places: Places) -> list[str]:
    if arguments["shell"] is not None:
        return ["/bin/sh", "-euc", places.line(str(arguments["shell"]))]
    return [part for text in cast("Sequence[str]", arguments["command"]) for part in places.argument(text)]


def _environment(node: str, arguments: Mapping[str, object], scratch: Path) -> dict[str, str]:
    wanted = cast("Sequence[str]", arguments["env_names"])
    missing = [name for name in wanted if name not in os.environ]
    if missing:
        raise ParameterError(f"{node}.env_names: {missing[0]} is not set where the run was started.")
    env = {name: os.environ[name] for name in (*PASSED_ON, *wanted) if name in os.environ}
    return {**env, "TMPDIR": str(scratch), **cast("Mapping[str, str]", arguments["env"] or {})}


def _await(node: str, line: Sequence[str], env: Mapping[str, str]) -> None:
    """Runs to the end; what is printed goes to the log at once.

    Raises:
        NodeFailed: it cannot be started, ends with another status than 0, or is killed.
    """
    sys.stdout.flush()
    try:
        child = subprocess.Popen(
            line, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except (OSError, ValueError) as error:
        raise NodeFailed(f"{node} cannot start {line[0]!r}: {error}. Is it installed, and on the PATH?") from error
    last: deque[str] = deque(maxlen=LAST_LINES)
    # a thread of its own: what the program leaves running may hold its output open for ever
    echo = threading.Thread(target=_echo, args=(child, last), daemon=True)
    echo.start()
    status = child.wait()
    echo.join(_OUTPUT_S)
    if status:
        _fail(node, line, status, last)


def _echo(child: subprocess.Popen[bytes], last: deque[str]) -> None:
    assert child.stdout is not None
    for raw in child.stdout:
        text = raw.decode(errors="replace")
        last.append(text)
        sys.stdout.write(text)


def _fail(node: str, line: Sequence[str], status: int, last: Sequence[str]) -> NoReturn:
    how = f"ended with exit status {status}"
    if status < 0:
        with suppress(ValueError):
            how = f"was killed by {signal.Signals(-status).name}"
    printed = "".join(last).rstrip()
    said = f" The last that it printed:\n{printed}" if printed else " It printed nothing."
    raise NodeFailed(f"{node}: {shlex.join(line)} {how}.{said}")


def _await_container(
    node: Command, line: Sequence[str], env: Mapping[str, str], places: Places, attempt: Attempt
) -> None:
    given = node.parameters
    wanted = cast("Engine | None", given["engine"])
    engine = next((each for each in _ENGINES if wanted in (None, each) and shutil.which(each)), None)
    if engine is None:
        missing = f"{wanted} is not" if wanted else "neither docker nor podman is"
        raise NodeFailed(f"{node.name} runs in a container, and {missing} on the PATH here.")
    name = f"spanwise-{attempt.run.pipeline}-{attempt.run.number}-{attempt.node}-{attempt.number}-{os.getpid()}"
    own = {*cast("Mapping[str, str]", given["env"] or {}), *cast("Sequence[str]", given["env_names"]), "TMPDIR"}
    command = container(
        engine,
        str(given["image"]),
        line,
        name=name,
        reads=[
            *(path for each in node.inputs for path in places.paths[each]),
            *(str(Path(path).absolute()) for path in cast("Sequence[str]", given["reads"])),
        ],
        writes=[*(path for each in node.outputs for path in places.paths[each]), str(attempt.scratch.absolute())],
        env=sorted(own),
        user=f"{os.getuid()}:{os.getgid()}",
    )
    with _removed_when_stopped(engine, name):
        _await(node.name, command, {**os.environ, **env})


@contextmanager
def _removed_when_stopped(engine: str, name: str) -> Iterator[None]:
    """The container is no process of ours, so being asked to end must end it, too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except BaseException:
        subprocess.run([engine, "rm", "--force", name], capture_output=True, check=False)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _describe(node: str, name: str, draft: Artifact, notes: Path) -> None:
    """Gives an output the properties that the program has written."""
    if not notes.exists():
        return
    try:
        found = json.loads(notes.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"an object wanted, {type(found).__name__} found")  # noqa: TRY301, TRY004  told below
        for key, value in found.items():
            setattr(draft, key, value)
    except (ValueError, AttributeError, ParameterError) as error:
        raise NodeFailed(f"{node} wrote properties of {name!r} that cannot be kept: {error}") from error


def _is_file(text: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(text).is_file()
    return False


# --- a class for each signature


def _inputs(given: Mapping[str, object]) -> tuple[tuple[str, InputSpec], ...]:
    found = []
    for name, channels in given.items():
        each = []
        for channel in channels if isinstance(channels, list | tuple) else [channels]:
            if not isinstance(channel, Channel):
                raise PipelineError(f"Command takes channels as inputs; {name!r} is {channel!r}; name it: node['…'].")
            each.append(channel)
        many = len(each) > 1 or any(channel.many for channel in each)
        kind = each[0].kind if len({channel.kind for channel in each}) == 1 else Artifact
        found.append((_identifier(name), InputSpec(kind, many=many, optional=not many and each[0].optional)))
    return tuple(found)


def _outputs(given: Mapping[str, object]) -> tuple[tuple[str, type[Artifact]], ...]:
    for name, kind in given.items():
        if not (isinstance(kind, type) and issubclass(kind, Artifact)):
            raise PipelineError(f"Command.outputs: {name!r} is {kind!r}; name a kind of artifact, such as Model.")
    if not given:
        raise PipelineError("Command makes nothing; name what it writes: outputs={'report': Report}.")
    return tuple((_identifier(name), cast("type[Artifact]", kind)) for name, kind in given.items())


def _identifier(name: str) -> str:
    own = inspect.signature(_parameters).parameters
    if not _NAME.fullmatch(name) or name.endswith("_") or name in own:
        raise PipelineError(
            f"Command: {name!r} cannot name an input or output; take another, of letters, digits and _."
        )
    return name


def _parameters(
    *,
    attempt: Attempt,
    contents: Mapping[str, str],
    outputs: Mapping[str, type[Artifact]],
    command: Sequence[str] | None = None,
    shell: str | None = None,
    image: str | None = None,
    engine: Engine | None = None,
    settings: Mapping[str, Setting] | None = None,
    reads: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    env_names: Sequence[str] = (),
) -> None:
    """What every Command takes beside its inputs and outputs; `run` has these and those."""


@functools.cache
def _command_of(
    inputs: tuple[tuple[str, InputSpec], ...], outputs: tuple[tuple[str, type[Artifact]], ...]
) -> type[Command]:
    def run(self: Command, **arguments: object) -> None:
        _run(self, arguments)

    fixed = inspect.signature(_parameters)
    hints = inspect.get_annotations(_parameters, eval_str=True)
    hints |= {name: _input_hint(spec) for name, spec in inputs}
    hints |= {name: Output[kind] for name, kind in outputs}  # type: ignore[misc, valid-type]  # known only now
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(name, keyword) for name, _ in (*inputs, *outputs)]
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([me, *own, *fixed.parameters.values()])  # type: ignore[attr-defined]
    run.__annotations__ = hints
    return type("Command", (Command,), {"run": run, "__doc__": Command.__doc__, "__module__": __name__})


def _input_hint(spec: InputSpec) -> object:
    kind: object = spec.kind
    if spec.many:
        kind = list[spec.kind]  # type: ignore[name-defined]  # known only now
    elif spec.optional:
        kind = spec.kind | None
    return Input[kind]  # type: ignore[misc, valid-type]  # as above
