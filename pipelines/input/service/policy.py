"""Processing modes: how workers share the elements of a dataset, and how often each is visited."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spanwise.orchestrator.errors import DatasetError


class ShardingPolicy(StrEnum):
    """How a job's elements are divided among workers."""

    OFF = "off"  #: every worker produces the whole dataset
    DYNAMIC = "dynamic"  #: workers get splits: exactly once; at most once if workers are restarted
    FILE = "file"  #: every worker reads its share of the files
    DATA = "data"  #: every worker produces all elements, and sends its share
    FILE_OR_DATA = "file_or_data"  #: FILE if the dataset reads files, otherwise DATA
    HINT = "hint"  #: `shard(SHARD_HINT, …)` in the graph becomes `shard(workers, index)`
    AT_LEAST_ONCE = "at_least_once"  #: splits are leased, and leased again when their consumer or worker is gone
    EXACTLY_ONCE = "exactly_once"  #: the same, and no consumer gets an element twice

    @property
    def is_static(self) -> bool:
        """Whether a fixed list of workers shares the elements."""
        return self in {ShardingPolicy.FILE, ShardingPolicy.DATA, ShardingPolicy.FILE_OR_DATA, ShardingPolicy.HINT}

    @property
    def is_leased(self) -> bool:
        """Whether consumers lease splits and acknowledge them."""
        return self in {ShardingPolicy.AT_LEAST_ONCE, ShardingPolicy.EXACTLY_ONCE}


@dataclass(frozen=True)
class CrossTrainerCache:
    """Lets trainers that read the same job share what its workers produce, each at its own place in a window."""

    trainer_id: str  #: consumers with the same id share a place, and get each element once

    def __post_init__(self) -> None:
        if not isinstance(self.trainer_id, str) or not self.trainer_id:
            raise DatasetError(
                f"CrossTrainerCache(trainer_id={self.trainer_id!r}): wants a non-empty string, a different one for "
                f"each trainer."
            )


_OLD_NAMES = {"parallel_epochs": ShardingPolicy.OFF, "distributed_epoch": ShardingPolicy.DYNAMIC}


def policy_of(mode: ShardingPolicy | str) -> ShardingPolicy:
    """The policy with this name.

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
