"""Parts: the two halves of a pipeline that may have a cadence of their own, and the lines of the ledger for them.

`ingest` is what runs for each span; `train` is what chooses among spans, and all after it. The ticks of each cadence
are a line of the ledger of its own, `flights:ingest`; those of a pipeline that runs as a whole are the line `flights`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from spanwise.orchestrator.errors import ScheduleError, UsageError
from spanwise.orchestrator.pipeline import Pipeline, Selection

WHOLE, INGEST, TRAIN = "", "ingest", "train"
PARTS = (INGEST, TRAIN)

DATA = "data"
"""Not a part: the line of what runs because data has come."""


def line(pipeline: str, part: str) -> str:
    """The name under which the ticks of a part are recorded; no pipeline's own name has a colon."""
    return f"{pipeline}:{part}" if part else pipeline


def pipeline_of(line: str) -> str:
    """The pipeline that a line is of."""
    return line.partition(":")[0]


def part_of(line: str) -> str:
    """What a line is for; empty when that is the whole pipeline."""
    return line.partition(":")[2]


def cause(line: str, tick: str) -> str:
    """What a run of the tick says of its cause."""
    return f"{part_of(line)} {tick}".strip()


def line_of(pipeline: str, cause: str) -> tuple[str, str]:
    """The line and the tick that a run names as its cause."""
    part, _, tick = cause.rpartition(" ")
    return line(pipeline, part), tick


def selection(pipeline: Pipeline, part: str) -> Selection | None:
    """The nodes of a part; None for all."""
    if part == WHOLE:
        return None
    second = _second(pipeline)
    if part == TRAIN:
        return pipeline.select(first=pipeline.first_of(second))
    return pipeline.select(last=pipeline.last_of(set(pipeline.order) - set(second)))


def covered(pipeline: Pipeline, nodes: Collection[str]) -> frozenset[str]:
    """The parts that a complete run of these nodes has brought to their ends; its base has done what came before."""
    parts = {WHOLE: set(pipeline.order)}
    with contextlib.suppress(UsageError):  # it has no two parts
        parts[TRAIN] = set(_second(pipeline))
        parts[INGEST] = parts[WHOLE] - parts[TRAIN]
    return frozenset(part for part, its in parts.items() if _ends(pipeline, its) <= set(nodes))


def _ends(pipeline: Pipeline, nodes: Collection[str]) -> set[str]:
    return {node for node in nodes if not set(pipeline.children(node)) & set(nodes)}


def check(pipeline: Pipeline) -> None:
    """Refuses a pipeline that has no two parts.

    Raises:
        ScheduleError: what is missing.
    """
    try:
        _second(pipeline)
    except UsageError as error:
        raise ScheduleError(
            f"parts= needs a pipeline in two parts: nodes that ingest, and a node that chooses among their spans, such "
            f"as RollingWindow, with what learns from them behind it; {pipeline.name!r} is not divided so: "
            f"{', '.join(pipeline.order)}. Write cron= for all of it."
        ) from error


def _second(pipeline: Pipeline) -> tuple[str, ...]:
    from spanwise.scheduler.backfill.plan import split

    return split(pipeline)
