"""Settings: where things are and how much may go on at once, from `spanwise.toml` and `SPANWISE_*` variables.

What a command line says wins over a variable, a variable over the file, the file over the default. Nothing has to be
set: with no file and no variable, pydantic is not even imported.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from spanwise.orchestrator.collection import Retention
from spanwise.orchestrator.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from pydantic import ValidationError

FILE = "spanwise.toml"
PREFIX = "SPANWISE_"
NAMES = ("root", "metadata", "jobs", "grace_s", "params", "alerts", "openlineage", "gc")
GRACE_S = 10.0
GROUP_S = 3600.0
FORECAST_LOAD = 0.8
_NEAR = 0.6
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.|\$\{")
_JSON = {  # as their variables hold them
    "params": '{"flights": {"window": 7}}',
    "alerts": '{"urls": ["slack://…"]}',
    "openlineage": '{"transport": {"type": "http", "url": "http://localhost:5000"}}',
    "gc": '{"keep_last": 20}',
}


@dataclass(frozen=True, kw_only=True)
class Alerts:
    """Who is told of what."""

    urls: tuple[str, ...] = field(default=(), repr=False)  #: as written, `${NAME}` and all; they may hold secrets
    on: tuple[str, ...] | None = None  #: the kinds that are told; None is all
    group_s: float = GROUP_S  #: alerts of one cause within this time are one message
    from_name: str = "spanwise"  #: the name that messages come from
    forecast_load: float = FORECAST_LOAD  #: runs that take more of the time between two ticks are told of
    pipelines: Mapping[str, Alerts] = field(default_factory=dict)  #: those for whom something else holds

    def of(self, pipeline: str) -> Alerts:
        """What holds for a pipeline."""
        return self.pipelines.get(pipeline, self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What holds for every command in a folder."""

    root: Path  #: absolute; artifacts, logs and, unless told otherwise, the metadata
    metadata: str = field(repr=False)  #: a file or URL; it may hold a password, so it is never shown as it is
    jobs: int | None = None  #: nodes at once; None is one for each processor, two at least
    grace_s: float = GRACE_S  #: between asking a node to end and killing it
    params: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  #: by pipeline function, then argument
    alerts: Alerts = field(default_factory=Alerts)
    openlineage: Mapping[str, object] = field(default_factory=dict, repr=False)  #: where events go; it may hold keys
    gc: Retention = field(default_factory=Retention)  #: what a garbage collection leaves
    file: Path | None = None  #: the file these were read from

    @property
    def shown_metadata(self) -> str:
        """Where the metadata is, without the password."""
        from spanwise.orchestrator.mlmd.location import location

        return str(location(self.metadata))


def read(*, config: Path | None = None, root: Path | None = None, folder: Path | None = None) -> Settings:
    """The settings for a command typed in `folder` (default: the current one).

    `config` is a file to read instead of the nearest `spanwise.toml` above; `root` wins over every other.

    Raises:
        SettingsError: a file that is not there or cannot be read, an unknown name, a value of another type.
    """
    folder = (folder or Path.cwd()).absolute()
    file = _named(config) if config is not None else found(folder)
    written = {} if file is None else _anchored(_parsed(file), file.parent)
    values = _validated(written, file) if written or _variables() else {}
    here = root or values.get("root")
    chosen = Path(str(here)).expanduser() if here is not None else (file.parent if file else folder) / ".spanwise"
    chosen = folder / chosen
    return Settings(
        root=chosen,
        metadata=str(values.get("metadata") or chosen / "metadata.db"),
        jobs=values.get("jobs"),  # type: ignore[arg-type]  # pydantic has checked these three
        grace_s=values.get("grace_s", GRACE_S),  # type: ignore[arg-type]
        params=values.get("params", {}),  # type: ignore[arg-type]
        alerts=_alerts(values.get("alerts", {})),  # type: ignore[arg-type]
        openlineage=values.get("openlineage", {}),  # type: ignore[arg-type]
        gc=_retention(values.get("gc", {})),  # type: ignore[arg-type]
        file=file,
    )


def found(folder: Path) -> Path | None:
    """The nearest `spanwise.toml`, in the folder or above it."""
    return next((f / FILE for f in (folder, *folder.parents) if (f / FILE).is_file()), None)


def _named(config: Path) -> Path:
    if not config.is_file():
        raise SettingsError(f"There is no settings file {config}. Leave --config out to use the nearest {FILE}.")
    return config.absolute()


def _parsed(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not TOML: {error}.") from error
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.") from error


def _anchored(written: dict[str, object], folder: Path) -> dict[str, object]:
    """Paths in a file count from the folder of that file, wherever the command is typed."""
    anchored = dict(written)
    for name in ("root", "metadata"):
        value = written.get(name)
        if isinstance(value, str) and "://" not in value:
            anchored[name] = str(folder / Path(value).expanduser())
    match written:
        case {"openlineage": {"transport": {"log_file_path": str(place), **transport}, **events}} if "://" not in place:
            here = {**transport, "log_file_path": str(folder / Path(place).expanduser())}
            anchored["openlineage"] = {**events, "transport": here}
    return anchored


def _variables() -> list[str]:
    return [name for name in os.environ if name.startswith(PREFIX)]


def _validated(written: Mapping[str, object], file: Path | None) -> dict[str, object]:
    _refuse_unknown(written, file)
    from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
    from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
    from pydantic_settings import SettingsError as Unread

    from spanwise.scheduler.alerts.alert import KINDS

    class WrittenAlerts(BaseModel):
        model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

        urls: list[Annotated[str, AfterValidator(_url)]] | None = None
        on: list[Literal[KINDS]] | None = None  # type: ignore[valid-type]  # pydantic takes a tuple for its parts
        group_s: float | None = Field(default=None, ge=0)
        from_name: str | None = Field(default=None, alias="from", min_length=1)
        forecast_load: float | None = Field(default=None, gt=0)

    class WrittenRoutes(WrittenAlerts):
        pipelines: dict[str, WrittenAlerts] = Field(default_factory=dict)

    class WrittenTransport(BaseModel):
        model_config = ConfigDict(extra="allow", hide_input_in_errors=True)  # the rest is the transport's own

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
        keep_marked: list[str] | None = None
        keep_logs: Annotated[timedelta, BeforeValidator(_length)] | None = None

    class Written(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, hide_input_in_errors=True)

        root: str | None = None
        metadata: str | None = None
        jobs: int | None = Field(default=None, ge=1)
        grace_s: float = Field(default=GRACE_S, ge=0)
        params: dict[str, dict[str, object]] = {}
        alerts: WrittenRoutes = WrittenRoutes()
        openlineage: WrittenEvents | None = None
        gc: WrittenRetention = WrittenRetention()

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],  # noqa: ARG003  the library's signature
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return env_settings, init_settings

    try:
        return Written(**written).model_dump(exclude_unset=True)  # type: ignore[arg-type]  # this is what checks them
    except ValidationError as error:
        raise SettingsError("\n".join(_complaints(error, file))) from error
    except Unread as error:
        name = next(n for n in _JSON if f'"{n}"' in str(error))
        raise SettingsError(f"{PREFIX}{name.upper()} is not JSON; write {_JSON[name]}.") from error


def _url(text: str) -> str:
    if not _SCHEME.match(text):  # what it is instead may be a secret, and is not shown
        raise ValueError("a channel is scheme://…, such as mailtos://… or slack://…, or ${…}")
    return text


def _length(text: object) -> timedelta:
    from spanwise.scheduler.schedule.duration import length

    try:
        return length(str(text))
    except UsageError as error:
        raise ValueError("write a length of time, such as 12h or 30d") from error


def _retention(written: Mapping[str, object]) -> Retention:
    given = {name.removeprefix("keep_"): tuple(v) if isinstance(v, list) else v for name, v in written.items()}
    return Retention(**given)  # type: ignore[arg-type]  # pydantic has checked them


def _alerts(written: Mapping[str, object], otherwise: Alerts | None = None) -> Alerts:
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
    pipelines = own.pop("pipelines", {})
    alerts = replace(otherwise or Alerts(), **own)  # type: ignore[arg-type]  # pydantic has checked them
    routes = {name: _alerts(table, alerts) for name, table in pipelines.items()}  # type: ignore[attr-defined]
    return replace(alerts, pipelines=routes)


def _refuse_unknown(written: Mapping[str, object], file: Path | None) -> None:
    for name in written:
        if name not in NAMES:
            raise SettingsError(f"{file}: {name!r} is no setting.{_meant(name)} The settings: {', '.join(NAMES)}.")
    for variable in _variables():
        name = variable.removeprefix(PREFIX).lower()
        if name not in NAMES and _meant(name):  # others may use the prefix for what is theirs
            raise SettingsError(f"{variable} is no setting.{_meant(name)}")


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=_NEAR)
    return f" Did you mean {near[0]!r}?" if near else ""


def _complaints(error: ValidationError, file: Path | None) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False):
        name = ".".join(map(str, problem["loc"]))
        variable = f"{PREFIX}{str(problem['loc'][0]).upper()}"
        where = variable if variable in os.environ else f"{file}: {name}"
        what = (
            "is no setting"
            if problem["type"] == "extra_forbidden"
            else problem["msg"].lower().removeprefix("value error, ")
        )
        yield f"{where}: {what}."
