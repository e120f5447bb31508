"""Preloads: which modules a node server imports ahead."""

from collections.abc import Iterator

from spanwise.orchestrator.preload import Preload

MODULES = {"Ingest": ("no_reader", "sys"), "Train": ("no_reader", "no_learner")}


def order(preload: Preload) -> Iterator[str]:
    while module := preload.next_module():
        preload.tried.add(module)
        yield module


def test_modules_are_imported_in_the_order_of_the_nodes():
    """Each is tried once; those that are there already are not named, and those of all nodes come last."""
    assert [*order(Preload(MODULES, ["no_lib"]))] == ["no_reader", "no_learner", "no_lib"]


def test_what_only_spared_nodes_need_is_not_imported():
    """A run that reuses everything imports nothing of what does the work."""
    preload = Preload(MODULES, ["no_lib"])

    preload.spare("Train")
    assert preload.next_module() == "no_reader"

    preload.spare("Ingest")
    assert preload.next_module() is None


def test_a_node_that_starts_lacks_what_nobody_has_imported():
    """Also one that an earlier run of the same server has spared; modules that cannot be imported are left to it."""
    preload = Preload(MODULES, ["no_lib"])
    preload.spare("Ingest")
    preload.spare("Train")
    preload.tried.add("no_reader")

    assert preload.list_missing("Train") == ["no_learner"]
    assert [*order(preload)] == ["no_learner", "no_lib"]


def test_a_node_without_modules_changes_nothing():
    """Resolvers, and nodes of other machines, are unknown here."""
    preload = Preload(MODULES, [])

    preload.spare("Champion")

    assert preload.list_missing("Champion") == []
    assert preload.next_module() == "no_reader"
