"""Command: runs a program or a container as a node, with paths as inputs and outputs."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NoReturn, Self, TypeAlias, cast

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.component import Channel, Component
from spanwise.orchestrator.errors import NodeFailed, ParameterError, PipelineError, UnreadableInput
from spanwise.orchestrator.fingerprint import of_tree
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import Attempt, Input, InputSpec, Output
from spanwise.orchestrator.storage.url import refuse_url

Setting: TypeAlias = "str | int | float | bool"
Engine: TypeAlias = Literal["docker", "podman"]

#: The environment variables that are passed on to every program.
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
#: The number of output lines in the error message of a failed program.
LAST_LINES = 20
#: How long to wait for the end of the output if a process started by the program keeps it open.
_OUTPUT_S = 2.0

_PLACE = re.compile(r"\{\{|\}\}|(?<!\$)\{(?P<name>[A-Za-z_]\w*)(?P<properties>\.properties)?\}")
_HERE_DOCUMENT = re.compile(
    r"(?<!<)<<-?[ \t]*(?P<quote>['\"\\]?)(?P<end>\w+).*\n(?P<body>(?:.*\n)*?)\t*(?P=end)(?=\n|$)"
)
_OUTSIDE = "\0"  # stands for what is below an input or output where files are looked for
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENGINES: tuple[Engine, ...] = ("docker", "podman")


_IMPORT = "Import it, and connect it as an input: Importer(uri='{url}', kind=…)['artifact']"


class Command(Component):
    """Runs a program and publishes the files it writes as artifacts.

        Command(
            command=["python", "train.py", "--rows", "{examples}/Split-train", "--out", "{model}", "--depth={depth}"],
            inputs={"examples": ingest["examples"]},
            outputs={"model": Model},
            settings={"depth": 6},
        )

    `{examples}` is the folder of an input, `{model}` an empty folder to write into, `{depth}` a setting; a literal
    brace is doubled. `{examples.properties}` is a JSON file with an input's properties; what the program writes to
    `{model.properties}` becomes the output's. An input with several artifacts becomes several arguments, and an
    absent one none, so the placeholder of such an input must be an argument of its own.

    No shell is involved, unless the command is written as `shell="…"`. With `image` it runs in a container, in which
    the same paths are mounted.

    The cache key covers the arguments and the content of each file that an argument, or a word of a shell line, names,
    also by a setting or as in `--config=conf.toml` and `@conf.toml`; list other files, and folders, in `reads`.
    The program gets a few environment variables (`PASSED_ON`), those set in `env`, and those named in `env_names`,
    whose values are neither recorded nor part of the key.
    """

    prepared: ClassVar = ("contents",)

    def __new__(
        cls,
        *,
        inputs: Mapping[str, object] | None = None,
        outputs: Mapping[str, object] | None = None,
        **_arguments: object,
    ) -> Self:
        """Inputs and outputs are part of the signature, so each combination has a class of its own."""
        if cls is not Command:
            return object.__new__(cls)
        read, made = _inputs(inputs or {}), _outputs(outputs or {})
        if twice := sorted({*dict(read)} & {*dict(made)}):
            raise PipelineError(f"Command: {twice[0]!r} is both an input and an output; rename one.")
        return cast("Self", object.__new__(_command_of(read, made)))

    def __init__(self, *, inputs: Mapping[str, object] | None = None, **arguments: object) -> None:
        for name in inputs or {}:
            if name in arguments:
                raise PipelineError(f"Command has a parameter {name!r}; rename the input.")
        super().__init__(**{**arguments, **(inputs or {})})  # type: ignore[arg-type]  # checked by Component

    def check(self) -> None:
        given = self.parameters
        if (given["command"] is None) == (given["shell"] is None):
            raise ParameterError(
                f"{self.name} needs either a command or a shell line: command=['python', 'train.py'], or "
                "shell='sort {rows}/* > {sorted}/rows.txt'."
            )
        if given["command"] == []:
            raise ParameterError(f"{self.name}.command is empty; its first item is the program.")
        settings = cast("Mapping[str, Setting]", given["settings"] or {})
        if twice := sorted({*settings} & {*self.inputs, *self.outputs}):
            raise ParameterError(f"{self.name}: {twice[0]!r} is both a setting and an input or output; rename one.")
        for text in self._texts():
            self._check_places(text, {*self.inputs, *self.outputs, *settings}, settings)
        if (quoted := _find_quoted_place(str(given["shell"] or ""))) is not None:
            raise ParameterError(
                f"{self.name}: {quoted} stands inside quotes, but its value is quoted when it is filled in, and the "
                f'shell would read both sets. Move it out: "--out="{quoted}, not "--out={quoted}".'
            )
        if (quoted := _find_place_in_document(str(given["shell"] or ""))) is not None:
            raise ParameterError(
                f"{self.name}: {quoted} stands in a here-document, where the quotes of its value are no quotes. Print "
                f"it instead: printf '%s\\n' {quoted}"
            )
        for path in cast("Sequence[str]", given["reads"] or ()):
            refuse_url(f"{self.name}.reads", str(path), fix=_IMPORT.format(url=path))
        if given["engine"] is not None and given["image"] is None:
            raise ParameterError(f"{self.name}: engine needs an image; set one: image='…'.")

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002  the port
        named = [Path(each) for each in self._named_files()]
        reads = [Path(str(path)) for path in cast("Sequence[str]", self.parameters["reads"])]
        for path in reads:
            if not path.exists():
                raise UnreadableInput(f"{self.name}.reads: there is nothing at {path}.")
        return {"contents": {str(path): of_tree(path).digest for path in (*named, *reads)}}

    def _texts(self) -> Sequence[str]:
        shell, command = self.parameters["shell"], self.parameters["command"]
        return [str(shell)] if shell is not None else cast("Sequence[str]", command)

    def _named_files(self) -> Iterator[str]:
        """The files that arguments, or words of a shell line, name as the program gets them.

        `conf.toml`, `{conf}`, `--config=conf.toml`, `config=conf.toml` and `@conf.toml`.
        """
        settings = cast("Mapping[str, Setting]", self.parameters["settings"] or {})
        outside = dict.fromkeys((*self.inputs, *self.outputs), _OUTSIDE)
        values = PlaceholderValues(paths={n: [o] for n, o in outside.items()}, properties=outside, settings=settings)
        shell = self.parameters["shell"]
        filled = (each for text in self._texts() for each in values.argument(text))
        for word in _words(values.line(str(shell))) if shell is not None else filled:
            named = (word, word.partition("=")[2]) if _OUTSIDE not in word else ()
            yield from filter(_is_file, [each for text in named for each in (text, text.removeprefix("@")) if each])

    def _check_places(self, text: str, known: set[str], settings: Mapping[str, Setting]) -> None:
        for place in _PLACE.finditer(text):
            name = place["name"]
            if name is None:
                continue
            if name not in known or (place["properties"] and name in settings):
                raise ParameterError(
                    f"{self.name}: {place[0]} is not an input, output or setting; these are: "
                    f"{', '.join(sorted(known)) or 'none'}. Double a literal brace."
                )
            channels = self.inputs.get(name, ())
            loose = any(channel.many or channel.optional for channel in channels) and not place["properties"]
            if loose and self.parameters["shell"] is None and place[0] != text:
                raise ParameterError(
                    f"{self.name}: {place[0]} may be several paths or none, so it must be an argument of its own, "
                    f"not part of {text!r}."
                )


@dataclass(frozen=True, kw_only=True)
class PlaceholderValues:
    """The values of the placeholders in one attempt."""

    paths: Mapping[str, Sequence[str]]  #: of inputs and outputs
    properties: Mapping[str, str]  #: the JSON file of each
    settings: Mapping[str, Setting]

    def argument(self, text: str) -> list[str]:
        """Fills in the placeholders of an argument; an input may give several arguments or none."""
        whole = _PLACE.fullmatch(text)
        if whole and whole["name"] in self.paths and not whole["properties"]:
            return list(self.paths[whole["name"]])
        return [_PLACE.sub(self._fill, text)]

    def line(self, text: str) -> str:
        """Fills in the placeholders of a shell line, quoted, so that the shell does not interpret the values."""
        return _PLACE.sub(lambda place: self._fill(place, quoted=True), text)

    def _fill(self, place: re.Match[str], *, quoted: bool = False) -> str:
        name = place["name"]
        if name is None:
            return place[0][0]
        if place["properties"]:
            values: Sequence[object] = [self.properties[name]]
        else:
            values = self.paths.get(name) or ([self.settings[name]] if name in self.settings else [])
        return " ".join(shlex.quote(str(value)) if quoted else str(value) for value in values)


def _words(line: str) -> Iterator[str]:
    """The words of a shell line, but for those that its output is redirected to."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    before = ""
    try:
        for word in lexer:
            if ">" not in before or before.strip("();<>|&"):
                yield word
            before = word
    except ValueError:  # a quote alone, as in the text of a here-document
        yield from _words(re.sub(r"['\"\\]", " ", line))


def _find_quoted_place(line: str) -> str | None:
    """The first placeholder inside single or double quotes of a shell line (POSIX shell, 2.2 Quoting)."""
    places = {place.start(): place[0] for place in _PLACE.finditer(line) if place["name"]}
    quote, at = "", 0
    while at < len(line):
        if quote and at in places:
            return places[at]
        if line[at] == "\\" and quote != "'":
            at += 1
        elif line[at] in ("'", '"') and quote in ("", line[at]):
            quote = "" if quote else line[at]
        at += 1
    return None


def _find_place_in_document(line: str) -> str | None:
    """The first placeholder in a here-document of a shell line (POSIX shell, 2.7.4)."""
    for document in _HERE_DOCUMENT.finditer(line):
        for place in _PLACE.finditer(document["body"]):
            if place["name"]:
                return place[0]
    return None


def container_command(
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

    Inputs are mounted read-only. Only the names of `env` are on the command line, so that no value appears in a list of
    processes. The container runs as our user, who then owns its output.
    """
    mounts = [f"--volume={path}:{path}:ro" for path in reads] + [f"--volume={path}:{path}" for path in writes]
    rights = ["--userns=keep-id"] if engine == "podman" else [f"--user={user}"]
    options = ["--rm", "--init", f"--name={name}", *rights, *mounts, *(f"--env={variable}" for variable in env)]
    return [engine, "run", *options, image, *command]


def _run(self: Command, arguments: Mapping[str, object]) -> None:
    """Runs a Command."""
    attempt = cast("Attempt", arguments["attempt"])
    given = {name: _several(arguments[name]) for name in self.inputs}
    drafts = {name: cast("Artifact", arguments[name]) for name in self.outputs}
    notes = attempt.scratch / "properties"
    notes.mkdir()
    places = PlaceholderValues(
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
    contents = cast("Mapping[str, str]", arguments["contents"])
    before = _stamp(contents)
    _refuse_others(self.name, contents)
    if arguments["image"] is None:
        _await(self.name, line, env)
    else:
        _await_container(self, line, env, places, attempt)
    _refuse_changed(self.name, contents, before)
    for name, draft in drafts.items():
        if not any(draft.path.iterdir()):
            raise NodeFailed(f"{self.name} succeeded, but wrote nothing to {{{name}}}, {draft.uri}.")
        _describe(self.name, name, draft, Path(places.properties[name]))


def _stamp(paths: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """What changes with each file below the paths, without reading it; but for bytecode, which Python writes itself."""
    files = [file for path in paths for file in (Path(path), *Path(path).rglob("*"))]
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        with suppress(OSError):  # a link to nothing, or gone meanwhile
            seen = file.stat()
            if not stat.S_ISDIR(seen.st_mode) and "__pycache__" not in file.parts:
                found[str(file)] = (seen.st_size, seen.st_mtime_ns, seen.st_ino, seen.st_ctime_ns)
    return found


def _refuse_changed(node: str, contents: Mapping[str, str], before: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses files that may not be those of the cache key: the outputs would be reused for files never read.

    Their times count, as a file may have been another one for a while; a new permission alone is no change.
    """
    after = _stamp(contents)
    for file in sorted({*before, *after}):
        was, now = before.get(file), after.get(file)
        if was == now:
            continue
        path = next(path for path in contents if Path(file).is_relative_to(path))
        if was is None or now is None or was[:-1] != now[:-1] or of_tree(path).digest != contents[path]:
            raise UnreadableInput(
                f"{node}: {file} changed while the program ran, so what it wrote was not published. Run again when it "
                "no longer changes; have the program write to its outputs, not to what it reads."
            )


def _refuse_others(node: str, contents: Mapping[str, str]) -> None:
    for path, content in contents.items():
        if of_tree(path).digest != content:
            raise UnreadableInput(f"{node}: {path} changed while the node was started. Run again when it is idle.")


def _several(value: object) -> list[Artifact]:
    if value is None:
        return []
    return cast("list[Artifact]", value if isinstance(value, list) else [value])


def _command_line(arguments: Mapping[str, object], places: PlaceholderValues) -> list[str]:
    if arguments["shell"] is not None:
        return ["/bin/sh", "-euc", places.line(str(arguments["shell"]))]
    return [part for text in cast("Sequence[str]", arguments["command"]) for part in places.argument(text)]


def _environment(node: str, arguments: Mapping[str, object], scratch: Path) -> dict[str, str]:
    wanted = cast("Sequence[str]", arguments["env_names"])
    missing = [name for name in wanted if name not in os.environ]
    if missing:
        raise ParameterError(f"{node}.env_names: {missing[0]} is not set in the environment of the run.")
    env = {name: os.environ[name] for name in (*PASSED_ON, *wanted) if name in os.environ}
    return {**env, "TMPDIR": str(scratch), **cast("Mapping[str, str]", arguments["env"] or {})}


def _await(node: str, line: Sequence[str], env: Mapping[str, str]) -> None:
    """Runs a program to its end; copies its output to the log as it is printed.

    Raises:
        NodeFailed: it could not be started, failed, or was killed.
    """
    sys.stdout.flush()
    try:
        child = subprocess.Popen(
            line, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except (OSError, ValueError) as error:
        raise NodeFailed(f"{node} could not start {line[0]!r}: {error}. Is it installed and on the PATH?") from error
    last: deque[str] = deque(maxlen=LAST_LINES)
    # in a thread: a process left behind by the program may keep the output open for ever
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
    how = f"exited with status {status}"
    if status < 0:
        with suppress(ValueError):
            how = f"was killed by {signal.Signals(-status).name}"
    printed = "".join(last).rstrip()
    output = f" Its last output:\n{printed}" if printed else " It printed nothing."
    raise NodeFailed(f"{node}: {shlex.join(line)} {how}.{output}")


def _await_container(
    node: Command, line: Sequence[str], env: Mapping[str, str], places: PlaceholderValues, attempt: Attempt
) -> None:
    given = node.parameters
    wanted = cast("Engine | None", given["engine"])
    engine = next((each for each in _ENGINES if wanted in (None, each) and shutil.which(each)), None)
    if engine is None:
        missing = f"{wanted} is not" if wanted else "neither docker nor podman is"
        raise NodeFailed(f"{node.name} runs in a container, but {missing} on the PATH.")
    name = f"spanwise-{attempt.run.pipeline}-{attempt.run.number}-{attempt.node}-{attempt.number}-{os.getpid()}"
    own = {*cast("Mapping[str, str]", given["env"] or {}), *cast("Sequence[str]", given["env_names"]), "TMPDIR"}
    command = container_command(
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
    with _remove_when_stopped(engine, name):
        _await(node.name, command, {**os.environ, **env})


@contextmanager
def _remove_when_stopped(engine: str, name: str) -> Iterator[None]:
    """Removes the container when this process is stopped: it is not a child of ours."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except BaseException:
        subprocess.run([engine, "rm", "--force", name], capture_output=True, check=False)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _describe(node: str, name: str, draft: Artifact, notes: Path) -> None:
    """Sets the properties of an output that the program has written."""
    if not notes.exists():
        return
    try:
        found = json.loads(notes.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"expected an object, found {type(found).__name__}")  # noqa: TRY301, TRY004  reported below
        for key, value in found.items():
            setattr(draft, key, value)
    except (ValueError, AttributeError, ParameterError) as error:
        raise NodeFailed(f"{node} wrote invalid properties of {name!r}: {error}") from error


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
                raise PipelineError(f"Command inputs must be channels; {name!r} is {channel!r}; write node['…'].")
            each.append(channel)
        many = len(each) > 1 or any(channel.many for channel in each)
        kind = each[0].kind if len({channel.kind for channel in each}) == 1 else Artifact
        found.append((_identifier(name), InputSpec(kind, many=many, optional=not many and each[0].optional)))
    return tuple(found)


def _outputs(given: Mapping[str, object]) -> tuple[tuple[str, type[Artifact]], ...]:
    for name, kind in given.items():
        if not (isinstance(kind, type) and issubclass(kind, Artifact)):
            raise PipelineError(f"Command.outputs: {name!r} is {kind!r}; name an artifact type, such as Model.")
    if not given:
        raise PipelineError("Command has no outputs; name them: outputs={'report': Report}.")
    return tuple((_identifier(name), cast("type[Artifact]", kind)) for name, kind in given.items())


def _identifier(name: str) -> str:
    own = inspect.signature(_parameters).parameters
    if not _NAME.fullmatch(name) or name.endswith("_") or name in own:
        raise PipelineError(
            f"Command: {name!r} cannot name an input or output; use another name of letters, digits and _."
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
    """The parameters of every Command beside its inputs and outputs."""


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
