"""A job on disk: what was done and the parameters that came of it, in one file that takes its place at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spanwise.components.training.elastic.arrays import Arrays, packed, unpacked
from spanwise.orchestrator import durable


def write(path: Path, facts: Mapping[str, Any], arrays: Arrays) -> None:
    """Keeps plain data and arrays; whoever is killed meanwhile leaves what was there."""
    layout, content = packed(arrays)
    durable.put(path, [json.dumps({**facts, "layout": layout}).encode() + b"\n", content])


def read(path: Path) -> tuple[dict[str, Any], Arrays] | None:
    """What was kept; None if nothing was."""
    try:
        head, _, content = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    facts: dict[str, Any] = json.loads(head)
    return facts, unpacked(facts.pop("layout"), content)
