"""Traces: one run of a preprocessing function, which shows what its features need to know of all rows.

The function runs once a phase: a value that is not known yet is a placeholder column, which shows that an analyzer
waits for another; a known value is a literal.
"""

from __future__ import annotations

import dataclasses
import difflib
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, partial
from typing import TypeAlias, TypeVar, cast

from spanwise.components.deferred_polars import pl
from spanwise.components.transform.analyzers import Analyzer, Plain, PreprocessingError
from spanwise.components.transform.divisors import spread_divisors
from spanwise.components.transform.inner_nulls import drop_inner_nulls


class Columns(Mapping[str, "pl.Expr"]):
    """The columns of the examples by name: `columns["distance"]`. The same wherever the function runs."""

    def __init__(self, types: Mapping[str, pl.DataType], unreadable: Mapping[str, str] | None = None) -> None:
        self.types = dict(types)  #: the Polars type of each
        self._unreadable = dict(unreadable or {})

    def __getitem__(self, name: str) -> pl.Expr:
        if name in self.types:
            return pl.col(name)
        if name in self._unreadable:
            raise PreprocessingError(f"column {name!r} is unreadable for Polars: {self._unreadable[name]}.")
        near = difflib.get_close_matches(str(name), self.types, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(list(self.types)[:50])
        raise PreprocessingError(f"the examples have no column {name!r}; they have: {listed}.{meant}")

    def __contains__(self, name: object) -> bool:
        return name in self.types

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)


Preprocessing: TypeAlias = "Callable[[Columns], Mapping[str, pl.Expr]]"

S = TypeVar("S")

Use: TypeAlias = "Callable[[Plain], pl.Expr]"


@dataclass(frozen=True, kw_only=True)
class AnalyzerCall:
    """An analyzer and the expressions it analyzes."""

    analyzer: Analyzer[object]
    inputs: tuple[pl.Expr, ...]
    key: bytes  #: the same for the same analyzer of the same expressions, within one version of Polars
    roots: tuple[str, ...]  #: columns that the expressions are made of

    @property
    def text(self) -> str:
        """The call as a message shows it."""
        return f"{self.analyzer.label} of {', '.join(map(format_expression, self.inputs))}"


@dataclass(kw_only=True)
class PreprocessingTrace:
    """One run of a preprocessing function: the values it was given, its analyzer calls, its features."""

    columns: Columns
    known: Mapping[bytes, Plain] = field(default_factory=dict)  #: values by the key of their call
    values: Mapping[str, Plain] | None = None  #: values by name, of a graph on disk
    pending: dict[bytes, AnalyzerCall] = field(default_factory=dict)  #: unknown, and waiting for nothing else
    names: dict[bytes, str] = field(default_factory=dict)  #: of the calls whose values are known, in order
    features: dict[str, pl.Expr] = field(default_factory=dict)
    made: list[tuple[str, pl.Expr]] = field(default_factory=list)  #: by the user's `use`, with the text of the call
    complete: bool = True  #: nothing is unknown
    _unknown: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    _labels: Counter[str] = field(default_factory=Counter)

    def resolve(self, analyzer: Analyzer[object], inputs: tuple[pl.Expr, ...], use: Use) -> pl.Expr:
        """The expression that `use` makes of the value, or a placeholder column while the value is unknown."""
        inputs = tuple(map(_without_neighbours, inputs))
        roots = tuple(sorted({name for each in inputs for name in each.meta.root_names()}))
        waits = tuple(key for name in roots for key in self._unknown.get(name, ()))
        if waits:
            return self._placeholder(waits)
        key = _key(analyzer, inputs)
        call = AnalyzerCall(analyzer=analyzer, inputs=inputs, key=key, roots=roots)
        if self.values is not None:
            return use(self.values[self._stored_name(call, self.values)])
        _refuse_other_than_fields(analyzer)
        if key in self.known:
            self._name(call)
            found = use(self.known[key])
            if isinstance(found, pl.Expr) and not _is_ours(use):
                self.made.append((call.text, found))
            return found
        self.pending[key] = call
        return self._placeholder((key,))

    def waiting(self) -> dict[bytes, list[str]]:
        """The features that need a value, by the key of the pending call."""
        found: dict[bytes, list[str]] = {key: [] for key in self.pending}
        for name, expression in self.features.items():
            for root in expression.meta.root_names():
                for key in self._unknown.get(root, ()):
                    found[key].append(name)
        return {key: list(dict.fromkeys(names)) for key, names in found.items()}

    def _placeholder(self, keys: tuple[bytes, ...]) -> pl.Expr:
        self.complete = False
        name = f"\x1anot known yet: {len(self._unknown)}"
        self._unknown[name] = keys
        return pl.col(name)

    def _name(self, call: AnalyzerCall) -> str:
        """The name of the value on disk; it must not depend on how a version of Polars writes expressions."""
        if call.key not in self.names:
            stem = f"{call.analyzer.label} of {', '.join(call.roots) or 'a constant'}"
            self._labels[stem] += 1
            self.names[call.key] = stem if self._labels[stem] == 1 else f"{stem} #{self._labels[stem]}"
        return self.names[call.key]

    def _stored_name(self, call: AnalyzerCall, values: Mapping[str, Plain]) -> str:
        name = self._name(call)
        if name not in values:
            raise PreprocessingError(
                f"the graph has no value for '{name}'; it has: {', '.join(values) or 'none'}. "
                "A preprocessing function must call the same analyzers in the same order each time."
            )
        return name


_TRACES: dict[int, PreprocessingTrace] = {}
"""The trace of the function that is running, by thread. Not a context variable: a cache key could not cover one."""


def trace_function(function: Preprocessing, trace: PreprocessingTrace) -> PreprocessingTrace:
    """Runs the function; the trace then holds its features and its analyzer calls.

    Raises:
        PreprocessingError: the function fails, or returns something else than expressions by name.
    """
    name = getattr(function, "__name__", repr(function))
    thread = threading.get_ident()
    _TRACES[thread] = trace
    try:
        found = function(trace.columns)
    except Exception as error:
        if isinstance(error, PreprocessingError) and error.__cause__ is not None:
            raise
        lines = traceback.extract_tb(error.__traceback__)
        theirs = next((line for line in reversed(lines) if line.name == name), lines[-1])
        said = str(error) if isinstance(error, PreprocessingError) else f"{type(error).__name__}: {error}"
        # its own lines are counted: it may stand elsewhere in the graph's source than in its file
        first = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
        line = (theirs.lineno or first) - first + 1
        raise PreprocessingError(f"line {line} of {name}, `{theirs.line}`: {said}") from error
    finally:
        del _TRACES[thread]
    if not isinstance(found, Mapping) or not found:
        raise PreprocessingError(
            f"{name} returned {type(found).__name__}{'' if found else ', empty'}; it returns a dict of features: "
            "{'distance': scale_to_z_score(columns['distance'])}."
        )
    for feature, expression in found.items():
        trace.features[_feature(name, feature, expression)] = _without_neighbours(expression)
    return trace


def _without_neighbours(expression: pl.Expr) -> pl.Expr:
    """The expression, so that no bit of a row's value depends on the rows around."""
    return spread_divisors(drop_inner_nulls(expression))


def _feature(function: str, feature: object, expression: object) -> str:
    if not isinstance(feature, str) or not feature or "\0" in feature:
        raise PreprocessingError(f"{function}: a feature's name is a text without NUL, not {feature!r}.")
    if not isinstance(expression, pl.Expr):
        raise PreprocessingError(
            f"{function}: feature {feature!r} is {type(expression).__name__} {expression!r:.100}; "
            "it must be an expression made of columns, or pl.lit(…) for a constant."
        )
    if expression.meta.has_multiple_outputs():
        raise PreprocessingError(
            f"{function}: feature {feature!r} is {format_expression(expression)}, several columns; name one."
        )
    return feature


def _is_ours(use: Use) -> bool:
    function = use.func if isinstance(use, partial) else use
    return str(getattr(function, "__module__", "")).startswith("spanwise.")


def _key(analyzer: Analyzer[object], inputs: tuple[pl.Expr, ...]) -> bytes:
    written = [each.meta.serialize(format="binary") for each in inputs]
    return b"".join(len(part).to_bytes(8, "little") + part for part in (analyzer.label.encode(), *written))


def format_expression(expression: pl.Expr) -> str:
    """An expression on one line that is not too long."""
    text = " ".join(str(expression).split())
    return text if len(text) <= 300 else f"{text[:297]}..."  # noqa: PLR2004  three lines of a terminal


def analyze(analyzer: Analyzer[S], *inputs: pl.Expr, use: Use | None = None) -> pl.Expr:
    """The value that the analyzer learns from all rows of the window, as an expression.

    A single number, text or date becomes a literal; of anything else, `use` says what to make of it:

        analyze(Terms(), columns["carrier"], use=lambda terms: columns["carrier"].is_in(terms))
    """
    trace = _TRACES.get(threading.get_ident())
    name = type(analyzer).__name__
    if trace is None:
        raise PreprocessingError(f"{name}: analyzers can be called only inside a preprocessing function.")
    if not isinstance(analyzer, Analyzer):
        raise PreprocessingError(f"analyze takes an analyzer first, such as MeanAndDeviation(), not {analyzer!r}.")
    for each in inputs:
        if not isinstance(each, pl.Expr):
            raise PreprocessingError(f"{name} analyzes expressions such as columns['distance'], not {each!r}.")
    if not inputs:
        raise PreprocessingError(f"{name} needs something to analyze: analyze({name}(…), columns['distance']).")
    return trace.resolve(cast("Analyzer[object]", analyzer), inputs, use or partial(literal, name))


def _refuse_other_than_fields(analyzer: Analyzer[object]) -> None:
    """Refuses parameters that are no fields: analyzers that differ in them alone would pass for one."""
    name = type(analyzer).__name__
    fields: set[str] = {f.name for f in dataclasses.fields(analyzer)} if dataclasses.is_dataclass(analyzer) else set()
    for key in getattr(analyzer, "__dict__", {}):
        if key not in fields and not isinstance(getattr(type(analyzer), key, None), cached_property):
            raise PreprocessingError(
                f"{name} has {key!r}, which is no field, so that two of them would count as the same analyzer. Make "
                f"{name} a dataclass with its parameters as fields: @dataclass(frozen=True)."
            )


_SCALARS = (bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal)


def literal(name: str, value: Plain) -> pl.Expr:
    """A value that the analyzer called `name` gives, as an expression."""
    if value is None:
        return pl.lit(None)
    if not isinstance(value, _SCALARS):
        raise PreprocessingError(
            f"{name} gives a {type(value).__name__}, which is not a literal; say what to make of it: "
            f"analyze({name}(…), …, use=lambda value: …)."
        )
    if isinstance(value, bool | int | float):
        return pl.lit(value, dtype=_number_type(value))
    return pl.lit(value)


def _number_type(value: float) -> type[pl.DataType]:
    """The type of a number; Polars would take that of the column beside it, where a later row may overflow."""
    if isinstance(value, bool):
        return pl.Boolean
    if isinstance(value, float) or not -(2**63) <= value < 2**64:
        return pl.Float64
    return pl.Int64 if value < 2**63 else pl.UInt64
