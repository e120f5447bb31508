"""Which splits the examples have: `split_names`, `default_output`."""

from collections.abc import Mapping
from typing import Any

from spanwise.components.ingest.splits import HashSplit, output_splits, split_names
from spanwise.orchestrator.span_pattern import SpanPattern


def name_splits(given: Mapping[str, Any]) -> dict[str, Any]:
    ratios = [HashSplit(name, weight) for name, weight in given.get("output_splits") or ()]
    names = split_names(_inputs(given), ratios)
    return {"names": names, "split_names": names}


def default_output(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"output_splits": [(split.name, split.weight) for split in output_splits(_inputs(given))]}


def _inputs(given: Mapping[str, Any]) -> list[str]:
    for _, pattern in given["input_splits"]:
        SpanPattern.parse(pattern)
    return [name for name, _ in given["input_splits"]]


APIS = {"split_names": name_splits, "default_output": default_output}
