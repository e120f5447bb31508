"""How datasets travel: what a worker needs to have."""

import importlib.metadata
import importlib.util
import subprocess
import sys

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph, id_of, pack_graph

PIPELINE = """
LIMIT = 3


def helped(number):
    return number + LIMIT


def function(number):
    return helped(number)
"""
WORKER = """
import sys
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.wire.shipped_graph import unpack_graph

graph = unpack_graph(sys.stdin.buffer.read(), "it")
print(list(inputs.Dataset(graph.op, graph.options)), "loose" in sys.modules)
"""


def test_functions_of_a_pipeline_file_travel_with_their_code(tmp_path, monkeypatch):
    """A worker has never seen the file, and cannot find it."""
    file = tmp_path / "loose.py"
    file.write_text(PIPELINE)
    spec = importlib.util.spec_from_file_location("loose", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "loose", module)
    spec.loader.exec_module(module)
    dataset = inputs.range(3).map(module.function)

    content = pack_graph(ShippedGraph.of(dataset))

    found = subprocess.run([sys.executable, "-c", WORKER], input=content, capture_output=True, check=True)
    assert found.stdout == b"[3, 4, 5] False\n"


def test_versions_are_those_that_this_process_has_loaded(monkeypatch):
    """They are read once: for each of a thousand consumers that would take longer than all the rest of joining."""
    graph = ShippedGraph.of(inputs.range(3))
    content = pack_graph(graph)
    known = id_of(graph.op, graph.options, content, (3,))
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "of another one, installed meanwhile")

    assert pack_graph(graph).partition(b"\n")[0] == content.partition(b"\n")[0]
    assert id_of(graph.op, graph.options, content, (3,)) == known


def test_a_dataset_that_is_cut_otherwise_has_another_id():
    """As by a program that cuts sources otherwise: split 2 of a stored state would be other elements."""
    graph = ShippedGraph.of(inputs.range(3))
    content = pack_graph(graph)

    assert id_of(graph.op, graph.options, content, (3,)) != id_of(graph.op, graph.options, content, (2,))


def test_a_dataset_that_stores_elements_elsewhere_or_otherwise_has_another_id(tmp_path):
    """One training would get the order, the noise or the limit of another one's cache."""
    numbers = inputs.range(3)
    stored = [
        numbers.shuffle(),
        numbers.shuffle().cache(),
        numbers.cache().shuffle(),
        numbers.shuffle().cache(limit_bytes=64),
        numbers.shuffle().snapshot(tmp_path),
        numbers.snapshot(tmp_path).shuffle(),
        numbers.shuffle().snapshot(tmp_path, reader_fn=lambda splits: splits.flat_map(lambda split: split.shuffle())),
    ]

    graphs = map(ShippedGraph.of, stored)
    ids = {id_of(graph.op, graph.options, b"", (3,)) for graph in graphs}
    assert len(ids) == len(stored)


def test_a_dataset_is_sent_as_the_same_bytes_whoever_has_looked_at_it():
    """They are its id where a function has no fingerprint: consumers of one job would be in two."""
    dataset = inputs.from_elements([1, 2]).map(str).batch(2)
    graph = ShippedGraph.of(dataset)
    before = pack_graph(graph)

    list(dataset)
    assert pack_graph(graph) == before
