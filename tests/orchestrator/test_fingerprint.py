"""What changes a fingerprint and what does not, and the digests that may never drift."""

import contextlib
import enum
import functools
import gc
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path, PurePosixPath
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings

from spanwise.orchestrator import Model, code_digest, fingerprint, user_code
from spanwise.orchestrator.errors import Unfingerprintable
from spanwise.orchestrator.fingerprint import CacheKey, cache_key, of_class, of_function, of_tree, of_value

ROOT = Path(__file__).parents[2]

# --- values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "94da1602c812d6b2626e4839c68d596f"),
        (True, "5da33b266402eea9e89aa3146dcf528c"),
        (1, "23e6f9d6ad358202f0e09d85eb6092ff"),
        (-(10**30), "3ccd12a3e013d0a30017b46f9c24ef66"),
        (1.0, "69e1ebbb16af609822d9d69e0a7ae483"),
        (0.0, "13c6b029b51e7330b5bb7a39b66cc16c"),
        (-0.0, "66d5bbbaf7eaa9a50e9bad2f52c694e0"),
        (float("nan"), "9d4b19f401b0292037e16a2a8f12b2dc"),
        (1 + 2j, "09853cd7b08dd00e6b0cfe03931dfe14"),
        ("", "39a2050faee9052bf0e0faa0fe2608ce"),
        ("späne", "018711104dfb85644cea3fbae3be9aa3"),
        (b"sp", "8fbc6c239a511dcea7cb05f9545e898e"),
        ([], "217db1033ff162e3ecf86ae05b7cddf9"),
        ((), "c1067a12d06c000cf57b9c2efd513140"),
        ([1, "a", None], "101abd70d9970f576fa4cf717c89926c"),
        ((1, "a", None), "c1f726e2549cd2392ae5f410034ac729"),
        ({}, "bc53032c6f2416001aeaa561061ac761"),
        ({"a": 1, "b": [2]}, "eadb30a9debd67218cdeef864d17bf61"),
        ({1, 2, 3}, "fb1cb0a1b5184786ee696c4cd42a8fea"),
        (frozenset({"a", "b"}), "8a79a16c1b8418bdedeac54044e3cc6c"),
        (date(2013, 1, 8), "39abef0922faf56369ca2f5f9d077411"),
        (datetime(2013, 1, 8, 3, 0, 0, 5), "72a360da4da4b390b568349eab3f6809"),  # noqa: DTZ001  a naive one has a digest too
        (datetime(2013, 1, 8, 3, tzinfo=ZoneInfo("America/New_York")), "4ab6dc97876fefd4a91933cc4f4ac1c2"),
        (timedelta(days=1, seconds=2), "dd9938c849df6649bdaf25c24a7545fd"),
        (PurePosixPath("lake/2013"), "ba31678214ee233cb42da75a08fc0101"),
        (re.compile(r"\d+", re.ASCII), "47a5190d0e79dc595fb6a9fa52406bff"),
        (np.arange(3, dtype=np.int64), "9fae5bece16e808416b9c9d88ec303e9"),
        (np.float32(0.5), "11f25831bce4f939cf0d5819b5b3236f"),
    ],
    ids=lambda value: repr(sorted(value) if isinstance(value, frozenset) else value),  # the same in every worker
)
def test_plain_values_keep_their_digests(value, expected):
    """A digest once recorded is found again by every later version, on every Python."""
    assert of_value(value) == expected


def test_a_tag_and_the_borders_of_parts_count():
    """The same bytes under another tag, or cut otherwise, are something else."""
    found = {
        fingerprint.digest("a", "bc"),
        fingerprint.digest("ab", "c"),
        fingerprint.digest("a", "b", "c"),
        fingerprint.digest("a", b"bc"),
    }

    assert len(found) == 4


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.integers() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=12,
)


def rebuilt(value):
    """An equal value that shares nothing with this one."""
    if isinstance(value, dict):
        return {rebuilt(key): rebuilt(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rebuilt(item) for item in value)
    return value


@given(values)
def test_equal_values_have_equal_digests(value):
    """A digest depends on what is in a value, not on which objects it is made of."""
    assert of_value(value) == of_value(rebuilt(value))


def test_the_order_of_what_code_reads_counts():
    """That of a dict in a property, a parameter or what was prepared counts; in which order properties were set does not."""
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}

    artifacts = [fingerprint.of_artifact(Model("", content="c", properties={"rows": each})) for each in (one, other)]
    turned = [fingerprint.of_artifact(Model("", content="c", properties=each)) for each in (one, other)]
    prepared = [fingerprint.of_parameters(Model, {}, {"found": each}, who="n") for each in (one, other)]
    given = [fingerprint.of_parameters(Model, {"asked": each}, {}, who="n") for each in (one, other)]

    assert artifacts[0] != artifacts[1]
    assert turned[0] == turned[1]
    assert prepared[0] != prepared[1]
    assert given[0] != given[1]


@given(values, values)
def test_different_values_have_different_digests(one, other):
    """Two values share a digest only if they look the same, types and signs of zeros included."""
    assert (of_value(one) == of_value(other)) == (exact(one) == exact(other))


def exact(value):
    if isinstance(value, dict):
        return ("dict", tuple((exact(key), exact(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), tuple(exact(item) for item in value))
    return (type(value), repr(value))


@given(st.lists(keys, unique=True, max_size=8), st.randoms(use_true_random=False))
def test_the_order_in_which_a_set_was_filled_does_not_count(items, random):
    """Sets of equal elements are equal however they came about."""
    shuffled = random.sample(items, len(items))

    assert of_value(set(items)) == of_value(set(shuffled))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: float
    y: float


class Rates(pydantic.BaseModel):
    learning: float = 0.1
    decay: float = 0.5


class Plain:
    def __init__(self, size):
        self.size = size


ARRAY = np.arange(6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Colour.RED, Colour.BLUE),
        (Colour.RED, 1),
        (Point(1, 2), Point(1, 3)),
        (Rates(learning=0.2), Rates(learning=0.3)),
        (Plain(1), Plain(2)),
        (1, True),
        (1, 1.0),
        ("1", b"1"),
        ([1], (1,)),
        (Path("a"), "a"),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
        (ARRAY, ARRAY.astype(np.int32)),
        (ARRAY, ARRAY.reshape(2, 3)),
        (ARRAY, np.arange(1, 7)),
        (np.dtype("f4"), np.dtype("f8")),
        (np.array([{"a": 1}], dtype=object), np.array([{"a": 2}], dtype=object)),
        (np.int64(1), np.int32(1)),
        (pa.schema([("x", pa.int64())]), pa.schema([("y", pa.int64())])),
        (pa.array([1, 2]), pa.array([1, 3])),
        (pa.int64(), pa.int32()),
        (functools.partial(min, 1), functools.partial(min, 2)),
        (len, max),
        (json, re),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_that_differ_are_told_apart(one, other):
    """Content, type, shape, order where it matters, and time zones count."""
    assert of_value(one) != of_value(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Point(1, 2), Point(1, 2)),
        (Rates(), Rates(learning=0.1)),
        (Plain([1]), Plain([1])),
        (ARRAY.reshape(2, 3).T, np.array(ARRAY.reshape(2, 3).T, order="C")),
        (pa.array([0, 1, 2])[1:], pa.array([1, 2])),
        (pa.chunked_array([[1], [2]]), pa.chunked_array([[1, 2]])),
        (re.compile("a"), re.compile("a")),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_equal_values_made_in_other_ways_agree(one, other):
    """How memory is laid out, chunked or shared, and which defaults were spelt out, does not count."""
    assert of_value(one) == of_value(other)


def test_a_value_may_contain_itself():
    """A circle of references ends, and what is in it counts."""
    one, same, other = [1], [1], [2]
    for each in (one, same, other):
        each.append(each)

    assert of_value(one) == of_value(same)
    assert of_value(one) != of_value(other)


def test_a_deep_value_needs_no_deep_stack():
    """Nesting beyond Python's recursion limit is fingerprinted like any other."""
    deep = functools.reduce(lambda inner, _: [inner], range(5_000), 0)

    assert of_value(deep) != of_value([deep])


# --- what has no content


def holding(value):
    def function():
        return value

    return function


def test_a_lock_is_refused_with_the_way_to_it():
    """The message names the parameter, each step to the culprit, and what to do instead."""
    cache = {"guard": threading.Lock()}

    with pytest.raises(Unfingerprintable) as refused:
        of_value(holding(cache), who="parameter 'run_fn' of Trainer")

    message = str(refused.value)
    assert message.startswith("parameter 'run_fn' of Trainer -> closure 'value' -> key 'guard' -> a thread lock: ")
    assert message.endswith("pass what it is made from (a path, a name, numbers) instead.")


def test_what_has_no_content_is_refused(tmp_path):
    """Files, generators and thread-locals are live: no content tells two of them apart."""
    with (tmp_path / "file").open("w") as file:
        for value, found in [
            (file, "an open file"),
            ((each for each in "abc"), "a generator"),
            (threading.local(), "a thread-local"),
            (threading.RLock(), "a thread lock"),
        ]:
            with pytest.raises(Unfingerprintable, match=f"the value -> {found}: "):
                of_value(value)


# --- functions

PROJECT = {
    "project.py": '''
"""A pipeline."""
import functools
import fourth
import constants
from fifth import Fifth, fifth
import whole
from copied import copied
from features import clean

COLUMNS = {"a", "b"}
WEIGHTS = {"x": 1, "y": [2, 3]}
UNUSED = 1


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs), "logged"
    return wrapper


class Base:
    def prepare(self):
        return 10


class Model(Base):
    """A model."""
    depth = 3

    def fit(self, rows):
        return [self.prepare() * self.depth for _ in rows]


def ratio(top, bottom):
    return top - bottom


def helper(rows):
    """Helps."""
    return even(len(rows)) + 1


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def unused():
    return 1


@logged
def decorated(rows):
    return rows


def make(limit, names):
    def inner(value):
        return value < limit and value in names
    return inner


accept = make(5, {"p", "q"})
cut = functools.partial(helper, [1, 2])


def train(examples, rate=0.1, *, rounds=3):
    """Trains."""
    # the plan
    import lazy
    from third import tool
    from package import part
    known = examples in {"one", "two", "three"}
    total = sum(row * 2 for row in clean(examples))

    def late(row):
        return row + 100
    model = Model().fit(examples)
    return (known, total, late, model, helper(examples), decorated(examples), accept(1), cut(), lazy.load(),
            COLUMNS, WEIGHTS, constants.RATE, fourth.go(), copied(), fifth(), Fifth, tool, min(1, 2), ratio(top=1, bottom=2), rate, rounds,
            vars(whole)["CHOICE"], part.other)
''',
    "features.py": '''
"""Features."""
SCALE = 7
def clean(rows):
    """Cleans."""
    return strip(rows)
def strip(rows):
    return [row * SCALE for row in rows]
''',
    "constants.py": "RATE = 0.5\nOTHER = 1\n",
    "lazy.py": '''
"""Imported only when the function runs."""
import deep
def load():
    return deep.VALUE  # the value
''',
    "deep.py": "VALUE = 1\n",
    "whole.py": "CHOICE = 1\n",
    "package/__init__.py": "",
    "package/part.py": "from . import other\n",
    "package/other.py": "VALUE = 1\n",
    "site-packages/third/__init__.py": "tool = 1\n",
    "site-packages/fourth.py": "def go(): return 1\n",
    "site-packages/fourth-1.0.dist-info/RECORD": "fourth.py,,\n",
    "site-packages/fifth/__init__.py": "from fifth.inner import Fifth, fifth\n",
    "site-packages/fifth/inner.py": "def fifth(): return 1\nclass Fifth: pass\n",
    "site-packages/Fifth_Lib-1.0.dist-info/RECORD": "fifth/inner.py,,\nfifth/__init__.py,,\n",
    "site-packages/third_lib-1.0.dist-info/RECORD": "third/__init__.py,,\n",
    "site-packages/copied/__init__.py": "from copied.inner import copied\n",
    "site-packages/copied/inner.py": "def copied(): return 1\n",
}

CHANGES = {
    "order of a dict": ("project.py", '{"x": 1, "y": [2, 3]}', '{"y": [2, 3], "x": 1}'),
    "body": ("project.py", "row * 2", "row * 3"),
    "type of a constant": ("project.py", "row * 2", "row * 2.0"),
    "default": ("project.py", "rate=0.1", "rate=0.2"),
    "keyword default": ("project.py", "rounds=3", "rounds=4"),
    "set literal": ("project.py", '"three"}', '"four"}'),
    "global set": ("project.py", '{"a", "b"}', '{"a", "c"}'),
    "global dict": ("project.py", "[2, 3]", "[2, 4]"),
    "helper": ("project.py", "(len(rows)) + 1", "(len(rows)) + 2"),
    "one of two that call each other": ("project.py", "n != 0 and", "n != 1 and"),
    "closure": ("project.py", "make(5,", "make(6,"),
    "set in a closure": ("project.py", '{"p", "q"}', '{"p", "r"}'),
    "closure's code": ("project.py", "value < limit", "value <= limit"),
    "nested function": ("project.py", "row + 100", "row + 101"),
    "partial": ("project.py", "[1, 2])", "[1, 3])"),
    "decorator": ("project.py", '"logged"', '"told"'),
    "decorated": ("project.py", "    return rows\n\n\ndef make", "    return rows[1:]\n\n\ndef make"),
    "method": ("project.py", "* self.depth for", "+ self.depth for"),
    "class attribute": ("project.py", "depth = 3", "depth = 4"),
    "method of a base": ("project.py", "return 10", "return 11"),
    "builtin": ("project.py", "min(1, 2)", "max(1, 2)"),
    "imported function": ("features.py", "strip(rows)\ndef", "strip(rows[1:])\ndef"),
    "helper of an imported function": ("features.py", "row * SCALE", "row + SCALE"),
    "constant of such a helper": ("features.py", "SCALE = 7", "SCALE = 8"),
    "attribute of a module": ("constants.py", "RATE = 0.5", "RATE = 0.6"),
    "module imported in the body": ("lazy.py", "return deep.VALUE", "return deep.VALUE + 1"),
    "module imported by that one": ("deep.py", "VALUE = 1", "VALUE = 2"),
    "submodule that a submodule imports": ("package/other.py", "VALUE = 1", "VALUE = 2"),
    "package of a submodule": ("package/__init__.py", "", "VALUE = 1"),
    "module used as a whole": ("whole.py", "CHOICE = 1", "CHOICE = 2"),
    "version of a library imported in the body": (
        "site-packages/third_lib-1.0.dist-info/RECORD",
        "third_lib-1.0",
        "third_lib-1.1",
    ),
    "version of a library used as a module": (
        "site-packages/fourth-1.0.dist-info/RECORD",
        "fourth-1.0",
        "fourth-1.1",
    ),
    "version of a library whose function is used": (
        "site-packages/Fifth_Lib-1.0.dist-info/RECORD",
        "Lib-1.0",
        "Lib-1.1",
    ),
    "a package that was copied among the libraries": ("site-packages/copied/inner.py", "return 1", "return 2"),
    "swapped names of keyword arguments": (
        "project.py",
        "def ratio(top, bottom):\n    return top - bottom",
        "def ratio(bottom, top):\n    return bottom - top",
    ),
}

NO_CHANGES = {
    "nothing": ("project.py", "", ""),
    "comment": ("project.py", "# the plan", "# another plan\n\n\n"),
    "docstring": ("project.py", '"""Trains."""', '"""Trains a model."""'),
    "no docstring": ("project.py", '    """Trains."""\n', ""),
    "docstring of a helper": ("project.py", '    """Helps."""\n', ""),
    "docstring of a class": ("project.py", '    """A model."""\n', ""),
    "docstring of a module": ("project.py", '"""A pipeline."""', ""),
    "argument's name": ("project.py", "examples", "rows_of_today"),
    "local variable's name": ("project.py", "total", "sum_of_rows"),
    "annotation": ("project.py", "def helper(rows):", "def helper(rows: list) -> int:"),
    "annotations as text": (
        "project.py",
        "import functools\n",
        "from __future__ import annotations\nimport functools\n",
    ),
    "unused global": ("project.py", "UNUSED = 1", "UNUSED = 2"),
    "unused function": ("project.py", "def unused():\n    return 1", "def unused():\n    return 2"),
    "unused attribute of a module": ("constants.py", "OTHER = 1", "OTHER = 2"),
    "order of a set literal": ("project.py", '{"one", "two", "three"}', '{"three", "two", "one"}'),
    "order of functions": ("project.py", "import functools\n", "import functools\n\n\ndef first():\n    pass\n\n\n"),
    "comment in a module imported in the body": ("lazy.py", "  # the value", ""),
    "docstring of such a module": ("lazy.py", '"""Imported only when the function runs."""', '"""Lazy."""'),
    "comment in a module used as a whole": ("whole.py", "CHOICE = 1", "CHOICE = 1  # of many"),
    "a library's file": ("site-packages/third/__init__.py", "tool = 1", "tool = 2"),
}

# Each project is imported, fingerprinted and forgotten again, all in one process.
SCRIPT = """
import importlib, json, sys
from pathlib import Path
from spanwise.orchestrator import fingerprint

found = {}
before = set(sys.modules)
for folder in sorted(Path(sys.argv[1]).iterdir()):
    sys.path[:0] = [str(folder), str(folder / "site-packages")]
    importlib.invalidate_caches()
    project = importlib.import_module("project")
    loaded = set(sys.modules)
    found[folder.name] = fingerprint.of_function(project.train)
    assert set(sys.modules) == loaded, set(sys.modules) - loaded
    project.train((1, 2))
    assert found[folder.name] == fingerprint.of_function(project.train), "running it changed it"
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", "").startswith(str(folder)):
            del sys.modules[name]
    del sys.path[:2]
print(json.dumps(found))
"""


def write(folder, edit):
    """Writes the project below `folder`, with one edit in its text, or in a file's name where that holds the text."""
    changed, old, new = edit
    for name, text in PROJECT.items():
        if name == changed:
            assert old in text + name, old
            name, text = name.replace(old, new) if old else name, text.replace(old, new)  # noqa: PLW2901  the edit
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def prints(tmp_path_factory):
    """The fingerprint of each edited project, by the edit's name: one dict for each of two hash seeds."""
    folder = tmp_path_factory.mktemp("projects")
    for name, edit in (CHANGES | NO_CHANGES).items():
        write(folder / name, edit)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-B", "-c", SCRIPT, str(folder)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    outputs = [job.communicate(timeout=300)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    return [json.loads(output) for output in outputs]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_can_change_the_result_changes_the_fingerprint(prints, name):
    """Code, and everything it names as far as the user wrote it, counts; so do versions of libraries."""
    assert prints[0][name] != prints[0]["nothing"]


@pytest.mark.parametrize("name", NO_CHANGES)
def test_a_change_that_cannot_change_the_result_leaves_the_fingerprint(prints, name):
    """What is written for people, and what the function does not reach, does not count."""
    assert prints[0][name] == prints[0]["nothing"]


def test_fingerprints_agree_between_processes(prints):
    """The hash seed, which orders sets, differs between two processes; their fingerprints do not."""
    assert prints[0] == prints[1]


def test_different_changes_have_different_fingerprints(prints):
    """No two of the edits that count lead to the same fingerprint."""
    assert len({prints[0][name] for name in CHANGES}) == len(CHANGES)


@pytest.mark.parametrize("text", ["import plain.inner.leaf", "from plain.inner import leaf"])
def test_a_module_in_folders_without_init_counts_before_it_is_imported(text, tmp_path, monkeypatch):
    """Folders without `__init__.py`, one in the other, are packages too: a function may import from them as it runs."""
    (tmp_path / "plain" / "inner").mkdir(parents=True)
    leaf = tmp_path / "plain" / "inner" / "leaf.py"
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    exec(f"def load():\n    {text}", names)

    leaf.write_text("VALUE = 1\n")
    first = of_function(names["load"])
    leaf.write_text("VALUE = 2\n")

    assert of_function(names["load"]) != first


def triple(n):
    return n * 3


def test_a_function_that_has_run_hot_keeps_its_fingerprint():
    """The interpreter rewrites bytecode as it runs it; that is not what is fingerprinted."""
    cold = of_function(triple)

    for n in range(10_000):
        triple(n)

    assert of_function(triple) == cold


def test_a_function_that_uses_its_own_attribute_is_fingerprinted_with_it():
    """An attribute of a function counts where the code names it."""
    table.rows = 1
    first = of_function(table)

    table.rows = 2

    assert of_function(table) != first


def table():
    return table.rows


def add(a, b):
    return a + b


class Adder:
    def __init__(self, n):
        self.n = n

    def __call__(self, value):
        return value + self.n

    def method(self, value):
        return value - self.n

    @functools.cached_property
    def twice(self):
        return 2 * self.n


@functools.singledispatch
def shown(value):
    return str(value)


@shown.register
def _(value: int):
    return hex(value)


@functools.lru_cache
def cached(value):
    return add(value, 1)


@pytest.mark.parametrize(
    "function",
    [
        add,
        lambda a, b: a + b,
        functools.partial(add, 1),
        functools.partial(add, b=1),
        Adder(1),
        Adder(2),
        Adder(1).method,
        Adder,
        shown,
        cached,
        len,
        "abc".join,
        str.upper,
        np.mean,
        np.add,
        json.dumps,
    ],
    ids=lambda function: getattr(function, "__qualname__", type(function).__name__),
)
def test_every_kind_of_callable_has_a_fingerprint_of_its_own(function):
    """Functions, lambdas, partials, callable objects, methods, classes, cached, dispatching and built-in ones."""
    first = of_function(function)

    assert first == of_function(function)
    assert re.fullmatch("[0-9a-f]{32}", first)


def test_callables_are_told_apart_by_their_state():
    """A partial by its arguments, an object by its attributes, a method by its object and its code."""
    functions = [functools.partial(add, 1), functools.partial(add, 2), Adder(1), Adder(2), Adder(1).method, add]

    assert len({of_function(function) for function in functions}) == len(functions)


def test_what_a_library_wraps_around_a_function_does_not_hide_it():
    """A decorator from elsewhere counts by version, the function inside of it by its own code."""

    def one():
        yield 1

    def other():
        yield 2

    assert of_function(contextlib.contextmanager(one)) != of_function(contextlib.contextmanager(other))
    assert of_function(functools.cache(one)) != of_function(functools.cache(other))


def test_one_function_has_one_fingerprint_whichever_way_it_is_reached():
    """Of two functions that call each other, each has the same digest alone, first or last in a set."""
    together = {
        of_value({is_even, is_odd}),
        of_value({is_odd, is_even}),
        of_value(frozenset([is_even, is_odd]) | set()),
    }

    assert len(together) == 2  # a set, and a frozenset
    assert of_value([is_even, is_odd]) != of_value([is_odd, is_even])


def is_even(n):
    return n == 0 or is_odd(n - 1)


def is_odd(n):
    return n != 0 and is_even(n - 1)


def test_calling_a_cached_function_does_not_change_it():
    """What a cache or a dispatcher remembers is no part of what it computes."""
    before = of_function(cached), of_function(shown)

    cached(1)
    shown(2)

    assert (of_function(cached), of_function(shown)) == before


def test_a_change_deep_in_a_circle_reaches_every_member():
    """Of functions that call each other in a ring, each depends on the code of all."""

    def ring(last):
        names = {}
        for at in range(6):
            exec(f"def f{at}(x): return f{(at + 1) % 6}(x) + {last if at == 5 else at}", names)
        return {of_function(names[f"f{at}"]) for at in range(6)}

    assert len(ring(5)) == 6
    assert ring(5).isdisjoint(ring(7))


# --- components


def component(depth=3, body="return depth", argument="examples", annotation="int"):
    space = {}
    exec(
        f"class Fit:\n"
        f"    depth = {depth}\n"
        f"    size: {annotation}\n"
        f"    def run(self, {argument}: {annotation}, model: str) -> None:\n"
        f"        return self.helper({argument})\n"
        f"    def helper(self, depth): {body}\n",
        {"__name__": "made"},
        space,
    )
    return of_class(space["Fit"])


@pytest.mark.parametrize(
    "change", [{"depth": 4}, {"body": "return 2 * depth"}, {"argument": "rows"}, {"annotation": "str"}], ids=repr
)
def test_code_and_specification_of_a_component_count(change):
    """Attributes, methods, and in `run` the arguments' names and types, which say what it reads and makes."""
    assert component() == component()
    assert component(**change) != component()


def test_a_decorator_around_run_does_not_hide_its_specification():
    """The names of the arguments of the function inside count, as they do for whoever connects the component."""

    def decorated(function):
        class Fit:
            @functools.wraps(function)
            def run(self, **arguments):
                function(self, **arguments)

        return of_class(Fit)

    assert decorated(lambda self, examples: None) != decorated(lambda self, rows: None)


def test_the_names_of_arguments_that_a_component_passes_by_name_count():
    """Swapping the names of two arguments is seen where the component, or another parameter, has texts of the names."""

    class Call:
        def run(self, function, options):
            return function(**options)

    class CallByName:
        def run(self, function):
            return function(top=1, bottom=2)

    def one(top, bottom):
        return top - bottom

    def other(bottom, top):
        return bottom - top

    for cls, rest in [(Call, {"options": {"top": 1, "bottom": 2}}), (CallByName, {})]:
        prints = [
            fingerprint.of_parameters(cls, {"function": each, **rest}, {}, who="Call")["function"]
            for each in (one, other)
        ]
        assert one(top=1, bottom=2) != other(top=1, bottom=2)
        assert prints[0] != prints[1]


# --- folders


@pytest.fixture
def folder(tmp_path):
    """A folder of two files, one of them below another folder."""
    made = tmp_path / "made"
    (made / "Split-train").mkdir(parents=True)
    (made / "schema.json").write_bytes(b"{}")
    (made / "Split-train" / "0.parquet").write_bytes(b"PAR1" * 1000)
    return made


def test_a_folder_keeps_its_digest(folder):
    """The digest of names and bytes is pinned, with those of its files and the number of bytes."""
    assert of_tree(folder) == fingerprint.Tree(
        digest="9561bfe416c39781b4e25c69ea8fe359",
        files={
            "Split-train/0.parquet": "82883732bcb0567f9e59d41f49290270",
            "schema.json": "38e9f8d4b0822bdc24cc2897de25bd72",
        },
        size_bytes=4002,
    )


def test_a_file_keeps_its_digest(folder):
    """A single file counts by its bytes alone."""
    assert of_tree(folder / "schema.json") == fingerprint.Tree(
        digest="193c0e17f6806545e5d49bcac7da0411",
        files={"schema.json": "38e9f8d4b0822bdc24cc2897de25bd72"},
        size_bytes=2,
    )


def test_the_place_and_the_times_of_a_folder_do_not_count(folder, tmp_path):
    """A copy elsewhere, written later, is the same."""
    before = of_tree(folder)

    moved = folder.rename(tmp_path / "elsewhere")
    os.utime(moved / "schema.json", (1, 1))

    assert of_tree(moved) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "schema.json").write_bytes(b"[]"),
        lambda folder: (folder / "schema.json").rename(folder / "schema2.json"),
        lambda folder: (folder / "schema.json").rename(folder / "Split-train" / "schema.json"),
        lambda folder: (folder / "Split-eval").mkdir(),
        lambda folder: (folder / "link").symlink_to("schema.json"),
        lambda folder: (folder / "empty").touch(),
    ],
    ids=["bytes", "name", "place", "empty folder", "link", "empty file"],
)
def test_every_change_in_a_folder_counts(folder, change):
    """Bytes, names, nesting, empty files and folders, and links within the folder count."""
    before = of_tree(folder).digest

    change(folder)

    assert of_tree(folder).digest != before


@pytest.mark.parametrize("target", ["../outside", "/etc/hostname", "/nowhere"])
def test_a_link_out_of_the_folder_is_refused(folder, target):
    """What it shows could change after the digest was taken."""
    (folder / "link").symlink_to(target)

    with pytest.raises(Unfingerprintable, match="Put a copy of the file there"):
        of_tree(folder)


def test_a_pipe_is_refused_instead_of_waited_for(folder):
    """Reading a pipe would block for ever."""
    os.mkfifo(folder / "pipe")

    with pytest.raises(Unfingerprintable, match=r"is a socket, a pipe or a device"):
        of_tree(folder)


def test_nothing_has_no_digest(tmp_path):
    """A path where nothing is, is told, not counted as empty."""
    with pytest.raises(Unfingerprintable, match="there is nothing at"):
        of_tree(tmp_path / "nowhere")


def test_the_files_of_a_folder_are_in_the_order_of_their_names_on_every_file_system(tmp_path):
    """File systems list them in the order of hashes, or of making; what is stored of them must be the same bytes."""
    names = [f"{number * 7 % 20:02}/{name}" for number in range(20) for name in ("b", "c", "a")]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    assert list(of_tree(tmp_path).files) == sorted(names)


def test_syncing_changes_nothing_but_writes_through_everything(folder, monkeypatch):
    """With `sync`, each file and each folder reaches the disk, a folder after what is in it."""
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), real(handle)))
    inner = folder / "Split-train"

    plain, tree = of_tree(folder), of_tree(folder, sync=True)

    assert tree == plain
    assert sorted(synced) == sorted(path.stat().st_ino for path in (folder, *folder.rglob("*")))
    assert synced[-1] == folder.stat().st_ino
    assert synced.index((inner / "0.parquet").stat().st_ino) < synced.index(inner.stat().st_ino)


@settings(max_examples=25)
@given(st.integers(min_value=0, max_value=3 * (1 << 20)))
def test_a_file_of_any_size_is_read_whole(tmp_path_factory, size_bytes):
    """The borders of the read buffer do not show: the last byte of a file counts at every size."""
    file = tmp_path_factory.mktemp("size") / "file"
    file.write_bytes(b"x" * size_bytes + b"a")
    first = of_tree(file)

    file.write_bytes(b"x" * size_bytes + b"b")

    assert first.size_bytes == size_bytes + 1
    assert of_tree(file).digest != first.digest


# --- executions

PARTS = {
    "component": "flights/Trainer",
    "code": "c0",
    "parameters": {"rounds": "p0", "rate": "p1"},
    "inputs": {"examples": ["e4", "e5"], "graph": ["g"]},
    "libraries": {"scikit-learn": "1.5"},
    "extra": {"salt": "s"},
}


def test_a_cache_key_keeps_its_digest():
    """Results recorded by an earlier version are found again."""
    assert cache_key(**PARTS).digest == "7e6c0662358774ba14119aa0825883d7"


def test_the_order_of_names_does_not_count_in_a_key():
    """Parameters and inputs are told by name."""
    turned = {name: dict(reversed(part.items())) if isinstance(part, dict) else part for name, part in PARTS.items()}

    assert cache_key(**turned) == cache_key(**PARTS)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ()),
        ({"code": "c1"}, ("code",)),
        ({"parameters": {"rounds": "p9", "rate": "p1"}}, ("parameter rounds",)),
        ({"parameters": {"rounds": "p0"}}, ("parameter rate",)),
        ({"inputs": {"examples": ["e5", "e4"], "graph": ["g"]}}, ("input examples",)),
        ({"inputs": {"examples": ["e4"], "graph": ["e5", "g"]}}, ("input examples", "input graph")),
        ({"libraries": {"scikit-learn": "1.6"}}, ("library scikit-learn",)),
        ({"extra": None, "component": "other"}, ("component", "extra salt")),
    ],
)
def test_a_key_tells_which_of_its_parts_changed(change, expected):
    """The difference of two keys names the parts that changed, came or went."""
    one, other = cache_key(**PARTS), cache_key(**(PARTS | change))

    assert one.difference(other) == expected
    assert other.difference(one) == expected
    assert (one == other) == (expected == ())


def test_a_key_is_read_back_from_its_parts():
    """What was recorded of a key, its parts, is enough to have it again."""
    key = cache_key(**PARTS)

    assert CacheKey.of_parts(json.loads(json.dumps(dict(key.parts)))) == key


def test_versions_of_libraries_are_those_installed():
    """A distribution that is missing has an empty version, so installing it later changes the key."""
    assert fingerprint.versions(["numpy", "no-such-distribution"]) == {
        "numpy": np.__version__,
        "no-such-distribution": "",
    }


@pytest.mark.parametrize(
    ("changed", "folders"),
    [
        ("components/inner/rows.py", ("components", "resolvers")),
        ("resolvers/latest.py", ("components", "resolvers")),
        ("scheduler/due.py", ("scheduler",)),
        ("input.py", ("components",)),
    ],
)
def test_our_components_count_as_a_whole(changed, folders, tmp_path, monkeypatch):
    """A change to any file of our components changes what every one of them counts as."""
    file = tmp_path / changed
    file.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(user_code, "PACKAGE", tmp_path)
    found = []
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        file.write_text(text)
        code_digest._content.cache_clear()
        found.append(code_digest._content(folders))
    code_digest._content.cache_clear()

    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(("origin", "counts"), [("", False), ("direct_url.json", True)])
def test_a_library_that_was_installed_from_a_folder_counts_by_its_files(tmp_path, origin, counts):
    """`pip install .` of one's own code leaves the version as it was; what comes from an index has another version."""
    site = tmp_path / "site-packages"
    (site / "own-0.1.dist-info").mkdir(parents=True)
    (site / "own.py").write_text("")
    if origin:
        (site / "own-0.1.dist-info" / origin).write_text('{"dir_info": {}, "url": "file:///own"}')
    found = []
    for hashed, installer in [("aa", "bb"), ("cc", "bb"), ("cc", "dd")]:
        lines = f"own.py,sha256={hashed},9\nown-0.1.dist-info/INSTALLER,sha256={installer},4\n__pycache__/own.pyc,,\n"
        (site / "own-0.1.dist-info" / "RECORD").write_text(lines)
        code_digest._installed.cache_clear()
        found.append(code_digest._installed(str(site), "own.py"))
    code_digest._installed.cache_clear()

    assert (found[0] != found[1]) == counts
    assert found[1] == found[2]
    assert {each.name for each in found} == {"own"}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("spanwise.orchestrator.runner", "spanwise"),
        ("spanwise.components.rows", "spanwise components"),
        ("spanwise.resolvers.latest", "spanwise components"),
        ("spanwise.pipelines.input.dataset", "spanwise components"),
        ("spanwise.input", "spanwise components"),
        ("spanwise", "spanwise components"),
        ("spanwise.scheduler.schedule.due", "spanwise scheduler"),
        ("json", "python"),
        ("numpy", "numpy"),
    ],
)
def test_code_of_others_counts_by_where_it_comes_from(module, expected):
    """No file is digested by its code but a user's: ours by their folders, libraries by distribution."""
    spec = importlib.util.find_spec(module)

    assert code_digest.distribution_of(module, spec.origin).name == expected


def test_a_worked_example_counts_as_a_users():
    """The pipelines that we ship are followed by their code, as a user's copy of them would be."""
    spec = importlib.util.find_spec("spanwise.pipelines.flights")

    assert code_digest.distribution_of(spec.name, spec.origin) is None


class Named:
    """Says itself what it is, whatever else it holds."""

    def __init__(self, name, used=0):
        self.name = name
        self.used = used

    def __fingerprint__(self):
        return self.name


def test_an_object_may_say_what_it_is():
    """What else changes in it does not count."""
    assert of_value([Named("a", used=1)]) == of_value([Named("a", used=2)])
    assert of_value([Named("a")]) != of_value([Named("b")])


def test_threads_digest_code_at_once():
    """Threads that parse at once share a counter of the parser, and some failed where the collector called Python."""
    text = "\n".join(f"a{i}[{i}] = f(g(h({i} + 1)), [1, 2, ({i}, 3)])" for i in range(100)).encode()
    before, interval_s = gc.get_threshold(), sys.getswitchinterval()

    def interrupt(*_):
        sum(range(50))

    gc.callbacks.append(interrupt)
    gc.set_threshold(10)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = [*pool.map(code_digest._statements.__wrapped__, [text] * 24)]
    finally:
        sys.setswitchinterval(interval_s)
        gc.set_threshold(*before)
        gc.callbacks.remove(interrupt)

    assert [len(each) for each in found] == [100] * 24
