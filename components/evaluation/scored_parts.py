"""Scored parts: the numbers that were read of each row group of a large window, on disk."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spanwise.components.evaluation.bootstrap import Floats
from spanwise.components.evaluation.exact_rows import ExactRows, number_slices
from spanwise.components.evaluation.measurement import EvaluationSpec
from spanwise.components.evaluation.metrics import Whole
from spanwise.components.evaluation.slicing import Slicing

STRIDE = 256
"""Of the sorted scores of a part, one in so many says where to cut the rows of all parts."""

Codes: TypeAlias = tuple[int, ...]
"""A slice: for each column of a slicing, the index of its value."""


@dataclass(frozen=True, kw_only=True)
class PartSlices:
    """The slices of the rows of a part."""

    values: Mapping[str, Sequence[object]]  #: by sliced column
    codes: Mapping[Slicing, tuple[list[Codes], Whole]]  #: in the order of `number_slices`, with their numbers of rows


@dataclass(frozen=True, kw_only=True)
class ScoredPart:
    """What is known in memory of the rows of a part, which are in files."""

    file: Path
    rows: int
    unlabelled: int
    unscored: Mapping[str, int]  #: by model
    sample: Mapping[str, Floats]  #: by model: some of the scores, ascending

    @classmethod
    def write(cls, exact: ExactRows, spec: EvaluationSpec, file: Path) -> Self:
        """Writes the rows of a part."""
        arrays: dict[str, NDArray[np.generic]] = {"labels": exact.labels, "ids": exact.ids}
        for kind, columns in (("scores", exact.scores), ("chosen", exact.chosen), ("codes", exact.codes)):
            arrays |= {f"{kind} {number}": columns[name] for number, name in enumerate(sorted(columns))}
        if exact.weights is not None:
            arrays["weights"] = exact.weights
        with file.open("wb") as raw:
            np.savez(raw, **arrays)  # type: ignore[arg-type]  # the stubs take the names for options
        slices = PartSlices(
            values=exact.values, codes={slicing: _list_slices(exact, slicing) for slicing in ((), *spec.slicings)}
        )
        _slices_file(file).write_bytes(pickle.dumps(slices))
        return cls(
            file=file,
            rows=len(exact.labels),
            unlabelled=exact.unlabelled,
            unscored={model: int((~np.isfinite(scores)).sum()) for model, scores in exact.scores.items()},
            sample={model: np.sort(finite_scores(exact, model))[::STRIDE] for model in spec.models},
        )

    def read_slices(self) -> PartSlices:
        """Reads which slices there are."""
        # our own process, or a worker of ours, wrote it just now
        found = pickle.loads(_slices_file(self.file).read_bytes())  # noqa: S301  see above
        assert isinstance(found, PartSlices), "as written"
        return found

    def read(self, spec: EvaluationSpec) -> ExactRows:
        """Reads the rows again."""
        values = self.read_slices().values
        with np.load(self.file) as arrays:
            columns = {
                kind: {name: arrays[f"{kind} {number}"] for number, name in enumerate(sorted(names))}
                for kind, names in (
                    ("scores", spec.models),
                    ("chosen", spec.models if spec.classes else ()),
                    ("codes", values),
                )
            }
            return ExactRows(
                labels=arrays["labels"],
                ids=arrays["ids"],
                scores=columns["scores"],
                chosen=columns["chosen"],
                codes=columns["codes"],
                values=values,
                unlabelled=self.unlabelled,
                weights=arrays.get("weights"),
            )


def _slices_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.slices")


def finite_scores(exact: ExactRows, model: str) -> Floats:
    """The scores of a model, 0 where there is none."""
    scores = exact.scores[model]
    found: Floats = np.where(np.isfinite(scores), scores, 0.0)
    return found


def _list_slices(exact: ExactRows, slicing: Slicing) -> tuple[list[Codes], Whole]:
    numbers, firsts, sizes = np.unique(number_slices(exact, slicing), return_index=True, return_counts=True)
    columns = [exact.codes[name][firsts].tolist() for name in slicing]
    return list(zip(*columns, strict=True)) if slicing else [()] * len(numbers), sizes
