"""Pickled graphs of registered datasets: in memory, or in the work directory of a fault-tolerant dispatcher."""

from __future__ import annotations

import hashlib
from pathlib import Path

from spanwise.orchestrator import durable


class GraphStore:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._graphs: dict[str, bytes] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def put(self, dataset: str, graph: bytes) -> None:
        if self._folder is None:
            self._graphs[dataset] = graph
        else:
            durable.put(self._path(self._folder, dataset), [graph])

    def get(self, dataset: str) -> bytes:
        return self._graphs[dataset] if self._folder is None else self._path(self._folder, dataset).read_bytes()

    @staticmethod
    def _path(folder: Path, dataset: str) -> Path:
        return folder / hashlib.sha256(dataset.encode()).hexdigest()[:32]
