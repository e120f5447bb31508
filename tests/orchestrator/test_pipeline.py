"""Pipelines: an immutable, acyclic set of nodes, and which part of it runs."""

import pytest

from spanwise.orchestrator import (
    Component,
    Examples,
    Input,
    Model,
    Output,
    Pipeline,
    PipelineError,
    Report,
    Resolver,
    UsageError,
    past,
)
from spanwise.orchestrator.pipeline import Selection


class Node(Component):
    def run(self, above: Input[list[Report] | None], report: Output[Report]) -> None: ...


class Choose(Resolver):
    def __init__(self, source, name):
        super().__init__(source, name=name, many=True)


def of(**above):
    """A pipeline in which each node reads those it names: `of(a=[], b=["a"])`."""
    nodes = {}
    for name, parents in above.items():
        nodes[name] = Node(name=name, above=[nodes[p]["report"] for p in parents])
    return Pipeline("p", reversed(nodes.values()))


@pytest.fixture
def diamond():
    """A -> b, c -> d; x -> y beside it."""
    return of(a=[], b=["a"], c=["a"], d=["b", "c"], x=[], y=["x"])


def test_parents_come_first(diamond):
    """Whatever the order in which the nodes were listed."""
    place = {name: i for i, name in enumerate(diamond.order)}

    assert all(place[p] < place[n] for n in diamond.order for p in diamond.parents(n))
    assert [node.name for node in diamond] == list(diamond.order)


def test_the_order_given_is_kept_where_it_can_be():
    """Nodes that do not depend on each other stay as they were listed."""
    assert Pipeline("p", [Node(name=n) for n in "bca"]).order == ("b", "c", "a")


def test_relatives(diamond):
    """Parents and children are direct; ancestors and descendants are all."""
    assert diamond.parents("d") == ("b", "c")
    assert set(diamond.children("a")) == {"b", "c"}
    assert diamond.ancestors("d") == {"a", "b", "c"}
    assert diamond.descendants("a") == {"b", "c", "d"}


def test_two_nodes_of_one_name_are_refused():
    """The message says how to tell them apart."""
    with pytest.raises(PipelineError, match="has two nodes named 'a'; rename one"):
        Pipeline("p", [Node(name="a"), Node(name="a")])


def test_a_node_that_was_not_listed_is_named():
    """Reading from a node that is not in the pipeline is found when it is built."""
    first = Node(name="a")

    with pytest.raises(PipelineError, match=r"b reads a\['report'\], but that a is not in pipeline 'p'; add it"):
        Pipeline("p", [Node(name="b", above=[first["report"]])])


def test_another_node_of_that_name_is_not_the_one_read():
    """A namesake does not stand in."""
    first = Node(name="a")

    with pytest.raises(PipelineError, match="but that a is not in pipeline"):
        Pipeline("p", [Node(name="a"), Node(name="b", above=[first["report"]])])


def test_what_is_no_node_is_refused():
    """A channel in the list of nodes is a slip."""
    with pytest.raises(PipelineError, match=r"takes nodes; .* is not a node"):
        Pipeline("p", [Node(name="a")["report"]])


@pytest.mark.parametrize("name", ["", "a/b", "1", "a b", "x" * 65])
def test_a_name_that_would_break_a_path_is_refused(name):
    """The pipeline's name is a folder and part of every record."""
    with pytest.raises(PipelineError, match="cannot name a pipeline"):
        Pipeline(name, [Node(name="a")])


def test_the_past_of_a_later_node_is_no_circle():
    """A node may start from what a node downstream published in earlier runs."""
    chosen = Choose(past("b", "report", Report), "Latest")
    last = Node(name="b", above=[chosen["report"]])

    assert Pipeline("p", [last, chosen]).order == ("Latest", "b")


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        (past("nobody", "report", Report), r"Latest reads nobody\['report'\], but that nobody is not in pipeline"),
        (past("b", "model", Model), "b has no output 'model'; it has: report"),
        (past("b", "report", Examples), r"Latest expects Examples from b\['report'\], which is a channel of Report"),
    ],
)
def test_the_past_is_checked_too(channel, message):
    """What a `past` channel names is in the pipeline and of that kind."""
    with pytest.raises(PipelineError, match=message):
        Pipeline("p", [Choose(channel, "Latest"), Node(name="b")])


@pytest.mark.parametrize(
    ("part", "run"),
    [
        ({}, "abcdxy"),
        ({"first": ["b"]}, "bd"),
        ({"last": ["b"]}, "ab"),
        ({"first": ["a"], "last": ["c"]}, "ac"),
        ({"first": ["b", "x"]}, "bdxy"),
        ({"skip": ["x"]}, "abcdy"),
        ({"skip": ["a", "b"]}, "cdxy"),
        ({"skip": ["b"]}, "abcdxy"),
    ],
)
def test_what_a_part_runs(diamond, part, run):
    """From the first to the last; skipped where nothing above it runs, since else its inputs change."""
    assert set(diamond.select(**part).run) == set(run)


def test_a_part_says_what_becomes_of_the_rest(diamond):
    """Ancestors are stood in for, what depends on it is dropped, the rest is carried over."""
    part = diamond.select(first=["b"], last=["b"])

    assert part.run == ("b",)
    assert part.required == ("a",)
    assert part.dropped == ("d",)
    assert set(part.optional) == {"c", "x", "y"}


def test_every_node_is_in_one_place(diamond):
    """A selection divides the pipeline."""
    for first in diamond.order:
        part = diamond.select(first=[first])
        names = [*part.run, *part.required, *part.optional, *part.dropped]

        assert sorted(names) == sorted(diamond.order)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"first": ["bb"]}, "has no node 'bb'. Did you mean b?"),
        ({"last": ["zzz"]}, "has no node 'zzz'. Its nodes: "),
        ({"first": ["d"], "last": ["a"]}, "No node of 'p' would run: from d to a is empty"),
    ],
)
def test_a_part_that_cannot_be_is_refused(diamond, part, message):
    """Unknown names get the nearest one; an empty part says the order."""
    with pytest.raises(UsageError, match=message.replace(".", r"\.").replace("?", r"\?")):
        diamond.select(**part)


def test_a_pipeline_without_nodes_cannot_run():
    """There is nothing to select."""
    with pytest.raises(UsageError, match="No node of 'p' would run"):
        Pipeline("p", []).select()


def test_waiting_without_reading():
    """`after` makes a node wait for another whose outputs it does not read."""
    check = Node(name="check")
    push = Node(name="push", after=[check])
    pipeline = Pipeline("p", [push, check])

    assert pipeline.order == ("check", "push")
    assert pipeline.parents("push") == ("check",)
    assert pipeline.select(first=["push"]) == Selection(run=("push",), required=("check",))


@pytest.mark.parametrize("name", ["metadata.db", "metadata.db-wal", "snapshots", "alerts"])
def test_a_pipeline_may_not_be_called_as_a_file_of_the_root(name):
    """Its folder would stand where the root keeps something else."""
    with pytest.raises(PipelineError, match="the root keeps a file or folder of that name"):
        Pipeline(name, [])
