"""Loading: from `FILE[:name]` to the pipeline in it. The file is imported by its path, once, as a script would be."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import checked, parsed, shown
from spanwise.orchestrator.errors import LoadError, ParameterError, SpanwiseError, UsageError
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import as_typed
from spanwise.orchestrator.user_code import PACKAGE, our_module, user_frames
from spanwise.scheduler.schedule.part import check_parts

if TYPE_CHECKING:
    from spanwise.scheduler.schedule.schedule import Schedule

Maker: TypeAlias = Callable[..., object]
"""A pipeline function: what it returns is seen when it is called."""

"""The folder that holds our packages."""

EXAMPLE = """\
A pipeline file holds a function that returns one:

    from spanwise.components import ExampleGen
    from spanwise.orchestrator import Pipeline

    def daily(data: str = "data") -> Pipeline:
        ingest = ExampleGen(pattern=f"{data}/{{YYYY}}-{{MM}}-{{DD}}/*.csv")
        return Pipeline("daily", [ingest])

Or have a working one written for you:  spanwise init DIR"""


SCHEDULE_EXAMPLE = """\
A schedule says when the pipeline of its file runs, and for which span:

    from spanwise.scheduler import Schedule, days_before

    daily = Schedule(cron="0 3 * * *", zone="America/New_York", span=days_before(1))"""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A pipeline, and how it came about."""

    pipeline: Pipeline
    source: str  #: what was typed, with the name when there was a choice to make
    parameters: Mapping[str, object] = field(default_factory=dict)  #: the arguments of its function, defaults included

    @property
    def place(self) -> str:
        """The source wherever one stands: with the whole path of the file."""
        path, name = split(self.source)
        return f"{path.absolute()}:{name}" if name else str(path.absolute())

    @property
    def calendar(self) -> Calendar:
        """How its spans are typed and shown: as its first node that knows says."""
        known = (getattr(node, "calendar", None) for node in self.pipeline)
        return next((c for c in known if isinstance(c, Calendar)), Calendar.NUMBER)


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
        LoadError: no such file; it does not import; it holds no pipeline, or several and none was named.
        ParameterError: an argument that is unknown, missing or of another type.
        PipelineError: the pipeline is wired wrongly.
    """
    path, name = split(reference)
    module = _imported(path)
    name, found = _named(module, path, name) if name else _only(module, path)
    return _loaded(found, path, name, reference, typed, settings or {})


def _loaded(
    found: Maker | Pipeline,
    path: Path,
    name: str,
    reference: str,
    typed: Sequence[str],
    tables: Mapping[str, Mapping[str, object]],
) -> Loaded:
    if isinstance(found, Pipeline):
        if typed:
            raise ParameterError(f"{path}:{name} is a pipeline, not a function of parameters, so --param has no place.")
        return Loaded(pipeline=found, source=reference)
    texts = dict(_pair(text) for text in typed)
    arguments = _arguments(found, path, name, texts, tables.get(name, {}))
    pipeline = _made(found, path, name, arguments)
    if name not in tables and tables.get(pipeline.name):
        arguments = _arguments(found, path, name, texts, tables[pipeline.name])
        pipeline = _made(found, path, name, arguments)
    return Loaded(pipeline=pipeline, source=reference, parameters=arguments)


def schedules(
    reference: str, *, settings: Mapping[str, Mapping[str, object]] | None = None
) -> list[tuple[Schedule, Loaded]]:
    """The schedules in `FILE`, or the one that `FILE:name` names, each with its pipeline.

    Raises:
        LoadError: no such file or name, it does not import, or it holds no schedule, or two for one pipeline.
        ScheduleError: a schedule cannot mean anything.
    """
    path, name = split(reference)
    module = _imported(path)
    found = _schedules(module)
    if name:
        if name not in found:
            there = _listed(path, list(found))
            raise LoadError(f"{path} has no schedule {name!r}.{there or chr(10) + SCHEDULE_EXAMPLE}")
        found = {name: found[name]}
    if not found:
        raise LoadError(f"{path} holds no schedule.\n{SCHEDULE_EXAMPLE}")
    made = [
        (schedule, _loaded(*_scheduled(schedule, module, path, n), f"{path}:{n}", (), settings or {}))
        for n, schedule in found.items()
    ]
    for schedule, loaded in made:
        if schedule.parts is not None:
            check_parts(loaded.pipeline)
    pipelines = [loaded.pipeline.name for _, loaded in made]
    twice = next((p for p in pipelines if pipelines.count(p) > 1), None)
    if twice is not None:
        both = [loaded.source for _, loaded in made if loaded.pipeline.name == twice]
        raise LoadError(
            f"{path} has {len(both)} schedules for the pipeline {twice!r}: {', '.join(both)}. Its ticks would get in "
            "each other's way; make one schedule of them, or give one of the pipelines another name."
        )
    return made


def _schedules(module: types.ModuleType) -> dict[str, Schedule]:
    """The schedules of a module by name; none can be there where nobody has imported what makes one."""
    if "spanwise.scheduler.schedule.schedule" not in sys.modules:
        return {}
    from spanwise.scheduler.schedule.schedule import Schedule

    found: dict[str, Schedule] = {}
    for name, value in vars(module).items():
        if isinstance(value, Schedule) and not name.startswith("_") and all(value is not v for v in found.values()):
            found[name] = value
    return found


def _scheduled(
    schedule: Schedule, module: types.ModuleType, path: Path, name: str
) -> tuple[Maker | Pipeline, Path, str]:
    """What makes the pipeline of a schedule, and what it is called in the settings."""
    if schedule.pipeline is None:
        called, found = _only(module, path)
        return found, path, called
    return schedule.pipeline, path, getattr(schedule.pipeline, "__name__", name)


def load_again(
    source: str, *, who: str, typed: Sequence[str], settings: Mapping[str, Mapping[str, object]] | None
) -> Loaded:
    """The pipeline of an earlier run or backfill, `who`, from the file it was loaded from, as that is now.

    Raises:
        UsageError: the file is gone; otherwise as `load`.
    """
    if not split(source)[0].is_file():
        raise UsageError(f"The pipeline file of {who} is gone: {source}. Put it back, and try again.")
    return load(as_typed(source), typed=typed, settings=settings)


def split(reference: str) -> tuple[Path, str]:
    """The file and the name of a reference; the name is empty when none was given."""
    path, colon, name = reference.rpartition(":")
    if colon and path and name.isidentifier():
        return Path(path), name
    return Path(reference), ""


def _imported(path: Path) -> types.ModuleType:
    if path.is_dir():
        files = sorted(f.name for f in path.glob("*.py"))
        raise LoadError(f"{path} is a folder; name a file in it: {', '.join(files) or 'there is no .py file in it'}.")
    if not path.is_file():
        folder = path.parent
        near = difflib.get_close_matches(path.name, [f.name for f in folder.glob("*.py")] if folder.is_dir() else [], 1)
        meant = f" Did you mean {folder / near[0]}?" if near else " Give the path of a Python file."
        raise LoadError(f"There is no file {path}.{meant}")
    if path.suffix != ".py":
        raise LoadError(f"{path} is no Python file; a pipeline file ends in .py.")
    file = path.resolve()
    name, folder = _module_name(file)
    known = sys.modules.get(name)
    if known is not None and _is(known, file):
        return known
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with _user_code(path, "does not import"):
            if "." in name:
                return importlib.import_module(name)
            return _execute(name, file)
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _module_name(file: Path) -> tuple[str, Path]:
    """What to call the module, and the folder for the path: in a package, its name there; else the file's own.

    A package that is called as one already imported, or a file that is called as a module there is, gets another
    name: a user's `pipelines/taxi.py` is not in our `pipelines`, and a file `queue.py` is not Python's.
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


def _execute(name: str, file: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018  it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, so that a neighbour that imports it gets this one
    spec.loader.exec_module(module)
    return module


class _user_code:  # noqa: N801  used as a word after `with`
    """Turns whatever a user's lines raise into an error that shows those lines and none of ours."""

    def __init__(self, path: Path, did: str) -> None:
        self._path = path
        self._did = did

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, KeyboardInterrupt | LoadError):
            return
        lines = "".join(traceback.format_list(user_frames(error))).rstrip()
        if isinstance(error, SpanwiseError):
            raise type(error)(f"{error}\n{lines}".rstrip()) from error
        what = "".join(traceback.format_exception_only(error)).rstrip()
        raise LoadError("\n".join(filter(None, [f"{self._path} {self._did}:", lines, what]))) from error


def _named(module: types.ModuleType, path: Path, name: str) -> tuple[str, Maker | Pipeline]:
    scheduled = _schedules(module).get(name)
    if scheduled is not None:
        made, _, called = _scheduled(scheduled, module, path, name)
        return called, made
    found = getattr(module, name, None)
    if isinstance(found, Pipeline) or (callable(found) and not isinstance(found, type)):
        return name, found
    there = list(_candidates(module))
    if found is not None:
        raise LoadError(
            f"{path}:{name} is no pipeline and no function, but {type(found).__name__}.{_listed(path, there)}"
        )
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    meant = f" Did you mean {path}:{near[0]}?" if near else ""
    raise LoadError(f"{path} has no {name!r}.{meant or _listed(path, there)}")


def _only(module: types.ModuleType, path: Path) -> tuple[str, Maker | Pipeline]:
    found = _candidates(module)
    if not found:
        raise LoadError(f"{path} holds no pipeline.\n{EXAMPLE}")
    if len(found) > 1:
        raise LoadError(f"{path} holds {len(found)} pipelines; say which.{_listed(path, list(found))}")
    return next(iter(found.items()))


def _listed(path: Path, names: Sequence[str]) -> str:
    return f" There {'is' if len(names) == 1 else 'are'}: {', '.join(f'{path}:{n}' for n in names)}" if names else ""


def _candidates(module: types.ModuleType) -> dict[str, Maker | Pipeline]:
    """Pipelines, functions of this very file that are annotated to return one, and what is scheduled; none twice."""
    found: dict[str, Maker | Pipeline] = {}
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


def _returns_pipeline(function: Maker) -> bool:
    said = getattr(function, "__annotations__", {}).get("return")
    return said is Pipeline or (isinstance(said, str) and said.strip("'\" ").rpartition(".")[2] == "Pipeline")


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ParameterError(f"--param {text!r} is not name=value; for example: --param window=7")
    return name.strip(), value


def _arguments(
    function: Maker, path: Path, name: str, typed: Mapping[str, str], table: Mapping[str, object]
) -> dict[str, object]:
    takes = {
        n: p
        for n, p in inspect.signature(function).parameters.items()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    hints = _hints(function)
    where = f"{path}:{name}"
    for given, origin in ((typed, "--param"), (table, f"[params.{name}] in the settings")):
        for unknown in [n for n in given if n not in takes]:
            near = difflib.get_close_matches(unknown, takes, n=1, cutoff=0.5)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise ParameterError(f"{where} takes no {unknown!r} ({origin}).{meant} {_taken(takes, hints)}")
    arguments: dict[str, object] = {}
    for argument, parameter in takes.items():
        hint = hints.get(argument, parameter.empty)
        if argument in typed:
            arguments[argument] = parsed(f"{where}: {argument}", hint, typed[argument])
        elif argument in table:
            value = table[argument]
            known = hint is not parameter.empty
            read = parsed if isinstance(value, str) else checked
            arguments[argument] = read(f"{where}: {argument}", hint, value) if known else value  # type: ignore[arg-type]
        elif parameter.default is not parameter.empty:
            arguments[argument] = parameter.default
    missing = [n for n in takes if n not in arguments]
    if missing:
        raise ParameterError(
            f"{where} needs {', '.join(missing)}: give {' '.join(f'--param {n}=…' for n in missing)}, or set "
            f"[params.{name}] in spanwise.toml. {_taken(takes, hints)}"
        )
    return arguments


def _hints(function: Maker) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # names that only a type checker sees
        return {n: h for n, h in getattr(function, "__annotations__", {}).items() if not isinstance(h, str)}


def _taken(takes: Mapping[str, inspect.Parameter], hints: Mapping[str, object]) -> str:
    if not takes:
        return "It takes nothing."
    described = (
        n + (f": {shown(hints[n])}" if n in hints else "") + ("" if p.default is p.empty else f" = {p.default!r}")
        for n, p in takes.items()
    )
    return f"It takes: {', '.join(described)}."


def _made(function: Maker, path: Path, name: str, arguments: Mapping[str, object]) -> Pipeline:
    with _user_code(path, f"raised in {name}()"):
        made = function(**arguments)
    if not isinstance(made, Pipeline):
        raise LoadError(f"{path}:{name} returned {type(made).__name__}, not a Pipeline. {EXAMPLE}")
    return made
