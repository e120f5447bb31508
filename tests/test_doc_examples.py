"""The pages, tried: every command of a page is typed in the page's order, and what the page shows is what comes out.

A story is one page, or several that go on in the same folder; it is told in one shell, in an empty folder.

    ```console            each line after `$ ` is typed; it must end with 0
    ```console fails      the last command of the block must end with another code
    ```console not-run    needs what a test has not: cron, root, another machine
    ```python file=x.py   written to x.py, where the shell then is
    ```pycon              run by doctest; the blocks of a page share their names

What a page shows below a command is compared with what came out, unless it shows nothing. `…` stands for any text in
a line, and alone in a line for any lines. What is never twice the same is not compared: times, seconds, decimals after
the point, process ids and hosts, digests, sizes, versions of pushed models, and how wide a column is. The folder of the
story is `/home/me` on the page.

Two kinds of tables are held to the program as well: in `span-patterns.md` what patterns read in paths and what is said
of those that cannot be read, in `metadata.md` the names of properties.
"""

import doctest
import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

from spanwise.orchestrator.errors import PatternError
from spanwise.orchestrator.span_pattern import SpanPattern
from tests import warm
from tests.forked import in_fork

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HOME = "/home/me"

STORIES = {
    "tutorial": ("tutorial.md", "reference/metadata.md"),
    "set-up": ("how-to/set-up.md",),
    "write-a-component": ("how-to/write-a-component.md",),
    "write-a-resolver": ("how-to/write-a-resolver.md",),
    "write-a-reader": ("how-to/write-a-reader.md",),
    "components": ("reference/components.md",),
    "feed-a-trainer": ("how-to/feed-a-trainer.md",),
    "train-elastically": ("how-to/train-elastically.md",),
    "train-on-several-machines": ("how-to/train-on-several-machines.md",),
    "speed-up-an-input": ("how-to/speed-up-an-input.md",),
    "use-the-data-service": ("how-to/use-the-data-service.md",),
    "repair": ("how-to/repair.md",),
    "correct-data": ("how-to/correct-data.md",),
    "run-part-of-a-pipeline": ("how-to/run-part-of-a-pipeline.md",),
    "backfill": ("how-to/backfill.md",),
    "trace-data": ("how-to/trace-data.md",),
    "free-space": ("how-to/free-space.md",),
    "run-on-a-schedule": ("how-to/run-on-a-schedule.md",),
    "react-to-data": ("how-to/react-to-data.md",),
    "get-alerted": ("how-to/get-alerted.md",),
    "monitor": ("how-to/monitor.md",),
    "schedules": ("reference/schedules.md",),
}
DOCTESTS = (
    "reference/data-service.md",
    "reference/datasets.md",
    "reference/pipelines.md",
    "reference/resolvers.md",
    "reference/schedules.md",
    "reference/snapshots.md",
    "reference/span-patterns.md",
    "how-to/write-a-resolver.md",
)

MINE = sorted({page for story in STORIES.values() for page in story} | set(DOCTESTS) | {"decisions/README.md"})

BLOCK = re.compile(r"^```(\w+)(?: (.*?))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = "8377"  # of the pages; another that is free is taken for it
END = "\x1e"  # what the shell prints after each command, with the exit code

VOLATILE = (
    (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|\+00:00| UTC)?", "TIME"),
    (r"\bpid \d+( on [\w.-]+)?", "PID"),
    (r" on [\w.-]+, PID", " on HOST, PID"),
    (r"\b[0-9a-f]{32}\b", "DIGEST"),
    (r"\b[12]\d{9}\b", "VERSION"),
    (r"\b\d+(\.\d+)? [kMG]?B\b", "SIZE"),
    (r"\b\d+(\.\d+)? ?s\b", "SECONDS"),
    (r"(\d)\.\d+\b", r"\1.N"),
    (r"[ \t]+", " "),
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of a page, or a file that it has the reader write."""

    page: str
    command: str
    shown: tuple[str, ...] = ()  #: the lines below it; none: not compared
    fails: bool = False


def steps(page):
    """What a page has its reader do, in order."""
    for language, info, body in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if language == "python" and info.startswith("file="):
            name = shlex.quote(info.removeprefix("file="))
            yield Step(page=page, command=f"cat > {name} <<'END OF {name}'\n{body}END OF {name}")
        elif language == "console" and info != "not-run":
            assert body.startswith("$ "), f"{page}: a console block begins with a command: {body!r}"
            parts = [part.rstrip("\n").split("\n") for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]]
            for at, (command, *shown) in enumerate(parts, start=1):
                fails = info == "fails" and at == len(parts)
                yield Step(page=page, command=command, shown=tuple(shown), fails=fails)


def typed(commands, folder):
    """Types commands into one shell, and gives the output and exit code of each; a test of real processes."""
    tools = folder.parent / "bin"
    tools.mkdir()
    python = sys.executable
    for name, words in {
        "python": [python],
        "spanwise": warm.command(reads_data=True),
        "pytest": [python, "-m", "pytest", "-p", "no:cacheprovider"],
    }.items():
        call = f"PYTHONPATH={shlex.quote(f'{ROOT}/src:{ROOT}')} exec {shlex.join(words)}"
        (tools / name).write_text(f'#!/bin/sh\n{call} "$@"\n', encoding="ascii")
        (tools / name).chmod(0o755)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPANWISE_", "PYTEST_", "PYTHON"))
    }
    script = folder.parent / "script"
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = str(reserved.getsockname()[1])
    commands = [command.replace(PORT, port) for command in commands]
    listens = f"until (: > /dev/tcp/127.0.0.1/{port}) 2> {os.devnull}; do sleep 0.05; done"
    # A page's `date` leaves out fractions of a second, and a reader types slower than that.
    script.write_text(
        "".join(
            f"{'sleep 1; ' if '$(date ' in command else ''}{command}\n"
            f"__code=$?; {listens if command.startswith('python receiver.py') else ''}\n"
            f"printf '{END}%d\\n' $__code; (exit $__code)\n"
            for command in commands
        )
    )
    told = subprocess.run(
        ["bash", str(script)], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=1800, check=False,
        env={**kept, "PATH": f"{tools}:{kept['PATH']}", "TZ": "UTC", "LC_ALL": "C.UTF-8",
             "HOME": str(folder), "COLUMNS": "200",
             "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # a reader has not those that test spanwise itself
    )  # fmt: skip
    pieces = re.findall(rf"(.*?){END}(\d+)\n", told.stdout, re.DOTALL)
    assert len(pieces) == len(commands), f"the shell ended before its time: {told.stdout[-2000:]}"
    return [(output, int(code)) for output, code in pieces]


def plain(text):
    """A line without what is never twice the same."""
    for volatile, word in VOLATILE:
        text = re.sub(volatile, word, text)
    return text.strip()


def as_shown(shown, output, folder):
    """Whether the page shows what came out."""
    came = [plain(line) for line in output.replace(str(folder), HOME).rstrip("\n").split("\n")]
    pattern = ""
    for line in shown:
        said = ".*".join(re.escape(plain(piece)) for piece in line.split("…"))
        pattern += "(?:.*\n)*" if line.strip() == "…" else f"{said}\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in came)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_every_command_of_a_page_does_what_the_page_shows(story, tmp_path):
    """A reader who types what a page says sees what the page shows."""
    folder = tmp_path / "me"
    folder.mkdir()
    todo = [step for page in STORIES[story] for step in steps(page)]

    done = typed([step.command for step in todo], folder)

    for step, (output, code) in zip_longest(todo, done):
        assert (code != 0) == step.fails, f"{step.page}: `{step.command}` ended with {code}:\n{output}"
        if step.shown:
            expected = "\n".join(step.shown)
            assert as_shown(step.shown, output, folder), (
                f"{step.page}: `{step.command}` printed\n{output}\nnot\n{expected}"
            )


def test_every_page_with_commands_is_in_a_story():
    """A page cannot be forgotten here: whatever has the reader type something is tried."""
    told = {page for story in STORIES.values() for page in story}
    pages = [*DOCS.glob("tutorial.md"), *DOCS.glob("how-to/*.md"), *(DOCS / name for name in DOCTESTS)]

    assert {str(p.relative_to(DOCS)) for p in pages if any(steps(p.relative_to(DOCS)))} <= told


@pytest.mark.parametrize("page", DOCTESTS)
def test_the_python_sessions_of_a_page_are_true(page):
    """What a page shows in a Python session is what Python prints; in a fork, since some serve Flight."""
    examples, failures, said = in_fork(run_sessions, page)

    assert examples, f"{page} has no session"
    assert not failures, said


def run_sessions(page):
    """The number of a page's examples and of those that fail, and what doctest says."""
    sessions = [
        body for language, _, body in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")) if language == "pycon"
    ]
    test = doctest.DocTestParser().get_doctest("\n".join(sessions), {"__name__": "page"}, page, page, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said = []

    runner.run(test, out=said.append)
    return len(test.examples), runner.failures, "".join(said)


def rows(page, *heads):
    """The rows of every table of a page that begins with these heads; cells without their backticks."""
    found = []
    head = "".join(rf"\| {re.escape(h)} " for h in heads)
    for table in re.findall(
        rf"^{head}\|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE
    ):
        found += [[cell.strip().strip("`") for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
    assert found, f"{page} has no table with the heads {heads}"
    return found


@pytest.mark.parametrize("row", rows("reference/span-patterns.md", "pattern", "path", "span", "version"), ids=" ".join)
def test_a_pattern_reads_in_a_path_what_the_page_says(row):
    """Each example of the table: the span as people write it, and the version, or that it is ignored."""
    pattern, path, span, version = row
    found = SpanPattern.parse(pattern).match(path)

    if span == "ignored":
        assert found is None
    else:
        assert found is not None
        assert (SpanPattern.parse(pattern).calendar.label(found[0]), str(found[1] or "none")) == (span, version)


@pytest.mark.parametrize("row", rows("reference/span-patterns.md", "pattern", "message"), ids=lambda row: row[0])
def test_a_wrong_pattern_is_refused_in_the_words_of_the_page(row):
    """Each wrong pattern of the table, and the message."""
    wrong, said = row

    with pytest.raises(PatternError) as error:
        SpanPattern.parse(wrong)

    assert said in str(error.value)


def test_the_properties_of_artifacts_are_those_of_the_page():
    """Who queries the metadata finds every typed property described, and none that is not there."""
    from spanwise.orchestrator.mlmd.declarations import ARTIFACT_PROPERTIES

    assert [name for name, *_ in rows("reference/metadata.md", "property", "type", "meaning")] == list(
        ARTIFACT_PROPERTIES
    )


def test_every_decision_is_in_the_index():
    """`docs/decisions/README.md` leads to each page, under the page's own title."""
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    pages = sorted(DOCS.glob("decisions/[0-9]*.md"))

    missing = [p.name for p in pages if f"[{_title(p)}]({p.name})" not in index]

    assert not missing, f"docs/decisions/README.md lacks: {missing}"


def _title(page):
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(". ")[2]


def headings(page):
    """The anchors of a page, as GitHub makes them."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", MINE)
def test_the_links_of_a_page_lead_somewhere(page):
    """To a file of the repository and, where a link names one, to a heading in it."""
    text = BLOCK.sub("", (DOCS / page).read_text(encoding="utf-8"))
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        target = (DOCS / page).parent / file if file else DOCS / page

        assert target.exists(), f"{page}: {file} is not there"
        assert not anchor or anchor in headings(target), f"{page}: {file} has no heading #{anchor}"
