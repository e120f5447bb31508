"""The records of TFRecord files as bytes, checked by their checksums and not parsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spanwise.pipelines.input.element import ArraySpec, Spec
from spanwise.pipelines.input.ops.file_source import ElementFiles


@dataclass(frozen=True, kw_only=True, eq=False)
class TFRecords(ElementFiles):
    @property
    def spec(self) -> Spec:
        return ArraySpec("bytes")

    def read(self, path: str, place: Any) -> Iterator[tuple[bytes, Any]]:
        """The place is a byte of the decompressed file, and the number of the record that begins there."""
        from spanwise.pipelines.input.readers.tf_record import read_records

        start, row = place or (0, 1)
        for number, (record, end) in enumerate(read_records(path, start, row), row + 1):
            yield record, [end, number]
