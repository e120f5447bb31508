"""What holds for all tests."""


def pytest_collection_modifyitems(items):
    """Runs the scenarios first: a node is a fork, and a fork of a process in which Polars has worked cannot use it."""
    items.sort(key=lambda item: "scenario" not in item.path.parts)
