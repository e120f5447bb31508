"""How examples flow into training: a dataset describes it, a stream runs it.

Importing this imports nothing heavy; a name is loaded when it is first used.
"""

from importlib import import_module

_HOMES = {
    "AUTOTUNE": "op",
    "Dataset": "dataset",
    "DatasetIterator": "dataset",
    "Options": "op",
    "from_arrow": "dataset",
    "range": "dataset",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
