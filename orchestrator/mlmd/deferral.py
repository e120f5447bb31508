"""Deferral: ml_metadata is imported without the libraries that it imports and does not need here.

They are two fifths of the time of its import: grpc, with asyncio, serves ml_metadata's own servers only; attrs makes
one class; absl logs what is silenced here anyway. Nothing but ml_metadata holds a stand-in: other modules, and later
ones, import the library itself.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType


class _Deferred(ModuleType):
    """A module that is imported when something is first used that is not defined here."""

    def __init__(self, name: str, **defined: object) -> None:
        super().__init__(name)
        vars(self).update(defined)

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _make_class(**_options: object) -> Callable[[type], type]:
    """The one use of attrs, for a class that a dataclass does as well."""
    return dataclass


def _log(*_message: object) -> None:
    """Its messages name the settings, with the password, and errors that are handled here."""


_LEVELS = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR")}


def import_ml_metadata() -> None:
    """Imports ml_metadata, unless it is there."""
    if "ml_metadata" in sys.modules:
        return
    standins = [_Deferred("grpc"), _Deferred("attr", s=_make_class), _Deferred("absl.logging", log=_log, **_LEVELS)]
    placed = [each for each in standins if sys.modules.setdefault(each.__name__, each) is each]
    try:
        importlib.import_module("ml_metadata.metadata_store")
    finally:
        for each in placed:
            if sys.modules.get(each.__name__) is each:
                del sys.modules[each.__name__]
