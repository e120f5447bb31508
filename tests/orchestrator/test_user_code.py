"""Whose code it is, what it uses, and how it is sent to another process."""

import contextlib
import dis
import functools
import importlib
import json
import os
import pickle
import subprocess
import sys
import threading
import traceback
import types
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from spanwise.orchestrator import user_code
from spanwise.orchestrator.code_meaning import ship_checked, unpack_checked
from spanwise.orchestrator.errors import ParameterError
from spanwise.orchestrator.user_code import Import, NameUse, Owner

BEGUN, GO = threading.Event(), threading.Event()

# --- whose code it is


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        ("spanwise", Owner.SPANWISE),
        ("spanwise.input", Owner.SPANWISE),
        ("spanwise.components.rows", Owner.SPANWISE),
        ("spanwise.pipelines", Owner.SPANWISE),
        ("spanwise.pipelines.input.dataset", Owner.SPANWISE),
        ("spanwise.pipelines.flights", Owner.USER),
        ("json", Owner.PYTHON),
        ("json.decoder", Owner.PYTHON),
        ("sys", Owner.PYTHON),
        ("importlib._bootstrap", Owner.PYTHON),
        ("numpy", Owner.LIBRARY),
        ("pyarrow.parquet", Owner.LIBRARY),
        (__name__, Owner.USER),
        ("__main__", Owner.USER),
        ("no_such_module", Owner.USER),
        ("no_such_package.module", Owner.USER),
    ],
)
def test_each_module_has_one_owner(module, owner):
    """Modules are ours, the standard library's, a library's or the user's; the worked examples count as a user's."""
    assert user_code.owner_of_module(module) is owner


@pytest.mark.parametrize("module", ["spanwise.input", "spanwise.components.rows", "spanwise.pipelines.flights", "json"])
def test_a_file_has_the_owner_of_its_module(module):
    """The name of a module and its file, whichever way its path leads there, say the same."""
    file = importlib.import_module(module).__file__

    assert user_code.owner_of_file(file) is user_code.owner_of_module(module)
    assert user_code.owner_of_file(os.path.realpath(file)) is user_code.owner_of_module(module)


def test_a_users_module_that_is_named_like_one_of_python_stays_the_users(tmp_path, monkeypatch):
    """Where a module was loaded from counts for more than its name."""
    module = types.ModuleType("statistics")
    module.__file__ = str(tmp_path / "statistics.py")
    monkeypatch.setitem(sys.modules, "statistics", module)

    assert user_code.owner_of_module("statistics") is Owner.USER


@pytest.mark.parametrize(
    ("file", "owner"),
    [("<frozen importlib._bootstrap>", Owner.PYTHON), ("<string>", Owner.USER), (np.__file__, Owner.LIBRARY)],
)
def test_code_without_a_file_of_its_own_has_an_owner_too(file, owner):
    """What is frozen into Python is Python's, what was compiled from a text is the user's."""
    assert user_code.owner_of_file(file) is owner


@pytest.mark.parametrize("module", ["spanwise", "spanwise.components.rows", "spanwise.pipelines.flights"])
def test_a_file_of_ours_has_the_name_it_is_imported_under(module):
    """No module of ours is loaded under a second name because somebody gave its path."""
    file = Path(importlib.import_module(module).__file__)

    assert user_code.our_module(file) == user_code.our_module(file.resolve()) == module


def test_other_files_are_no_modules_of_ours(tmp_path):
    """Neither a user's file nor one of ours that holds no Python."""
    assert user_code.our_module(tmp_path / "rows.py") is None
    assert user_code.our_module(user_code.PACKAGE / "py.typed") is None


def test_frames_of_our_components_are_left_out_and_those_of_a_pipeline_are_not():
    """A component of ours calls the user's function; a pipeline file may lie in our own folder of examples."""
    home = user_code.PACKAGE
    names = ["orchestrator/executor.py", "components/training/trainer.py", "pipelines/flights.py", "components/rows.py"]
    frames = [traceback.FrameSummary(str(home / name), 1, "run", line="x") for name in names]

    assert user_code.without_our_frames(frames) == frames[2:]
    assert user_code.without_our_frames_around(frames) == frames[2:3]
    assert user_code.without_our_frames_around(frames[:2]) == []


def test_a_users_frames_are_those_in_the_users_files():
    """Neither ours, nor those of libraries and of code without a file."""
    try:
        json.loads("[", object_hook=exec("1"))
    except ValueError as error:
        frames = user_code.user_frames(error)

    assert [frame.filename for frame in frames] == [__file__]


# --- what code uses

SOURCE = """
import a.b as renamed

def function(argument, default=outer):
    import c
    from ..d import e, f
    g.h.i(argument)
    local = j
    return k(g=local).l + super().m + [n.o for p in q]

class Made(base.Base):
    r = s
    t = r
"""


def uses(source):
    return [list(user_code.uses(code)) for code in user_code.code_within(compile(source, "file", "exec"))]


def test_names_from_outside_are_found_with_what_is_read_off_them():
    """Globals with their chains of attributes; neither arguments, local variables nor keywords."""
    found = {
        (use.name, use.attributes, use.is_global)
        for code in uses(SOURCE)
        for use in code
        if isinstance(use, NameUse) and use.name != "__name__"
    }

    assert found == {
        ("outer", (), False),
        ("g", ("h", "i"), True),
        ("j", (), True),
        ("k", (), True),
        ("super", (), True),
        ("n", ("o",), True),
        ("q", (), True),
        ("base", ("Base",), False),
        ("s", (), False),
        ("r", (), False),  # in the body of a class, which has bound it itself
    }


def test_imports_are_found_with_their_lines():
    """Absolute and relative ones, with what they take."""
    found = [use for code in uses(SOURCE) for use in code if isinstance(use, Import)]

    assert found == [
        Import("a.b", 0, (), 2),
        Import("c", 0, (), 5),
        Import("d", 2, ("e", "f"), 6),
    ]


@pytest.mark.parametrize("module", ["argparse", "dataclasses", "inspect", "typing"])
def test_operations_are_those_that_python_disassembles(module):
    """Whatever the version of Python, each operation has the name that `dis` gives it."""
    file = importlib.import_module(module).__file__
    for code in user_code.code_within(compile(Path(file).read_bytes(), file, "exec")):
        expected = [
            (each.opcode, each.argval if each.opcode in dis.hasname else None)
            for each in dis.get_instructions(code)
            if each.opname not in ("EXTENDED_ARG", "CACHE")
        ]

        assert [(op, name) for op, _, name, _ in user_code.operations(code)] == expected


def test_a_name_behind_many_others_is_found():
    """Numbers of names above 255 take more than one operation."""
    names = [f"name{at}" for at in range(1_000)]
    (module,) = uses("\n".join(f"{name}.attribute" for name in names))

    assert [(use.name, use.attributes) for use in module] == [(name, ("attribute",)) for name in names]


# --- how it is sent to another process

PIPELINE = """
import threading
from neighbour import LIMIT

LOCK = threading.Lock()


class Offset:
    def __init__(self, by):
        self.by = by


OFFSET = Offset(2)


def function(number):
    return number + LIMIT + OFFSET.by


def locked(number):
    with LOCK:
        return function(number)


def names_neighbour(number):
    import neighbour
    return number + neighbour.LIMIT
"""
RECEIVER = """
import pickle, sys
from spanwise.orchestrator import user_code
from spanwise.orchestrator.errors import ParameterError

function = user_code.unpack(pickle.load(sys.stdin.buffer))
print(function(3), *sorted({"neighbour", "pipeline_file_queue"} & set(sys.modules)))
"""


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """A pipeline file, loaded by its path under a name that is not its own, and its neighbour."""
    (tmp_path / "neighbour.py").write_text("LIMIT = 10\n")
    (tmp_path / "queue.py").write_text(PIPELINE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    monkeypatch.delitem(sys.modules, "pipeline_file_queue", raising=False)
    yield user_code.load_module("pipeline_file_queue", str(tmp_path / "queue.py"))
    for name in ("neighbour", "pipeline_file_queue"):
        sys.modules.pop(name, None)


def received(shipment):
    """What a fresh process, elsewhere, computes with a function that was shipped to it."""
    command = [sys.executable, "-P", "-c", RECEIVER]
    found = subprocess.run(command, input=pickle.dumps(shipment), capture_output=True, check=True, cwd="/", timeout=300)
    return found.stdout.decode().split()


@pytest.mark.parametrize("name", ["function", "locked"])
def test_a_function_of_a_pipeline_file_comes_with_its_file(pipeline, name):
    """The other process loads the file under the same name, neighbours and locks included."""
    assert received(user_code.ship(getattr(pipeline, name))) == ["15", "neighbour", "pipeline_file_queue"]


def test_objects_and_partials_bring_the_files_of_their_classes(pipeline):
    """Whatever in a value is of a user's module names that module."""
    shipment = user_code.ship({"a": [functools.partial(max, pipeline.OFFSET)]})

    assert [name for name, _ in shipment.modules] == ["pipeline_file_queue"]


def test_by_value_a_function_needs_no_file(pipeline, tmp_path):
    """Its code, and what that uses, is in the shipment; modules of a file of their own do not count as installed."""
    shipment = user_code.ship(pipeline.function, by_value=True)
    for file in tmp_path.glob("*.py"):
        file.unlink()

    assert (shipment.modules, shipment.paths) == ((), ())
    assert received(shipment) == ["15"]


def test_shipping_by_value_leaves_no_trace(pipeline):
    """What is pickled by value is registered for one shipment only, also for one that fails."""
    user_code.ship(pipeline.function, by_value=True)
    with pytest.raises(ParameterError, match=r"^locked cannot be sent to another process .*lock"):
        user_code.ship([pipeline.locked], by_value=True)

    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_functions_of_installed_modules_travel_by_name():
    """Neither their files nor their code is in the shipment."""
    shipment = user_code.ship([json.dumps, np.mean, user_code.ship])

    assert shipment.modules == ()
    assert len(shipment.content) < 300


class Unpacked:
    """A value that is unpacked by several threads at once if they are let."""

    times = 0
    several = threading.Barrier(2)

    def __setstate__(self, state):
        Unpacked.times += 1
        with contextlib.suppress(threading.BrokenBarrierError):
            self.several.wait(0.05)


@pytest.mark.parametrize(
    ("ship", "unpack"), [(user_code.ship, user_code.unpack), (ship_checked, unpack_checked)], ids=["plain", "checked"]
)
def test_threads_unpack_a_shipment_once(monkeypatch, ship, unpack):
    """Threads of one worker, as Beam has them, share a value and what its code keeps, such as a model."""
    value = Unpacked()
    value.name = unpack.__name__
    shipment = ship(value)
    monkeypatch.setattr(Unpacked, "times", 0)
    monkeypatch.setattr(Unpacked, "several", threading.Barrier(2))

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(unpack, [shipment, shipment])

    assert one is other
    assert Unpacked.times == 1


def test_bytecode_is_ignored_while_other_threads_import(monkeypatch):
    """Each import of theirs adds a folder to those that Python knows."""
    monkeypatch.setattr(sys, "path_hooks", sys.path_hooks[:])
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys(["/a", "/b"]))
    monkeypatch.setattr(
        user_code, "_is_users_folder", lambda folder: sys.path_importer_cache.update({f"{folder}/c": None})
    )

    user_code.ignore_old_bytecode.__wrapped__()

    assert list(sys.path_importer_cache) == ["/a", "/b", "/a/c", "/b/c"]


def test_a_module_of_another_file_gives_way(pipeline, tmp_path):
    """A name that is taken by another file means, once loaded, the file that was asked for."""
    other = tmp_path / "other.py"
    other.write_text("A = 1\n")

    assert user_code.load_module("pipeline_file_queue", str(other)).A == 1
    assert user_code.load_module("pipeline_file_queue", str(other)) is sys.modules["pipeline_file_queue"]


def test_a_file_that_fails_leaves_no_half_module(tmp_path):
    """Who asks again is told again."""
    (tmp_path / "fails.py").write_text("A = 1\n1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            user_code.load_module("fails", str(tmp_path / "fails.py"))


def test_a_thread_that_asks_for_a_file_meanwhile_gets_its_whole_module(tmp_path, monkeypatch):
    """Workers of Beam are threads of one process, and several unpack the same functions at once."""
    file = tmp_path / "slowly_loaded.py"
    file.write_text(f"from {__name__} import BEGUN, GO\n\nBEGUN.set()\nGO.wait(60)\nVALUE = 1\n")
    monkeypatch.delitem(sys.modules, file.stem, raising=False)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: user_code.load_module(file.stem, str(file)).VALUE)
        assert BEGUN.wait(60)
        second = threads.submit(lambda: user_code.load_module(file.stem, str(file)).VALUE)
        wait([second], timeout=0.2)  # it would have failed by then
        GO.set()

        assert (first.result(), second.result()) == (1, 1)
    del sys.modules[file.stem]
