"""What holds for all tests."""

import os
import re
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from spanwise.orchestrator import process
from tests import warm

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

SERVING = {"elastic", "service", "test_dataset_graphs.py"}  # where tests serve Flight in their own process
SCENARIO, FORKS_NODES, USES_POLARS, SERVES_FLIGHT = range(4)  # the order of tests
POLARS = pytest.StashKey()  # is in the stash once this process has used Polars
SETTLED, GROWTH_BYTES = pytest.StashKey(), 48 << 20  # what its memory was when it last settled


def pytest_make_parametrize_id(val):
    """Long bytes are numbered: compressed ones hold a time, and each process would name the test in its own way."""
    return "bytes" if isinstance(val, bytes) and len(val) > 20 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Gives tests that share what one of their module makes to one worker process, or each worker would make it.

    Runs the scenarios first, then what forks nodes, then what uses Polars here, and last what serves Flight here.

    A node is a fork, and a fork of a process in which Polars or gRPC has worked cannot use it. Processes take tests in
    this order only with --no-loadscope-reorder; else the largest groups come first.
    """
    items.sort(key=_place_in_order)
    for item in items:
        if item.get_closest_marker("xdist_group") is None and any(map(_is_shared, _fixtures(item))):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _fixtures(item):
    return (found[-1] for found in item._fixtureinfo.name2fixturedefs.values() if found)


def _is_shared(fixture):
    """Whether it is made once for several tests, by a test module."""
    return fixture.scope != "function" and ".py" in fixture.baseid


def _place_in_order(item):
    if "scenario" in item.path.parts:
        return SCENARIO
    if SERVING & {*item.path.parts}:
        return SERVES_FLIGHT
    uses_polars = hasattr(item.module, "pl") and not hasattr(item.module, "Bench")
    return USES_POLARS if uses_polars else FORKS_NODES


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Refuses Polars in this process before the tests that fork nodes: a fork that uses it waits for ever."""
    result = yield
    if POLARS not in item.config.stash and any(re.fullmatch("polars-[0-9]+", each) for each in process.thread_names()):
        item.config.stash[POLARS] = True
        if _place_in_order(item) < USES_POLARS:
            pytest.fail("uses Polars in this process, whose threads no fork has: see tests/forked.py")
    grown = warm.count_anonymous_bytes() - item.config.stash[SETTLED]
    if grown >= GROWTH_BYTES and (nextitem is None or nextitem.path != item.path):
        _settle(item.config)  # or forks cost more and more
    return result


def pytest_collection_finish(session):
    """A fork need not search nor copy what every test shares."""
    _settle(session.config)


def _settle(config):
    warm.settle()
    config.stash[SETTLED] = warm.count_anonymous_bytes()
