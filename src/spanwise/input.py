"""Datasets: how examples flow into training. `from spanwise.input import from_parquet` is the way users take.

The names are those of `spanwise.pipelines.input`, each loaded when it is first used.
"""

from typing import TYPE_CHECKING

from spanwise.pipelines import input as _input

if TYPE_CHECKING:
    from spanwise.pipelines.input import *  # noqa: F403

__all__ = [*_input.__all__]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    return getattr(_input, name)


def __dir__() -> list[str]:
    return __all__
