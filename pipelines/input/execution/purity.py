"""Whether a function may be called side by side: it keeps, changes and draws nothing, as far as its code shows.

In doubt the answer is no.
"""

from __future__ import annotations

import dis
import functools
import re
import struct
import types
from collections.abc import Iterator

#: Modules whose functions depend on their arguments only; what hangs below `random` of any module does not.
_MODULES = {
    "base64",
    "binascii",
    "bz2",
    "cmath",
    "colorsys",
    "hashlib",
    "html",
    "json",
    "lzma",
    "math",
    "numpy",
    "operator",
    "polars",
    "pyarrow",
    "re",
    "string",
    "struct",
    "textwrap",
    "unicodedata",
    "zlib",
}
_BUILTINS = frozenset(
    [
        "abs",
        "all",
        "any",
        "bool",
        "bytes",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "filter",
        "float",
        "frozenset",
        "int",
        "isinstance",
        "issubclass",
        "len",
        "list",
        "map",
        "max",
        "min",
        "ord",
        "chr",
        "pow",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "type",
        "zip",
        "ArithmeticError",
        "IndexError",
        "KeyError",
        "LookupError",
        "RuntimeError",
        "TypeError",
        "ValueError",
        "ZeroDivisionError",
    ]
)
_CHANGES = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "YIELD_VALUE"}
_IN_PLACE = {"byteswap", "fill", "itemset", "partition", "put", "resize", "setflags", "sort"}  # methods of arrays


def stateless(function: object) -> bool:
    """Whether calls of the function can be made in any order and at the same time with the same results."""
    return _is_pure(function, set())


def _is_pure(value: object, seen: set[int]) -> bool:  # noqa: PLR0911  one line per kind of value
    if id(value) in seen:
        return True
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        return _is_known(value.__module__) or _code_is_pure(value, seen)
    if isinstance(value, functools.partial):
        return all(_is_pure(each, seen) for each in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, types.ModuleType):
        return _is_known(value.__name__)
    if isinstance(value, types.BuiltinFunctionType):
        return value.__name__ in _BUILTINS if value.__module__ == "builtins" else _is_known(value.__module__)
    if isinstance(value, tuple | frozenset):
        return all(_is_pure(each, seen) for each in value)
    return _is_constant(value)


def _is_known(module: object) -> bool:
    """Whether the functions of a module of that name depend on their arguments only."""
    name = str(module)
    return name.partition(".")[0].removeprefix("_") in _MODULES and "random" not in name


def _is_constant(value: object) -> bool:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return True
    if isinstance(value, type):
        return value.__module__ == "builtins" and value.__name__ in _BUILTINS
    if isinstance(value, re.Pattern | struct.Struct):
        return True
    home = type(value).__module__.partition(".")[0]
    # arrays can be changed, but code that could do so is refused; a Generator of NumPy is at home in numpy.random
    return home in {"numpy", "pyarrow"} and "random" not in type(value).__module__


def _code_is_pure(function: types.FunctionType, seen: set[int]) -> bool:
    captured = _captured(function)
    if captured is None:
        return False
    codes = list(_codes(function.__code__))
    steps = [step for code in codes for step in dis.get_instructions(code)]
    names = {str(step.argval) for step in steps if step.opname == "LOAD_GLOBAL"}
    known = names & function.__globals__.keys()
    own = set(function.__code__.co_freevars)
    if any(_changes(step, own) for step in steps) or any("random" in code.co_names for code in codes):
        return False
    captured += [function.__globals__[name] for name in known]
    holds_arrays = any(type(value).__module__.startswith("numpy") for value in captured)
    if not names - known <= _BUILTINS or (holds_arrays and any(map(_writes, codes))):
        return False  # of several arrays it may be the captured one that is written to
    return all(_is_pure(value, seen) for value in captured)


def _changes(step: dis.Instruction, own: set[str]) -> bool:
    """Whether a step reaches out of the function: to names around it, to attributes, to modules that are not known."""
    if step.opname == "IMPORT_NAME":
        return str(step.argval).partition(".")[0] not in _MODULES
    return step.opname in _CHANGES or (step.opname == "STORE_DEREF" and step.argval in own)


def _writes(code: types.CodeType) -> bool:
    """Whether code may change an array: `a[i] = …`, `a += …`, `a.sort()`, `f(out=a)`."""
    if not _IN_PLACE.isdisjoint(code.co_names) or any(
        "out" in each for each in code.co_consts if isinstance(each, tuple)
    ):
        return True
    return any(
        step.opname == "STORE_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr.endswith("="))
        for step in dis.get_instructions(code)
    )


def _captured(function: types.FunctionType) -> list[object] | None:
    """Defaults and what is taken from around the function; None if one of these is bound later."""
    found: list[object] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    try:
        return found + [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
