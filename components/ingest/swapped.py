"""Swapped sources: whether a node that ingests reads what another node of its pipeline read before. Reads only.

A node is known by its name, and so are its spans. After two nodes have swapped their names, the window of each would
hold old spans of one source and new spans of the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from spanwise.orchestrator import ParameterError
from spanwise.orchestrator.history import History
from spanwise.orchestrator.parameter_record import encode_parameter, is_same_parameter
from spanwise.orchestrator.run import Execution

_LOOK_BACK = 20  # runs, from the one that made the newest span


def refuse_swapped(past: History, source: Mapping[str, object]) -> None:
    """Refuses a source that another node had, where this one had another; `source` are parameters of the node.

    A source that was edited, because its files have moved, is that of no other node.

    Raises:
        ParameterError: both sources are named, with the way out.
    """
    newest = next(past.published_spans(), None)
    if newest is None:
        return
    made = past.store.producer(past.published(newest)[-1])
    now = {name: encode_parameter(value) for name, value in source.items() if value is not None}
    if _has(made, now):
        return
    for run in itertools.islice(past.store.runs(made.pipeline, before=made.run + 1), _LOOK_BACK):
        for other in past.store.executions(run):
            if other.node != made.node and _has(other, now):
                raise ParameterError(
                    f"{made.node} has the {' and the '.join(f'{name} {value}' for name, value in now.items())} now, "
                    f"which was that of {other.node} in run {run.number}. Its spans up to now are of another source, "
                    "and windows would mix them. Give the node a name that is not in use yet, so that its history "
                    "begins anew, or restore the names."
                )


def _has(execution: Execution, parameters: Mapping[str, str]) -> bool:
    return all(is_same_parameter(execution.parameters.get(name), text) for name, text in parameters.items())
