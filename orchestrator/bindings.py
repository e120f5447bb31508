"""Bindings: what names meant when code was fingerprinted, and whether they still mean it when the code runs."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

Place: TypeAlias = "Mapping[str, Any] | types.CellType | type"
"""Where a name is bound: in a module, in a closure or in a class."""

_ABSENT: Final = object()
_BY_NAME: Final = frozenset(dis.opmap[each] for each in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"))
_BY_CELL: Final = frozenset(dis.opmap[each] for each in ("STORE_DEREF", "DELETE_DEREF"))


class Bindings:
    """The names that code takes from outside of itself, and what they meant. Sent to another process, it is empty.

    Names that the code itself sets as it runs, such as a model that it loads once, are left out; what is changed in
    place keeps its binding.
    """

    def __init__(self) -> None:
        self._noticed: dict[tuple[int, str], tuple[Place, str, object]] = {}
        self._set_by_code: set[str] = set()

    def __reduce__(self) -> tuple[type[Bindings], tuple[()]]:
        return Bindings, ()

    def notice(self, place: Place, name: str) -> None:
        """Remembers what a name means there, if it means anything."""
        self._noticed.setdefault((id(place), name), (place, name, _meaning(place, name)))

    def notice_assignments(self, code: types.CodeType, operations: Iterable[tuple[int, int, str | None, int]]) -> None:
        """Remembers which names the code sets."""
        cells = [name for name in code.co_cellvars if name not in code.co_varnames]
        variables = (*code.co_varnames, *cells, *code.co_freevars)
        for op, number, name, _ in operations:
            if op in _BY_NAME and name is not None:
                self._set_by_code.add(name)
            elif op in _BY_CELL:
                self._set_by_code.add(variables[number])

    def values(self) -> Iterator[tuple[str, object]]:
        """What each name meant that the code does not set itself, under a name for people."""
        for place, name, value in self._noticed.values():
            if value is not _ABSENT and name not in self._set_by_code and not isinstance(place, types.CellType):
                within = place.__qualname__ if isinstance(place, type) else place.get("__name__", "")
                yield f"{within}.{name}", value

    def changed(self, same: Callable[[object, object], bool]) -> str | None:
        """The first name that means something else by now; `same` compares two values that are not one object."""
        for place, name, before in self._noticed.values():
            now = _meaning(place, name)
            if now is before or name in self._set_by_code:
                continue
            if now is _ABSENT or before is _ABSENT or not same(before, now):
                return name
        return None


def _meaning(place: Place, name: str) -> object:
    if isinstance(place, types.CellType):
        try:
            return place.cell_contents
        except ValueError:  # not bound yet, or deleted
            return _ABSENT
    return (vars(place) if isinstance(place, type) else place).get(name, _ABSENT)


noticed_bindings: ContextVar[Bindings | None] = ContextVar("noticed_bindings", default=None)
"""Where one is given, it receives the names that are met while code is described."""
