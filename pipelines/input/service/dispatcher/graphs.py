"""Pickled graphs of registered datasets: in memory, or beside the journal, where they are stored before their records.

A graph has a name that no other content ever has, so whoever is late changes nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Protocol

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import ServiceError


class GraphStore(Protocol):
    def put(self, graph: bytes) -> str:
        """Stores a graph; returns its name."""

    def get(self, name: str) -> bytes:
        """The graph of that name."""


class MemoryGraphs:
    """Graphs of a dispatcher without a journal."""

    def __init__(self) -> None:
        self._graphs: dict[str, bytes] = {}

    def put(self, graph: bytes) -> str:
        self._graphs[name := digest(graph)] = graph
        return name

    def get(self, name: str) -> bytes:
        return self._graphs[name]


class FolderGraphs:
    """Graphs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, graph: bytes) -> str:
        path = self._folder / digest(graph)
        if not path.exists():
            durable.put(
                path, [graph], draft=path.with_suffix(f".{secrets.token_hex(8)}")
            )  # others may be putting it too
        return path.name

    def get(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            raise ServiceError(
                f"{self._folder / name}, the graph of a registered dataset, is gone. Start the dispatcher on an empty "
                f"folder, and register the dataset again."
            ) from None


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def early_name(dataset: str) -> str:
    """The name of a graph whose journal names none: journals of the first versions."""
    return digest(dataset.encode())
