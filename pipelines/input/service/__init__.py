"""The data service: a dispatcher assigns work, workers run datasets, and consumers read the elements.

Importing this imports nothing heavy; a name is loaded when it is first used.
"""

from importlib import import_module

_HOMES = {
    "CrossTrainerCache": "policy",
    "DispatchServer": "dispatcher.dispatcher",
    "DispatcherConfig": "wire.config",
    "Security": "wire.security",
    "ShardingPolicy": "policy",
    "WorkerConfig": "wire.config",
    "WorkerServer": "worker.worker",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
