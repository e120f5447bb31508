"""Whole commands: what they print, how they end, and that a wrong one is told in one message and starts nothing."""

import contextlib
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise import __version__
from spanwise.orchestrator import process
from spanwise.scheduler.inspect import find
from spanwise.scheduler.project import root, settings
from tests.scheduler.conftest import FLOW, Command, environment, start, start_warm

CSV = "a,b\n1,2\n"

INGEST = """
from spanwise.components import ExampleGen
from spanwise.orchestrator import Pipeline

def ingest(pattern: str = "data/{YYYY}-{MM}-{DD}/*.csv") -> Pipeline:
    return Pipeline("ingest", [ExampleGen(pattern=pattern)])
"""

HEAD = """
from spanwise.orchestrator import Component, Examples, Input, Model, Output, Pipeline, Report

class Make(Component):
    def run(self, report: Output[Report]) -> None: ...

class Read(Component):
    def run(self, report: Input[Report], out: Output[Report], size: int = 1) -> None: ...

"""


def test_version(spanwise: Command) -> None:
    """`--version` prints the package's."""
    assert spanwise("--version") == (0, f"spanwise {__version__}\n", "")


def test_help_tells_the_exit_codes(spanwise: Command) -> None:
    """Whoever writes a cron job finds them where they look first."""
    code, out, _ = spanwise("--help")

    assert code == 0
    assert [line for line in ("    2    the command", "    3    another run holds") if line not in out] == []


def test_a_command_that_is_misspelt_is_told_what_was_meant(spanwise: Command) -> None:
    """Exit 2, and nothing on stdout."""
    code, out, err = spanwise("vaildate")

    assert (code, out) == (2, "")
    assert "validate" in err


def test_a_run_goes_from_the_shell_to_its_end(project: Path, shell: Command) -> None:
    """Not on a terminal it prints plain lines; the nodes' prints are among them; the next run reuses."""
    code, out, err = shell("run", "flow.py", "--param", "text=ahoy")

    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Run flow/1 started: First, Second, Third"
    assert "First | first says ahoy" in lines
    assert lines[-1].startswith("Run flow/1: complete in ")
    assert not [c for c in out if ord(c) < 32 and c != "\n"]
    _, out, _ = shell("run", "flow.py", "--param", "text=ahoy")
    assert out.splitlines()[-1].endswith("3 of 3 nodes done, 3 reused.")


def test_a_failed_run_says_which_lines_and_how_to_go_on(project: Path, shell: Command) -> None:
    """Exit 1; the command it prints runs, and takes up what was done."""
    code, out, _ = shell("run", "flow.py", "--param", "fail=true")

    assert code == 1
    assert "Second failed: ValueError: as asked for" in out
    assert re.search(r'flow.py", line \d+, in run\n +raise ValueError', out)
    assert "Log:  " in out
    command = out.splitlines()[-1].partition("Resume it:  ")[2]
    assert command == "spanwise resume flow/1"
    code, out, _ = shell(*command.split()[1:], "--param", "fail=false")
    assert (code, out.splitlines()[0]) == (0, "Run flow/2 started: Second, Third")


def test_what_was_run_can_be_looked_at(project: Path, shell: Command, spanwise: Command) -> None:
    """Every command that prints data prints it as a table and as one JSON document."""
    code, out, err = shell("run", "flow.py", "--json")
    ran = json.loads(out)
    assert (code, ran["state"], [e["node"] for e in ran["executions"]]) == (0, "complete", ["First", "Second", "Third"])
    assert "First | first says hello" in err

    for words in (
        ("runs",),
        ("runs", "flow", "--limit", "1"),
        ("show", "flow/1"),
        ("logs", "1"),
        ("logs", "flow", "First"),
        ("artifacts", "flow"),
        ("artifacts", "--type", "Report"),
        ("validate", "flow.py"),
        ("graph", "flow.py"),
        ("stop", "flow"),
        ("doctor",),
    ):
        code, text, err = spanwise(*words)
        assert (code, err) == (0, ""), words
        assert text.strip(), words
        code, out, err = spanwise(*words, "--json")
        assert (code, err) == (0, ""), words
        assert json.loads(out), words
    assert spanwise("logs", "flow", "First")[1] == "first says hello\n"
    assert [a["name"] for a in json.loads(spanwise("artifacts", "--json")[1])][-1] == "flow/First/report/1"
    assert "flow/1 has already ended: complete" in spanwise("stop", "1")[1]


@pytest.mark.parametrize("words", [("runs",), ("artifacts",), ("schedule", "next", "flow.py")])
def test_a_list_may_not_be_longer_than_can_be_counted(folder: Path, spanwise: Command, words: tuple[str, ...]) -> None:
    """It is a mistake in the command line, not a bug of ours."""
    longest = [str(10**20)] if words[0] == "schedule" else ["--limit", str(10**20)]
    code, _, err = spanwise(*words, *longest)

    assert code == 2
    assert "less than or equal to 1000000000" in err


@pytest.mark.parametrize("words", [("runs",), ("artifacts",)])
def test_a_list_of_nothing_is_empty(folder: Path, spanwise: Command, words: tuple[str, ...]) -> None:
    """Looking makes no folder and no database."""
    assert spanwise(*words, "--json")[:2] == (0, "[]\n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("runs",), ("artifacts",), ("show", "flow"), ("resume", "flow/3"), ("tainted", "--span", "3")]
)
def test_where_nothing_has_run_the_root_is_named(folder: Path, spanwise: Command, words: tuple[str, ...]) -> None:
    """Whoever stands in another folder than the project's sees it, and what to do."""
    _, out, err = spanwise(*words)

    assert "Nothing has run here yet." in out + err
    assert f"The root is {folder / '.spanwise'}. For another one, go to the folder of its project" in out + err


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        (FLOW, ("run", "nowhere.py"), "There is no file nowhere.py"),
        (FLOW, ("run", "given.py", "--from", "Frist"), "Did you mean First?"),
        (FLOW, ("run", "given.py", "--only", "First", "--only", "Third"), "leaves out the nodes between them: Second"),
        (FLOW, ("run", "given.py", "--param", "sleep_s=long"), "sleep_s takes float"),
        (FLOW, ("run", "given.py", "--param", "slep_s=1"), "Did you mean 'sleep_s'?"),
        (FLOW, ("run", "given.py", "--span", "2013-01-05"), "is not a span. A span is a whole number here"),
        (FLOW, ("run", "given.py", "--span", "5..7"), "a range, and a run ingests one span"),
        (FLOW, ("run", "given.py", "--as-of", "noon"), "is not a time"),
        (FLOW, ("run", "given.py", "--jobs", "0"), "--jobs"),
        (FLOW, ("run", "given.py", "--base-run", "latest"), "has no run yet"),
        (FLOW, ("run", "given.py", "--from", "Second"), "leaves out: First. No run of it"),
        (FLOW, ("window", "given.py"), "no node that chooses by span"),
        (FLOW, ("graph", "given.py", "--format", "pdf"), "--format"),
        (FLOW, ("show", "flow"), "Nothing has run here yet"),
        (FLOW, ("stop", "flow/3"), "Nothing has run here yet"),
        (FLOW, ("logs", "flow", "--follow", "--json"), "exclude each other"),
        (FLOW, ("init", "given.py"), "is a file"),
        (INGEST, ("run", "given.py", "--span", "5 May"), "A span is a day here, for example"),
        (INGEST, ("run", "given.py", "--span", "5"), "write 1970-01-06"),
        (INGEST, ("run", "given.py", "--param", "pattern=data/{YYYY}/*.csv"), "{YYYY}"),
        ("x = (", ("validate", "given.py"), "SyntaxError"),
        ("import nowhere_at_all", ("validate", "given.py"), "import nowhere_at_all"),
        (HEAD, ("validate", "given.py"), "defines no pipeline"),
        (
            HEAD + "def p() -> Pipeline:\n    return Pipeline('p', [Make(), Make()])",
            ("run", "given.py"),
            "two nodes named",
        ),
        (
            HEAD + "def p() -> Pipeline:\n    m = Make()\n    return Pipeline('p', [Read(report=m['report'])])",
            ("run", "given.py"),
            "is not in pipeline 'p'",
        ),
        (
            HEAD
            + "def p() -> Pipeline:\n    m = Make()\n    return Pipeline('p', [m, Read(report=m['report'], size='a')])",
            ("run", "given.py"),
            "Read.size takes int",
        ),
        (
            HEAD + "class Eat(Component):\n    def run(self, model: Input[Model]) -> None: ...\n"
            "def p() -> Pipeline:\n    m = Make()\n    return Pipeline('p', [m, Eat(model=m['report'])])",
            ("run", "given.py"),
            "Eat takes Model as 'model'",
        ),
    ],
)
def test_a_wrong_command_is_one_message_and_starts_nothing(
    folder: Path, spanwise: Command, text: str, words: tuple[str, ...], says: str
) -> None:
    """Exit 2; nothing on stdout, no traceback of ours, and no run is recorded."""
    (folder / "given.py").write_text(text)

    code, out, err = spanwise(*words)

    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert "scheduler/" not in err
    with root.open_for_reading(settings.read()) as store:
        assert find.runs(store, None, 5) == []


def test_debug_shows_the_traceback(folder: Path, spanwise: Command) -> None:
    """Wherever it stands, for whoever looks into us."""
    code, _, err = spanwise("validate", "nowhere.py", "--debug")

    assert code == 2
    assert "Traceback" in err
    assert "LoadError: There is no file" in err


def test_our_own_mistake_asks_to_be_reported(folder: Path, spanwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 1, a short message, and what to send."""
    monkeypatch.setattr(find, "runs", lambda *_: 1 / 0)
    monkeypatch.setattr("spanwise.orchestrator.store.MemoryStore.pipelines", lambda _: ["x"])

    code, out, err = spanwise("runs")

    assert (code, out) == (1, "")
    assert "ZeroDivisionError: division by zero" in err
    assert "--debug" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda file: file.write_text("not a database, but long enough to have a header"),
            "is not a metadata database",
        ),
        (lambda file: sqlite3.connect(file).execute("CREATE TABLE other (x)").connection.close(), "something else"),
    ],
)
def test_a_database_that_is_none_is_refused(project: Path, shell: Command, spoil: object, says: str) -> None:
    """Exit 1; the file stays as it was, and nothing is run."""
    (project / ".spanwise").mkdir()
    file = project / ".spanwise" / "metadata.db"
    spoil(file)  # type: ignore[operator]
    before = file.read_bytes()

    code, _, err = shell("run", "flow.py")

    assert code == 1
    assert says in err
    assert "Traceback" not in err
    assert file.read_bytes() == before


def test_a_database_of_a_newer_program_is_refused(project: Path, shell: Command) -> None:
    """Exit 1, with the command that brings this program up to date."""
    shell("run", "flow.py")
    with sqlite3.connect(project / ".spanwise" / "metadata.db") as database:
        database.execute("UPDATE MLMDEnv SET schema_version = 999")
    database.close()

    code, _, err = shell("runs")

    assert code == 1
    assert "pip install --upgrade ml-metadata" in err


def test_a_root_that_cannot_be_made_is_refused(project: Path, shell: Command) -> None:
    """Exit 1, naming the folder and how to name another."""
    (project / "file").write_text("")

    code, _, err = shell("run", "flow.py", "--root", "file/root")

    assert code == 1
    assert "file/root is not writable" in err


def test_a_span_that_is_not_there_fails_the_run(folder: Path, shell: Command) -> None:
    """Exit 1; the message names the spans that are; nothing of it can be seen afterwards."""
    (folder / "given.py").write_text(INGEST)
    (folder / "data" / "2013-01-05").mkdir(parents=True)
    (folder / "data" / "2013-01-05" / "x.csv").write_text(CSV)

    code, out, _ = shell("run", "given.py", "--span", "2013-01-09")

    assert code == 1
    assert "2013-01-05" in out
    assert "Traceback" not in out
    assert out.splitlines()[-1].endswith("spanwise resume ingest/1")


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"a,b\n1,\xff\n", b"a,b\n1\n"])
def test_a_file_that_cannot_be_read_fails_the_run(folder: Path, shell: Command, content: bytes) -> None:
    """Empty, in another encoding, or with a row cut short: exit 1, the file is named, nothing is published."""
    (folder / "given.py").write_text(INGEST)
    (folder / "data" / "2013-01-05").mkdir(parents=True)
    (folder / "data" / "2013-01-05" / "x.csv").write_bytes(content)

    code, out, _ = shell("run", "given.py")

    assert code == 1
    assert "x.csv" in out.splitlines()[-5:][0] or "x.csv" in out
    assert not list((folder / ".spanwise" / "ingest" / "ExampleGen").glob("*/*"))
    assert json.loads(shell("artifacts", "--json")[1]) == []


def test_a_reader_that_goes_away_is_no_error(project: Path, shell: Command) -> None:
    """`spanwise … | head` prints no complaint."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "spanwise", "validate", "flow.py"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()

    assert child.stderr.read() == b""
    child.stderr.close()
    child.wait()


def test_a_run_goes_on_when_its_reader_goes_away(project: Path, shell: Command) -> None:
    """`spanwise run … | head -1` ends the display, not the run."""
    child = start("run", "flow.py", "--param", "sleep_s=0.5", cwd=project)
    waiting_for(project, child, "second begins")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()

    assert child.wait(timeout=300) == 0
    assert child.stderr.read() == ""
    child.stderr.close()
    assert json.loads(shell("show", "1", "--json")[1])["state"] == "complete"


def test_help_loads_nothing_that_it_does_not_need() -> None:
    """Not even our own core: `spanwise --help` answers before a command has been chosen."""
    program = "import sys, spanwise.scheduler.cli; print(*{'orchestrator', 'pydantic', 'rich'} & {*sys.modules})"

    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment(), capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_letter_that_cannot_be_shown_is_replaced(project: Path) -> None:
    """A log on a machine without Unicode is no reason to fail."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "spanwise", "run", "flow.py", "--to", "First", "--param", "text=größer"],
        env={**environment(), "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "First | first says gr??er" in done.stdout


def test_a_full_disk_behind_stdout_is_told(project: Path) -> None:
    """What could not be printed is not lost in silence."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "spanwise", "validate", "flow.py"],
            env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_named_as_ours_does_not_mislead(project: Path) -> None:
    """The command does not look for its packages where the user stands."""
    for name in ("scheduler", "orchestrator", "components"):
        (project / name).mkdir()
        (project / name / "__init__.py").write_text("raise SystemExit('imported a decoy')")
    program = "import sys; from spanwise.scheduler.main import main; sys.path.insert(0, ''); sys.exit(main())"

    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "validate", "flow.py"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")


WINDOW = """
from spanwise.components import ExampleGen
from spanwise.orchestrator import Pipeline
from spanwise.resolvers import RollingWindow

def ingest() -> Pipeline:
    made = ExampleGen(pattern="data/{YYYY}-{MM}-{DD}/*.csv")
    return Pipeline("ingest", [made, RollingWindow(made["examples"], size=2)])
"""


@pytest.mark.parametrize("words", [(), ("--at", "2013-01-05"), ("--json",)])
def test_a_window_that_a_run_could_not_read_ends_with_1(
    folder: Path, spanwise: Command, words: tuple[str, ...]
) -> None:
    """Before anything was published, and where all is missing; so that a script can ask."""
    (folder / "given.py").write_text(WINDOW)

    code, out, err = spanwise("window", "given.py", *words)

    assert (code, err) == (1, "")
    if words == ("--json",):
        assert json.loads(out)[0]["refusal"]
    else:
        assert out.startswith(f"No run of 'ingest' is recorded in {folder / '.spanwise'}.")
        assert "A run would fail: RollingWindow " in out


def test_a_type_that_was_misspelt_is_told(project: Path, spanwise: Command, shell: Command) -> None:
    """An empty list is no error, so the exit code is 0."""
    shell("run", "flow.py", "--to", "First")

    assert spanwise("artifacts", "--type", "Reprot")[:2] == (
        0,
        "No Reprot was published here. Did you mean Report? Published types: Report.\n",
    )


# Runs that are stopped, and runs that meet


def waiting_for(project: Path, child: "subprocess.Popen[str]", line: str) -> None:
    """Reads what the command prints until a line that holds `line`."""
    assert child.stdout is not None
    for printed in child.stdout:
        if line in printed:
            return
    child.wait()
    raise AssertionError(f"{line!r} never came: {child.stderr and child.stderr.read()}")


def living(pids: list[int]) -> list[str]:
    """Those that still run; one whose end nobody has taken note of yet does not."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            found += [stat] if stat.rpartition(")")[2].split()[0] not in "ZX" else []
    return found


@pytest.mark.slow
def test_ctrl_c_stops_a_run_and_leaves_nothing(project: Path, shell: Command) -> None:
    """The state is canceled, the exit code 130, the lease free, and no process is left."""
    child = start("run", "flow.py", "--param", "sleep_s=60", cwd=project)
    waiting_for(project, child, "second begins")
    below = process.descendants(child.pid)

    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)

    assert (child.returncode, err) == (130, "")
    assert "Second canceled" in out
    assert "Resume it:  spanwise resume flow/1" in out
    assert below
    assert living(below) == []
    assert json.loads(shell("show", "1", "--json")[1])["state"] == "canceled"
    assert shell("run", "flow.py")[0] == 0


@pytest.mark.slow
def test_a_second_run_is_refused_with_who_holds_the_pipeline_and_stop_ends_the_first(
    project: Path, shell: Command
) -> None:
    """Exit 3 for the second, which started nothing; after `stop` the pipeline is free and nothing runs."""
    child = start("run", "flow.py", "--param", "sleep_s=60", cwd=project)
    waiting_for(project, child, "second begins")
    below = process.descendants(child.pid)

    code, out, err = shell("run", "flow.py")
    assert (code, out) == (3, "")
    assert "run 1 of 'flow' is still going" in err
    assert "spanwise stop flow" in err

    code, out, err = shell("stop", "flow", "--json")
    stopped = json.loads(out)
    assert (code, err) == (0, "")
    assert (stopped["run"], stopped["state"], stopped["how"]) == ("flow/1", "canceled", "ended")
    child.communicate(timeout=300)
    assert child.returncode == 1
    assert stopped["error"].startswith("stopped by `spanwise stop` of ")
    assert living(below) == []
    assert "warn" not in shell("doctor")[1]
    assert shell("run", "flow.py")[0] == 0


@pytest.mark.slow
def test_a_run_that_will_not_end_is_killed_and_put_right(project: Path, shell: Command) -> None:
    """A frozen controller hears nothing: it and its nodes are killed, and its records closed."""
    child = start("run", "flow.py", "--param", "sleep_s=60", cwd=project)
    waiting_for(project, child, "second begins")
    below = process.descendants(child.pid)
    child.send_signal(signal.SIGSTOP)

    code, out, err = shell("stop", "flow", "--grace", "0", "--json")

    child.communicate(timeout=300)
    stopped = json.loads(out)
    assert (code, err, stopped["how"], stopped["state"]) == (0, "", "killed", "canceled")
    assert living(below) == []
    assert "warn" not in shell("doctor")[1]
    assert not [*(project / ".spanwise").rglob("*.scratch"), *(project / ".spanwise").rglob("*.checkpoints")]
    assert [e["state"] for e in json.loads(shell("show", "1", "--json")[1])["executions"]] == ["complete", "failed"]
    assert shell("run", "flow.py")[0] == 0


@pytest.mark.slow
def test_logs_are_followed_until_the_run_has_ended(project: Path, shell: Command) -> None:
    """Another shell sees what the nodes print, as they print it, and then ends."""
    child = start_warm("run", "flow.py", "--param", "sleep_s=3", cwd=project)
    waiting_for(project, child, "second begins")
    follower = start_warm("logs", "flow", "--follow", cwd=project)

    child.communicate(timeout=300)
    out, err = follower.communicate(timeout=300)

    assert (follower.returncode, err) == (0, "")
    assert out.splitlines() == ["First | first says hello", "Second | second begins"]


@pytest.mark.slow
def test_the_doctor_finds_what_a_dead_run_has_left(project: Path, shell: Command) -> None:
    """A killed run's lease and record are a warning with the command that mends them, and then are mended."""
    child = start_warm("run", "flow.py", "--param", "sleep_s=60", cwd=project)
    waiting_for(project, child, "second begins")
    child.kill()
    child.communicate(timeout=300)

    code, out, _ = shell("doctor")
    assert code == 0
    assert "warn  lease of flow: left by run 1" in out
    assert "-> spanwise stop flow" in out

    assert "had already died" in shell("stop", "flow")[1]
    assert "warn" not in shell("doctor")[1]


def test_on_a_terminal_a_table_is_drawn_and_the_cursor_comes_back(project: Path) -> None:
    """The nodes with their states; above them what they print; below them the summary."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "spanwise", "run", "flow.py", "--param", "sleep_s=0.3"],
        env={**environment(), "TERM": "xterm", "COLUMNS": "100"}, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    drawn = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end was closed
        while new := os.read(ours, 65536):
            drawn += new
    os.close(ours)

    assert child.wait() == 0
    text = drawn.decode()
    assert "First | first says hello" in text
    assert re.search(r"Second +.*running", text)
    assert re.search(r"Third +.*complete", text.rpartition("NODE")[2])
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    assert "Run flow/1: complete in" in text.splitlines()[-1]


def test_words_are_completed(folder: Path) -> None:
    """What a shell asks when Tab is pressed."""
    asked = {"_SPANWISE_COMPLETE": "complete_bash", "COMP_WORDS": "spanwise va", "COMP_CWORD": "1"}

    done = subprocess.run(
        [sys.executable, "-P", "-m", "spanwise"],
        env={**environment(), **asked}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout.split() == ["validate"]


def test_a_file_given_by_a_path_runs_from_anywhere(project: Path, shell: Command) -> None:
    """The root is where the command is typed; neighbours of the file are found."""
    (project / "sizes.py").write_text("TEXT = 'from next door'\n")
    (project / "flow.py").write_text(FLOW.replace('text: str = "hello"', "text: str = TEXT").replace(
        "import time", "import time\nfrom sizes import TEXT"
    ))  # fmt: skip
    (project / "elsewhere").mkdir()

    code, out, _ = shell("run", "../flow.py", "--to", "First", cwd=project / "elsewhere")

    assert code == 0
    assert "First | first says from next door" in out
    assert [f.name for f in (project / "elsewhere").iterdir()] == [".spanwise"]
