"""Code digests: how functions, classes and modules are described, for `orchestrator.digest`.

Code of the user's counts by its bytecode and by everything that bytecode names; other code by the version it comes in.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import os
import re
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePath

from spanwise.orchestrator import user_code
from spanwise.orchestrator.bindings import noticed_bindings
from spanwise.orchestrator.digest import (
    NoRecipe,
    SameValue,
    ValueChild,
    ValueNode,
    attribute_children,
    digest,
    encode_text,
    frame,
    named_children,
)
from spanwise.orchestrator.statements import Statement, find_statements
from spanwise.orchestrator.user_code import Import, NameUse, Operation, Owner, SourceLoader
from spanwise.version import __version__

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass
class OutsideKey:
    """What code may find out when it runs, so that it is in no digest of the code."""

    imports: set[str] = field(default_factory=set)  #: code that imports modules by names known only when it runs
    files: set[str] = field(default_factory=set)  #: existing files that are named


outside_key: ContextVar[OutsideKey | None] = ContextVar("outside_key", default=None)
"""Where one is given, it receives what is noticed while code is described."""

_LONGEST_PATH = 255


@dataclass(frozen=True)
class CodeScope:
    """Code with what its names mean."""

    code: types.CodeType
    names: Mapping[str, object] | None  #: the globals it runs with; None if it has not run yet
    package: str


@dataclass(frozen=True)
class SourceFile(SameValue):
    """A module of the user's, by its file: it need not have been imported."""

    file: str
    package: str
    loaded: types.CodeType | None = None  #: of the imported module: it runs, also if the file was edited since


@dataclass(frozen=True)
class ModuleSettings(SameValue):
    """What a module of the user's changes elsewhere when it is imported, such as a seed."""

    place: int
    names: Mapping[str, object] = field(compare=False)  #: its globals


@dataclass(frozen=True)
class Annotations(SameValue):
    """What the arguments of a function, or the attributes of a class, are annotated with."""

    of: types.FunctionType | type


@dataclass(frozen=True)
class SourceText(SameValue):
    """A function or class as it is written."""

    of: types.FunctionType | type


@dataclass(frozen=True)
class Subclasses(SameValue):
    """The classes that are made from a class."""

    of: type


@dataclass(frozen=True)
class Distribution(SameValue):
    """Where a module comes from that is not the user's."""

    name: str
    version: str


def describe_code(value: object) -> ValueNode | None:  # noqa: C901, PLR0911, PLR0912  a table of kinds
    """Describes a function, class, module or the like; None for every other value."""
    kind = type(value)
    if isinstance(value, CodeScope):
        return _code(value)
    if isinstance(value, SourceFile):
        return _source(value)
    if isinstance(value, ModuleSettings):
        return _module_settings(value.names)
    if isinstance(value, Annotations):
        return _annotations(value.of)
    if isinstance(value, SourceText):
        return ValueNode("text", [encode_text(_source_text(value.of))])
    if isinstance(value, Subclasses):
        return ValueNode("subclasses", [ValueChild("a subclass", each) for each in _subclasses(value.of)])
    if isinstance(value, Distribution):
        return ValueNode("distribution", [encode_text(value.name), encode_text(value.version)])
    if isinstance(value, types.FunctionType):
        return _function(value)
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, types.ModuleType):
        return _module(value)
    if isinstance(value, types.CodeType):
        return _code(CodeScope(value, None, ""))
    if isinstance(value, types.MethodType):
        return ValueNode("method", named_children(function=value.__func__, object=value.__self__))
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None):
        return describe_by_name("builtin", value, value.__qualname__)
    if isinstance(value, functools.partial) and kind is functools.partial and not vars(value):
        parts = named_children(function=value.func, arguments=value.args, keywords=value.keywords)
        return ValueNode("partial", parts)
    if isinstance(value, classmethod | staticmethod):
        plain = classmethod if isinstance(value, classmethod) else staticmethod
        return ValueNode(plain.__name__, [ValueChild("", value.__func__), *_subclass(value, plain)])
    if isinstance(value, property):
        parts = named_children(getter=value.fget, setter=value.fset, deleter=value.fdel)
        return ValueNode("property", parts + _subclass(value, property))
    if isinstance(value, functools.cached_property):  # it holds a lock until Python 3.12
        return ValueNode("cached property", [ValueChild("", value.func), *_subclass(value, functools.cached_property)])
    if isinstance(value, types.CellType):
        return _cell(value)
    return None


def _subclass(value: object, plain: type) -> list[bytes | ValueChild]:
    """The class of what is no plain method or property: what it does is for its class to say."""
    return [] if type(value) is plain else [ValueChild("its class", type(value))]


def _cell(cell: types.CellType) -> ValueNode:
    try:
        return ValueNode("cell", [ValueChild("", cell.cell_contents)])
    except ValueError:  # not bound yet, or deleted
        return ValueNode("empty cell", [])


def describe_by_name(tag: str, value: object, name: str) -> ValueNode:
    """Describes what only its module and name tell apart, with the version of where it comes from."""
    module = getattr(value, "__module__", None) or type(value).__module__
    parts: list[bytes | ValueChild] = [encode_text(module), encode_text(name)]
    file = getattr(sys.modules.get(module), "__file__", None)
    if (distribution := _distribution_of(module)) is not None:
        parts.append(ValueChild("", distribution))
    elif isinstance(file, str) and not file.endswith(".py"):  # compiled: its bytes say what it does
        parts.append(ValueChild("", SourceFile(file, "")))
    wrapped = getattr(value, "__wrapped__", None)
    return ValueNode(tag, [*parts, ValueChild("what it wraps", wrapped)] if wrapped is not None else parts)


def _module(module: types.ModuleType) -> ValueNode:
    file = getattr(module, "__file__", None)
    if (distribution := distribution_of(module.__name__, file)) is not None:
        return ValueNode("module", [encode_text(module.__name__), ValueChild("", distribution)])
    if not file:
        return ValueNode("module", [encode_text(module.__name__)])
    return ValueNode("module", [ValueChild("", SourceFile(file, module.__package__ or "", _loaded(vars(module))))])


def _source(source: SourceFile) -> ValueNode:
    """A file by its compiled code, so that comments do not count, and by the modules of the user's it imports."""
    if source.loaded is not None:
        return ValueNode("source", [ValueChild("", CodeScope(source.loaded, None, source.package))])
    try:
        content = Path(source.file).read_bytes()
    except OSError as error:
        raise NoRecipe(f"the module {source.file}, which cannot be read") from error
    if not source.file.endswith(".py"):
        return ValueNode("file", [frame(b"y", content)])
    try:
        code = compile(content, source.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise NoRecipe(f"the module {source.file}, which is not valid Python ({error})") from error
    return ValueNode("source", [ValueChild("", CodeScope(code, None, source.package))])


def _loaded(names: Mapping[str, object]) -> types.CodeType | None:
    """The code of the module with these globals, as it was loaded, if that is known."""
    loader = getattr(names.get("__spec__"), "loader", None)
    return loader.code if isinstance(loader, SourceLoader) else None


def _function(function: types.FunctionType) -> ValueNode:
    names = function.__globals__
    distribution = distribution_of(str(names.get("__name__", "")), names.get("__file__"))
    free = function.__code__.co_freevars
    closure = dict(zip(free, function.__closure__ or (), strict=True))
    cells = [ValueChild(f"closure {name!r}", cell) for name, cell in closure.items()]
    if (bindings := noticed_bindings.get()) is not None:
        for variable, cell in closure.items():
            bindings.notice(cell, variable)
    given = [ValueChild(f"default {at}", value) for at, value in enumerate(function.__defaults__ or ())]
    surroundings = [*cells, *given, *attribute_children(function.__kwdefaults__ or {})]
    if distribution is None:
        code = ValueChild("", CodeScope(function.__code__, names, _package(names)))
        parts = [code, *surroundings, *attribute_children(vars(function)), *_settings(names)]
        return ValueNode("function", parts, named=_named(function, function.__qualname__))
    if _is_public(function) or not surroundings:
        return describe_by_name("function", function, function.__qualname__)
    if names.get("__name__") == "functools" and hasattr(function, "registry"):  # it closes over a cache
        return ValueNode("singledispatch", [ValueChild("its registry", dict(function.registry))])
    # Made at run time, such as by a library's decorator around a function of the user's.
    name = encode_text(function.__code__.co_qualname)
    return ValueNode("closure", [name, ValueChild("", distribution), *surroundings])


# What most code does not read of functions and classes, by the names with which it reads it.
_READ = {
    **{name: (name,) for name in ("__name__", "__qualname__", "__doc__", "__annotations__", "__code__")},
    **{name: (name,) for name in ("__subclasses__", "__signature__", "__dict__")},
    "vars": ("__dict__",),
    "getdoc": ("__doc__",),
    **dict.fromkeys(("getsource", "getsourcelines"), ("getsource",)),
    **dict.fromkeys(("get_type_hints", "get_annotations"), ("__annotations__",)),
    **dict.fromkeys(("signature", "getfullargspec"), ("__signature__", "__annotations__")),
}


def order_of(state: Mapping[str, object]) -> dict[str, str]:
    """The order of attributes, which counts where code reads all of them at once."""
    return {"__dict__": " ".join(state)}


def _named(value: types.FunctionType | type, name: str) -> dict[str, str | ValueChild]:
    named: dict[str, str | ValueChild] = {
        "__name__": name,
        "__qualname__": name,
        "__doc__": value.__doc__ or "",
        "__annotations__": ValueChild("its annotations", Annotations(value)),
        "getsource": ValueChild("its source", SourceText(value)),
    }
    if isinstance(value, types.FunctionType):
        code = value.__code__
        count = code.co_argcount + code.co_kwonlyargcount
        named["__signature__"] = " ".join(code.co_varnames[:count])
        named["__code__"] = " ".join((code.co_name, *code.co_varnames))
    else:
        named["__subclasses__"] = ValueChild("its subclasses", Subclasses(value))
    return named


def _annotations(of: types.FunctionType | type) -> ValueNode:
    """By their texts, and by what the types in them do as far as that is known."""
    names = of.__globals__ if isinstance(of, types.FunctionType) else vars(sys.modules.get(of.__module__, types))
    parts: list[bytes | ValueChild] = []
    for name, note in _notes(of).items():
        parts.append(encode_text(f"{name}: {annotation_text(note)}"))
        meant = [names[word] for word in _WORD.findall(note) if word in names] if isinstance(note, str) else [note]
        parts += [ValueChild(f"the annotation of {name!r}", each, is_needed=False) for each in meant]
    return ValueNode("annotations", parts)


def _notes(of: types.FunctionType | type) -> dict[str, object]:
    """The annotations of a function, or of a class itself."""
    notes: dict[str, object] = vars(of).get("__annotations__", {}) if isinstance(of, type) else of.__annotations__
    return notes


_WORD = re.compile(r"[^\W\d]\w*")


def _source_text(of: types.FunctionType | type) -> str:
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):  # made from a text; then whoever reads it fails too
        return ""


def _subclasses(cls: type) -> list[type]:
    """Without those of a module that was loaded again since."""
    found: list[type] = []
    subclasses: list[type] = cls.__subclasses__()
    for each in subclasses:
        named = user_code.look_up(sys.modules.get(each.__module__, types), each.__qualname__)
        if named is each or not isinstance(named, type):
            found.append(each)
    return found


def _settings(names: Mapping[str, object]) -> list[bytes | ValueChild]:
    if "__spec__" not in names:  # a function that was sent by value has only the names that it uses
        names = vars(sys.modules.get(str(names.get("__name__")), types.ModuleType("")))
    return [ValueChild("the settings of its module", ModuleSettings(id(names), names))]


def _module_settings(names: Mapping[str, object]) -> ValueNode:
    """What the module with these globals sets for all code of the process, by its statements and what they name."""
    loader, file = getattr(names.get("__spec__"), "loader", None), names.get("__file__")
    source = b""
    if isinstance(loader, SourceLoader):
        source = loader.source
    elif isinstance(file, str) and file.endswith(".py") and os.path.isfile(file):  # noqa: PTH113  also of odd texts
        source = Path(file).read_bytes()
    parts: list[bytes | ValueChild] = []
    for statement in _statements(source):
        if not _acts_elsewhere(statement, names):
            continue
        parts.append(encode_text(statement.text))
        for use in statement.uses if statement.is_imported or _is_own(names.get(statement.target.name)) else ():
            if use.name not in names or use.name in _PLACES:
                continue
            for text, value in _follow(use, names[use.name]):
                if _is_own(value):
                    parts += [encode_text(text), ValueChild(f"{text!r} in {statement.text!r:.60}", value, False)]
    return ValueNode("settings", parts)


def _acts_elsewhere(statement: Statement, names: Mapping[str, object]) -> bool:
    """Whether a statement changes what no name of its module shows.

    That is something imported, or something of a library that a function of the module changes as it is called here.
    """
    target = statement.target
    found = names.get(target.name)
    if _is_of_a_library(found):
        return statement.is_imported or not statement.is_nested
    if statement.is_imported and not statement.is_definition:
        return not _decides_nothing(found)
    called = _called(found, target) if statement.is_call or statement.is_definition else None
    if _is_of_a_library(called):
        return isinstance(found, type)  # `register` of an abstract class: nothing shows what it keeps
    return statement.is_call and called is not None and not _is_running(called) and _uses_a_library(called, set())


def _called(found: object, target: NameUse) -> types.FunctionType | None:
    """The function that a call of something of the module's, or of a method of it, calls."""
    if isinstance(found, type) or target.attributes:
        found = inspect.getattr_static(found, target.attributes[0] if target.attributes else "__init__", None)
    found = getattr(found, "__func__", found)  # of a class method
    return found if isinstance(found, types.FunctionType) else None


def _is_running(function: types.FunctionType) -> bool:
    """Whether it has been called and has not returned, so that it may be what asks for the digest."""
    frame: types.FrameType | None = sys._getframe()  # noqa: SLF001  it has no other name
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def _uses_a_library(function: types.FunctionType, seen: set[types.FunctionType]) -> bool:
    """Whether a function of the user's, or one that it names, names something of a library."""
    seen.add(function)
    names = function.__globals__
    for code in user_code.code_within(function.__code__):
        for use in user_code.uses(code):
            if isinstance(use, Import):
                if use.level or not _is_silent(use.module):
                    return True
                continue
            for _, value in _follow(use, names.get(use.name)):
                if isinstance(value, types.FunctionType) and _distribution_of(value.__module__) is None:
                    if value not in seen and _uses_a_library(value, seen):
                        return True
                elif _is_of_a_library(value):
                    return True
    return False


_parsing = threading.Lock()  # threads that parse at once share a counter in some Pythons (CPython issue 106905)
os.register_at_fork(before=_parsing.acquire, after_in_parent=_parsing.release, after_in_child=_parsing.release)


@functools.lru_cache(maxsize=256)
def _statements(source: bytes) -> list[Statement]:
    """The statements at the top of a module that may change something elsewhere: `np.random.seed(SEED)`."""
    try:
        with _parsing:
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return find_statements(tree)


def _is_of_a_library(value: object) -> bool:
    """Whether something is of a library or of Python, without what decides nothing."""
    name = _module_of(value)
    return bool(name) and not _is_silent(name) and _distribution_of(name) is not None


def _decides_nothing(value: object) -> bool:
    return _is_silent(_module_of(value))


def _is_silent(module: str) -> bool:
    """Whether a module is for logs, warnings or search paths, which decide nothing, or is ours."""
    return module.partition(".")[0] in {"logging", "warnings", "sys", "spanwise"}


def _module_of(value: object) -> str:
    return str(getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None) or "")


def _is_own(value: object) -> bool:
    """Whether it is plain data, or code or an object of the user's: what libraries hold may differ in each process."""
    if isinstance(value, types.ModuleType | types.FunctionType | type):
        return _distribution_of(_module_of(value)) is None
    if isinstance(value, _DESCRIPTORS):
        return False
    return all(
        found is None or found.name in {"python", "pydantic"}
        for found in (_distribution_of(each.__module__) for each in type(value).__mro__)
    )


_DESCRIPTORS = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


def _is_public(value: types.FunctionType | type) -> bool:
    """Whether its module gives it out under its name, so that the version says all about it."""
    found = user_code.look_up(sys.modules.get(value.__module__, types), value.__qualname__)
    return found is value and _distribution_of(value.__module__) is not None


def _distribution_of(module: str) -> Distribution | None:
    return distribution_of(module, getattr(sys.modules.get(module), "__file__", None))


def _package(names: Mapping[str, object]) -> str:
    package = names.get("__package__")
    return package if isinstance(package, str) else str(names.get("__name__", "")).rpartition(".")[0]


# What a class holds that no method reads, that is kept per process, or that repeats what is taken from elsewhere.
_NOT_CODE = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"}
    | {"__annotations__", "__type_params__", "__parameters__", "__orig_bases__", "__slotnames__", "__signature__"}
    | {"__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__dataclass_params__"}
    | {"__class_vars__", "__private_attributes__"}
)
# Of the names that the machinery of enums puts there or takes: those that are not made of the members.
_OF_ENUMS = frozenset({"_missing_", "_generate_next_value_", "_boundary_"})


def _class(cls: type) -> ValueNode:
    made_by = _distribution_of(cls.__module__)
    if made_by is not None and not _is_made_at_run_time(cls):
        return describe_by_name("class", cls, cls.__qualname__)
    space = {name: value for name, value in vars(cls).items() if name not in _NOT_CODE and not _is_slot(value)}
    if made_by is not None:  # what it adds of its own is in no file of the user's
        space = {name: value for name, value in space.items() if _is_own(value)}
    elif (bindings := noticed_bindings.get()) is not None:
        for attribute in space:
            bindings.notice(cls, attribute)
    parts: list[bytes | ValueChild] = [encode_text(cls.__qualname__), *([ValueChild("", made_by)] if made_by else [])]
    parts += [ValueChild(f"base {base.__qualname__!r}", base) for base in cls.__bases__]
    if type(cls) is not type:
        parts.append(ValueChild("its metaclass", type(cls)))
    if issubclass(cls, enum.Enum):
        members = [(name, member.value, _attributes(member)) for name, member in cls.__members__.items()]
        space = {
            name: each
            for name, each in space.items()
            if name in _OF_ENUMS or not (name in cls.__members__ or _is_sunder(name))
        }
        parts.append(ValueChild("its members", members))
    elif is_model(cls) or "__pydantic_fields__" in vars(cls):
        space = {name: each for name, each in space.items() if not _is_made_by_pydantic(name)}
        parts += _fields(cls)
    for name, described in getattr(cls, "__dataclass_fields__", {}).items():
        if described.metadata:
            parts.append(ValueChild(f"metadata of {name!r}", (name, dict(described.metadata))))
    return ValueNode(
        "class",
        [*parts, *_fields_by_notes(cls), *attribute_children(space, are_needed=made_by is None)],
        named={**_named(cls, ""), **order_of(space)},
    )


# A class that a program makes as it runs, unlike those that are part of Python or of a compiled module.
_HEAP_TYPE = 1 << 9


def _is_made_at_run_time(cls: type) -> bool:
    """Whether it is not the class that its module has under this name: `make_dataclass` says that it is of `types`."""
    return bool(cls.__flags__ & _HEAP_TYPE) and not _is_public(cls)


def _fields_by_notes(cls: type) -> list[bytes | ValueChild]:
    """What a class annotates, in its order, by its text, and by the objects in it that have none."""
    parts: list[bytes | ValueChild] = []
    for name, note in _notes(cls).items():
        parts.append(encode_text(f"{name}: {annotation_text(note)}"))
        if not isinstance(note, str) and annotation_text(note) != repr(note):
            parts.append(ValueChild(f"the annotation of {name!r}", note, is_needed=False))
    return parts


def _is_slot(value: object) -> bool:
    return isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)


def _is_sunder(name: str) -> bool:
    """Whether a name is like `_this_`, which enums keep for themselves."""
    return name.startswith("_") and name.endswith("_") and not name.startswith("__")


def _attributes(member: enum.Enum) -> dict[str, object]:
    """What a member holds besides its name and value, without what it computes when asked."""
    return {
        name: value
        for name, value in vars(member).items()
        if name != "__objclass__"
        and not _is_sunder(name)
        and not isinstance(getattr(type(member), name, None), functools.cached_property)
    }


def _is_made_by_pydantic(name: str) -> bool:
    return name.startswith("__pydantic_") and name != "__pydantic_config__"


# What documents a field of a pydantic model.
_UNUSED = frozenset({"title", "field_title_generator", "description", "examples", "deprecated"})


def _fields(model: type) -> list[bytes | ValueChild]:
    """The fields of a pydantic model or dataclass in their order, with the types that check them; its decorators."""
    parts: list[bytes | ValueChild] = []
    for name, info in getattr(model, "__pydantic_fields__", {}).items():
        settings = {
            each: getattr(info, each, None)
            for each in type(info).__slots__
            if not each.startswith("_") and each not in _UNUSED
        }
        parts += [encode_text(name), ValueChild(f"field {name!r}", settings)]
    for name, private in getattr(model, "__private_attributes__", {}).items():
        parts.append(ValueChild(f"default of {name!r}", (name, private.default_factory or private.default)))
    decorators = vars(model).get("__pydantic_decorators__")
    for kind in sorted(getattr(decorators, "__dataclass_fields__", {})):
        found = getattr(decorators, kind)
        parts.append(ValueChild(f"its {kind}", {name: each.info for name, each in found.items()}))
    return parts


def is_model(cls: type) -> bool:
    """Whether it is a pydantic model, without importing pydantic."""
    return "pydantic" in sys.modules and issubclass(cls, sys.modules["pydantic"].BaseModel)


_address = re.compile(r" at 0x[0-9a-fA-F]+")


def annotation_text(note: object) -> str:
    """An annotation as it is digested: without the addresses of the objects in it."""
    return note if isinstance(note, str) else strip_addresses(repr(note))


def strip_addresses(text: str) -> str:
    """The text of an object without where it, and what it holds, is in memory."""
    return _address.sub("", text)


# Code: bytecode, with each constant and name in place of its number.

# varargs, varkeywords, generator, coroutine, iterable coroutine, async generator: the rest says nothing of behaviour
_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200
# Set by the compiler in a class body or module; the last one even in an order that differs between processes.
_UNREAD = frozenset({"__doc__", "__qualname__", "__firstlineno__", "__static_attributes__"})
# A module's own place and name: they change with the machine and the way it was loaded.
_PLACES = {"__name__", "__file__", "__spec__", "__loader__", "__package__", "__path__", "__cached__", "__builtins__"}


def _code(scope: CodeScope) -> ValueNode:
    code = scope.code
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    shape = (*arguments, code.co_flags & _FLAGS, len(code.co_freevars))
    stream = [encode_text(PYTHON), encode_text(repr(shape)), frame(b"y", code.co_exceptiontable)]
    constants: list[bytes | ValueChild] = []
    operations = _operations(code)
    for op, number, name, _ in operations:
        if name is not None:
            stream.append(bytes((op, number)) + encode_text(name))
        elif op in user_code.CONSTANT_OPERATIONS:
            stream.append(bytes((op,)))
            constants.append(_constant(code.co_consts[number], scope))
        else:
            stream.append(op.to_bytes(2, "little") + number.to_bytes(4, "little"))
    reads_rules = not _READ_RULES.isdisjoint(code.co_names)
    keywords = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    parts = [frame(b"y", b"".join(stream)), *constants, *_surroundings(scope, operations)]
    named = {"__name__": code.co_qualname, "__qualname__": code.co_qualname}
    node = ValueNode("code", parts, arguments=keywords, texts=list(_read(operations)), named=named)
    if reads_rules:
        node.arguments, node.variables = code.co_varnames, scope.names
    return node


# What reads a rule, `fare > @limit`, or a query, `select * from rides`, of which the names are those of variables.
_READ_RULES = frozenset({"query", "eval", "sql", "execute"})


def _read(operations: list[Operation]) -> Iterator[str]:
    """What code reads of functions and classes: by an attribute, `__doc__`, or by a function, `getdoc`."""
    for op, _, name, _ in operations:
        if name in _READ and (op in user_code.ATTRIBUTES or not name.startswith("__")):
            yield from _READ[name]


def _operations(code: types.CodeType) -> list[Operation]:
    """The operations without those that set what nobody reads."""
    found = user_code.operations(code)
    if _UNREAD.isdisjoint(code.co_names):
        return found
    counted: list[Operation] = []
    for operation in found:
        is_unread = operation[2] in _UNREAD and operation[0] == user_code.STORE_NAME
        if is_unread and counted[-1][0] in user_code.CONSTANT_OPERATIONS:
            counted.pop()
        else:
            counted.append(operation)
    return counted


def _constant(value: object, scope: CodeScope) -> ValueChild:
    if isinstance(value, types.CodeType):
        return ValueChild("", CodeScope(value, scope.names, scope.package))
    _report_file(value, scope.code.co_filename)
    return ValueChild("a constant", value)


def _report_file(value: object, named_in: str) -> None:
    """Notices the path of a file, which code probably opens; names without an ending are not noticed."""
    noticed = outside_key.get()
    if noticed is not None and isinstance(value, str | PurePath) and names_file(str(value), Path(named_in).parent):
        noticed.files.add(str(value))


def names_file(text: str, *folders: Path) -> bool:
    """Whether a text is the path of a file that is no code, as it is or below one of the folders."""
    if not 0 < len(text) <= _LONGEST_PATH or "\0" in text or text.endswith((".py", "/")) or not Path(text).suffix:
        return False
    places = (text, *(str(folder / text) for folder in folders))
    return any(os.path.isfile(place) for place in places)  # noqa: PTH113  also of odd texts


def _surroundings(scope: CodeScope, operations: list[Operation]) -> list[bytes | ValueChild]:
    """What a piece of code takes from outside of itself: globals by their content, imports by what they would run."""
    bindings = noticed_bindings.get()
    if bindings is not None:
        bindings.notice_assignments(scope.code, operations)
    values: dict[str, object] = {}
    modules: dict[SourceFile | Distribution, None] = dict.fromkeys(_looked_up_by_text(scope, operations))
    for use in user_code.uses(scope.code, operations):
        _report_dynamic_import(use, scope)
        if isinstance(use, Import):
            specs = user_code.find_imported(use, scope.package)
            modules.update(dict.fromkeys(source for spec in specs if (source := _of_spec(spec)) is not None))
        elif scope.names is None or use.name in _PLACES:
            continue
        elif use.name in scope.names:
            if bindings is not None:
                bindings.notice(scope.names, use.name)
            values.update(_follow(use, scope.names[use.name]))
        elif use.is_global and use.name not in vars(sys.modules["builtins"]):
            if bindings is not None:
                bindings.notice(scope.names, use.name)
            values[use.name] = _UNBOUND
    parts: list[bytes | ValueChild] = []
    for text in sorted(values):
        _report_file(values[text], scope.code.co_filename)
        parts += [encode_text(text), ValueChild(f"global {text!r}", values[text])]
    return parts + [ValueChild("an import", module) for module in modules]


# Builtins and attributes by which code comes to globals whose names are in a text.
_BY_TEXT = frozenset({"globals", "eval", "exec"})
_GLOBALS = frozenset({"__globals__", "f_globals"})


def _looked_up_by_text(scope: CodeScope, operations: list[Operation]) -> Iterator[SourceFile]:
    """The module of code that looks up globals by texts: any of it may be meant."""
    file, reads_modules = (scope.names or {}).get("__file__"), {"sys", "modules"} <= set(scope.code.co_names)
    if isinstance(file, str) and (reads_modules or any(map(_looks_up_by_text, operations))):
        yield SourceFile(file, scope.package, _loaded(scope.names or {}))


def _looks_up_by_text(operation: Operation) -> bool:
    op, _, name, _ = operation
    return (name in _BY_TEXT and op == user_code.GLOBAL) or (name in _GLOBALS and op in user_code.ATTRIBUTES)


def _report_dynamic_import(use: NameUse | Import, scope: CodeScope) -> None:
    noticed = outside_key.get()
    if noticed is None:
        return
    if isinstance(use, Import):
        dynamic = use.module == "importlib" and (not use.names or "import_module" in use.names)
    else:
        value = (scope.names or {}).get(use.name)
        named = value is importlib and "import_module" in use.attributes
        dynamic = named or value is importlib.import_module or (use.name == "__import__" and value is None)
    if dynamic:
        noticed.imports.add(scope.code.co_qualname)


def _follow(use: NameUse, value: object) -> Iterator[tuple[str, object]]:
    """A module of the user's is followed to what is taken from it; so is an attribute of a function."""
    text = use.name
    for name in use.attributes:
        if not isinstance(value, types.ModuleType | types.FunctionType) or name not in vars(value):
            break
        names = vars(value) if isinstance(value, types.ModuleType) else value.__globals__
        if distribution_of(str(names.get("__name__", "")), names.get("__file__")) is not None:
            break
        if isinstance(value, types.FunctionType):
            yield text, value
        if (bindings := noticed_bindings.get()) is not None:
            bindings.notice(vars(value), name)
        text, value = f"{text}.{name}", vars(value)[name]
    yield text, value


_UNBOUND = Distribution("", "")


# Versions: what stands for code that is not the user's.


@functools.lru_cache(maxsize=4096)
def distribution_of(module: str, file: object) -> Distribution | None:
    """The distribution that a module belongs to; None if it is the user's.

    The standard library is a distribution of its own, without version: that is in every digest of code. The rest of
    spanwise counts as a whole, by its files: to follow each component by its code took a quarter of a second a node.
    Only what runs the components, the orchestrator, counts by its version.
    """
    match user_code.owner_of(module, file):
        case Owner.USER:
            return None
        case Owner.PYTHON:
            return Distribution("python", "")
        case Owner.LIBRARY:
            site = user_code.SITE.match(os.path.realpath(str(file)))
            assert site is not None, "that is how a library is known"
            return _installed(site[1], site[2].replace("\\", "/"))
    place = user_code.place_of(os.path.realpath(file)) if isinstance(file, str) else None
    room = place.partition("/")[0] if place is not None else ""
    if room == "orchestrator":
        return Distribution("spanwise", __version__)
    folders = ("scheduler",) if room == "scheduler" else ("components", "resolvers", "pipelines/input")
    return Distribution(f"spanwise {folders[0]}", _content(folders))


def spanwise_content() -> str:
    """The version of spanwise and a digest of all its files: two checkouts of one version may differ."""
    folders = ("orchestrator", "components", "resolvers", "pipelines/input")
    return f"{__version__} ({_content(folders)[:12]})"


@functools.cache
def _content(folders: tuple[str, ...]) -> str:
    """The digest of all files in these folders of spanwise, and of the modules that users import from."""
    package = user_code.PACKAGE
    files = sorted([*package.glob("*.py"), *(path for folder in folders for path in (package / folder).rglob("*.py"))])
    return digest(folders[0], *(part for f in files for part in (f.relative_to(package).as_posix(), f.read_bytes())))


@functools.lru_cache(maxsize=4096)
def _installed(site: str, below: str) -> Distribution:
    """The distribution whose list of files names this one. Reads the lists directly: parsing them all takes 100 ms."""
    top = below.partition("/")[0]
    package = f"{top}/__init__.py"
    if below != package and Path(site, package).is_file():
        return _installed(site, package)
    wanted = b"\n" + below.encode() + b","
    lists = sorted(Path(site).glob("*.dist-info/RECORD"))
    lists.sort(key=lambda each: not each.parent.name.lower().startswith(top.lower()))  # the likeliest first
    for each in lists:
        content = each.read_bytes()
        if wanted in b"\n" + content:
            name, _, version = each.parent.name.removesuffix(".dist-info").partition("-")
            if each.with_name("direct_url.json").is_file():  # from a folder or repository (PEP 610), not from an index
                version = f"{version} {_digest_of_files(content, each.parent.name)}"
            return Distribution(re.sub(r"[-_.]+", "-", name).lower(), version)
    # Copied there by hand, or by a tool that keeps no list: then all files of the package stand for it.
    folder = Path(site, top)
    files = [Path(site, below)] if not folder.is_dir() else sorted(path for path in folder.rglob("*") if path.is_file())
    counted = [path for path in files if path.suffix != ".pyc"]
    parts = [part for path in counted for part in (path.relative_to(site).as_posix(), path.read_bytes())]
    return Distribution(below, digest("files", *parts))


def _digest_of_files(record: bytes, info: str) -> str:
    """The digest of the files that an installer listed with their hashes, without what it wrote itself."""
    lines = [
        line for line in record.splitlines() if b",sha256=" in line and not line.startswith((info.encode(), b".."))
    ]
    return digest("record", *sorted(lines))


def _of_spec(spec: ModuleSpec) -> SourceFile | Distribution | None:
    file = spec.origin if spec.has_location and spec.origin else None
    distribution = distribution_of(spec.name, file)
    if distribution is not None or file is None:
        return distribution
    package = spec.name if spec.submodule_search_locations is not None else spec.parent or ""
    names: Mapping[str, object] = getattr(sys.modules.get(spec.name), "__dict__", {})
    return SourceFile(file, package, _loaded(names) if names.get("__file__") == file else None)
