"""The checkpoint of a job: its tasks and its parameters, in one file that is replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spanwise.components.training.elastic.arrays import Arrays, pack, unpack
from spanwise.orchestrator import durable


def write(path: Path, facts: Mapping[str, Any], arrays: Arrays) -> None:
    """Writes plain data and arrays. A process killed meanwhile leaves the previous checkpoint."""
    layout, content = pack(arrays)
    durable.put(path, [json.dumps({**facts, "layout": layout}).encode() + b"\n", content])


def read(path: Path) -> tuple[dict[str, Any], Arrays] | None:
    """Reads the checkpoint; None if there is none."""
    try:
        head, _, content = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    facts: dict[str, Any] = json.loads(head)
    return facts, unpack(facts.pop("layout"), content)
