"""Transforming a window: analyze what is new of it, merge what its spans gave, transform span by span.

Rows are read by Beam workers, on which an element is a few row groups of one file; an analysis returns states, a
transformation counts. A span that the very same graph has transformed before is linked, not written again.
"""

from __future__ import annotations

import logging

from spanwise.components.transform.analysis import analyze_window
from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.feature_files import transform_spans
from spanwise.components.transform.graph import Preprocessor
from spanwise.components.transform.trace import format_expression
from spanwise.components.transform.window_plan import TransformPlan, TransformReport, TransformWindow
from spanwise.orchestrator.errors import NodeFailed

log = logging.getLogger("spanwise.transform")


def transform_window(plan: TransformPlan) -> TransformReport:
    """Writes the graph, the transformed spans, and what later runs can use.

    Raises:
        NodeFailed: the preprocessing function or one of its expressions fails; the feature is named.
        ColumnsChanged: two spans have different types for one column.
        UnreadableInput: a file is missing or damaged.
        ParameterError: Beam has no such runner here.
    """
    try:
        window = TransformWindow(plan)
        graph = analyze_window(window)
        graph.save(plan.graph)
        _check_reload(plan.graph, graph)
        report = transform_spans(window, graph)
    except PreprocessingError as error:
        raise NodeFailed(str(error)) from error
    for reads in report.reads:
        log.info("span-transformed", extra={name: value for name, value in vars(reads).items() if name != "content"})
    return report


def _check_reload(folder: str, graph: Preprocessor) -> None:
    """Reads the graph back: what will be served must be what is trained on."""
    stored = Preprocessor.load(folder)
    for name, expression in graph.features.items():
        ours, theirs = (each.meta.serialize(format="binary") for each in (expression, stored.features[name]))
        if ours != theirs or stored.outputs[name] != graph.outputs[name]:
            raise PreprocessingError(
                f"feature {name!r} reads back from the graph as {format_expression(stored.features[name])}, not as "
                f"{format_expression(expression)}: {graph.function} must give the same each time it is called."
            )
