"""The analysis of a window: what its analyzers learn, phase by phase, and the graph that follows from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import polars as pl

from spanwise.components.transform.analyzer_states import AnalyzerStates
from spanwise.components.transform.analyzers import Plain, PreprocessingError
from spanwise.components.transform.category_codes import refuse_category_codes
from spanwise.components.transform.graph import Preprocessor, feature_label, load_function, type_of
from spanwise.components.transform.row_wise import refuse_unless_row_wise
from spanwise.components.transform.trace import AnalyzerCall, Columns, PreprocessingTrace, trace_function
from spanwise.components.transform.window_plan import TransformWindow
from spanwise.components.transform.window_probe import probe_functions
from spanwise.components.transform.worker import CallInputs

log = logging.getLogger("spanwise.transform")


def analyze_window(window: TransformWindow) -> Preprocessor:
    """The graph, after as many phases as its analyzers are nested."""
    plan = window.plan
    function = load_function(plan.source, plan.function)
    states = AnalyzerStates(window)
    known: dict[bytes, Plain] = {}
    phase = 0
    while True:
        trace = trace_function(
            function, PreprocessingTrace(columns=Columns(window.types, window.unreadable), known=known)
        )
        if not phase:
            for name, expression in trace.features.items():
                refuse_unless_row_wise(feature_label(name), expression, window.types)
        if trace.complete or not phase:
            for name, expression in trace.features.items():  # the last time, all types are known
                refuse_category_codes(feature_label(name), expression, window.types)
        if trace.complete:
            for text, expression in trace.made:
                refuse_unless_row_wise(f"{text}: what `use` makes of its value", expression, window.types)
            probe_functions(window, trace.features)
            break
        calls = list(trace.pending.values())
        waiting = {key: ", ".join(map(feature_label, names)) for key, names in trace.waiting().items()}
        for call in calls:
            _check_call(call, f"{waiting[call.key]}: {call.text}", window.types)
        inputs = CallInputs(list(enumerate(calls)))
        try:
            probe_functions(window, inputs.named, inputs.label)
            values = states.values(calls)
        except PreprocessingError as error:
            raise _name_features(error, calls, waiting) from error
        known.update(values)
        phase += 1
        log.info("phase-analyzed", extra={"phase": phase, "analyzers": len(calls)})
    states.save()
    named = {name: known[key] for key, name in trace.names.items()}
    return Preprocessor.of(plan.source, plan.function, window.types, named, window.unreadable)


def _check_call(call: AnalyzerCall, who: str, types: Mapping[str, pl.DataType]) -> None:
    for each in call.inputs:
        refuse_unless_row_wise(who, each, types)
        refuse_category_codes(who, each, types)
    reason = call.analyzer.refusal(*[type_of(each, types, who) for each in call.inputs])
    if reason is not None:
        raise PreprocessingError(f"{who}: {reason}.")


def _name_features(
    error: PreprocessingError, calls: Sequence[AnalyzerCall], waiting: Mapping[bytes, str]
) -> PreprocessingError:
    """The error with the names of the features that need the call that failed."""
    for call in calls:
        if str(error).startswith(call.text):
            return PreprocessingError(f"{waiting[call.key]}: {error}")
    return error
