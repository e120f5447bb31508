"""What holds for all tests."""

import gc

from hypothesis import HealthCheck, settings

# A busy machine takes longer; how long an example takes says nothing about what it shows.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

SERVING = {"elastic", "service"}  # folders of tests that serve Flight in their own process


def pytest_collection_modifyitems(items):
    """Runs the scenarios first, and last what serves Flight.

    A node is a fork, and a fork of a process in which Polars or gRPC has worked cannot use it.
    """
    items.sort(key=lambda item: 2 if SERVING & {*item.path.parts} else int("scenario" not in item.path.parts))


def pytest_collection_finish():
    """Keeps the garbage collector off what every test shares: it need not be searched, nor copied by each fork."""
    gc.collect()
    gc.freeze()
