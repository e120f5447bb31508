"""Leaves out the elements whose functions failed."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spanwise.orchestrator.errors import BlockFailed, DatasetError, FunctionFailed
from spanwise.pipelines.input.op import Count, Element, Op, Opening, SingleInputStream, Stream, count_some
from spanwise.pipelines.input.rows import in_rows

_log = logging.getLogger("spanwise.input")


@dataclass(frozen=True, kw_only=True, eq=False)
class IgnoreErrors(Op):
    by_element = True

    input: Op

    def __post_init__(self) -> None:
        if in_rows(self.input):
            raise DatasetError("ignore_errors: rows travel in blocks, so one bad row would lose its block.")

    @property
    def cardinality(self) -> Count:
        return count_some(self.input.cardinality)

    def open(self, opening: Opening) -> Stream:
        return IgnoreErrorsStream(opening.open(self.input))


class IgnoreErrorsStream(SingleInputStream):
    def __next__(self) -> Element:
        while True:
            try:
                return next(self._source)
            except BlockFailed:  # in a batch, or as one row of it, a block does not show
                raise
            except FunctionFailed as error:
                _log.warning("element-skipped", extra={"reason": str(error)})
