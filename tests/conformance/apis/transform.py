"""What Transform makes of a window: `transform_splits`, `transform_match`, `transform_props`.

How many artifacts there are, where they lie and what they carry is read off a real run.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spanwise.components import Transform
from spanwise.components.transform.transform import chosen_splits
from spanwise.orchestrator import Artifact
from tests.components.flow import Bench, Lake
from tests.conformance.judge import NotMapped


def preprocess(columns):  # type: ignore[no-untyped-def]  # as users write it
    """A feature, of no consequence."""
    return {"x": columns["x"] * 2}


def splits(given: Mapping[str, Any]) -> dict[str, Any]:
    config = given.get("config") or {}
    chosen = chosen_splits(given["examples"], config.get("analyze"), config.get("transform"))
    return {"analyze": sorted(chosen.analyze), "transform": sorted(chosen.transform)}


def match(given: Mapping[str, Any]) -> dict[str, Any]:
    """As many artifacts as inputs, each at a place of its own below that of the output."""
    inputs = next((given[name] for name in ("examples", "inputs", "artifacts") if name in given), None)
    if inputs is None:
        raise NotMapped(", ".join(given))
    count = inputs if isinstance(inputs, int) else len(inputs)
    made = _transformed(range(1, count + 1))
    return {"outputs": len(made), "uris": [Path(each.uri).name for each in made]}


def props(given: Mapping[str, Any]) -> dict[str, Any]:
    made = _transformed(given["spans"])
    return {"span_on_outputs": all(a.properties.get("span") == s for a, s in zip(made, given["spans"], strict=True))}


def _transformed(spans: Iterable[int]) -> Sequence[Artifact]:
    """What Transform publishes of a window of these spans."""
    lake = Lake(rows={span: {"x": [1, 2]} for span in sorted(spans)}, splits=["train"])
    transform = Transform(examples=lake["examples"], preprocessing_fn=preprocess)
    with tempfile.TemporaryDirectory() as root:
        outcome = Bench(Path(root)).run(lake, transform)
    return tuple(outcome.executions[transform.name].outputs["examples"])


APIS = {"transform_splits": splits, "transform_match": match, "transform_props": props}
