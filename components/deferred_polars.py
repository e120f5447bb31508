"""Polars, imported when something of it is first used: a pipeline file that names feature functions does not wait."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
else:

    class _DeferredPolars:
        def __getattr__(self, name: str) -> object:
            value = getattr(importlib.import_module("polars"), name)
            setattr(self, name, value)  # the next use costs nothing
            return value

    pl = _DeferredPolars()

__all__ = ["pl"]
