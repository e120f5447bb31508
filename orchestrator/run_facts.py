"""Run facts: what the code of a component reads of its run, such as the span, which is part of its cache key then."""

from __future__ import annotations

import types
from collections.abc import Iterator

from spanwise.orchestrator.component import Component
from spanwise.orchestrator.parameter_record import encode_parameter
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import read_signature
from spanwise.orchestrator.user_code import ATTRIBUTES, Owner, code_within, operations, owner_of_module

_PASSED_ON = ("span", "spans", "parameters")
"""What counts where a run is stored or passed on, so that nobody sees what is read of it."""


def read_run_facts(node: Component, run: Run) -> dict[str, str]:
    """The facts of the run that the code of a user's component reads off its Attempt, by name, as texts."""
    kind = type(node)
    if read_signature(kind).attempt is None or owner_of_module(kind.__module__) is not Owner.USER:
        return {}
    code = getattr(kind.run, "__code__", None)
    names = {} if code is None else dict.fromkeys(name for each in code_within(code) for name in _names_read(each))
    facts = {name: getattr(run, name, None) for name in names}
    return {f"run.{name}": encode_parameter(value) for name, value in facts.items() if not callable(value)}


def _names_read(code: types.CodeType) -> Iterator[str]:
    """`span` of `attempt.run.span`; of `run = attempt.run`, and of `help(attempt.run)`, what may be read of it."""
    after_variable = after_run = False
    for op, _, name, _ in operations(code):
        if after_run and op in ATTRIBUTES:
            yield str(name)
        elif after_run:
            yield from _PASSED_ON
        after_run = after_variable and op in ATTRIBUTES and name == "run"
        after_variable = name is None  # an attempt is a variable, while `subprocess.run` is of a global name
