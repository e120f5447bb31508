"""Preloads: which modules a node server imports ahead, so that nodes need not, and in which order."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping


class Preload:
    """The modules that the nodes still to come will import, those of the first node first.

    A node that has reused a result imports nothing, so a run that reuses everything need not import what does the work.
    """

    def __init__(self, by_node: Mapping[str, Iterable[str]], shared: Iterable[str]) -> None:
        self._by_node = {node: tuple(modules) for node, modules in by_node.items()}
        self._shared = tuple(shared)  #: imported last, while any node is still to come
        self._coming = dict.fromkeys(self._by_node)
        self.tried: set[str] = set()  #: those that were imported, or could not be

    def spare(self, node: str) -> None:
        """A node has reused a result."""
        self._coming.pop(node, None)

    def list_missing(self, node: str) -> list[str]:
        """What a node that starts needs, perhaps although it was spared in an earlier run."""
        if node in self._by_node:
            self._coming[node] = None
        return [module for module in self._by_node.get(node, ()) if self._is_missing(module)]

    def next_module(self) -> str | None:
        """The next module to import; None when all are there that can be."""
        nodes = (module for node in self._coming for module in self._by_node[node])
        modules = (*nodes, *(self._shared if self._coming else ()))
        return next(filter(self._is_missing, modules), None)

    def _is_missing(self, module: str) -> bool:
        return module not in self.tried and module not in sys.modules
