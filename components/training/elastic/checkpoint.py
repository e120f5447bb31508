"""The checkpoint of a job: its tasks and its parameters, in one file that is replaced atomically."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spanwise.components.training.elastic.arrays import Arrays, pack, unpack
from spanwise.orchestrator import durable

log = logging.getLogger("spanwise.training.elastic")


def write(path: Path, facts: Mapping[str, Any], arrays: Arrays) -> None:
    """Writes plain data and arrays, below their digest. A process killed meanwhile leaves the previous checkpoint."""
    layout, content = pack(arrays)
    head = json.dumps({**facts, "layout": layout}).encode() + b"\n"
    durable.put(path, [_digest(head, content), head, content])


def read(path: Path) -> tuple[dict[str, Any], Arrays] | None:
    """Reads the checkpoint; None if there is none, or if its bytes are not those that were written."""
    try:
        digest, _, written = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    head, newline, content = written.partition(b"\n")
    if digest + b"\n" != _digest(head + newline, content):
        log.warning("checkpoint-damaged", extra={"file": str(path), "reason": "the job begins anew"})
        return None
    facts: dict[str, Any] = json.loads(head)
    return facts, unpack(facts.pop("layout"), content)


def _digest(head: bytes, content: bytes) -> bytes:
    digest = hashlib.blake2b(head, digest_size=16)
    digest.update(content)
    return digest.hexdigest().encode() + b"\n"
