"""Contexts and types: looked up by name, and created when they are first needed, whoever else creates them then."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from ml_metadata.proto import metadata_store_pb2

from spanwise.orchestrator.errors import NotRecorded, StoreError
from spanwise.orchestrator.mlmd import declarations, layout
from spanwise.orchestrator.mlmd.connection import MOST_RACES, NameTaken, Proto, StoreConnection
from spanwise.orchestrator.mlmd.rows import ContextRow, Reader
from spanwise.orchestrator.store import format_no_such_run


class ContextStore:
    """The contexts and types of one store; remembers the ids of those that every run needs."""

    def __init__(self, connection: StoreConnection, reader: Reader) -> None:
        self._connection = connection
        self._reader = reader
        self._claims_are_indexed: bool | None = None
        self._types: dict[tuple[str, str], int] = {}
        self._ids: dict[tuple[str, str], int] = {}  # of the contexts of pipelines and nodes

    def find(self, kind: str, name: str) -> ContextRow | None:
        return self._reader.context(kind, name)

    def claims_are_indexed(self) -> bool:
        """Whether all claims that are looked up many at once have external ids: not where an older spanwise began."""
        if self._claims_are_indexed is None:
            claims = [known for known in self._connection.find("get_context_types") if known.name == layout.CLAIM]
            if not claims:
                return True
            self._claims_are_indexed = declarations.INDEXED_CLAIMS in claims[0].properties  # from its first claim on
        return self._claims_are_indexed

    def put(self, contexts: Sequence[Proto]) -> list[int]:
        """Writes them in one transaction; returns their ids.

        Raises:
            NameTaken: one of them exists.
        """
        return list(self._connection.write("put_contexts", contexts))

    def named(self, kind: str, name: str, *, external: bool = False) -> Proto:
        """A new context without properties."""
        name = layout.name_of(name)
        type_id = self.type_id("context", kind)
        return metadata_store_pb2.Context(type_id=type_id, name=name, external_id=name if external else None)

    def insert_span_index(self, names: Sequence[str]) -> None:
        """Inserts those names of the span index that are missing."""
        for _ in range(MOST_RACES):
            if self._reader.contexts(names[-1:]):
                return
            there = {c.name for c in self._reader.contexts(names)}
            fresh = [self.named(layout.SPAN_INDEX, name, external=True) for name in names if name not in there]
            try:
                self._connection.write_once(partial(self.put, fresh))
            except NameTaken:
                continue
            return
        raise self._connection.race_error(f"the span index {names[-1]}")

    def pipeline_id(self, pipeline: str) -> int:
        if (declarations.PIPELINE, pipeline) not in self._ids:
            context = self.find(declarations.PIPELINE, pipeline)
            if context is None:
                raise NotRecorded(format_no_such_run(pipeline, 1, 0))
            self._ids[declarations.PIPELINE, pipeline] = context.id
        return self._ids[declarations.PIPELINE, pipeline]

    def node_id(self, pipeline: str, node: str) -> int:
        name = layout.node_name(pipeline, node)
        if (declarations.NODE, name) not in self._ids:
            self._ids[declarations.NODE, name] = self._find_or_create_node(pipeline, node)
        return self._ids[declarations.NODE, name]

    def set_parent(self, child: int, parent: int) -> None:
        """Records the parent of a context; only other programs read it."""
        link = metadata_store_pb2.ParentContext(child_id=child, parent_id=parent)
        with contextlib.suppress(NameTaken):  # recorded already
            self._connection.write_once(partial(self._connection.write, "put_parent_contexts", [link]))

    def type_id(self, of: declarations.Of, name: str) -> int:
        for _ in range(MOST_RACES):
            if (of, name) in self._types:
                return self._types[of, name]
            there = {known.name: known for known in self._connection.read(f"get_{of}_types") if not known.version}
            for known in there.values():
                if declarations.properties_of_type(of, known.name).items() <= dict(known.properties).items():
                    self._types[of, known.name] = known.id
            if (of, name) not in self._types:
                self._refuse_other_types(of, there.get(name))
                with contextlib.suppress(NameTaken):  # registered by another process at the same moment: look again
                    self._connection.write_once(partial(self._register, of, name, there.get(name)))
        raise self._connection.race_error(f"the {of} type {name!r}")

    def _refuse_other_types(self, of: declarations.Of, known: Proto | None) -> None:
        """Refuses a type of another program that has declared a property as something else than we record.

        Raises:
            StoreError: no registration could ever succeed.
        """
        if known is None:
            return
        for name, value_type in declarations.properties_of_type(of, known.name).items():
            found = known.properties.get(name, value_type)
            if found != value_type:
                of_type = metadata_store_pb2.PropertyType.Name
                raise StoreError(
                    f"In the metadata {self._connection}, another program has declared the property {name!r} of the "
                    f"{of} type {known.name!r} as {of_type(found)}; spanwise records {of_type(value_type)}. Use a "
                    "database of its own: the setting `metadata`."
                )

    def _find_or_create_node(self, pipeline: str, node: str) -> int:
        name = layout.node_name(pipeline, node)
        context = self.find(declarations.NODE, name)
        if context is None:
            fresh = layout.node_context(pipeline, node, type_id=self.type_id("context", declarations.NODE))
            with contextlib.suppress(NameTaken):  # created by another process meanwhile
                self._connection.write_once(partial(self.put, [fresh]))
            context = self.find(declarations.NODE, name)
            assert context is not None, "contexts are never removed"
            self.set_parent(context.id, self.pipeline_id(pipeline))
        return context.id

    def _register(self, of: declarations.Of, name: str, known: Proto | None) -> None:
        declared = declarations.declare_type(of, layout.name_of(name), known)
        if known is None:
            # Two processes could register one name at the same moment, under two ids; external ids are unique.
            declared.external_id = layout.name_of(f"spanwise:{of}:{name}")
            if (of, name) == ("context", layout.CLAIM):
                declared.properties[declarations.INDEXED_CLAIMS] = metadata_store_pb2.INT
        # Another program may have a type of that name; it keeps its properties and gets ours.
        self._connection.write(f"put_{of}_type", declared, can_add_fields=True, can_omit_fields=True)
