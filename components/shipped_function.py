"""Parcel: a value with functions of a user's in it, on its way to a process that has not loaded the pipeline file.

Pickle names a function by its module, and a file that was loaded by its path is no module that another process could
find. So the parcel says first which files to load under which names, and then what is in it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator.errors import ParameterError


@dataclass(frozen=True)
class Parcel:
    """What travels."""

    modules: tuple[tuple[str, str], ...]  #: names and files of the modules that must be there before it is opened
    paths: tuple[str, ...]  #: where they find their neighbours
    content: bytes


def packed(value: object, users: Iterable[object]) -> Parcel:
    """The value; `users` are the functions and objects in it that a user wrote.

    Raises:
        ParameterError: something in it cannot be pickled.
    """
    import cloudpickle

    modules = dict.fromkeys(name for user in users if (name := _module_of(user)) is not None)
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in modules}
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    paths = [str(Path(path).absolute()) for path in sys.path if path and not path.startswith(libraries)]
    try:
        content: bytes = cloudpickle.dumps(value)
    except Exception as error:  # whatever an object's own pickling raises
        raise ParameterError(
            f"{', '.join(map(_name, users))} cannot be sent to another process ({error}); write functions with def at "
            "the top of a module, and open files and connections inside of them."
        ) from error
    return Parcel(tuple((name, file) for name, file in files.items() if file is not None), tuple(paths), content)


@functools.lru_cache(maxsize=4)
def opened(parcel: Parcel) -> object:
    """What was packed; a process opens each parcel once."""
    import cloudpickle

    sys.path.extend(path for path in parcel.paths if path not in sys.path)
    for name, file in parcel.modules:
        _load(name, file)
    value: object = cloudpickle.loads(parcel.content)
    return value


def _load(name: str, file: str) -> None:
    if name in sys.modules:
        return
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != Path(file).resolve():
        spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "it is a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _module_of(user: object) -> str | None:
    function = inspect.unwrap(user) if callable(user) else user
    owner = function if inspect.isroutine(function) else type(function)
    name = getattr(owner, "__module__", None)
    return name if isinstance(name, str) and name not in ("__main__", "builtins") else None


def _name(user: object) -> str:
    return getattr(user, "__qualname__", type(user).__qualname__)
