"""User code: whose code it is, what it uses, and how it is sent to another process.

This file imports the standard library only, so that a process without spanwise can load it by its path.
"""

from __future__ import annotations

import dis
import enum
import functools
import importlib
import importlib.util
import io
import itertools
import linecache
import os
import pickle
import re
import sys
import sysconfig
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import PathEntryFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

P = ParamSpec("P")
Loaded = TypeVar("Loaded")

PACKAGE = Path(__file__).parents[1]  #: as it was imported: in a checkout its folders are links


# Whose code it is.


class Owner(enum.Enum):
    """Whose code a module or file is."""

    SPANWISE = "spanwise"  #: without the worked examples in `pipelines/`, which count as a user's
    PYTHON = "python"  #: the standard library
    LIBRARY = "library"  #: installed in a `site-packages` folder
    USER = "user"


def owner_of(module: str, file: object = None) -> Owner:
    """Whose a module is, by the file it was loaded from; by its name if it has none."""
    if isinstance(file, str):
        return owner_of_file(file)
    name, *below = module.split(".")
    if name == "spanwise":
        return _owner_of_part(below)
    return Owner.PYTHON if name in sys.stdlib_module_names and name != "__main__" else Owner.USER


def owner_of_module(name: str) -> Owner:
    """Whose a module is, by the place where it was found, or would be; nothing is imported."""
    top = name.partition(".")[0]
    if top in ("spanwise", "__main__"):
        return owner_of(name)
    module = sys.modules.get(name) or sys.modules.get(top)
    spec = importlib.util.find_spec(top) if module is None else None
    files = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    if spec is not None:
        files = [spec.origin if spec.has_location else None, *(spec.submodule_search_locations or ())]
    return owner_of(name, next((file for file in files if file is not None), None))


@functools.lru_cache(maxsize=4096)
def owner_of_file(file: str) -> Owner:
    """Whose a file is, and the code in it."""
    if file.startswith("<"):  # compiled from a text
        return Owner.PYTHON if file.startswith("<frozen ") else Owner.USER
    file = os.path.realpath(file)
    if (place := place_of(file)) is not None:
        return _owner_of_part(place.split("/"))
    if SITE.match(file):
        return Owner.LIBRARY
    return Owner.PYTHON if file.startswith(_PYTHON) else Owner.USER


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a traceback that are in files of the user's."""
    linecache.checkcache()
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith("<") and owner_of_file(f.filename) is Owner.USER]


def without_our_frames(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames from the first one on that is not of spanwise."""
    return list(itertools.dropwhile(lambda frame: owner_of_file(frame.filename) is Owner.SPANWISE, frames))


def without_our_frames_around(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames from the first to the last one that are not of spanwise, where its own error says the rest."""
    theirs = without_our_frames(frames)
    return without_our_frames(reversed(theirs))[::-1]


def explain_error(error: BaseException) -> str:
    """The type and text of an error, and the lines from the user's code to it."""
    lines = traceback.format_list(without_our_frames(traceback.extract_tb(error.__traceback__)))
    return f"{type(error).__name__}: {error}\n{''.join(lines)}".rstrip()


def place_of(file: str) -> str | None:
    """Where a file lies in the package spanwise, with `/` between the folders; None if it is elsewhere."""
    for root, prefix in _ROOTS:
        if file.startswith(root):
            return prefix + file[len(root) :].replace(os.sep, "/")
    return None


def our_module(file: Path) -> str | None:
    """The name under which a file of spanwise is imported, whichever path leads there; None if it is elsewhere."""
    place = place_of(os.path.realpath(file))
    if place is None or not place.endswith(".py"):
        return None
    parts = ["spanwise", *place.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _owner_of_part(parts: Sequence[str]) -> Owner:
    """Whose a part of the package spanwise is, by the names of its folders and its module."""
    is_example = parts[:1] == ["pipelines"] and parts[1:2] not in ([], ["__init__.py"], ["input"])
    return Owner.USER if is_example else Owner.SPANWISE


_ROOTS = [(os.path.realpath(each) + os.sep, f"{each.name}/") for each in PACKAGE.iterdir() if each.is_dir()]
_ROOTS.append((os.path.realpath(PACKAGE) + os.sep, ""))
_PYTHON = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
SITE = re.compile(r"^(.*[/\\](?:site|dist)-packages)[/\\](.+)$")  #: the folder of installed modules, what is below it


# What code uses.


Operation: TypeAlias = "tuple[int, int, str | None, int]"
"""One operation of bytecode: its code, its argument, its name and its place.

The argument of an operation that has a name is only the flags beside it. A plain tuple, since there are many.
"""


class NameUse(NamedTuple):
    """A name that code takes from outside of itself."""

    name: str
    attributes: tuple[str, ...]  #: what it reads off it at once: `b` and `c` in `a.b.c`
    is_global: bool  #: False in the body of a class or module, which may have bound the name itself


class Import(NamedTuple):
    """An import that code does when it runs."""

    module: str
    level: int  #: the dots of a relative import
    names: tuple[str, ...]  #: what it takes from the module
    line: int | None


CONSTANT_OPERATIONS = frozenset(dis.hasconst)


def operations(code: types.CodeType) -> list[Operation]:
    """The operations of a piece of code."""
    raw, names = code.co_code, code.co_names  # without what the interpreter has specialised meanwhile
    found: list[Operation] = []
    high = 0
    for at in range(0, len(raw), 2):
        op, number = raw[at], high | raw[at + 1]
        if op == dis.EXTENDED_ARG:
            high = number << 8
        elif op != _CACHE:
            high = 0
            bits = _NAME_BITS.get(op)
            if bits is None:
                found.append((op, number, None, at))
            else:
                found.append((op, number & ((1 << bits) - 1), names[number >> bits], at))
    return found


def uses(code: types.CodeType, within: Iterable[Operation] | None = None) -> Iterator[NameUse | Import]:
    """What a piece of code takes from outside of itself, without the functions defined in it."""
    chain: list[str] = []
    is_global = False
    constants: tuple[object, object] = (None, None)
    for op, number, name, at in operations(code) if within is None else within:
        if name is None and not chain and op not in CONSTANT_OPERATIONS:
            continue
        if chain and op in ATTRIBUTES:
            chain.append(str(name))
            continue
        if chain:
            yield NameUse(chain[0], tuple(chain[1:]), is_global)
            chain = []
        if op in _LOOKUPS:
            chain, is_global = [str(name)], op == GLOBAL
        elif op in CONSTANT_OPERATIONS:
            constants = (constants[1], code.co_consts[number])
        elif op == _IMPORT:
            level, names = constants
            line = next((line for start, end, line in code.co_lines() if start <= at < end), None)
            wanted = tuple(map(str, names)) if isinstance(names, tuple) else ()
            yield Import(str(name), level if isinstance(level, int) else 0, wanted, line)
    if chain:
        yield NameUse(chain[0], tuple(chain[1:]), is_global)


def code_within(code: types.CodeType) -> Iterator[types.CodeType]:
    """A piece of code, and that of the functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_within(constant)


def find_imported(found: Import, package: str) -> list[ModuleSpec]:
    """The modules that an import of code in `package` would run, parents first, without running any of them."""
    name = found.module
    if found.level:
        above = package.rsplit(".", found.level - 1)[0]
        name = f"{above}.{name}" if name else above
    specs: list[ModuleSpec] = []
    parts = name.split(".")
    paths: Sequence[str] | None = None
    for length in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:length]), paths)
        if spec is None:
            return specs
        specs.append(spec)
        if (paths := spec.submodule_search_locations) is None:
            return specs
    return [*specs, *(spec for each in found.names if (spec := _find_spec(f"{name}.{each}", paths)))]


def _find_spec(name: str, paths: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, paths) if hasattr(finder, "find_spec") else None
        except KeyError:  # a namespace package inside one that is not imported, which Python asks for the place
            spec = _namespace_spec(name, paths or ())
        except ImportError:
            continue
        if spec is not None:
            return spec
    return None


def _namespace_spec(name: str, paths: Sequence[str]) -> ModuleSpec:
    folders = (Path(path, name.rpartition(".")[2]) for path in paths)
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
    return spec


def _name_bits(op: int) -> int:
    """How many flags stand below the number of a name: `dis` knows, and it differs between versions of Python."""
    code = _SAMPLE.replace(co_code=bytes((op, 16)) + bytes(40), co_names=tuple(str(number) for number in range(17)))
    return 5 - int(next(iter(dis.get_instructions(code))).argval).bit_length()  # 16, 8, 4, …: 0, 1, 2, … bits


_SAMPLE = compile("pass", "<sample>", "exec")
_HIGHEST = 255  # above are operations that only the compiler knows
_CACHE = dis.opmap.get("CACHE")  # none before Python 3.11, which a process that serves may have
_NAME_BITS = {op: _name_bits(op) for op in dis.hasname if op <= _HIGHEST}
ATTRIBUTES = frozenset(op for op in _NAME_BITS if dis.opname[op] in ("LOAD_ATTR", "LOAD_METHOD"))
_LOOKUPS = frozenset(op for op in _NAME_BITS if re.fullmatch(r"LOAD_(?!.*(ATTR|METHOD)).*", dis.opname[op]))
GLOBAL, _IMPORT, STORE_NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["IMPORT_NAME"], dis.opmap["STORE_NAME"]


# How it is sent to another process.


@dataclass(frozen=True)
class Shipment:
    """A value with functions of the user's in it, on its way to another process."""

    modules: tuple[tuple[str, str], ...]  #: names and files of the modules that must be there before it is unpacked
    paths: tuple[str, ...]  #: where those find their neighbours
    content: bytes
    references: tuple[tuple[str, str], ...] = ()  #: functions and classes of the user's that it names: module, name


def ship(value: object, *, by_value: bool = False) -> Shipment:
    """Packs a value for a process that has not loaded the pipeline file.

    Pickle names a function by its module, and a file that was loaded by its path is no module that another process
    could find. So the other process first loads the same files under the same names. With `by_value` it needs none of
    them: functions of such files travel with their code, those of packages and installed modules by their names.

    Raises:
        ParameterError: something in it cannot be pickled.
    """
    import cloudpickle

    modules: dict[str, types.ModuleType] = {}
    names: dict[str, None] = {}
    references: dict[tuple[str, str], None] = {}

    class UserCodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        def reducer_override(self, each: object) -> object:
            if isinstance(each, types.FunctionType | types.ModuleType | type):
                name = each.__name__ if isinstance(each, types.ModuleType) else each.__module__
                module = sys.modules.get(str(name))
                if module is not None and module.__name__ != "__main__" and _is_users(module):
                    if by_value and _is_loose(module) and name not in modules:
                        cloudpickle.register_pickle_by_value(module)
                    modules[module.__name__] = module
                    references.update(_reference(each, module))
                if isinstance(each, types.FunctionType) and (module is None or _is_users(module)):
                    names[each.__qualname__] = None
            return super().reducer_override(each)

    content = io.BytesIO()
    with _packing:
        try:
            UserCodePickler(content).dump(value)
        except Exception as error:  # whatever an object's own pickling raises
            from spanwise.orchestrator.errors import ParameterError

            raise ParameterError(
                f"{', '.join(names) or type(value).__qualname__} cannot be sent to another process "
                f"({type(error).__name__}: {error}). Write functions with def at the top of a module, and open files, "
                f"locks and connections inside of them."
            ) from error
        finally:
            for module in modules.values() if by_value else ():
                if _is_loose(module):
                    cloudpickle.unregister_pickle_by_value(module)
    if by_value:
        return Shipment((), (), content.getvalue())
    files = [(name, str(module.__file__)) for name, module in modules.items()]
    return Shipment(tuple(files), tuple(search_paths()), content.getvalue(), tuple(references))


_packing = threading.Lock()  # what is pickled by value is registered for the whole process
_loading = threading.RLock()  # Python shows a module to other threads before it has run


def load_once(load: Callable[P, Loaded]) -> Callable[P, Loaded]:
    """Calls a function that loads code once for the same arguments, for all threads; the last few results are kept."""
    kept = cast("Callable[P, Loaded]", functools.lru_cache(maxsize=4)(load))

    @functools.wraps(load)
    def load_or_wait(*args: P.args, **kwargs: P.kwargs) -> Loaded:
        with _loading:
            return kept(*args, **kwargs)

    return load_or_wait


@load_once
def unpack(shipment: Shipment) -> object:
    """What was shipped; a process unpacks each shipment once. Runs what the sender says."""
    ignore_old_bytecode()
    sys.path.extend(path for path in shipment.paths if path not in sys.path)
    for name, file in shipment.modules:
        load_module(name, file)
    value: object = pickle.loads(shipment.content)  # noqa: S301  from a process that is trusted
    return value


def load_module(name: str, file: str) -> types.ModuleType:
    """The module of this name if it comes from this file; otherwise the file, run as the module of this name."""
    with _loading:
        ignore_old_bytecode()
        return _load_module(f"main_file_{Path(file).stem}" if name == "__main__" else name, file)


def _load_module(name: str, file: str) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is not None and _is_file(getattr(module, "__file__", None), file):
        return module
    try:
        spec = importlib.util.find_spec(name) if module is None else None
    except (ImportError, ValueError):
        spec = None
    if spec is not None and _is_file(spec.origin, file):
        return importlib.import_module(name)
    return execute_file(name, file)


class SourceLoader(SourceFileLoader):
    """Compiles a file each time, as Python does with the file that it is given.

    For Python, bytecode that was kept is up to date if the source has the size and the second of its last change that
    it had: an edit such as of 3 to 7, made at once or with tools that set times, would not count.
    """

    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self.code: types.CodeType | None = None  #: of the module that was loaded; its file may have been edited since
        self.source = b""  #: what that was compiled from

    def get_code(self, fullname: str) -> types.CodeType:
        code = self._compile(fullname)
        if self.code is None:
            self.code, self.source = code, self.get_data(self.get_filename(fullname))
        return code

    def _compile(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _ModuleLoader(SourceLoader):
    """Takes bytecode only if it was kept after the last change of its file, by a time that no tool sets."""

    def _compile(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        try:
            kept = Path(importlib.util.cache_from_source(path))
            if kept.stat().st_mtime_ns <= os.stat(path).st_ctime_ns:  # noqa: PTH116  as Python does
                kept.unlink()
        except FileNotFoundError:
            pass
        except (OSError, NotImplementedError):
            return super()._compile(fullname)
        code = SourceFileLoader.get_code(self, fullname)
        assert code is not None, "it has the source"
        return code


@load_once
def ignore_old_bytecode() -> None:
    """Lets this process import modules of the user's as they are now, whatever bytecode was kept of them."""
    find = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_ModuleLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )

    def find_users(folder: str) -> PathEntryFinder:
        if not _is_users_folder(folder):
            raise ImportError(f"{folder} is not the user's")
        return find(folder)

    sys.path_hooks.insert(0, find_users)
    for folder in list(sys.path_importer_cache):  # other threads may import meanwhile
        if _is_users_folder(folder):
            sys.path_importer_cache.pop(folder, None)


def _is_users_folder(folder: str) -> bool:
    return owner_of_file(os.path.join(folder, "module.py")) is Owner.USER  # noqa: PTH118  as Python does


def execute_file(name: str, file: str) -> types.ModuleType:
    """Runs a file as the module of this name."""
    spec = importlib.util.spec_from_file_location(name, file, loader=SourceLoader(name, file))
    assert spec is not None and spec.loader is not None  # noqa: PT018  a loader was given
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, so that another file that imports it gets this module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def may_be_rewritten(module: str) -> bool:
    """Whether the code of a module may differ from what its file says: pytest has loaded it, or what checks types."""
    loader = getattr(sys.modules.get(module), "__loader__", None)
    return loader is not None and type(loader) not in (SourceFileLoader, SourceLoader, _ModuleLoader)


def look_up(module: types.ModuleType, name: str) -> object:
    """What a module has under a qualified name; None if it has nothing."""
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def search_paths() -> list[str]:
    """Where this process finds modules, without the libraries: another process may have its own."""
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [str(Path(path).absolute()) for path in sys.path if path and not path.startswith(libraries)]


def _is_users(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and owner_of_file(file) is Owner.USER


def _reference(
    each: types.FunctionType | types.ModuleType | type, module: types.ModuleType
) -> dict[tuple[str, str], None]:
    """The names under which another process finds a function or class; none for what goes with its code."""
    if isinstance(each, types.ModuleType) or look_up(module, each.__qualname__) is not each:
        return {}
    return {(module.__name__, each.__qualname__): None}


def _is_loose(module: types.ModuleType) -> bool:
    """Whether it is a file of its own, as pipelines are, and not part of a package that others can install."""
    return "." not in module.__name__ and not hasattr(module, "__path__") and str(module.__file__).endswith(".py")


def _is_file(found: object, file: str) -> bool:
    return isinstance(found, str) and os.path.realpath(found) == os.path.realpath(file)
