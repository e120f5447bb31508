"""A job on disk: what was done and the parameters that came of it, in one file that takes its place at once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.elastic.arrays import Arrays, packed, unpacked

_log = logging.getLogger(__name__)


def write(path: Path, facts: Mapping[str, Any], arrays: Arrays) -> None:
    """Keeps plain data and arrays; whoever is killed meanwhile leaves what was there."""
    layout, content = packed(arrays)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(json.dumps({**facts, "layout": layout}).encode() + b"\n")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: Path) -> tuple[dict[str, Any], Arrays] | None:
    """What was kept; None if nothing was."""
    try:
        head, _, content = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    facts: dict[str, Any] = json.loads(head)
    return facts, unpacked(facts.pop("layout"), content)
