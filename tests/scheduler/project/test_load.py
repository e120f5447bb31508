import os
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.orchestrator import Calendar
from spanwise.orchestrator.errors import LoadError, ParameterError, PipelineError
from spanwise.orchestrator.fingerprint import of_class
from spanwise.scheduler.project.load import load, split

HEAD = "from spanwise.orchestrator import Component, Input, Output, Pipeline, Report\n"
ONE = HEAD + "def one(window: int = 3, name: str = 'x') -> Pipeline:\n    return Pipeline('one', [])\n"


def write(folder: Path, text: str, name: str = "given.py") -> str:
    (folder / name).write_text(text)
    return name


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("a/b.py", (Path("a/b.py"), "")),
        ("a/b.py:flow", (Path("a/b.py"), "flow")),
        ("a:b/c.py", (Path("a:b/c.py"), "")),
    ],
)
def test_a_reference_is_a_file_and_perhaps_a_name(reference: str, parts: tuple[Path, str]) -> None:
    """Only an identifier after the last colon is a name, so that a path may hold colons."""
    assert split(reference) == parts


def test_the_only_function_that_returns_a_pipeline_is_called(folder: Path) -> None:
    """With one candidate nothing has to be named, and defaults are the arguments."""
    loaded = load(write(folder, ONE))

    assert loaded.pipeline.name == "one"
    assert loaded.parameters == {"window": 3, "name": "x"}
    assert loaded.source == "given.py"


def test_an_edit_counts_that_leaves_size_and_time_as_they_were(folder: Path) -> None:
    """Python takes bytecode that it kept of such a file for up to date."""
    show = "from spanwise.scheduler.project.load import load; print(load('given.py').parameters['window'])"
    seen = []
    for window in ("3", "7"):
        os.utime(write(folder, ONE.replace("3", window)), (10**9, 10**9))
        done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
        seen.append(done.stdout.strip())

    assert seen == ["3", "7"]


@pytest.mark.parametrize("place", ["beside.py", "package/__init__.py"])
def test_such_an_edit_of_a_module_that_is_imported_counts(folder: Path, place: str) -> None:
    """Of modules beside the pipeline file and in packages too, Python kept bytecode."""
    module = place.removesuffix(".py").removesuffix("/__init__")
    (folder / "package").mkdir()
    write(
        folder,
        HEAD + f"import {module}\ndef one(window: int = {module}.WINDOW) -> Pipeline: return Pipeline('one', [])\n",
    )
    show = "from spanwise.scheduler.project.load import load; print(load('given.py').parameters['window'])"
    seen = []
    for window in ("3", "7"):
        os.utime(folder / write(folder, f"WINDOW = {window}\n", place), (10**9, 10**9))
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        for _ in range(2):
            done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True, env=env)
        seen.append(done.stdout.strip())

    assert seen == ["3", "7"]
    assert list(folder.rglob("*.pyc"))


LATE = (
    HEAD
    + """
import edited
class Make(Component):
    def run(self, report: Output[Report]) -> None:
        from edited import work
        work()
def flow() -> Pipeline:
    return Pipeline("flow", [Make()])
"""
)


@pytest.mark.parametrize("imported", ["from edited import work", "import edited as other", "globals()"])
def test_a_module_counts_as_it_was_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, imported: str) -> None:
    """It is edited while a run goes on: what the loaded code makes is not what the edited code would make."""
    write(folder, "def work(): return 1\n", "edited.py")
    for name in ("edited", "given"):  # as in a process of its own
        monkeypatch.delitem(sys.modules, name, raising=False)
    given = write(folder, LATE.replace("from edited import work", imported).replace("work()\n", "edited.work\n"))
    make = type(load(given).pipeline.nodes["Make"])
    first = of_class(make)

    write(folder, "def work(): return 2\n", "edited.py")
    write(folder, (folder / given).read_text().replace("import edited\n", "import edited\nX = 2\n", 1))
    assert of_class(make) == first

    for name in ("edited", "given"):
        monkeypatch.delitem(sys.modules, name)
    assert of_class(type(load(given).pipeline.nodes["Make"])) != first


def test_an_annotation_that_is_text_counts(folder: Path) -> None:
    """`from __future__ import annotations` makes all of them text."""
    loaded = load(write(folder, "from __future__ import annotations\n" + ONE))

    assert loaded.pipeline.name == "one"


def test_a_pipeline_at_the_top_of_the_file_is_taken(folder: Path) -> None:
    """A file may build its pipeline once and for all."""
    loaded = load(write(folder, HEAD + "fixed = Pipeline('fixed', [])\n"))

    assert (loaded.pipeline.name, loaded.parameters) == ("fixed", {})


def test_a_function_without_annotation_is_taken_by_name(folder: Path) -> None:
    """Whoever names it knows what it returns."""
    loaded = load(write(folder, HEAD + "def plain():\n    return Pipeline('plain', [])\n") + ":plain")

    assert loaded.pipeline.name == "plain"


def test_a_function_of_a_neighbour_is_no_candidate(folder: Path) -> None:
    """What a file imports to build upon is not offered as its own."""
    write(folder, ONE, "neighbour.py")

    loaded = load(write(folder, HEAD + "from neighbour import one\ndef two() -> Pipeline:\n    return one()\n"))

    assert loaded.pipeline.name == "one"
    assert loaded.parameters == {}


def test_a_file_is_imported_once(folder: Path) -> None:
    """A neighbour that imports the file gets the module that was loaded, and loading again imports nothing."""
    write(folder, "def look():\n    import counted\n    return counted\n", "looker.py")
    reference = write(
        folder,
        ONE + "import pathlib\nwith open('imports', 'a') as f: f.write('x')\nfrom looker import look\nlook()\n",
        "counted.py",
    )

    load(reference)
    load(reference)

    assert (folder / "imports").read_text() == "x"


def test_a_file_in_a_package_is_imported_as_its_module(folder: Path) -> None:
    """Relative imports work there as they do anywhere."""
    package = folder / "mine_own"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("SIZE = 9\n")
    (package / "flow.py").write_text(ONE + "from .sizes import SIZE\n")

    load("mine_own/flow.py")

    assert sys.modules["mine_own.flow"].SIZE == 9


def test_a_folder_named_as_one_of_ours_does_no_harm(folder: Path) -> None:
    """A user's package `pipelines` is not mixed up with the one that comes with us."""
    package = folder / "pipelines"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "taxi_own.py").write_text(ONE)

    loaded = load("pipelines/taxi_own.py")

    assert loaded.pipeline.name == "one"


def test_a_file_named_as_a_module_of_python_does_no_harm(folder: Path) -> None:
    """`queue.py` may be a pipeline's name; Python's own stays what it was."""
    import queue

    load(write(folder, ONE, "queue.py"))

    assert sys.modules["queue"] is queue


@pytest.mark.parametrize(
    ("text", "reference", "says"),
    [
        ("x = 1\n", "given.py", ["defines no pipeline", "def daily(", "spanwise init DIR"]),
        (
            "def one():\n    pass\ndef two() -> int:\n    return 1\n",
            "given.py",
            ["defines no pipeline. If one returns one, say so: def one(…) -> Pipeline."],
        ),
        (
            ONE + "def other() -> Pipeline: ...\n",
            "given.py",
            ["defines 2 pipelines", "given.py:one", "given.py:other"],
        ),
        (ONE, "given.py:on", ["has no 'on'", "Did you mean given.py:one?"]),
        (ONE, "given.py:zzz", ["has no 'zzz'", "It defines: given.py:one"]),
        (ONE + "three = 3\n", "given.py:three", ["neither a pipeline nor a function, but int"]),
        (HEAD + "def f() -> Pipeline:\n    return 3\n", "given.py", ["returned int, not a Pipeline"]),
        (ONE, "givn.py", ["There is no file givn.py", "Did you mean given.py?"]),
        (ONE, ".", ["is a folder; give a file in it: given.py"]),
    ],
)
def test_a_missing_pipeline_is_reported_with_what_there_is(
    folder: Path, text: str, reference: str, says: list[str]
) -> None:
    """Each refusal says what would have been taken."""
    write(folder, text)

    with pytest.raises(LoadError) as refused:
        load(reference)

    assert [s for s in says if s not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nowhere_to_be_found\n", ["line 1", "import nowhere_to_be_found", "ModuleNotFoundError"]),
        ("def f(:\n", ["line 1", "SyntaxError"]),
        ("raise SystemExit(3)\n", ["line 1", "SystemExit: 3"]),
        ("import json\njson.loads('{')\n", ["line 2", "json.loads('{')", "JSONDecodeError"]),
    ],
)
def test_a_file_that_does_not_import_is_shown_in_its_own_lines(folder: Path, text: str, says: list[str]) -> None:
    """The traceback holds the user's lines and the error, and none of ours or of a library."""
    write(folder, text, "broken_file.py")

    with pytest.raises(LoadError) as refused:
        load("broken_file.py")

    message = str(refused.value)
    assert [s for s in ["could not import broken_file.py:", *says] if s not in message] == []
    assert "scheduler/" not in message
    assert "json/decoder.py" not in message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("from .helper import work\n", "Import a file beside this one without the dot:  from helper import name"),
        ("import helpr\n", "Did you mean helper?"),
        ("import helper.nothing\n", "'helper' is not a package"),
        (
            "import nowhere_to_be_found\n",
            f"If it is a library, install its package:  {sys.executable} -m pip install PACKAGE",
        ),
    ],
)
def test_an_import_that_fails_says_what_helps(folder: Path, text: str, hint: str) -> None:
    """A newcomer's helper lies beside the pipeline's file, and a library in another environment."""
    write(folder, "work = 1\n", "helper.py")

    with pytest.raises(LoadError) as refused:
        load(write(folder, text))

    assert str(refused.value).splitlines()[-1].endswith(hint)


def test_a_file_named_as_a_library_is_refused(folder: Path) -> None:
    """Every later import of the library would be of this file, and fail far away from it."""
    with pytest.raises(LoadError, match=r"pandas.py is named like the library pandas, and .* Rename it."):
        load(write(folder, ONE, "pandas.py"))


def test_a_wiring_mistake_names_the_line(folder: Path) -> None:
    """The pipeline's own error is kept, with the user's line below it."""
    text = HEAD + "class A(Component):\n    def run(self, r: Output[Report]) -> None: ...\n"
    text += "def f() -> Pipeline:\n    return Pipeline('f', [A(typo=3)])\n"

    with pytest.raises(PipelineError) as refused:
        load(write(folder, text))

    assert "A takes no 'typo'" in str(refused.value)
    assert "Pipeline('f', [A(typo=3)])" in str(refused.value)


def test_typed_arguments_win_over_settings_over_defaults(folder: Path) -> None:
    """Each source replaces only the arguments it names."""
    write(folder, ONE)

    loaded = load("given.py", typed=["window=9"], settings={"one": {"window": 5, "name": "set"}})

    assert loaded.parameters == {"window": 9, "name": "set"}


def test_settings_may_use_the_name_of_the_pipeline(folder: Path) -> None:
    """A function `build` that makes the pipeline `taxi` takes `[params.taxi]` too."""
    write(folder, HEAD + "def build(window: int = 3) -> Pipeline:\n    return Pipeline('taxi', [])\n")

    loaded = load("given.py", settings={"taxi": {"window": 5}})

    assert loaded.parameters == {"window": 5}


@pytest.mark.parametrize(
    ("typed", "settings", "says"),
    [
        (["windw=3"], {}, ["takes no 'windw'", "Did you mean 'window'?", "window: int = 3"]),
        (["window=three"], {}, ["window takes int", "'three'"]),
        (["window"], {}, ["is not name=value"]),
        ([], {"one": {"window": 1.5}}, ["window takes int"]),
        ([], {"one": {"size": 1}}, ["takes no 'size'", "[params.one]"]),
    ],
)
def test_a_wrong_argument_is_refused(
    folder: Path, typed: list[str], settings: dict[str, dict[str, object]], says: list[str]
) -> None:
    """The message says what the function takes."""
    write(folder, ONE)

    with pytest.raises(ParameterError) as refused:
        load("given.py", typed=typed, settings=settings)

    assert [s for s in says if s not in str(refused.value)] == []


def test_a_missing_argument_is_named(folder: Path) -> None:
    """An argument without default has to come from somewhere, and the message says from where it can."""
    write(folder, HEAD + "def f(data: str) -> Pipeline: ...\n")

    with pytest.raises(ParameterError, match=r"needs data: give --param data=….*\[params.f\]"):
        load("given.py")


def test_a_pipeline_that_is_no_function_takes_no_arguments(folder: Path) -> None:
    """Arguments that would have no effect are refused."""
    write(folder, HEAD + "fixed = Pipeline('fixed', [])\n")

    with pytest.raises(ParameterError, match="not a pipeline function"):
        load("given.py", typed=["window=3"])


def test_spans_are_counted_as_the_first_node_that_knows_says(folder: Path) -> None:
    """A node with a calendar makes the pipeline's spans dates; without one they are numbers."""
    text = HEAD + "from spanwise.orchestrator import Calendar\nclass A(Component):\n    calendar = Calendar.DAY\n"
    text += "    def run(self, r: Output[Report]) -> None: ...\ndated = Pipeline('dated', [A()])\n"
    text += "plain = Pipeline('plain', [])\n"
    write(folder, text)

    assert load("given.py:dated").calendar is Calendar.DAY
    assert load("given.py:plain").calendar is Calendar.NUMBER
