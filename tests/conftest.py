"""What holds for all tests."""

import gc
import os
import sys

from hypothesis import HealthCheck, settings

# Without bytecode each of thousands of processes compiles what it imports, which takes three times as long.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine takes longer; how long an example takes says nothing about what it shows.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

SERVING = {"elastic", "service"}  # folders of tests that serve Flight in their own process


def pytest_collection_modifyitems(items):
    """Runs the scenarios first, then what forks nodes, then what uses Polars here, and last what serves Flight here.

    A node is a fork, and a fork of a process in which Polars or gRPC has worked cannot use it.
    """
    items.sort(key=_place_in_order)


def _place_in_order(item):
    if "scenario" in item.path.parts:
        return 0
    if SERVING & {*item.path.parts}:
        return 3
    uses_polars = hasattr(item.module, "pl") and not hasattr(item.module, "Bench")
    return 2 if uses_polars else 1


def pytest_collection_finish():
    """Keeps the garbage collector off what every test shares: it need not be searched, nor copied by each fork."""
    gc.collect()
    gc.freeze()
