"""What holds for all tests."""

import contextlib
import functools
import gc
import os
import re
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from spanwise.components import Evaluator, ExampleGen, Trainer, Transform
from spanwise.orchestrator import process, testing, user_code
from spanwise.orchestrator.local_executor import LocalExecutor
from tests import warm, without_pandas
from tests.direct_executor import DirectExecutor

pytest_plugins = ["tests.plain_ids"]

# Without bytecode each of thousands of processes compiles what it imports, which takes three times as long.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The background of a script ignores SIGINT, and nohup SIGHUP; tests send both, to us and to what inherits from us.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine takes longer; how long an example takes says nothing about what it shows.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

SERVING = {
    "data_service",
    "elastic",
    "service",
    "test_data_page.py",
    "test_dataset_graphs.py",
}  # where tests serve Flight in their own process
DATA = {"components", "conformance", "pipelines", "pa", "inputs", "Bench"}  # folders, names in modules
READER = re.compile(r"\b(Evaluator|ExampleGen|StatisticsGen|Trainer|Transform)\(")  # nodes that read tables
IS_LIGHT, READS_DATA, LEARNS, USES_POLARS, SERVES_FLIGHT = range(5)  # the order of tests
LIBRARIES = (
    (READS_DATA, "pandas"),
    (READS_DATA, "pyarrow.dataset"),
    *((READS_DATA, name) for kind in (ExampleGen, Evaluator, Trainer) for name in kind.preload),
    *((LEARNS, name) for name in Transform.preload),
    (LEARNS, "sklearn.compose"),
    (LEARNS, "sklearn.linear_model"),
    (LEARNS, "sklearn.preprocessing"),
)
TRIED = pytest.StashKey()  # the libraries that are not installed, once that is known
POLARS = pytest.StashKey()  # is in the stash once this process has used Polars
FLIGHT = pytest.StashKey()  # the same of Flight
ENDING_S = 40.0  # a consumer's thread may be in a fetch, which has 30 s
SETTLED, GROWTH_BYTES = pytest.StashKey(), 48 << 20  # what its memory was when it last settled


def pytest_make_parametrize_id(val):
    """Long bytes are numbered: compressed ones hold a time, and each process would name the test in its own way."""
    return "bytes" if isinstance(val, bytes) and len(val) > 20 else None


def pytest_configure(config):
    """Worker processes share the servers of warm commands with the process that starts them. Trials fork their nodes
    from the test.

    What is in one folder is named in a row: pytest 9.1 loses the fixtures of a folder that it comes back to.
    """
    warm.session()
    testing.LocalExecutor = DirectExecutor
    config.args.sort(key=Path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Gives tests that share what one of their module makes to one worker process, or each worker would make it.

    Runs first what forks nodes and needs few libraries here, then what reads data here or in nodes, for which pyarrow
    imports pandas, then what runs the flights pipeline, then what uses Polars here, and last what serves Flight here;
    of each the scenarios first.

    A node is a fork. It copies the tables of all that its parent has imported, which is most of what it costs; and a
    fork of a process in which Polars or gRPC has worked cannot use it. Processes take tests in this order only with
    --no-loadscope-reorder; else the largest groups come first.
    """
    items.sort(key=lambda item: (_place_in_order(item), not _is_scenario(item)))
    for item in items:
        if item.get_closest_marker("xdist_group") is None and any(map(_is_shared, _fixtures(item))):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _fixtures(item):
    return (found[-1] for found in item._fixtureinfo.name2fixturedefs.values() if found)


def _is_shared(fixture):
    """Whether it is made once for several tests, by a test module."""
    return fixture.scope != "function" and ".py" in fixture.baseid


def _is_scenario(item):
    return "scenario" in item.path.parts


@pytest.fixture
def with_servers(monkeypatch):
    """Trials as users have them, with a server and its keeper."""
    monkeypatch.setattr(testing, "LocalExecutor", LocalExecutor)


def _place_in_order(item):
    if not _is_scenario(item):
        if SERVING & {*item.path.parts} or hasattr(item.module, "Service"):
            return SERVES_FLIGHT
        if hasattr(item.module, "pl") and not hasattr(item.module, "Bench"):
            return USES_POLARS
    if {"Flights", "FlightsLake"} & {*vars(item.module)}:
        return LEARNS
    return READS_DATA if DATA & {*item.path.parts, *vars(item.module)} or _runs_readers(item.path) else IS_LIGHT


@functools.cache
def _runs_readers(file):
    return READER.search(file.read_text()) is not None


def pytest_runtest_setup(item):
    """From the first test whose nodes need libraries on, nodes are forked with them and need not import them."""
    place = _place_in_order(item)
    missing = [name for least, name in LIBRARIES if least <= place <= LEARNS and name not in sys.modules]
    if missing and not item.config.stash.get(TRIED, set()) >= {*missing}:
        item.config.stash[TRIED] = {*missing}
        for name in missing:
            with contextlib.suppress(ImportError):  # an extra that is not installed
                import_module(name)
        _settle(item.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Refuses Polars and Flight in this process before tests that fork nodes: a fork that uses them waits for ever."""
    result = yield
    if POLARS not in item.config.stash and any(re.fullmatch("polars-[0-9]+", each) for each in process.thread_names()):
        item.config.stash[POLARS] = True
        if _place_in_order(item) < USES_POLARS:
            pytest.fail("uses Polars in this process, whose threads no fork has: see tests/forked.py")
    if FLIGHT not in item.config.stash and _place_in_order(item) < SERVES_FLIGHT and _is_flight_in_use():
        item.config.stash[FLIGHT] = True
        pytest.fail("leaves Flight in use in this process, whose threads no fork has: close it, or see _place_in_order")
    grown = warm.count_anonymous_bytes() - item.config.stash[SETTLED]
    if grown >= GROWTH_BYTES and (nextitem is None or nextitem.path != item.path):
        _settle(item.config)  # or forks cost more and more
    return result


def _is_flight_in_use():
    """Whether a Flight client or server is left, once threads that are about to end have ended."""
    forks = sys.modules.get("spanwise.pipelines.input.service.wire.forks")
    if forks is None:
        return False
    deadline = time.monotonic() + ENDING_S
    while forks.is_in_use():
        gc.collect()
        if not forks.is_in_use() or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return forks.is_in_use()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Keeps pandas out until a test needs it: pyarrow imports it for the first list that it converts.

    The garbage collector waits for the end: it would look through all that is collected, again and again.
    """
    warm.make_room(60)
    without_pandas.refuse()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        without_pandas.allow()


def pytest_collection_finish(session):
    """A fork need not search nor copy what every test shares."""
    _settle(session.config)


def _settle(config):
    warm.settle()
    config.stash[SETTLED] = warm.count_anonymous_bytes()


@pytest.fixture
def edited_module(tmp_path, monkeypatch):
    """Loads a file of this text as `edited_module`, then edits it."""

    def load(text, edited):
        file = tmp_path / "edited_module.py"
        file.write_text(text)
        monkeypatch.setitem(sys.modules, "edited_module", None)  # taken back at the end
        module = user_code.execute_file("edited_module", str(file))
        file.write_text(edited)
        return module

    return load
