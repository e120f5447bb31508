"""Settings of a project, from `spanwise.toml` and `SPANWISE_*` environment variables.

Command-line options override variables, variables override the file, and the file overrides defaults. Nothing has to
be set. Places, parameters and the number of jobs are accepted without pydantic: its import takes longer than a command.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import unquote

from spanwise.orchestrator.agents.pod_settings import PodSettings
from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.beam_settings import BeamSettings, check_beam
from spanwise.orchestrator.collection import MARKS, Retention
from spanwise.orchestrator.errors import ParameterError, SettingsError, UsageError
from spanwise.orchestrator.resources import Machine, parse_memory
from spanwise.orchestrator.storage.eviction import MOST_BYTES
from spanwise.orchestrator.storage.url import is_object_url, parse_url, refuse_url
from spanwise.scheduler.project.storage_environment import replace_variables
from spanwise.scheduler.schedule.schedule_key import pipeline_of

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

AlertKind: TypeAlias = Literal[
    "failure", "overrun", "missed", "stall", "freshness", "forecast", "scheduler", "recovery", "test"
]
ALERT_KINDS: tuple[AlertKind, ...] = tuple(kind for kind in get_args(AlertKind) if kind != "test")
"""The kinds that settings can select; a test alert is sent by hand, and always."""

FILE = "spanwise.toml"
PREFIX = "SPANWISE_"
NAMES = ("root", "metadata", "jobs", "grace_s", "params", "alerts", "openlineage", "gc", "executor", "storage", "beam")
GRACE_S = 10.0
GROUP_S = 3600.0
LOCAL = "local"
FORECAST_LOAD = 0.8
_NEAR = 0.6
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.|\$\{")
_JSON = {  # examples of variables with JSON
    "params": '{"flights": {"window": 7}}',
    "alerts": '{"urls": ["slack://…"]}',
    "openlineage": '{"transport": {"type": "http", "url": "http://localhost:5000"}}',
    "gc": '{"keep_last": 20}',
    "storage": '{"cache": "50GiB"}',
    "executor": '{"pools": {"gpu": 1}}',
    "beam": '{"runner": "FlinkRunner"}',
}


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    """Which alerts are sent where."""

    urls: tuple[str, ...] = field(default=(), repr=False)  #: as written, `${NAME}` and all; they may hold secrets
    on: tuple[str, ...] | None = None  #: the kinds to send; None: all
    group_s: float = GROUP_S  #: alerts with the same cause within this time are one message
    from_name: str = "spanwise"  #: the sender name of messages
    forecast_load: float = FORECAST_LOAD  #: warn when runs take a larger share of the time between two ticks
    pipelines: Mapping[str, AlertSettings] = field(default_factory=dict)  #: overrides by pipeline

    def of(self, key: str) -> AlertSettings:
        """The settings that apply to a pipeline, by a schedule key of it."""
        return self.pipelines.get(pipeline_of(key), self)


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """Where nodes are executed, and what they may use together."""

    name: str = LOCAL  #: the executor of nodes that say nothing
    address: str | None = None  #: of the engine; None: the one that it finds by itself
    pipelines: Mapping[str, str] = field(default_factory=dict)  #: the executor of all nodes of a pipeline, by its name
    cpus: float | None = None  #: of this machine, for nodes that say how many they need; None: as many as it has
    memory: str | None = None  #: the same of memory, such as "32GiB"
    gpus: tuple[str, ...] | None = None  #: the same of GPUs, as CUDA_VISIBLE_DEVICES names them
    pools: Mapping[str, int] = field(default_factory=dict)  #: how many nodes of each pool may run at once
    page_url: str | None = None  #: of the engine's page about an agent, with `{agent}` for its name there
    pods: PodSettings | None = None  #: on Kubernetes, what the pods of nodes have in common

    def name_of(self, pipeline: str) -> str:
        """The executor of the nodes of a pipeline that say nothing themselves."""
        return self.pipelines.get(pipeline, self.name)

    @property
    def machine(self) -> Machine:
        """What nodes may use of this machine."""
        here = Machine.here()
        return Machine(
            cpus=here.cpus if self.cpus is None else self.cpus,
            memory_bytes=here.memory_bytes if self.memory is None else parse_memory(self.memory),
            gpus=here.gpus if self.gpus is None else self.gpus,
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a project."""

    root: Path  #: absolute; holds artifacts and logs, or copies of those at `url`
    metadata: str = field(repr=False)  #: a file or URL; it may contain a password, so it is never printed
    url: str | None = None  #: of the root, where it is in object storage
    jobs: int | None = None  #: parallel nodes; None: one per processor, at least two
    grace_s: float = GRACE_S  #: time between asking a node to end and killing it
    params: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  #: by pipeline function, then argument
    alerts: AlertSettings = field(default_factory=AlertSettings)
    openlineage: Mapping[str, object] = field(
        default_factory=dict, repr=False
    )  #: the destination of events; may contain keys
    gc: Retention = field(default_factory=Retention)  #: what garbage collection keeps
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    beam: Mapping[str, Value] = field(default_factory=dict)  #: the runner and options of Beam for all nodes
    cache_bytes: int = MOST_BYTES  #: copies of a root in object storage beyond this are removed
    file: Path | None = None  #: the file these were read from
    config: Path | None = None  #: that file, where it was named

    @property
    def place(self) -> str:
        """The root as `--root` takes it."""
        return self.url or str(self.root)

    @property
    def snapshots(self) -> str | Path:
        """Where the snapshots of datasets are."""
        return f"{self.url}/snapshots" if self.url else self.root / "snapshots"

    @property
    def redacted_metadata(self) -> str:
        """The location of the metadata, without the password."""
        from spanwise.orchestrator.mlmd.location import parse_location

        return str(parse_location(self.metadata))


def read(*, config: Path | None = None, root: str | Path | None = None, folder: Path | None = None) -> Settings:
    """Reads the settings for a command in `folder` (default: the current one).

    `config` is a file to read instead of the nearest `spanwise.toml` above; `root` overrides every other source.
    Variables in `[storage.environment]` that are not set are set in the environment of this process, for its children,
    in place of those of the settings that were read before.

    Raises:
        SettingsError: a file is missing or unreadable, a name is unknown, or a value has the wrong type.
    """
    folder = (folder or Path.cwd()).absolute()
    file = _existing(config) if config is not None else find_file(folder)
    written = {} if file is None else _anchor_paths(_parse_file(file), file.parent)
    values = _validate(written, file) if written or _variables() else {}
    storage: dict[str, object] = values.get("storage", {})  # type: ignore[assignment]  # checked by pydantic
    environment: dict[str, str] = storage.get("environment", {})  # type: ignore[assignment]
    replace_variables(environment)
    default = (file.parent if file else folder) / ".spanwise"
    url, chosen = _root(root or values.get("root"), default, folder)
    return Settings(
        root=chosen,
        metadata=str(values.get("metadata") or (default if url else chosen) / "metadata.db"),
        url=url,
        jobs=values.get("jobs"),  # type: ignore[arg-type]  # checked by pydantic
        grace_s=values.get("grace_s", GRACE_S),  # type: ignore[arg-type]
        params=values.get("params", {}),  # type: ignore[arg-type]
        alerts=_alerts(values.get("alerts", {})),  # type: ignore[arg-type]
        openlineage=values.get("openlineage", {}),  # type: ignore[arg-type]
        gc=_retention(values.get("gc", {})),  # type: ignore[arg-type]
        executor=_executor(values.get("executor", {}), environment, default.parent),  # type: ignore[arg-type]
        beam=values.get("beam", {}),  # type: ignore[arg-type]
        cache_bytes=storage.get("cache", MOST_BYTES),  # type: ignore[arg-type]
        file=file,
        config=None if config is None else file,
    )


def root_folder(place: str) -> Path:
    """The folder on this machine of a root as `Settings.place` names it."""
    if not is_object_url(place):
        return Path(place)
    from spanwise.orchestrator.storage.copies import folder_of_copies

    return folder_of_copies(parse_url(place))


def find_file(folder: Path) -> Path | None:
    """The nearest `spanwise.toml`, in the folder or above it."""
    return next((f / FILE for f in (folder, *folder.parents) if (f / FILE).is_file()), None)


def _existing(config: Path) -> Path:
    if not config.is_file():
        raise SettingsError(f"There is no settings file {config}. Leave --config out to use the nearest {FILE}.")
    return config.absolute()


def _parse_file(file: Path) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not valid TOML: {error}.") from error
    except OSError as error:
        raise SettingsError(f"Could not read {file}: {error.strerror}.") from error


def _anchor_paths(written: dict[str, object], folder: Path) -> dict[str, object]:
    """Makes paths in the file relative to its folder, wherever the command runs."""
    anchored = dict(written)
    for name in ("root", "metadata"):
        value = written.get(name)
        if name == "metadata" and isinstance(value, str):
            value = _sqlite_path(value)
        if isinstance(value, str) and "://" not in value:
            anchored[name] = str(folder / Path(value).expanduser())
    match written:
        case {"openlineage": {"transport": {"log_file_path": str(place), **transport}, **events}} if "://" not in place:
            here = {**transport, "log_file_path": str(folder / Path(place).expanduser())}
            anchored["openlineage"] = {**events, "transport": here}
    return anchored


def _sqlite_path(metadata: str) -> str:
    """The path of an SQLite URL; another location, and one that is refused when it is opened, as it is."""
    scheme, _, path = metadata.partition(":///")
    return unquote(path) if scheme.lower() == "sqlite" and path not in ("", ":memory:") else metadata


def _variables() -> list[str]:
    return [name for name, value in os.environ.items() if name.startswith(PREFIX) and value]


def _validate(written: Mapping[str, object], file: Path | None) -> dict[str, object]:
    _refuse_unknown(written, file)
    given = _merge(written, dict(_read_variables()))
    plain = {name: value for name, value in given.items() if _is_right(name, value)}
    rest = {name: value for name, value in given.items() if name not in plain}
    return {**plain, **(_check(rest, file) if rest else {})}


def _read_variables() -> Iterator[tuple[str, object]]:
    """What is set by variables; tables are JSON."""
    for name in NAMES:
        if not (text := os.environ.get(PREFIX + name.upper())):
            continue
        try:
            yield name, json.loads(text) if name in _JSON else text
        except json.JSONDecodeError as error:
            raise SettingsError(f"{PREFIX}{name.upper()} is not JSON; write {_JSON[name]}.") from error


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """The tables merged at all depths; what is `above` overrides."""
    merged = dict(below)
    for name, value in above.items():
        lower = merged.get(name)
        merged[name] = _merge(lower, value) if isinstance(lower, dict) and isinstance(value, dict) else value
    return merged


def _is_right(name: str, value: object) -> bool:
    """Whether a value needs no check."""
    match name:
        case "root" | "metadata":
            return type(value) is str
        case "jobs":
            return type(value) is int and value >= 1
        case "params":
            return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())
    return False


def _check(written: Mapping[str, object], file: Path | None) -> dict[str, object]:
    from pydantic import ValidationError

    try:
        return _written_settings()(**written).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise SettingsError("\n".join(_problems(error, file))) from error


@functools.cache  # building the classes takes far longer than checking a file
def _written_settings() -> type[BaseModel]:
    """What may be written in a file or in variables."""
    from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

    class WrittenAlerts(BaseModel):
        model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

        urls: list[Annotated[str, AfterValidator(_url)]] | None = None
        on: list[Literal[ALERT_KINDS]] | None = None  # type: ignore[valid-type]  # pydantic takes a tuple for its parts
        group_s: float | None = Field(default=None, ge=0)
        from_name: str | None = Field(default=None, alias="from", min_length=1)
        forecast_load: float | None = Field(default=None, gt=0)

    class WrittenRoutes(WrittenAlerts):
        pipelines: dict[str, WrittenAlerts] = Field(default_factory=dict)

    class WrittenTransport(BaseModel):
        model_config = ConfigDict(extra="allow", hide_input_in_errors=True)  # the rest depends on the transport

        type: str

    class WrittenEvents(BaseModel):
        model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

        namespace: str | None = Field(default=None, min_length=1)
        transport: WrittenTransport

    class WrittenRetention(BaseModel):
        model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

        keep_last: int | None = Field(default=None, ge=0)
        keep_last_of: dict[str, Annotated[int, Field(ge=0)]] | None = None
        keep_younger: Annotated[timedelta, BeforeValidator(_length)] | None = None
        keep_marked: list[Literal[MARKS]] | None = None  # type: ignore[valid-type]  # as above
        keep_logs: Annotated[timedelta, BeforeValidator(_length)] | None = None

    class WrittenPods(BaseModel):
        model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

        image: str | None = Field(default=None, min_length=1)
        service_account: str | None = Field(default=None, min_length=1)
        template: str | None = Field(default=None, min_length=1)
        pools: dict[str, str] | None = None
        secrets: list[str] | None = None
        gpu: str | None = Field(default=None, min_length=1)

    class WrittenExecutor(BaseModel):
        model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

        name: Literal["local", "kubernetes", "ray", "slurm"] | None = None
        address: str | None = Field(default=None, min_length=1)
        pipelines: dict[str, Literal["local", "kubernetes", "ray", "slurm"]] | None = None
        cpus: float | None = Field(default=None, gt=0)
        memory: Annotated[str, AfterValidator(_memory)] | None = None
        gpus: list[str] | None = None
        pools: dict[str, Annotated[int, Field(ge=1)]] | None = None
        page_url: Annotated[str, AfterValidator(_page_url)] | None = None
        kubernetes: WrittenPods | None = None

    class WrittenStorage(BaseModel):
        model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

        cache: Annotated[int, BeforeValidator(_size), Field(ge=0)] | None = None
        environment: dict[Annotated[str, AfterValidator(_storage_variable)], str] = {}

    class Written(BaseModel):
        model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

        root: str | None = None
        metadata: str | None = None
        jobs: int | None = Field(default=None, ge=1)
        grace_s: float = Field(default=GRACE_S, ge=0)
        params: dict[str, dict[str, object]] = {}
        alerts: WrittenRoutes = WrittenRoutes()
        openlineage: WrittenEvents | None = None
        gc: WrittenRetention = WrittenRetention()
        storage: WrittenStorage = WrittenStorage()
        executor: WrittenExecutor = WrittenExecutor()
        beam: Annotated[dict[str, object], AfterValidator(_beam)] = {}

    return Written


def _root(written: object, default: Path, folder: Path) -> tuple[str | None, Path]:
    """The URL of the root, if it has one, and its folder on this machine."""
    if written is None:
        return None, default
    refuse_url("root", str(written), object_storage=True)
    if not is_object_url(str(written)):
        return None, folder / Path(str(written)).expanduser()
    try:
        url = parse_url(str(written))
    except ParameterError as error:
        raise SettingsError(f"root: {error}") from error
    return str(url), root_folder(str(url))


def _storage_variable(name: str) -> str:
    if not name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
        raise ValueError("expected variables of object storage, such as AWS_REGION")
    if re.search("KEY|SECRET|TOKEN|PASSWORD", name):
        raise ValueError("secrets do not belong in a file; set the variable in the environment")
    return name


def _size(text: object) -> int:
    try:
        return parse_memory(str(text))
    except (ParameterError, UsageError, ValueError) as error:
        raise ValueError("expected a size, such as 50GiB") from error


def _url(text: str) -> str:
    if not _SCHEME.match(text):  # the text may be a secret, and is not shown
        raise ValueError("expected scheme://…, such as mailtos://… or slack://…, or ${…}")
    return text


def _length(text: object) -> timedelta:
    from spanwise.scheduler.schedule.duration import parse_length

    try:
        return parse_length(str(text))
    except UsageError as error:
        raise ValueError("expected a length of time, such as 12h or 30d") from error


def _memory(text: str) -> str:
    try:
        parse_memory(text)
    except ParameterError as error:
        raise ValueError(str(error)) from error
    return text


def _page_url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or "{agent}" not in text:
        raise ValueError("it is no URL with {agent} in it, such as https://cluster/pods/{agent}")
    return text


def _beam(written: dict[str, object]) -> dict[str, object]:
    for name, value in written.items():
        if not isinstance(value, str | int | float) and not (
            isinstance(value, list) and all(isinstance(each, str) for each in value)
        ):
            raise ValueError(f"{name!r} takes a text, a number, true, false or a list of texts")
    options = {name: value for name, value in written.items() if name != "runner"}
    runner = written.get("runner")
    try:
        check_beam(BeamSettings(runner=None if runner is None else str(runner), options=options))  # type: ignore[arg-type]
    except ParameterError as error:
        raise ValueError(str(error).removesuffix(".")) from error
    return written


def _executor(written: Mapping[str, object], environment: Mapping[str, str], folder: Path) -> ExecutorSettings:
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
    pods = dict(given.pop("kubernetes", None) or {})  # type: ignore[call-overload]  # checked by pydantic
    if pods or "kubernetes" in (given.get("name"), *given.get("pipelines", {}).values()):  # type: ignore[attr-defined]
        given["pods"] = _pods(pods, environment, folder)
    return ExecutorSettings(**given)  # type: ignore[arg-type]  # checked by pydantic


def _pods(written: Mapping[str, Any], environment: Mapping[str, str], folder: Path) -> PodSettings:
    given = {**written, "secrets": tuple(written.get("secrets") or ())}
    if template := written.get("template"):
        given["template"] = folder / Path(template).expanduser()
    given["pools"] = {pool: folder / Path(file).expanduser() for pool, file in (written.get("pools") or {}).items()}
    return PodSettings(environment=environment, **given)


def _retention(written: Mapping[str, object]) -> Retention:
    given = {name.removeprefix("keep_"): tuple(v) if isinstance(v, list) else v for name, v in written.items()}
    return Retention(**given)  # type: ignore[arg-type]  # checked by pydantic


def _alerts(written: Mapping[str, object], default: AlertSettings | None = None) -> AlertSettings:
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
    pipelines = own.pop("pipelines", {})
    alerts = replace(default or AlertSettings(), **own)  # type: ignore[arg-type]  # checked by pydantic
    routes = {name: _alerts(table, alerts) for name, table in pipelines.items()}  # type: ignore[attr-defined]
    return replace(alerts, pipelines=routes)


def _refuse_unknown(written: Mapping[str, object], file: Path | None) -> None:
    for name in written:
        if name == "archive":
            raise SettingsError(f"{file}: 'archive' is now the root itself: write  root = \"s3://…\"")
        if name not in NAMES:
            raise SettingsError(f"{file}: {name!r} is not a setting.{_meant(name)} Settings: {', '.join(NAMES)}.")
    for variable in _variables():
        name = variable.removeprefix(PREFIX).lower()
        if name not in NAMES and _meant(name):  # other programs may use the prefix
            raise SettingsError(f"{variable} is not a setting.{_meant(name)}")


def _meant(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=_NEAR)
    return f" Did you mean {near[0]!r}?" if near else ""


def _problems(error: ValidationError, file: Path | None) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False):
        name = ".".join(map(str, problem["loc"]))
        variable = f"{PREFIX}{str(problem['loc'][0]).upper()}"
        where = variable if variable in os.environ else f"{file}: {name}"
        what = (
            "is not a setting"
            if problem["type"] == "extra_forbidden"
            else _lower_first(problem["msg"]).removeprefix("value error, ")
        )
        yield f"{where}: {what}."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
