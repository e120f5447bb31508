"""Orbax: an iterator's state as an item of its checkpoints, one file for each process. Needs orbax-checkpoint.

manager.save(step, args=ocp.args.Composite(model=…, input=IteratorSave(iterator)))
manager.restore(step, args=ocp.args.Composite(model=…, input=IteratorRestore(dataset.iterator())))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import jax
from orbax.checkpoint import CheckpointHandler
from orbax.checkpoint.args import CheckpointArgs, register_with_handler

from spanwise.orchestrator.errors import StateMismatch
from spanwise.pipelines.input.op import State
from spanwise.pipelines.input.snapshot.plain import plain_json, read_plain_json


class Resumable(Protocol):
    """An iterator of a dataset, or of its JAX arrays."""

    def state(self) -> State: ...
    def restore(self, state: State) -> Self: ...


class IteratorHandler(CheckpointHandler):  # type: ignore[misc, unused-ignore]  # orbax may be missing
    """Writes and reads the states of iterators."""

    def save(self, directory: Any, args: IteratorSave) -> None:
        (directory / _file_name()).write_text(plain_json(args.iterator.state()))

    def restore(self, directory: Any, args: IteratorRestore) -> Any:
        path = directory / _file_name()
        if not path.exists():
            there = ", ".join(sorted(each.name for each in directory.iterdir())) or "nothing"
            raise StateMismatch(
                f"{path}: this process has no state in the checkpoint, which has {there}. Restore with as many "
                f"processes as it was saved with, or begin a new pass."
            )
        return args.iterator.restore(read_plain_json(path.read_bytes()))


def _file_name() -> str:
    return f"process_{jax.process_index()}-of-{jax.process_count()}.json"


@register_with_handler(IteratorHandler, for_save=True)  # type: ignore[untyped-decorator, unused-ignore]
@dataclass
class IteratorSave(CheckpointArgs):  # type: ignore[misc, unused-ignore]
    """Saves the state that the iterator has now."""

    iterator: Resumable


@register_with_handler(IteratorHandler, for_restore=True)  # type: ignore[untyped-decorator, unused-ignore]
@dataclass
class IteratorRestore(CheckpointArgs):  # type: ignore[misc, unused-ignore]
    """Restores the state in this iterator, a new one, and returns it."""

    iterator: Resumable
