"""Names of tf.data: an argument or method that is called so is refused with the name that it has here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from spanwise.orchestrator.errors import DatasetError

_Kind = TypeVar("_Kind", bound=type)

ARGUMENTS: Final = {
    "batch_size": "size",
    "bucket_batch_sizes": "sizes",
    "bucket_boundaries": "boundaries",
    "buffer_size": "buffer",
    "element_length_func": "length",
    "filename": "path",
    "initial_state": "initial",
    "map_func": "function",
    "num_parallel_calls": "num_parallel",
    "num_shards": "shards",
    "pad_to_bucket_boundary": "shapes",
    "padded_shapes": "shapes",
    "padding_values": "values",
    "reduce_func": "function",
    "scan_func": "function",
    "transformation_func": "function",
}
"""Their argument, and ours."""

METHODS: Final = {
    "as_numpy_iterator": "iterate over the dataset",
    "choose_from_datasets": "choose_from_datasets of spanwise.input",
    "from_generator": "from_generator of spanwise.input",
    "from_tensor_slices": "from_tensor_slices of spanwise.input",
    "from_tensors": "from_tensors of spanwise.input",
    "list_files": "list_files of spanwise.input",
    "random": "shuffle",
    "ragged_batch": "batch(n, ragged=True)",
    "sample_from_datasets": "sample_from_datasets of spanwise.input",
    "save": "save of spanwise.input",
    "with_options": "options(…)",
    "zip": "zip of spanwise.input",
}
"""Their method, and what we have instead."""


def answer_tf_names(cls: _Kind) -> _Kind:
    """Lets the methods of a class refuse arguments of tf.data by saying ours; and the class, its methods."""
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(cls, name, _answering(method))
    cls.__getattr__ = _no_such_method  # type: ignore[attr-defined]  # only asked for what is not there
    return cls


def _answering(method: Callable[..., Any]) -> Callable[..., Any]:
    known = inspect.signature(method).parameters

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        for name in named.keys() - known.keys():
            ours = ARGUMENTS.get(name)
            if ours in known:
                raise DatasetError(f"{method.__name__}({name}=…): the argument is called {ours} here.")
        return method(*arguments, **named)

    return call


def _no_such_method(dataset: object, name: str) -> Any:
    hint = f" Use {METHODS[name]}." if name in METHODS else ""
    raise AttributeError(f"{type(dataset).__name__} has no method {name!r}.{hint}")
