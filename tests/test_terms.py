"""One term, one meaning: what the glossary avoids stands nowhere in code, messages or pages."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
GLOSSARY = PROJECT / "docs" / "glossary.md"
FOLDERS = ["components", "orchestrator", "pipelines", "resolvers", "scheduler", "src/spanwise", "docs", "benchmarks"]
EXEMPT = {GLOSSARY, PROJECT / "docs" / "changelog.md"}


def avoided() -> list[str]:
    """The terms in the first column of the glossary's table of what is avoided."""
    table = GLOSSARY.read_text(encoding="utf-8").partition("## Terms we avoid")[2]
    rows = re.findall(r"^\| ([^|]+?) \| [^|]+ \|$", table, re.MULTILINE)
    return [term for row in rows for term in row.split(", ") if term != "not"]


def sources() -> Iterator[Path]:
    yield PROJECT / "README.md"
    for folder in FOLDERS:
        for path in sorted((PROJECT / folder).rglob("*")):
            if path.suffix in {".md", ".py", ".txt", ".yaml"} and path not in EXEMPT and not path.is_symlink():
                yield path


@functools.cache
def texts() -> tuple[tuple[Path, str, str], ...]:
    """Each source, its text, and the text as it is searched first: without case, and with blanks for underscores."""
    read = ((path, path.read_text(encoding="utf-8")) for path in sources())
    return tuple((path, text, text.casefold().replace("_", " ")) for path, text in read)


@pytest.mark.parametrize("term", avoided())
def test_a_term_that_is_avoided_stands_nowhere(term: str) -> None:
    """Neither in a sentence nor, with underscores for blanks, as a part of a name."""
    pattern = re.compile(rf"(?<![a-z]){re.escape(term).replace(chr(92) + ' ', '[ _]')}(?![a-z])", re.IGNORECASE)

    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()}"
        for path, text, searched in texts()
        if term.casefold().replace("_", " ") in searched
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]

    assert found == []
