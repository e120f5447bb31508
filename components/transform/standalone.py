"""Standalone source: a user's function as a module of its own, with everything of the user's that it uses.

Functions and classes are copied with their source, constants as literals, libraries as imports. What cannot be written
as source (an open file, a table, a fitted model) is refused with what to do instead.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import functools
import hashlib
import inspect
import linecache
import math
import re
import sys
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path

from spanwise.components.transform.analyzers.analyzer import PreprocessingError
from spanwise.orchestrator.user_code import (
    STORE_NAME,
    Import,
    NameUse,
    Owner,
    code_within,
    may_be_rewritten,
    operations,
    owner_of_file,
    owner_of_module,
    uses,
)

_loading = threading.RLock()  # Python shows a module to other threads before it has run
_HEAD = '"""{title}: generated from the functions of its author. Do not edit."""'


def extract_source(function: Callable[..., object]) -> str:
    """The source of a module that defines the function, or class, under its own name.

    Raises:
        PreprocessingError: something it uses cannot be written as source, or is something else when that source is run;
            the message says what, and what to do.
    """
    if not isinstance(function, types.FunctionType | type):
        raise PreprocessingError(f"{function!r} is not a function that has a source; write it with def.")
    if function.__name__ == "<lambda>":
        raise PreprocessingError(f"{_location(function)}: a lambda has no source of its own; write it with def.")
    module = StandaloneModule()
    module.add(function.__name__, function, f"{function.__name__}")
    parts = [
        _HEAD.format(title=function.__name__),
        "from __future__ import annotations",
        "\n".join(sorted(module.imports)),
        *module.definitions,
    ]
    source = "\n\n".join(part for part in parts if part) + "\n"
    module.compare(source)
    return source


def digest(source: str) -> str:
    """The digest by which a source is known."""
    return hashlib.blake2b(source.encode(), digest_size=16, person=b"spanwise-source").hexdigest()


def load(source: str) -> types.ModuleType:
    """The module, run once in this process and known to Python by the digest of its source."""
    with _loading:
        name = f"spanwise_preprocessing_{digest(source)}"
        return sys.modules.get(name) or _run(name, source)


def _run(name: str, source: str) -> types.ModuleType:
    module = types.ModuleType(name)
    file = f"<{name}>"
    module.__file__ = file
    # so that tracebacks, and `inspect`, show the lines
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[name] = module
    try:
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))  # noqa: S102  it is the user's own code
    except BaseException:
        del sys.modules[name]
        raise
    return module


@dataclass
class StandaloneModule:
    """The imports and definitions collected so far."""

    imports: set[str] = field(default_factory=set)
    definitions: list[str] = field(default_factory=list)
    _bound: dict[str, object] = field(default_factory=dict)
    _ways: dict[str, str] = field(default_factory=dict)  #: to the functions and classes that have a source here
    _passing: set[str] = field(default_factory=set)  #: names that only the sources of functions with another name bind

    def add(self, name: str, value: object, way: str) -> None:
        """Binds `name` to `value` in the module; `way` is the path to it that an error shows."""
        if name in self._bound:
            if self._bound[name] is not value and not _are_equal(self._bound[name], value):
                raise _same_name(name, way)
            return
        self._bound[name] = value
        if isinstance(value, types.ModuleType):
            self._add_module(name, value, way)
        elif _is_library(value):
            self._add_import(name, value, way)
        elif isinstance(value, types.FunctionType | type):
            self._ways[name] = way
            self._add_source(name, value, way)
        else:
            self.definitions.append(f"{name} = {self.literal(value, way)}")

    def _add_module(self, name: str, module: types.ModuleType, way: str) -> None:
        if not _is_installed(module.__name__):
            raise PreprocessingError(
                f"{way} is the module {module.__name__} of yours, which is not installed where the graph is loaded; "
                f"import what you use of it by name: from {module.__name__} import …"
            )
        parts = module.__name__.rpartition(".")
        if name == module.__name__:
            self.imports.add(f"import {name}")
        elif parts[0] and name == parts[2]:
            self.imports.add(f"from {parts[0]} import {name}")
        elif "." not in module.__name__ or name != module.__name__.partition(".")[0]:
            self.imports.add(f"import {module.__name__} as {name}")

    def _add_import(self, name: str, value: object, way: str) -> None:
        origin, own = _origin(value)
        if not own.isidentifier() or getattr(sys.modules.get(origin), own, None) is not value:
            raise PreprocessingError(f"{way} comes from {origin}, but not under a name; import it inside the function.")
        self.imports.add(f"from {origin} import {own}" + (f" as {name}" if name != own else ""))

    def _add_source(self, name: str, value: types.FunctionType | type, way: str) -> None:
        source, own = _read_source(value, name, way)
        scope = _scope(value)
        found = list(_uses(source))
        for used in sorted({use.name for use in found if isinstance(use, NameUse)}):
            if used in scope:
                if used != own or scope[used] is not value:
                    self.add(used, scope[used], f"{way} -> {used}")
                    self.imports.update(f"import {module}" for module in _submodules(source, used, scope[used]))
            elif used not in vars(builtins) and used != own:
                raise PreprocessingError(f"{way} uses {used!r}, which is not defined in {_location(value)}.")
        for use in found:
            if isinstance(use, Import) and (use.level or not _is_installed(use.module)):
                module = "." * use.level + use.module
                raise PreprocessingError(
                    f"line {use.line} of {way}: it imports {module}, a module of yours, which is not installed where "
                    f"the graph is loaded; import what you use at the top of the file: from {module} import …"
                )
        self.definitions.append(source if own == name else f"{source}\n\n{name} = {own}")
        if own != name:
            calls_itself = isinstance(value, type) or any(isinstance(u, NameUse) and u.name == own for u in found)
            self._bind_in_passing(own, value, way, calls_itself=calls_itself)

    def _bind_in_passing(self, own: str, value: object, way: str, *, calls_itself: bool) -> None:
        """Notes that a source binds the name that it has inside, before it gets the one that it is used by."""
        if self._bound.get(own, value) is not value and (calls_itself or own not in self._passing):
            other = self._bound[own]
            is_decorated = isinstance(other, types.FunctionType) and any(v is value for v in _around(other).values())
            raise _hidden(way, other) if is_decorated else _same_name(own, way)
        if own not in self._bound and not calls_itself:
            self._passing.add(own)
        self._bound.setdefault(own, value)

    def compare(self, source: str) -> None:
        """Runs the source of this module, and compares what it defines with what was added.

        Arguments, decorators and the bodies of classes are evaluated when a function or class is defined; what they
        were made of may have been something else at that time.
        """
        try:
            made = vars(load(source))
        except Exception as error:
            raise PreprocessingError(
                f"its source cannot be run by itself: {type(error).__name__}: {error}. Create what it lacks inside the "
                "function."
            ) from error
        for name, way in self._ways.items():
            if name not in self._passing:
                _refuse_change(self._bound[name], made[name], way)

    def literal(self, value: object, way: str) -> str:  # noqa: C901, PLR0911  one case per type
        """The source of a constant."""
        kind = type(value)
        if value is None or kind in (bool, int, str, bytes):
            return repr(value)
        if isinstance(value, float) and kind is float:
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if kind in (list, tuple, set, frozenset) and isinstance(value, list | tuple | set | frozenset):
            parts = [self.literal(each, way) for each in value]
            if isinstance(value, list):
                return f"[{', '.join(parts)}]"
            if isinstance(value, tuple):
                return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
            braces = f"{{{', '.join(sorted(parts))}}}" if parts else "set()"
            return braces if kind is set else f"frozenset({braces if parts else ''})"
        if kind is dict and isinstance(value, dict):
            pairs = [f"{self.literal(k, way)}: {self.literal(v, way)}" for k, v in value.items()]
            return f"{{{', '.join(pairs)}}}"
        if kind in (date, datetime, time, timedelta, timezone) and _is_plain_zone(getattr(value, "tzinfo", None)):
            self.imports.add("import datetime as _datetime")  # names of ours must not take those of the user
            return re.sub(r"\bdatetime\.", "_datetime.", repr(value))
        if kind is Decimal:
            self.imports.add("import decimal as _decimal")
            return f"_decimal.{value!r}"
        if isinstance(value, re.Pattern):
            self.imports.add("import re as _re")
            return f"_re.compile({value.pattern!r}, {value.flags})"
        if _is_data_type(value):
            self.imports.add("import polars as _polars")
            return f"_polars.{value!r}"
        raise PreprocessingError(
            f"{way} is a {kind.__qualname__}, which cannot be written as source. Create it inside the function from "
            "constants, or bind the constants that it consists of (numbers, text, lists, dicts) to that name."
        )


def _are_equal(mine: object, other: object) -> bool:
    return type(mine) is type(other) and isinstance(mine, int | float | str | bytes | tuple) and mine == other


def _same_name(name: str, way: str) -> PreprocessingError:
    return PreprocessingError(
        f"{way}: two different things are called {name!r} in the modules it comes from; rename one."
    )


def _hidden(way: str, made: object) -> PreprocessingError:
    return PreprocessingError(
        f"{way}: its source gives {getattr(made, '__qualname__', made)!r}, which its decorator has put into its place. "
        "Use functools.wraps in the decorator, or call the decorator inside the function."
    )


def _refuse_change(mine: object, made: object, way: str) -> None:
    """Refuses a function or class that has become another one where its source was run by itself."""
    if isinstance(mine, type):
        _refuse_other_attributes(mine, vars(made), way)
    elif isinstance(mine, types.FunctionType):
        if not isinstance(made, types.FunctionType) or _form(mine) != _form(made):
            raise _hidden(way, made)
        given, now = _defaults(mine), _defaults(made)
        for name in given:
            _refuse_other_value(given[name], now.get(name), f"{way}: its argument {name!r}")
        around, now = _around(mine), _around(made)
        for name in around:
            if name in now:  # what was around a function by itself is written as constants
                _refuse_other_value(around[name], now[name], f"{way}: around it, {name!r}")
        if hasattr(mine, "__wrapped__"):
            _refuse_change(mine.__wrapped__, getattr(made, "__wrapped__", None), way)


def _refuse_other_attributes(mine: type, made: Mapping[str, object], way: str) -> None:
    methods = _methods(mine)
    for name, found in vars(mine).items():
        value, other = _function_of(found), _function_of(made.get(name))
        if any(value is method for method in methods):
            _refuse_change(value, other, f"{way}.{name}")
        elif not name.startswith("__"):
            _refuse_other_value(value, other, f"{way}: its attribute {name!r}")


def _function_of(attribute: object) -> object:
    return attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute


def _refuse_other_value(mine: object, made: object, who: str) -> None:
    before, after = _text(mine), _text(made)
    if before != after:
        raise PreprocessingError(
            f"{who} is {before or repr(mine)}, and {after or repr(made)} when its source is run by itself: what it is "
            "made of has another value by now. Write the value there, or make the function inside of another, whose "
            "arguments are constants."
        )


def _text(value: object) -> str | None:
    """The source of a constant, or the name of a function or class; None of other values."""
    if isinstance(value, types.FunctionType | type):
        return value.__name__
    try:
        return StandaloneModule().literal(value, "")
    except PreprocessingError:
        return None


def _form(function: types.FunctionType) -> tuple[str, tuple[str, ...]]:
    return function.__code__.co_name, function.__code__.co_varnames


def _defaults(function: types.FunctionType) -> dict[str, object]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(values) :]
    return {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}


def _around(function: types.FunctionType) -> dict[str, object]:
    """The values of the names of the functions around it that it uses."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # defined later than the function, if ever
            found[name] = cell.cell_contents
    return found


def _is_plain_zone(zone: object) -> bool:
    return zone is None or isinstance(zone, timezone)


def _is_data_type(value: object) -> bool:
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(value, polars.DataType) or value.is_nested():
        return False
    return "\n" not in repr(value) and "..." not in repr(value)


def _location(value: object) -> str:
    code = getattr(value, "__code__", None)
    if isinstance(code, types.CodeType):
        return f"{code.co_filename}, line {code.co_firstlineno}"
    return str(getattr(value, "__module__", "?"))


def _origin(value: object) -> tuple[str, str]:
    """The module and the name in it of something that a library defines."""
    module = str(getattr(value, "__module__", None) or "builtins")
    name = str(getattr(value, "__qualname__", getattr(value, "__name__", "")))
    public = module.partition(".")[0]
    if getattr(sys.modules.get(public), name, None) is value and public != "spanwise":
        return public, name  # where users of the library find it, whatever file it is in
    return module, name


def _is_library(value: object) -> bool:
    if not isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return False
    return _is_installed(str(getattr(value, "__module__", None) or "builtins"))


def _is_installed(module: str) -> bool:
    """Whether a module can be imported wherever the graph is loaded: of ours, of Python or installed."""
    return owner_of_module(module) is not Owner.USER


def _scope(value: types.FunctionType | type) -> Mapping[str, object]:
    """The values of the names in its source: those around a nested function, then those of its module."""
    if isinstance(value, type):
        found: dict[str, object] = dict(vars(sys.modules.get(value.__module__, builtins)))
        for method in _methods(value):
            # its module need not be known to Python by name: a pipeline file is loaded by its path
            found.update(method.__globals__)
            found.update({k: v for k, v in inspect.getclosurevars(method).nonlocals.items() if k != "__class__"})
        return found
    plain_function = inspect.unwrap(value)
    return {**plain_function.__globals__, **_around(plain_function)}


def _methods(value: type) -> list[types.FunctionType]:
    found = [m for m in vars(value).values() if isinstance(m, types.FunctionType)]
    return [method for method in found if method.__module__ == value.__module__ and _has_source(method)]


def _has_source(method: types.FunctionType) -> bool:
    """Whether it has a source; a decorator such as `dataclass` compiles methods from a string."""
    return method.__code__.co_filename != "<string>"


def _read_text(value: types.FunctionType | type) -> str:
    if isinstance(value, type) and value.__module__ not in sys.modules:
        for method in _methods(value):
            code = method.__code__
            text = "".join(linecache.getlines(code.co_filename))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                    if first <= code.co_firstlineno <= (node.end_lineno or first):
                        return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
    return inspect.getsource(value)


_TEXTS: weakref.WeakKeyDictionary[types.FunctionType | type, str] = weakref.WeakKeyDictionary()
"""Sources that were read: a pipeline is built long before its last node starts, and may be edited meanwhile."""


def _read_source(value: types.FunctionType | type, name: str, way: str) -> tuple[str, str]:
    """Its source without indentation, and the name that it defines."""
    try:
        source = _TEXTS.get(value) or textwrap.dedent(_read_text(value)).rstrip()
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError) as error:
        raise PreprocessingError(
            f"{way}: its source cannot be read ({error}); define it with def in a file of its own."
        ) from error
    (statement, *_) = tree.body
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        own = statement.name
    elif (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Lambda)
        and isinstance(statement.targets[0], ast.Name)
        and len(tree.body) == 1
    ):
        own = statement.targets[0].id
    else:
        raise PreprocessingError(f"{way}: {name!r} is a lambda inside of a larger line; write it with def.")
    for function in _methods(value) if isinstance(value, type) else [inspect.unwrap(value)]:
        _refuse_edited(function, way)
    _TEXTS[value] = source
    return source, own


def _refuse_edited(function: types.FunctionType, way: str) -> None:
    """Refuses a function whose file, as it is now, defines no such function at that place."""
    code = function.__code__
    file = code.co_filename
    if owner_of_file(file) is not Owner.USER or not Path(file).is_file():
        return
    if may_be_rewritten(function.__module__):
        return
    if code not in _codes_of(file, "".join(linecache.getlines(file))):
        raise PreprocessingError(
            f"{way}: {file} has changed since it was loaded, so that the source of {function.__qualname__} is not what "
            "runs here. Load it again, or run again."
        )


@functools.lru_cache(maxsize=8)
def _codes_of(file: str, text: str) -> frozenset[types.CodeType]:
    """The code of all functions and classes that a file defines."""
    try:
        return frozenset(code_within(compile(text, file, "exec", dont_inherit=True)))
    except SyntaxError:
        return frozenset()


def _submodules(source: str, name: str, value: object) -> list[str]:
    """The modules below a package that the source reaches through the package's own name, as after `import a.b`."""
    if not isinstance(value, types.ModuleType) or value.__name__ != name:
        return []
    dotted = {ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    found = [each for each in dotted if each.startswith(f"{name}.") and each in sys.modules]
    return [each for each in found if hasattr(sys.modules[each.rpartition(".")[0]], "__path__")]


def _uses(source: str) -> Iterator[NameUse | Import]:
    """What the source uses from outside of itself. Annotations do not run, so their names need not be defined."""
    flags = __future__.annotations.compiler_flag
    module = compile(source, "<source>", "exec", flags, dont_inherit=True, optimize=0)
    for code in code_within(module):
        own = {"__name__", "__annotations__", *(name for op, _, name, _ in operations(code) if op == STORE_NAME)}
        yield from (use for use in uses(code) if isinstance(use, Import) or use.is_global or use.name not in own)
