"""Parts: the two halves of a pipeline that may have a cron each. Pure.

`ingest` is what runs for each span; `train` is what chooses among spans, and everything after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from spanwise.orchestrator.component import Resolver
from spanwise.orchestrator.errors import ScheduleError, UsageError
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.span_resolver import SpanResolver
from spanwise.scheduler.schedule.schedule_key import INGEST, TRAIN, WHOLE


def select_part(pipeline: Pipeline, part: str) -> Selection | None:
    """The nodes of a part; None for all."""
    if part == WHOLE:
        return None
    train = train_nodes(pipeline)
    if part == TRAIN:
        return pipeline.select(first=pipeline.first_of(train))
    return pipeline.select(last=pipeline.last_of(set(pipeline.order) - set(train)))


def completed_parts(pipeline: Pipeline, nodes: Collection[str]) -> frozenset[str]:
    """The parts that a complete run of these nodes has completed; its base has done what came before."""
    parts = {WHOLE: set(pipeline.order)}
    with contextlib.suppress(UsageError):  # it has no two parts
        parts[TRAIN] = set(train_nodes(pipeline))
        parts[INGEST] = parts[WHOLE] - parts[TRAIN]
    return frozenset(part for part, its in parts.items() if _last_nodes(pipeline, its) <= set(nodes))


def _last_nodes(pipeline: Pipeline, nodes: Collection[str]) -> set[str]:
    return {node for node in nodes if not set(pipeline.children(node)) & set(nodes)}


def check_parts(pipeline: Pipeline) -> None:
    """Refuses a pipeline that has no two parts.

    Raises:
        ScheduleError: what is missing.
    """
    try:
        train_nodes(pipeline)
    except UsageError as error:
        raise ScheduleError(
            f"parts= needs a pipeline in two parts: nodes that ingest, and a node that chooses among their spans, such "
            f"as RollingWindow, with the nodes that learn from them after it. {pipeline.name!r} has no such parts: "
            f"{', '.join(pipeline.order)}. Write cron= for all of it."
        ) from error


def train_nodes(pipeline: Pipeline, at: Sequence[str] = ()) -> tuple[str, ...]:
    """The nodes of the second part, parents first: the resolvers that choose by span, and all that depends on them.

    RFC, Partial pipeline execution: the first portion is scheduled for each span, the second, "a Resolver plus
    components like Transform, Trainer, Evaluator and Pusher", runs once. `at` names its first nodes instead. A
    resolver that reads no spans, such as the latest schema, belongs to the part that it serves.

    Raises:
        UsageError: there is no such part, an unknown node, or a node that ingests lies behind the split.
    """
    first = list(at) or [n.name for n in pipeline if isinstance(n, Resolver) and isinstance(n, SpanResolver)]
    if not first:
        raise UsageError(
            f"Pipeline {pipeline.name!r} has no node that chooses by span, such as RollingWindow, so it has no second "
            f"part to run once. Name its first node:  --split-at NODE  ({', '.join(pipeline.order)})"
        )
    second = pipeline.select(first=first).run
    ingests = [n for n in second if hasattr(pipeline.nodes[n], "available")]
    if ingests or len(second) == len(pipeline.order):
        raise UsageError(
            f"A split at {', '.join(first)} leaves {', '.join(ingests) or 'nothing'} "
            f"{'behind it' if ingests else 'before it'}; the nodes that ingest run once for each span."
        )
    return second
