"""Graph digests: which transform graph made some features, and which one a model was trained with.

Equal digests mean the same function with the same learned values over the same columns in the same order, since a model
may take its features by place. The versions of the libraries that wrote the graph do not count, so that an upgrade does
not separate a model from its features.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.artifact import Examples, Model, TransformGraph
from spanwise.orchestrator.errors import UnreadableInput

GRAPH = "graph"
"""The folder of a model with a copy of its graph."""


def digest_of(graph: Path) -> str:
    """The digest of the graph in a folder; of a graph that Transform did not write, the digest of its files."""
    described = graph / "graph.json"
    try:
        stored = json.loads(described.read_text(encoding="utf-8")) if described.exists() else None
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"{described} cannot be read: {error}. Run Transform again.") from error
    if not isinstance(stored, dict) or "source_digest" not in stored:
        return fingerprint.of_tree(graph).digest
    stored.pop("versions", None)
    return fingerprint.digest("transform graph", json.dumps(stored))


def shared_digest(node: str, examples: Sequence[Examples], graph: TransformGraph | None) -> str | None:
    """The graph that a model of these examples is trained with; None without one.

    Raises:
        UnreadableInput: the examples were made by several graphs, or by another one than the connected one.
    """
    digests = {each.graph_digest for each in examples}
    first = next((each for each in examples if each.graph_digest != examples[-1].graph_digest), None)
    if first is not None:
        raise UnreadableInput(
            f"{node} reads {first.name} and {examples[-1].name}, which different transform graphs have made, so their "
            "columns do not mean the same. Put the window before Transform: Transform(examples=recent['examples'], …)."
        )
    (made_by,) = digests
    if graph is None:
        return made_by
    connected = digest_of(graph.path)
    if made_by not in (None, connected):
        raise UnreadableInput(
            f"{node} reads {examples[-1].name}, which another graph than {graph.name} has made. Connect the graph of "
            "the same Transform: examples=transform['examples'], graph=transform['graph']."
        )
    return connected


def refuse_other_graph(node: str, examples: Sequence[Examples], model: Model, role: str) -> None:
    """Refuses to apply a model to the features of a graph that is not its own.

    Raises:
        UnreadableInput: the message names the pair and the way out.
    """
    other = next((e for e in examples if e.graph_digest is not None and e.graph_digest != model.graph_digest), None)
    if other is None:
        return
    trained = "without a graph" if model.graph_digest is None else f"with the graph {model.graph_digest[:12]}"
    raise UnreadableInput(
        f"{node} reads {other.name}, which the transform graph {str(other.graph_digest)[:12]} has made, but the {role} "
        f"{model.name} was trained {trained}, so its predictions would be wrong.\n"
        "Connect the examples that Transform reads, such as recent['examples'], and let predict_fn apply each model's "
        "own graph: Preprocessor.load(model_dir / 'graph').apply(table)."
    )
