"""The lines of text files, as texts without their newlines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from spanwise.pipelines.input.element import ArraySpec, Spec
from spanwise.pipelines.input.files import Paths, list_files
from spanwise.pipelines.input.ops.file_source import ElementFiles
from spanwise.pipelines.input.readers.descriptor import Descriptor, Dialect

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class TextLines(ElementFiles):
    dialect: Dialect

    @property
    def spec(self) -> Spec:
        return ArraySpec("str")

    def read(self, path: str, place: Any) -> Iterator[tuple[str, Any]]:
        """The place is that of a block in the decoded text, and how many of its lines were used."""
        from spanwise.pipelines.input.readers import text

        start, first_line, used = place or (0, 1, 0)
        rest = Descriptor(path=path, format="csv", start=start, stop=None, first_line=first_line, size_bytes=0)
        for block in text.read_blocks(rest, self.dialect, _end_of_lines):
            lines = block.data.removesuffix(b"\n").split(b"\n")
            if block.start == 0 and lines[0].startswith(_BOM):
                lines[0] = lines[0][len(_BOM) :]
            for number, line in enumerate(lines[used:], used + 1):
                yield line.removesuffix(b"\r").decode(), [block.start, block.first_line, number]
            used = max(0, used - len(lines))  # the first block may have been longer in the pass before


_BOM = b"\xef\xbb\xbf"


def _end_of_lines(data: bytes, final: bool) -> int:
    return len(data) if final else data.rfind(b"\n") + 1


def text_lines(paths: Paths, dialect: Dialect | None) -> TextLines:
    dialect = dialect or Dialect()
    block_bytes = min(dialect.block_bytes, _BLOCK_BYTES)
    return TextLines(paths=list_files("from_text", paths), dialect=replace(dialect, block_bytes=block_bytes))
