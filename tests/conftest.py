"""What holds for all tests."""

SERVING = {"elastic", "service"}  # folders of tests that serve Flight in their own process


def pytest_collection_modifyitems(items):
    """Runs the scenarios first, and last what serves Flight.

    A node is a fork, and a fork of a process in which Polars or gRPC has worked cannot use it.
    """
    items.sort(key=lambda item: 2 if SERVING & {*item.path.parts} else int("scenario" not in item.path.parts))
