"""Standalone sources: a preprocessing function as a module of its own, with everything of the user's that it uses."""

import ast
import datetime as dt
import math
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from decimal import Decimal
from functools import partial, wraps
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from spanwise.components.transform.analyzers import Analyzer, PreprocessingError
from spanwise.components.transform.preprocessing import Columns, analyze
from spanwise.components.transform.preprocessing import scale_to_z_score as z
from spanwise.components.transform.standalone import extract_source, load
from spanwise.orchestrator.user_code import execute_file

LIMIT = 15
BEGUN, GO = threading.Event(), threading.Event()
DAY = dt.date(2013, 1, 2)
MOMENT = dt.datetime(2013, 1, 2, tzinfo=dt.UTC)
CENTS = Decimal("0.10")
TABLE = {"a": [1.5, float("inf")], "b": (None, True, b"\x00")}
ONE = (1,)
NOTHING: set[int] = set()
WORDS = re.compile("[a-z]+", re.IGNORECASE)
SMALL = pl.Int8
ZONED = pl.Datetime("us", "UTC")
OPEN = object()
square = lambda x: x * x  # noqa: E731
cube = {"cube": lambda x: x**3}["cube"]


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def doubled(function):
    @wraps(function)
    def inner(x):
        return 2 * function(x)

    return inner


@doubled
def decorated(x):
    return x + 1


def raised(function):
    def inner(x):
        return function(x) + 1

    return inner


@raised
def hidden(x):
    return 10 * x


def times(k):
    def decorate(function):
        @wraps(function)
        def inner(x):
            return k * function(x)

        return inner

    return decorate


FACTOR = 2


@times(FACTOR)
def multiplied(x):
    return x


def scaled(x, by=FACTOR, *, plus=FACTOR):
    return x * by + plus


def partly_scaled():
    def used(x, *, plus=FACTOR):
        return x + plus

    used.__kwdefaults__ = {"plus": 2}
    return used


class Scale:
    factor = FACTOR

    def of(self, x, more=0):
        return x * self.factor + more


class Patched:
    factor = 2


FACTOR = 3
Patched.factor = 4


def near(x):
    return x + 1


def make_near():
    def near(x):
        return x + 100

    return near


nearer = make_near()


class Base(Analyzer[int]):
    def merge(self, states):
        return max(states)


@dataclass(frozen=True)
class Longest(Base):
    """The longest text."""

    at_least: int = LIMIT

    def accumulate(self, *values):
        return max(self.at_least, values[0].str.len_chars().max() or 0)

    def finish(self, state):
        return state


def run(function, *arguments):
    """What the function gives when it is loaded from its source alone."""
    return getattr(load(extract_source(function)), function.__name__)(*arguments)


def test_constants_come_with_their_values():
    """Numbers, text, containers, dates, decimals, patterns and types of Polars are written down as they are."""

    def used():
        return [LIMIT, DAY, MOMENT, CENTS, TABLE, ONE, NOTHING, WORDS, SMALL, ZONED]

    assert run(used) == used()


def test_functions_classes_and_decorators_come_along():
    """Whatever of the user's a function reaches comes with its source, though it be circular or decorated."""

    def used(n):
        return even(n), decorated(n), square(n), Longest().at_least, Longest().merge([1, 2])

    assert run(used, 3) == (False, 8, 9, 15, 2)


def parse_host(text):
    return urllib.parse.urlsplit(text).netloc


def test_modules_that_a_function_reaches_through_their_package_are_imported():
    """`import urllib` does not load `urllib.parse`, and the process that serves has not loaded it otherwise."""
    source = extract_source(parse_host)
    command = "import sys\nexec(sys.stdin.read())\nprint(parse_host('http://a.b/c'))"

    served = subprocess.run(
        [sys.executable, "-S", "-c", command], input=source, capture_output=True, text=True, check=True
    )

    assert served.stdout == "a.b\n"


def test_libraries_are_imported_under_the_names_they_are_used_by():
    """Modules and what was imported of them are imports in the module, aliases and all."""

    def used():
        return math.floor(np.float64(1.5)), z.__name__, analyze.__name__, dt.timedelta(1)

    assert run(used) == (1, "scale_to_z_score", "analyze", dt.timedelta(1))


def test_functions_of_one_name_that_do_not_meet_come_along():
    """Two that other functions have made may have one name inside of these."""

    def make_next():
        def made(x):
            return x + 1

        return made

    def make_last():
        def made(x):
            return x - 1

        return made

    following, before = make_next(), make_last()

    def used(x):
        return following(x), before(x)

    assert run(used, 5) == (6, 4)


def test_arguments_of_the_function_around_are_constants():
    """A preprocessing function made inside of another keeps what that one was called with."""

    def make(k):
        def used(x):
            return x * k

        return used

    assert run(make(3), 5) == 15


def test_annotations_need_not_be_there():
    """What only an annotation names is neither wanted nor imported."""

    def used(columns: Columns) -> dict[str, pl.Expr]:
        found: list[pl.Series] = []
        return {**columns, "n": len(found)}

    source = extract_source(used)

    assert "import" not in source.replace("from __future__ import annotations", "")
    assert load(source).used({}) == {"n": 0}


def test_the_source_is_the_same_each_time():
    """The order of sets, of memory and of imports does not show in the source."""

    def used():
        return {1, 2, "b", "a"}, NOTHING, LIMIT, even(2)

    assert extract_source(used) == extract_source(used)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lambda columns: columns, "a lambda has no source of its own; write it with def"),
        (lambda: partial(even), "is not a function that has a source; write it with def"),
        (lambda: _uses_object, "-> OPEN is a object, which cannot be written as source.*Create it inside the function"),
        (lambda: _uses_cube, "'cube' is a lambda inside of a larger line"),
        (lambda: _uses_unknown, "uses 'nowhere', which is not defined"),
        (lambda: hidden, "inner -> function: .* decorator .*functools.wraps"),
        (lambda: _uses_hidden, "-> function: .* decorator .*functools.wraps"),
        (lambda: scaled, "^scaled: its argument 'by' is 2, and 3 when its source is run by itself"),
        (partly_scaled, "^used: its argument 'plus' is 2, and 3 when"),
        (lambda: _uses_multiplied, "-> multiplied: around it, 'k' is 2, and 3 when"),
        (lambda: _uses_scale, "-> Scale: its attribute 'factor' is 2, and 3 when"),
        (lambda: _uses_patched, "-> Patched: its attribute 'factor' is 4, and 2 when"),
        (lambda: _uses_two_of_one_name, "two different things are called 'near'"),
        (lambda: _uses_nested_type, "-> LISTS is a List, which cannot be written as source"),
        (lambda: _uses_zone, "-> BERLIN is a datetime, which cannot be written as source"),
        (lambda: _uses_own_module, "flow.* of yours, which is not installed .*import what you use of it by name"),
        (lambda: _imports_own_module, "line 2 of .*: it imports tests.published, a module of yours"),
    ],
)
def test_what_cannot_stand_alone_is_refused_with_a_way_out(make, said):
    """Live objects, lambdas in passing and modules of the user's are refused; the message says what to do."""
    with pytest.raises(PreprocessingError, match=said):
        extract_source(make())


def _uses_object(columns):
    return OPEN


def _uses_cube(columns):
    return cube(columns)


def _uses_unknown(columns):
    return nowhere(columns)  # noqa: F821


def _uses_hidden(columns):
    return hidden(columns)


def _uses_multiplied(columns):
    return multiplied(columns)


def _uses_scale(columns):
    return Scale().of(columns)


def _uses_patched(columns):
    return Patched.factor


def _uses_two_of_one_name(columns):
    return near(columns), nearer(columns)


LISTS = pl.List(pl.Float64)
BERLIN = dt.datetime(2013, 1, 2, tzinfo=ZoneInfo("Europe/Berlin"))


def _uses_nested_type(columns):
    return LISTS


def _uses_zone(columns):
    return BERLIN


def _uses_own_module(columns):
    return flow.written


def _imports_own_module(columns):
    from tests.published import Published

    return Published


from tests.components import flow  # noqa: E402  used above


def test_a_class_of_a_file_loaded_by_path_comes_along(tmp_path):
    """A pipeline file that Python does not know by name gives its classes' sources all the same."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nSTEP = 2\n\n@dataclass(frozen=True)\nclass Half:\n    by: int = STEP\n\n"
        "    def of(self, n):\n        return n / self.by\n\n\ndef used(n):\n    return Half().of(n)\n"
    )
    namespace = {"__name__": "never_imported"}
    exec(compile(file.read_text(), str(file), "exec"), namespace)  # as a loader by path does

    assert run(namespace["used"], 3) == 1.5


def test_a_file_that_is_edited_later_does_not_show(tmp_path):
    """A node that starts hours after its run gets the source of the functions that the run was started with."""
    file = tmp_path / "edited.py"
    file.write_text("def half(x):\n    return x / 2\n\ndef used(x):\n    return half(x)\n")
    used = execute_file("edited", str(file)).used
    before = extract_source(used)

    file.write_text("def half(x):\n    return x / 3\n\ndef used(x):\n    return half(x)\n")

    assert extract_source(used) == before
    assert run(used, 6) == 3


@pytest.mark.parametrize(
    "edited",
    [
        "def half(x):\n    return x / 3\n\ndef used(x):\n    return half(x)\n",
        "K = 1\n\ndef half(x):\n    return x / 2\n\ndef used(x):\n    return half(x)\n",
    ],
)
def test_a_file_that_was_edited_since_it_was_loaded_is_refused(tmp_path, edited):
    """What Python shows as the source of a function that it still has may be that of another one."""
    file = tmp_path / "edited.py"
    file.write_text("def half(x):\n    return x / 2\n\ndef used(x):\n    return half(x)\n")
    used = execute_file("edited", str(file)).used

    file.write_text(edited)

    with pytest.raises(PreprocessingError, match=r"edited\.py has changed since it was loaded"):
        extract_source(used)


def test_a_module_of_the_users_that_was_edited_since_its_import_is_refused(tmp_path):
    """It is imported as it is then, whatever bytecode there is of it; in a process of its own, without pytest's import."""
    tmp_path.joinpath("halves.py").write_text("def half(x):\n    return x / 2\n")
    program = """
from pathlib import Path
from spanwise.components.transform.standalone import extract_source
from spanwise.orchestrator.user_code import ignore_old_bytecode
ignore_old_bytecode()
from halves import half
Path("halves.py").write_text("def half(x):\\n    return x / 3\\n")
extract_source(half)
"""
    path = os.pathsep.join(["", *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip

    assert "halves.py has changed since it was loaded" in done.stderr


def test_code_that_was_rewritten_when_it_was_loaded_is_no_edit(tmp_path, monkeypatch):
    """As by what checks types at run time: its source is still what the user has written."""

    class Checking(SourceFileLoader):
        def source_to_code(self, data, path, *, _optimize=-1):
            tree = ast.parse(data)
            tree.body[0].body.insert(0, ast.parse("assert x is not None").body[0])
            return compile(ast.fix_missing_locations(tree), path, "exec")

    file = tmp_path / "checked.py"
    file.write_text("def half(x):\n    return x / 2\n")
    spec = spec_from_loader("checked", Checking("checked", str(file)))
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "checked", module)
    spec.loader.exec_module(module)

    assert run(module.half, 6) == 3


def test_a_thread_that_asks_for_a_module_meanwhile_gets_it_whole():
    """Workers of Beam are threads of one process, and several load the same graph at once."""
    source = (
        f"from {__name__} import BEGUN, GO\n\nBEGUN.set()\nGO.wait(60)\n\ndef preprocess(columns):\n    return {{}}\n"
    )
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: load(source).preprocess)
        assert BEGUN.wait(60)
        second = threads.submit(lambda: load(source).preprocess)
        wait([second], timeout=0.2)  # it would have failed by then
        GO.set()

        assert second.result() is first.result()
