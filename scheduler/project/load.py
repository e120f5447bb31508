"""Loads the pipelines and schedules of a file, `FILE[:name]`, which is imported by its path, once, like a script."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import shlex
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import LoadError, ParameterError, ScheduleError, SpanwiseError, UsageError
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run, format_source, quote_pipeline
from spanwise.orchestrator.signature import check_value, format_annotation, parse_value
from spanwise.orchestrator.user_code import PACKAGE, execute_file, ignore_old_bytecode, our_module, user_frames
from spanwise.scheduler.project.span_sources import example_rules, leading_calendar, list_span_sources
from spanwise.scheduler.schedule.division import division_of
from spanwise.scheduler.schedule.part import check_parts
from spanwise.scheduler.schedule.schedule_key import WHOLE
from spanwise.scheduler.schedule.span_rule import SpanRule, check_rule

if TYPE_CHECKING:
    from spanwise.scheduler.schedule.schedule import Schedule

PipelineFunction: TypeAlias = Callable[..., object]
"""A pipeline function; what it returns is checked when it is called."""

EXAMPLE = """\
A pipeline file defines a function that returns a pipeline:

    from spanwise import ExampleGen, Pipeline

    def daily(data: str = "data") -> Pipeline:
        ingest = ExampleGen(pattern=f"{data}/{{YYYY}}-{{MM}}-{{DD}}/*.csv")
        return Pipeline("daily", [ingest])

Or create a working example:  spanwise init DIR"""


SCHEDULE_EXAMPLE = """\
A schedule defines when the pipeline of its file runs, and for which span:

    from spanwise import Schedule, days_before

    daily = Schedule(cron="0 3 * * *", zone="America/New_York", span=days_before(1))"""


_LIBRARIES = frozenset(
    {"apache_beam", "apprise", "croniter", "fsspec", "google", "grpc", "ml_metadata", "numpy", "pandas", "polars"}
    | {"pyarrow", "pydantic", "rich", "typer"}
)  # what runs import; pyarrow asks for pandas, where it is not installed too


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A pipeline and where it was loaded from."""

    pipeline: Pipeline
    source: str  #: the reference, with a name when the file has several pipelines
    parameters: Mapping[str, object] = field(default_factory=dict)  #: the arguments of its function, defaults included
    typed: tuple[str, ...] = ()  #: those that were typed, "name=value"

    @property
    def place(self) -> str:
        """The source with the absolute path of the file."""
        path, name = split(self.source)
        return f"{path.absolute()}:{name}" if name else str(path.absolute())

    @property
    def quoted(self) -> str:
        """The source and the arguments that were typed, for a command that is printed."""
        return quote_pipeline(Run(pipeline=self.pipeline.name, source=self.source, typed=self.typed))

    @property
    def calendar(self) -> Calendar:
        """How its spans are written: as the first node that ingests them counts."""
        return leading_calendar(self.pipeline)


def load(
    reference: str,
    *,
    typed: Sequence[str] = (),
    settings: Mapping[str, Mapping[str, object]] | None = None,
) -> Loaded:
    """The pipeline that `FILE` or `FILE:name` refers to.

    A pipeline function's arguments come from `typed` ("name=value"), then from `settings` under the name of the
    function or of the pipeline, then from their defaults.

    Raises:
        LoadError: the file does not exist, could not be imported, or defines no pipeline or several without a name.
        ParameterError: an argument is unknown, missing or of the wrong type.
        PipelineError: the pipeline is wired wrongly.
    """
    path, name = split(reference)
    module = _import_file(path)
    name, found = _find_named(module, path, name) if name else _find_only(module, path)
    return _load(found, path, name, reference, typed, settings or {})


def _load(
    found: PipelineFunction | Pipeline,
    path: Path,
    name: str,
    reference: str,
    typed: Sequence[str],
    tables: Mapping[str, Mapping[str, object]],
) -> Loaded:
    if isinstance(found, Pipeline):
        if typed:
            raise ParameterError(f"{path}:{name} is a pipeline, not a pipeline function, so it takes no --param.")
        return Loaded(pipeline=found, source=reference)
    texts = dict(_parse_param(text) for text in typed)
    arguments = _arguments(found, path, name, texts, tables.get(name, {}))
    pipeline = _build(found, path, name, arguments)
    if name not in tables and tables.get(pipeline.name):
        arguments = _arguments(found, path, name, texts, tables[pipeline.name])
        pipeline = _build(found, path, name, arguments)
    return Loaded(pipeline=pipeline, source=reference, parameters=arguments, typed=tuple(typed))


def schedules(
    reference: str, *, settings: Mapping[str, Mapping[str, object]] | None = None
) -> list[tuple[Schedule, Loaded]]:
    """The schedules in `FILE`, or the one that `FILE:name` names, each with its pipeline.

    Raises:
        LoadError: no such file or name, the file could not be imported, or defines no schedule or two for one pipeline.
        ScheduleError: a schedule is invalid.
    """
    from spanwise.scheduler.schedule.schedule import rule_of, source_rules

    path, name = split(reference)
    module = _import_file(path)
    found = _schedules(module)
    if name:
        if name not in found:
            names = _list_names(path, list(found))
            raise LoadError(f"{path} has no schedule {name!r}.{names or chr(10) + SCHEDULE_EXAMPLE}")
        found = {name: found[name]}
    if not found:
        raise LoadError(f"{path} defines no schedule.\n{SCHEDULE_EXAMPLE}")
    loaded_schedules = [
        (schedule, _load(*_scheduled_pipeline(schedule, module, path, n), f"{path}:{n}", (), settings or {}))
        for n, schedule in found.items()
    ]
    for schedule, loaded in loaded_schedules:
        if schedule.parts is not None:
            check_parts(loaded.pipeline, division_of(schedule.parts))
        for part in schedule.parts or (WHOLE,):
            if rules := source_rules(schedule, part):
                _check_source_rules(rules, loaded)
                continue
            _refuse_one_span_of_several(rule_of(schedule, part), loaded)
            check_rule(rule_of(schedule, part), loaded.calendar, loaded.pipeline.name)
    pipelines = [loaded.pipeline.name for _, loaded in loaded_schedules]
    twice = next((p for p in pipelines if pipelines.count(p) > 1), None)
    if twice is not None:
        both = [loaded.source for _, loaded in loaded_schedules if loaded.pipeline.name == twice]
        raise LoadError(
            f"{path} has {len(both)} schedules for the pipeline {twice!r}: {', '.join(both)}. A pipeline "
            "has one schedule; merge them, or rename one of the pipelines."
        )
    return loaded_schedules


def _refuse_one_span_of_several(rule: SpanRule | None, loaded: Loaded) -> None:
    """Refuses a span rule where the nodes that ingest use different calendars: a tick means one span."""
    sources = list_span_sources(loaded.pipeline)
    if rule is not None and len({source.calendar for source in sources}) > 1:
        counted = ", ".join(f"{source.node} {source.calendar.value}s" for source in sources)
        raise ScheduleError(
            f"span= gives each tick one span, and the nodes of {loaded.pipeline.name!r} use different calendars: "
            f"{counted}. Give each a rule:  span={example_rules(sources)}\n"
            "Or leave out span=, so that each takes its newest."
        )


def _check_source_rules(rules: Mapping[str, SpanRule | None], loaded: Loaded) -> None:
    """Refuses rules by node that are not those of the nodes that ingest, the leading one first."""
    sources = list_span_sources(loaded.pipeline)
    names = [source.node for source in sources]
    if list(rules)[:1] != names[:1] or set(rules) != set(names) or None in rules.values():
        raise ScheduleError(
            f"span= names {', '.join(rules)}, and the nodes of {loaded.pipeline.name!r} that ingest are "
            f"{', '.join(names)}. Give each of them a rule, in this order:  span={example_rules(sources)}"
        )
    for source in sources:
        check_rule(rules[source.node], source.calendar, f"{loaded.pipeline.name}: {source.node}")


def _schedules(module: types.ModuleType) -> dict[str, Schedule]:
    """The schedules of a module by name; none when the class was never imported."""
    if "spanwise.scheduler.schedule.schedule" not in sys.modules:
        return {}
    from spanwise.scheduler.schedule.schedule import Schedule

    found: dict[str, Schedule] = {}
    for name, value in vars(module).items():
        if isinstance(value, Schedule) and not name.startswith("_") and all(value is not v for v in found.values()):
            found[name] = value
    return found


def _scheduled_pipeline(
    schedule: Schedule, module: types.ModuleType, path: Path, name: str
) -> tuple[PipelineFunction | Pipeline, Path, str]:
    """The function or pipeline of a schedule, and its name in the settings."""
    if schedule.pipeline is None:
        called, found = _find_only(module, path)
        return found, path, called
    return schedule.pipeline, path, getattr(schedule.pipeline, "__name__", name)


def load_again(
    source: str, *, who: str, typed: Sequence[str], settings: Mapping[str, Mapping[str, object]] | None
) -> Loaded:
    """Loads the pipeline of an earlier run or backfill, `who`, again from its file.

    Raises:
        UsageError: the file is gone; otherwise like `load`.
    """
    if not split(source)[0].is_file():
        raise UsageError(f"The pipeline file of {who} is gone: {source}. Restore it, and try again.")
    return load(format_source(source), typed=typed, settings=settings)


def split(reference: str) -> tuple[Path, str]:
    """The file and the name of a reference; the name is empty when there is none."""
    path, colon, name = reference.rpartition(":")
    if colon and path and name.isidentifier():
        return Path(path), name
    return Path(reference), ""


def _import_file(path: Path) -> types.ModuleType:
    if path.is_dir():
        files = sorted(f.name for f in path.glob("*.py"))
        raise LoadError(f"{path} is a folder; give a file in it: {', '.join(files) or 'it has no .py file'}.")
    if not path.is_file():
        folder = path.parent
        near = difflib.get_close_matches(path.name, [f.name for f in folder.glob("*.py")] if folder.is_dir() else [], 1)
        meant = f" Did you mean {folder / near[0]}?" if near else " Give the path of a Python file."
        raise LoadError(f"There is no file {path}.{meant}")
    if path.suffix != ".py":
        raise LoadError(f"{path} is not a Python file; a pipeline file ends in .py.")
    if path.stem in _LIBRARIES:
        raise LoadError(f"{path} is named like the library {path.stem}, and would be imported in its place. Rename it.")
    file = path.resolve()
    name, folder = _module_name(file)
    known = sys.modules.get(name)
    if known is not None and _is(known, file):
        return known
    ignore_old_bytecode()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with _user_code("could not import", path):
            if "." in name:
                return importlib.import_module(name)
            return execute_file(name, str(file))
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _module_name(file: Path) -> tuple[str, Path]:
    """The name of the module and the folder to add to the path: the name in its package, else the name of the file.

    The module of a package with the name of another imported package, and of a file with the name of another module,
    gets a different name: a file `queue.py` is not Python's `queue`.
    """
    if (ours := our_module(file)) is not None:
        return ours, PACKAGE.parent
    top, parts = file.parent, [file.stem]
    while (top / "__init__.py").is_file():
        parts.insert(0, top.name)
        top = top.parent
    if len(parts) > 1:
        package = file.parents[len(parts) - 2] / "__init__.py"
        if (parts[0] not in sys.modules and not _findable(parts[0])) or _is(_module(parts[0]), package):
            return ".".join(parts), top
    taken = file.stem in sys.stdlib_module_names or (file.stem in sys.modules and not _is(sys.modules[file.stem], file))
    return (f"pipeline_file_{file.stem}" if taken else file.stem), file.parent


def _findable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _module(name: str) -> types.ModuleType | None:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    return None if spec is None else importlib.util.module_from_spec(spec)


def _is(module: types.ModuleType | None, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file


class _user_code:  # noqa: N801  a context manager
    """Converts an error in user code to a LoadError that shows the user's lines and none of the package."""

    def __init__(self, problem: str, path: Path, where: str = "") -> None:
        self._message = f"{problem} {path}{where}:"
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, KeyboardInterrupt | LoadError):
            return
        lines = "".join(traceback.format_list(user_frames(error))).rstrip()
        if isinstance(error, SpanwiseError):
            raise type(error)(f"{error}\n{lines}".rstrip()) from error
        what = "".join(traceback.format_exception_only(error)).rstrip()
        hint = _hint_at_import(error, self._path) if isinstance(error, ImportError) else ""
        raise LoadError("\n".join(filter(None, [self._message, lines, what, hint]))) from error


def _hint_at_import(error: ImportError, path: Path) -> str:
    """What helps where a file beside the pipeline's, or a library, was not found."""
    if "no known parent package" in str(error):
        return "Import a file beside this one without the dot:  from helper import name"
    missing = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not missing or _findable(missing):
        return ""
    near = difflib.get_close_matches(missing, [f.stem for f in path.parent.glob("*.py")], 1)
    if near:
        return f"Did you mean {near[0]}?"
    return f"If it is a library, install its package:  {shlex.join([sys.executable, '-m', 'pip', 'install'])} PACKAGE"


def _find_named(module: types.ModuleType, path: Path, name: str) -> tuple[str, PipelineFunction | Pipeline]:
    scheduled = _schedules(module).get(name)
    if scheduled is not None:
        made, _, called = _scheduled_pipeline(scheduled, module, path, name)
        return called, made
    found = getattr(module, name, None)
    if isinstance(found, Pipeline) or (callable(found) and not isinstance(found, type)):
        return name, found
    there = list(_candidates(module))
    if found is not None:
        raise LoadError(
            f"{path}:{name} is neither a pipeline nor a function, but {type(found).__name__}.{_list_names(path, there)}"
        )
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    meant = f" Did you mean {path}:{near[0]}?" if near else ""
    raise LoadError(f"{path} has no {name!r}.{meant or _list_names(path, there)}")


def _find_only(module: types.ModuleType, path: Path) -> tuple[str, PipelineFunction | Pipeline]:
    found = _candidates(module)
    if not found:
        raise LoadError(f"{path} defines no pipeline.{_hint_at_annotation(module)}\n{EXAMPLE}")
    if len(found) > 1:
        raise LoadError(f"{path} defines {len(found)} pipelines; choose one.{_list_names(path, list(found))}")
    return next(iter(found.items()))


def _hint_at_annotation(module: types.ModuleType) -> str:
    """Which functions might be meant as a pipeline, but do not say that they return one."""
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and "return" not in value.__annotations__
    ]
    if not names:
        return ""
    return f" If {' or '.join(names)} returns one, say so: def {names[0]}(…) -> Pipeline."


def _list_names(path: Path, names: Sequence[str]) -> str:
    return f" It defines: {', '.join(f'{path}:{n}' for n in names)}" if names else ""


def _candidates(module: types.ModuleType) -> dict[str, PipelineFunction | Pipeline]:
    """Pipelines, functions of this file that are annotated to return one, and scheduled pipelines, each once."""
    found: dict[str, PipelineFunction | Pipeline] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or any(value is other for other in found.values()):
            continue
        if isinstance(value, Pipeline) or (
            inspect.isfunction(value) and value.__module__ == module.__name__ and _returns_pipeline(value)
        ):
            found[name] = value
    for name, schedule in _schedules(module).items():
        if schedule.pipeline is not None and all(schedule.pipeline is not other for other in found.values()):
            found[name] = schedule.pipeline
    return found


def _returns_pipeline(function: PipelineFunction) -> bool:
    annotation = getattr(function, "__annotations__", {}).get("return")
    return annotation is Pipeline or (
        isinstance(annotation, str) and annotation.strip("'\" ").rpartition(".")[2] == "Pipeline"
    )


def _parse_param(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ParameterError(f"--param {text!r} is not name=value, such as --param window=7")
    return name.strip(), value


def _arguments(
    function: PipelineFunction, path: Path, name: str, typed: Mapping[str, str], table: Mapping[str, object]
) -> dict[str, object]:
    takes = {
        n: p
        for n, p in inspect.signature(function).parameters.items()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    hints = _hints(function)
    where = f"{path}:{name}"
    for names, origin in ((typed, "--param"), (table, f"[params.{name}] in the settings")):
        for unknown in [n for n in names if n not in takes]:
            near = difflib.get_close_matches(unknown, takes, n=1, cutoff=0.5)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise ParameterError(
                f"{where} takes no {unknown!r} ({origin}).{meant} {_describe_parameters(takes, hints)}"
            )
    arguments: dict[str, object] = {}
    for argument, parameter in takes.items():
        hint = hints.get(argument, parameter.empty)
        if argument in typed:
            arguments[argument] = parse_value(f"{where}: {argument}", hint, typed[argument])
        elif argument in table:
            value = table[argument]
            known = hint is not parameter.empty
            read = parse_value if isinstance(value, str) else check_value
            arguments[argument] = read(f"{where}: {argument}", hint, value) if known else value  # type: ignore[arg-type]
        elif parameter.default is not parameter.empty:
            arguments[argument] = parameter.default
    missing = [n for n in takes if n not in arguments]
    if missing:
        raise ParameterError(
            f"{where} needs {', '.join(missing)}: give {' '.join(f'--param {n}=…' for n in missing)}, or set "
            f"[params.{name}] in spanwise.toml. {_describe_parameters(takes, hints)}"
        )
    return arguments


def _hints(function: PipelineFunction) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # names that are imported for type checkers only
        return {n: h for n, h in getattr(function, "__annotations__", {}).items() if not isinstance(h, str)}


def _describe_parameters(takes: Mapping[str, inspect.Parameter], hints: Mapping[str, object]) -> str:
    if not takes:
        return "It takes no parameters."
    described = (
        n
        + (f": {format_annotation(hints[n])}" if n in hints else "")
        + ("" if p.default is p.empty else f" = {p.default!r}")
        for n, p in takes.items()
    )
    return f"It takes: {', '.join(described)}."


def _build(function: PipelineFunction, path: Path, name: str, arguments: Mapping[str, object]) -> Pipeline:
    with _user_code("could not build the pipeline of", path, f":{name}"):
        pipeline = function(**arguments)
    if not isinstance(pipeline, Pipeline):
        raise LoadError(f"{path}:{name} returned {type(pipeline).__name__}, not a Pipeline. {EXAMPLE}")
    return pipeline
