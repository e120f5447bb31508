"""A measurement: what an evaluation measures, and the record of what it measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyarrow as pa

from spanwise.components.evaluation.bootstrap import Floats, ResampleMethod
from spanwise.components.evaluation.curves import CUTS, Curves
from spanwise.components.evaluation.metric import KNOWN, Metric, find_metric, parse_name
from spanwise.components.evaluation.metrics import Sums, Whole
from spanwise.components.evaluation.slicing import Slicing
from spanwise.orchestrator import user_code
from spanwise.orchestrator.errors import RunError, SpanwiseError

MOST_SLICES = 1000
"""Of one slicing, the number of slices that are reported: those with the most rows."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """What to measure, of which models, over which rows."""

    schema: pa.Schema  #: of the window
    label: str | Callable[..., object]
    predict_fn: Callable[..., object]
    models: Mapping[str, Path]  #: the folder of each, by name
    names: tuple[str, ...]  #: of built-in metrics
    custom: tuple[Metric, ...] = ()
    slicings: tuple[Slicing, ...] = ()
    classes: tuple[str | int, ...] = ()  #: of the labels; empty: labels are 0 and 1, or numbers
    replicates: int = 0
    method: ResampleMethod = "bootstrap"
    small_rows: int = 0  #: a smaller slice has no intervals
    batch_rows: int = 1 << 16
    weight: str | None = None  #: the column of the rows' weights; None: each row counts once

    @property
    def is_binary(self) -> bool:
        """Whether labels are 0 and 1."""
        return any(find_metric(name).of == "binary" for name in self.names) and not self.classes

    @property
    def cuts(self) -> frozenset[float]:
        """The scores above which a row is positive, in metrics and in the report."""
        asked = frozenset(at for metric, at in map(parse_name, self.names) if KNOWN[metric].at)
        return asked.union(CUTS) if self.is_binary else asked


@dataclass(frozen=True, kw_only=True)
class SliceFigures:
    """The figures of one slicing."""

    by: Slicing
    groups: Sequence[Mapping[str, object]]  #: the values of the columns; largest slice first
    sizes: Sequence[int]
    figures: Mapping[str, Sums]  #: by model and metric, shape `(groups, 1 + replicates)`
    unscored: Mapping[str, Whole]  #: by model: rows of each group without a finite score, which have a weight
    occurring: int  #: the number of slices in the data
    next_size: int = 0  #: the rows of the largest slice that is not among them


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The result of a measurement."""

    rows: int
    unlabelled: int = 0
    unscored: Mapping[str, int] = field(default_factory=dict)  #: by model: rows without a finite score
    overall: Mapping[str, Sums] = field(default_factory=dict)  #: by model and metric, shape `(1, 1 + replicates)`
    slices: tuple[SliceFigures, ...] = ()
    curves: Mapping[str, Curves] = field(default_factory=dict)
    confusion: Mapping[str, Floats | Whole] = field(
        default_factory=dict
    )  #: rows by class and predicted class, weighted
    left_out: tuple[Slicing, ...] = ()  #: slicings with more slices than memory has room for


class ModelFailed(RunError):
    """A model that could not be loaded, or whose predictions are unusable; `model` names it."""

    def __init__(self, model: str, message: str) -> None:
        super().__init__(model, message)  # so that it survives the way back from a Beam worker
        self.model = model

    def __str__(self) -> str:
        return str(self.args[1])

    @classmethod
    def from_error(cls, model: str, error: Exception) -> Self:
        """The failure with the error's own words and, where it is not one of ours, the lines of the user's code."""
        return cls(model, str(error) if isinstance(error, SpanwiseError) else user_code.explain_error(error))
