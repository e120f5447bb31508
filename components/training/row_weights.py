"""Row weights: the column that says how much each training row counts, compared with what weights may be."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spanwise.components import rows
from spanwise.components.statistics.weighted import read_weights
from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.errors import ParameterError


def check_weights(node: str, examples: Sequence[Examples], column: str) -> None:
    """Reads the weights of all rows, so that a bad one is found before anything is learned, however rows are read.

    Raises:
        ParameterError: there is no such column, or a weight is missing, negative or not finite.
    """
    for split in sorted({split for artifact in examples for split in artifact.split_names}):
        having = [artifact for artifact in examples if split in artifact.split_names]
        parts = rows.list_parts(having, split)
        if not parts:
            continue
        schema = rows.read_schema(having, split)
        if column not in schema.names:
            raise ParameterError(
                f"{node}: weight={column!r}: the split {split!r} has no such column; it has: "
                f"{', '.join(schema.names)}. If Transform made the examples, return the weight as a feature: "
                f"{{{column!r}: columns[{column!r}], …}}."
            )
        wanted = pa.schema([schema.field(column)])
        for part in parts:
            for batch in rows.read_part(part, wanted):
                _check(node, column, batch.column(0), f"split {split!r} of span {part.span}")


def _check(node: str, column: str, weights: pa.Array[pa.Scalar[pa.DataType]], where: str) -> None:
    try:
        read_weights(column, weights)
    except ParameterError as error:
        raise ParameterError(
            f"{node}: {str(error).removesuffix('.')} ({where}). Correct that span and ingest it again; or return the "
            f"weight from a preprocessing_fn that says what such a row counts, 0 for nothing: "
            f"{{{column!r}: columns[{column!r}].fill_nan(None).fill_null(1.0).clip(0)}}."
        ) from error
