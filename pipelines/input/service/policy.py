"""Processing modes: how the elements of a dataset are shared out, and what is promised about visits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spanwise.orchestrator.errors import DatasetError


class ShardingPolicy(StrEnum):
    """How a job's elements are divided; a member, its value, or one of the two old names says which."""

    OFF = "off"  #: every worker gives the whole dataset
    DYNAMIC = "dynamic"  #: workers are dealt splits: exactly once, at most once if workers are restarted
    FILE = "file"  #: every worker has its files
    DATA = "data"  #: every worker makes all elements, and gives its own
    FILE_OR_DATA = "file_or_data"  #: FILE if there are files to read, or else DATA
    HINT = "hint"  #: `shard(SHARD_HINT, …)` in the graph stands for the number of workers and the worker's index
    AT_LEAST_ONCE = "at_least_once"  #: splits are leased, and leased again when their consumer or worker is gone
    EXACTLY_ONCE = "exactly_once"  #: as above, and no consumer is given an element twice

    @property
    def is_static(self) -> bool:
        """Whether a fixed list of workers shares the elements."""
        return self in {ShardingPolicy.FILE, ShardingPolicy.DATA, ShardingPolicy.FILE_OR_DATA, ShardingPolicy.HINT}

    @property
    def is_leased(self) -> bool:
        """Whether consumers hold splits, and say when they have done with them."""
        return self in {ShardingPolicy.AT_LEAST_ONCE, ShardingPolicy.EXACTLY_ONCE}


@dataclass(frozen=True)
class CrossTrainerCache:
    """Trainers that read a job by one name share what its workers make, each at its own place in a window."""

    trainer_id: str  #: consumers with the same one share a place, and read nothing twice

    def __post_init__(self) -> None:
        if not isinstance(self.trainer_id, str) or not self.trainer_id:
            raise DatasetError(
                f"CrossTrainerCache(trainer_id={self.trainer_id!r}): wants a text that is not empty, another one for "
                f"each trainer."
            )


_OLD_NAMES = {"parallel_epochs": ShardingPolicy.OFF, "distributed_epoch": ShardingPolicy.DYNAMIC}


def policy_of(mode: ShardingPolicy | str) -> ShardingPolicy:
    """The policy of that name.

    Raises:
        DatasetError: there is none.
    """
    if mode in _OLD_NAMES:
        return _OLD_NAMES[mode]
    try:
        return ShardingPolicy(mode)
    except ValueError:
        names = ", ".join([*ShardingPolicy, *_OLD_NAMES])
        raise DatasetError(f"distribute(processing_mode={mode!r}): there is no such mode; there are {names}.") from None
