"""Resources: what a node asks of the place where it is executed, and what this machine has to give."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator.errors import ParameterError, PipelineError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1 << 10 * power for power, letter in enumerate("KMGT", start=1)
}
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]i?|)B?")
_POOL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS",
)  # fmt: skip
"""Variables that limit the threads of libraries; each reads its own when it starts its threads."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a node needs while it runs: `Trainer(..., resources=Resources(cpus=4, memory="16GiB", pool="gpu"))`.

    Of a Trainer with replicas, each gets `cpus`, `memory` and `gpus`; all of them together take one slot of the pool.
    They say where and when a node runs, never what it makes, so they are not part of its cache key.
    """

    cpus: float | None = None  #: processors that it keeps busy; its libraries use as many threads
    memory: str | None = None  #: the most memory that its processes may use together, such as "16GiB" or "500MB"
    gpus: int = 0
    pool: str = ""  #: the pool that it takes a slot of, of those in the settings
    image: str = ""  #: the container image that it runs in, where the executor has images
    executor: str = ""  #: where it runs: "local", or the engine that the settings name; by default as they say
    spread: bool = False  #: whether each of a Trainer's replicas gets a machine of its own

    def __post_init__(self) -> None:
        if self.cpus is not None and not self.cpus > 0:
            raise ParameterError(f"Resources: cpus is more than 0, not {self.cpus!r}.")
        if self.gpus < 0 or self.gpus != int(self.gpus):
            raise ParameterError(f"Resources: gpus is a whole number, not {self.gpus!r}.")
        if self.pool and not _POOL.fullmatch(self.pool):
            raise ParameterError(f"Resources: {self.pool!r} cannot name a pool: use letters, digits, '_', '.', '-'.")
        if self.memory is not None:
            parse_memory(self.memory)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_memory(self.memory)

    @property
    def threads(self) -> int | None:
        """How many threads its libraries use; None for as many as they like."""
        return None if self.cpus is None else max(1, int(self.cpus))


NOTHING_ASKED = Resources()


def parse_memory(text: str) -> int:
    """An amount of memory in bytes.

    Raises:
        ParameterError: it is not one.
    """
    found = _MEMORY.fullmatch(text)
    amount = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not amount:
        raise ParameterError(f"{text!r} is not an amount of memory; write 16GiB, 500MB or the number of bytes.")
    return amount


def format_memory(amount: int) -> str:
    """An amount of memory as people write it."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= size:
            return f"{amount / size:.3g} {unit}"
    return f"{amount} bytes"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What nodes that run side by side on one machine may use together."""

    cpus: float
    memory_bytes: int
    gpus: tuple[str, ...] = ()  #: their names, as CUDA_VISIBLE_DEVICES lists them
    placed: bool = False  #: an engine has chosen it for a node, and given it what the node asks for

    @classmethod
    def here(cls) -> Machine:
        """What this process may use."""
        return _machine_here()

    def refuse(self, node: str, asked: Resources, replicas: int = 1) -> None:
        """Refuses a node that can never run here, with all of its replicas at once.

        Raises:
            PipelineError: it asks for more than there is, or for an image.
        """
        if self.placed:
            return
        if asked.image:
            raise PipelineError(
                f"{node} asks for the image {asked.image!r}, and nodes run on this machine as they are installed. "
                f"Leave it out, or name an executor that has images in the settings: [executor] name = …"
            )
        if asked.spread and replicas > 1:
            raise PipelineError(
                f"{node} asks for a machine for each of its {replicas} replicas, and this is one machine. Leave "
                f"spread=True out, or name an executor of several machines in the settings: [executor] name = …"
            )
        wanted, has = (asked.memory_bytes or 0) * replicas, ""
        if asked.cpus is not None and asked.cpus * replicas > self.cpus:
            wanted_text, has = f"{asked.cpus:g} cpus", f"{self.cpus:g}"
        elif wanted > self.memory_bytes:
            wanted_text, has = f"{asked.memory} of memory", format_memory(self.memory_bytes)
        elif asked.gpus * replicas > len(self.gpus):
            wanted_text, has = f"{asked.gpus} gpus", str(len(self.gpus))
        if has:
            each = f" for each of its {replicas} replicas" if replicas > 1 else ""
            raise PipelineError(
                f"{node} asks for {wanted_text}{each}, and this machine has {has}. Ask for less, or name another "
                f"executor in the settings: [executor] name = …"
            )

    def has_room(self, asked: Resources, running: Iterable[Resources], replicas: int = 1) -> bool:
        """Whether the replicas of a node could start beside those that run; no `cpus` counts as one."""
        every = [*[asked] * replicas, *running]
        if any(each.cpus is not None for each in every) and sum(_cpus(each) for each in every) > self.cpus:
            return len(every) == replicas
        if sum(each.memory_bytes or 0 for each in every) > self.memory_bytes:
            return False
        return sum(each.gpus for each in every) <= len(self.gpus)

    def choose_gpus(self, count: int, taken: Iterable[str]) -> tuple[str, ...]:
        """Names that many GPUs which are not taken."""
        busy = set(taken)
        return tuple(itertools.islice((each for each in self.gpus if each not in busy), count))


def _cpus(asked: Resources) -> float:
    return 1.0 if asked.cpus is None else asked.cpus


@functools.cache
def _machine_here() -> Machine:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(cpus=cpus, memory_bytes=min(memory, _container_memory(memory)), gpus=_gpus())


def _container_memory(most: int) -> int:
    """What the container may use; `most` where it has no limit."""
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(place).read_text(encoding="ascii").strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else most
    return most


def _gpus() -> tuple[str, ...]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(each for each in visible.split(",") if each not in ("", "-1"))
    devices = Path("/dev").glob("nvidia[0-9]*")
    return tuple(sorted((each.name.removeprefix("nvidia") for each in devices), key=int))


def limit_threads(threads: int) -> None:
    """Makes the libraries of this process use at most so many threads each."""
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    _limit_loaded(threads)


def _limit_loaded(threads: int) -> None:
    """Those that were imported before the fork have read their variables already."""
    if arrow := sys.modules.get("pyarrow"):
        arrow.set_cpu_count(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    if blas := sys.modules.get("threadpoolctl"):  # scikit-learn imports it; BLAS cannot be limited without it
        blas.threadpool_limits(threads)


def refuse_unknown_pools(asked: Mapping[str, Resources], pools: Mapping[str, int]) -> None:
    """Refuses a node whose pool nobody has given a size.

    Raises:
        PipelineError: it is not in the settings.
    """
    for node, resources in asked.items():
        if resources.pool and resources.pool not in pools:
            there = f"there are: {', '.join(pools)}" if pools else "there are none"
            raise PipelineError(
                f"{node} takes a slot of the pool {resources.pool!r}, which the settings do not have; {there}. Give it "
                f"a size in spanwise.toml: [executor.pools] {resources.pool} = 1"
            )
