"""Beam settings: which runner works on the data of nodes, with which of Beam's options, and which runners are refused.

Beam itself is not imported here, since that takes seconds: the names of its options are read from its source.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from spanwise.orchestrator.errors import ParameterError

if TYPE_CHECKING:
    from spanwise.orchestrator.run import Run

BeamOption: TypeAlias = str | int | float | bool | Sequence[str]
BeamOptions: TypeAlias = Mapping[str, BeamOption]

#: The runner inside the process of the node. `DirectRunner` would first try to download and start a program.
EMBEDDED_RUNNER = "FnApiRunner"

VERIFIED = (EMBEDDED_RUNNER, "PrismRunner", "FlinkRunner", "SparkRunner")
"""The runners on which all components were seen to make the same bytes as without Beam."""

UNVERIFIED = "unverified:"
"""In front of the name of any other runner, where a user wants it all the same."""

JOB_SERVER_OPTIONS = frozenset(
    {"checkpointing_interval", "flink_conf_dir", "number_of_execution_retries", "object_reuse"}
)  # which the job server of an engine has, and Beam's Python does not
_LOCAL_MASTERS = re.compile(r"\[(local|auto)\]|local(\[.+\])?")
_NEAR = 0.7
_SECRET = re.compile(r"key|secret|token|password|connection_string", re.IGNORECASE)
_SECRET_INSIDE = re.compile(
    r"(\w*(?:key|secret|token|password)\w*)[\"']?\s*[=:]\s*[\"']?(?!\$\{)[^\s\"']", re.IGNORECASE
)
_NO_SECRETS = frozenset({"allow_non_deterministic_key_coders", "dataflow_kms_key", "enable_hot_key_logging"})
_VARIABLE = re.compile(r"\$\{(\w*)\}")


BEAM_PARAMETERS = ("beam_runner", "beam_options")
"""The parameters of components that work on Beam: hints, for the bytes are the same on all verified runners."""


@dataclass(frozen=True, kw_only=True)
class BeamSettings:
    """Where Beam works on the data of a node."""

    runner: str | None = None  #: by name; None: here, or on the embedded runner if there is much
    options: BeamOptions = field(default_factory=dict)  #: as Beam names them, `${NAME}` of the environment and all

    @property
    def unverified_part(self) -> dict[str, str]:
        """The part of a cache key that names a runner that may make other bytes; empty for one that is verified."""
        runner = self.runner or ""
        return {"beam": bare_runner(runner)} if runner.startswith(UNVERIFIED) else {}

    @property
    def has_workers_here(self) -> bool:
        """Whether the workers are in the process of the node, or started by it, and so see all the files it sees."""
        name = _name(self.runner or EMBEDDED_RUNNER)
        environment = self.options.get("environment_type")
        if name == EMBEDDED_RUNNER.lower() or environment == "LOOPBACK":
            return True
        if environment is not None:
            return False
        masters = {"prismrunner": "local", "flinkrunner": "[auto]", "sparkrunner": "local[4]"}
        master = self.options.get("flink_master", self.options.get("spark_master_url", masters.get(name, "")))
        return _LOCAL_MASTERS.fullmatch(str(master)) is not None

    def fill(self) -> dict[str, BeamOption]:
        """The options with the values of environment variables in the places of `${NAME}`.

        Raises:
            ParameterError: a variable is not set.
        """
        return {name: _fill(name, value) for name, value in self.options.items()}


HERE = BeamSettings()


def check_given(node: str, parameters: Mapping[str, object]) -> BeamSettings:
    """What was given to a node when it was built; checked.

    Raises:
        ParameterError: as `check_beam`.
    """
    runner, options = (parameters.get(name) for name in BEAM_PARAMETERS)
    given = BeamSettings(runner=runner, options=options or {})  # type: ignore[arg-type]  # of the signature's types
    try:
        check_beam(given)
    except ParameterError as error:
        raise ParameterError(f"{node}: {error}") from error
    return given


def choose_beam(run: Run, runner: str | None, options: BeamOptions | None) -> BeamSettings:
    """What applies to a node that was given these: its own over those of the settings file, which the run records.

    A node with a runner of its own takes none of the options in the file: they are for another runner.

    Raises:
        ParameterError: a runner is refused, or an option is none of Beam's.
    """
    settings = cast("dict[str, BeamOption]", dict(run.beam))  # they were checked when they were read
    named = settings.pop("runner", None)
    own = BeamSettings(
        runner=runner or (None if named is None else str(named)),
        options=dict(options or {}) if runner else {**settings, **(options or {})},
    )
    check_beam(own)
    return own


def check_beam(beam: BeamSettings) -> None:
    """Refuses runners that are not verified, options that Beam does not have, and secrets in plain text.

    Raises:
        ParameterError: what is refused, and what to write instead.
    """
    if beam.runner is not None:
        _check_runner(beam.runner)
    known = option_names() if beam.options else frozenset()  # which reads a source of Beam's
    for name, value in beam.options.items():
        if name not in known and known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise ParameterError(f"{name!r} is not an option of Beam.{meant} Write them as Beam does: parallelism = 2")
        _refuse_secret(name, value)


def bare_runner(runner: str) -> str:
    """The runner's name as Beam takes it."""
    return runner.removeprefix(UNVERIFIED)


def unverified_part(parameters: Mapping[str, object], beam: Mapping[str, object]) -> dict[str, str]:
    """The same of a node, by its parameters and the settings; empty for one that does no work on Beam."""
    if "beam_runner" not in parameters:
        return {}
    return BeamSettings(runner=str(parameters["beam_runner"] or beam.get("runner") or "")).unverified_part


@functools.cache
def option_names() -> frozenset[str]:
    """The options of Beam and of its engines' job servers; empty if Beam is not found."""
    spec = importlib.util.find_spec("apache_beam")
    places = [] if spec is None else spec.submodule_search_locations or []
    sources = [Path(place, "options", "pipeline_options.py") for place in places]
    declared = {name for file in sources if file.is_file() for name in _declared(file.read_text(encoding="utf-8"))}
    return frozenset(declared - {"runner"}) | JOB_SERVER_OPTIONS if declared else frozenset()


def _declared(source: str) -> Iterator[str]:
    """The names under which the calls of `add_argument` store their options."""
    classes = source[max(source.find("\nclass StandardOptions("), 0) :]  # before them, docstrings show examples
    for call in classes.split(".add_argument(")[1:]:
        flag = re.match(r"\s*['\"]--([\w-]+)['\"]", call)
        stored = re.search(r"\bdest=['\"](\w+)['\"]", call)
        if flag is not None:
            yield stored[1] if stored is not None else flag[1].replace("-", "_")


def _name(runner: str) -> str:
    return bare_runner(runner).rpartition(".")[2].lower()


def _check_runner(runner: str) -> None:
    name = _name(runner)
    meant = name if name.endswith("runner") else f"{name}runner"  # as Beam reads it
    if meant == "daskrunner":
        raise ParameterError(
            "Beam's DaskRunner loses windows and tagged outputs without an error, so no result of it can be "
            f"trusted. Leave out the runner, or name one of {', '.join(VERIFIED)}."
        )
    if meant.endswith("dataflowrunner"):  # Beam's tests have one more
        raise ParameterError(
            "DataflowRunner cannot work on the data of nodes: its workers are machines of Google's, which see neither "
            "a local root nor the copies that a node has of a root in object storage. Leave out the runner, or name "
            f"one of {', '.join(VERIFIED)}, with workers that see the root."
        )
    foreign = "." in runner and not runner.startswith("apache_beam.")
    if runner.startswith(UNVERIFIED) or (name in map(str.lower, VERIFIED) and not foreign):
        return
    near = difflib.get_close_matches(runner, VERIFIED, n=1, cutoff=_NEAR)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ParameterError(
        f"Nobody has verified that {runner} makes the same bytes as {EMBEDDED_RUNNER}.{hint} Verified: "
        f"{', '.join(VERIFIED)}. To use it all the same, write {UNVERIFIED + runner!r}; its results are then cached "
        "apart from those of the others."
    )


def _refuse_secret(name: str, value: BeamOption) -> None:
    for text in (value,) if isinstance(value, str) else value if isinstance(value, Sequence) else ():
        inside = _SECRET_INSIDE.search(text)
        if (_SECRET.search(name) and name not in _NO_SECRETS and not _VARIABLE.fullmatch(text)) or inside:
            variable = inside[1] if inside else name.upper()
            raise ParameterError(
                f"{name} holds a secret, which would be recorded with each run. Set an environment variable where "
                f"nodes run, and write ${{{variable}}} in its place."
            )


def _fill(name: str, value: BeamOption) -> BeamOption:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(name, found[1]), value)
    return [str(_fill(name, each)) for each in value] if isinstance(value, Sequence) else value


def _variable(option: str, name: str) -> str:
    if name not in os.environ:
        raise ParameterError(f"{option} names the environment variable {name}, which is not set where the node runs.")
    return os.environ[name]
