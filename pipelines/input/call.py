"""Calls of users' functions: in which form they receive rows and tuples, and how their errors are reported."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from spanwise.orchestrator.errors import BlockFailed, DatasetError, FunctionFailed, SourceFailed
from spanwise.pipelines.input.arrays import as_arrays
from spanwise.pipelines.input.element import read_only
from spanwise.pipelines.input.op import Element

if TYPE_CHECKING:
    import pyarrow as pa

Format: TypeAlias = Literal["arrow", "numpy"]


def resolve_format(function: Callable[..., object], wanted: Format | None = None) -> Format:
    """The form in which a function receives rows: as asked for, else as its first argument is annotated."""
    check_format(wanted)
    if wanted is not None:
        return wanted
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # implemented in C, without a signature
        return "numpy"
    return "arrow" if first is not None and "RecordBatch" in str(first.annotation) else "numpy"


def check_format(wanted: str | None) -> None:
    """Refuses a form that there is not; None for the one that a function is annotated with."""
    if wanted not in {"arrow", "numpy", None}:
        raise DatasetError(f"format={wanted!r}: expected 'arrow' (RecordBatches) or 'numpy' (dicts of arrays).")


def element_caller(function: Callable[..., Any], wanted: Format | None = None) -> Callable[[Element], Any]:
    """The function of one element: tuples become its arguments, RecordBatches come in the form that it takes.

    Arrays are handed to it read-only: others may hold them too.
    """
    import pyarrow as pa

    numpy = resolve_format(function, wanted) == "numpy"
    batch = pa.RecordBatch

    def call(element: Element) -> Any:
        if type(element) is tuple:
            return function(*map(read_only, element))
        return function(as_arrays(element) if numpy and type(element) is batch else read_only(element))

    return call


def function_error(op: str, function: object, position: str, error: Exception) -> FunctionFailed:
    """The error for a function that raised at that position; raise it from the function's own."""
    text = _describe(op, function, position, error)
    return FunctionFailed(f"{text}Its own traceback is above; ignore_errors() leaves out elements that fail.")


def block_error(op: str, function: object, position: str, error: Exception) -> BlockFailed:
    """The error for a function or a condition that failed for a block of rows."""
    text = _describe(op, function, position, error)
    return BlockFailed(f"{text}Its own traceback is above; ignore_errors() leaves out no rows, which travel in blocks.")


def source_error(op: str, function: object, position: str, error: Exception) -> SourceFailed:
    """The error for a function that makes elements, or its iterator, which has ended when it has raised."""
    text = _describe(op, function, position, error)
    return SourceFailed(f"{text}Its own traceback is above; no element follows, so catch there what need not end it.")


def name_function(function: object) -> str:
    """A function as messages name it."""
    return getattr(function, "__qualname__", None) or repr(function)


def _describe(op: str, function: object, position: str, error: Exception) -> str:
    hint = _WRITTEN if isinstance(error, ValueError) and "read-only" in str(error) else ""
    reason = str(error).rstrip(".")
    who = f"{op}: {name_function(function)}"
    return f"{who} raised {type(error).__name__} at {position} (the first is 0): {reason}. {hint}"


_WRITTEN: Final = (
    "A function must not change the arrays that it receives, since others hold them too: write x = x / 2 instead of "
    "x /= 2, or begin with x = x.copy(). "
)


def row_range(start: int, block: pa.RecordBatch) -> str:
    """The position of a block that begins at row `start`."""
    return f"rows {start} to {start + block.num_rows - 1}"
