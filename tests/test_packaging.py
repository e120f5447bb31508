"""What is built is what was tested: wheel, sdist and editable install, run from a folder that holds namesakes of ours."""

import os
import re
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import spanwise

PROJECT = Path(__file__).parents[1]
FOLDERS = ["components", "orchestrator", "pipelines", "resolvers", "scheduler"]
PACKAGES = [f"spanwise.{folder}" for folder in FOLDERS]
WHERE = f"import {', '.join(PACKAGES)}; print(*[m.__file__ for m in ({', '.join(PACKAGES)})], sep='\\n')"
FILTERED: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # before Python 3.11.4 there is none


def build(source: Path, target: str, into: Path) -> Path:
    """Builds one `target` of `source`, offline."""
    call([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)], cwd=source)
    (built,) = into.iterdir()
    return built


def call(command: list[str], cwd: Path) -> str:
    """What a command printed, run without the paths and pip settings of this process."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROJECT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROJECT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes an environment that holds what `pip install` was asked for, and sees this one's other distributions.

    The other distributions come after its own and are taken as plain folders, so that the `.pth` of an
    editable spanwise in this environment is not read in the new one.
    """

    def make(*requirement: str) -> Path:
        home = tmp_path_factory.mktemp("environment")
        venv.create(home, with_pip=False, symlinks=True)
        python = home / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--isolated", "install", "--quiet", "--no-index"]
        (folder,) = home.glob("lib/python*/site-packages")
        (folder / "zz_others.pth").write_text("\n".join(site.getsitepackages()))
        call([*pip, "--no-deps", "--no-build-isolation", "--ignore-installed", *requirement], cwd=home)
        return python

    return make


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A folder such as a user works in: it has `components/` and the others too, each of which fails to import."""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('imported the decoy {name}')")
    return tmp_path


def test_the_wheel_holds_one_package(wheel: Path) -> None:
    """At the top of site-packages the wheel puts `spanwise/` and its metadata: no bare name, no `.pth` file."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.split("/")[0] for name in names} == {"spanwise", f"spanwise-{spanwise.__version__}.dist-info"}


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    """Templates, `py.typed` and whatever else stands beside the modules is in the wheel; caches are not."""
    roots = {"spanwise": PROJECT / "src" / "spanwise", **{f"spanwise/{name}": PROJECT / name for name in FOLDERS}}
    here = {
        f"{target}/{path.relative_to(root)}"
        for target, root in roots.items()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if name.startswith("spanwise/")}

    assert there == here
    assert "spanwise/py.typed" in there


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """A wheel built from the unpacked sdist holds the same bytes under the same names as one built from the checkout."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **FILTERED)
    (unpacked,) = tmp_path.iterdir()

    again = build(unpacked, "wheel", tmp_path / "again")

    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {i.filename: i.CRC for i in other.infolist()} == {i.filename: i.CRC for i in one.infolist()}


def test_the_sdist_holds_what_its_tests_need(sdist: Path) -> None:
    """Whoever packs spanwise for a distribution can test it from the sdist alone."""
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}

    assert {"LICENSE", "Makefile", "README.md", "constraints.txt", "tests/test_packaging.py"} <= names


def test_constraints_are_names_and_versions_of_all_that_is_declared() -> None:
    """`constraints.txt` holds each declared library, and nothing that ties it to an index, a disk or a file's hash."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    lines = [line for line in (PROJECT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]

    held = {line.split("==")[0] for line in lines}

    assert {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements} <= held
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+( ; [^:/]+)?", line)] == []


@pytest.fixture(scope="module", params=["wheel", "editable"])
def python(request: pytest.FixtureRequest, environment: Callable[..., Path]) -> Path:
    """The interpreter of an environment into which the wheel, or the checkout itself, was installed."""
    if request.param == "editable":
        return environment("--editable", str(PROJECT))
    return environment(str(request.getfixturevalue("wheel")))


def program(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(text)
    return "program.py"


def home(python: Path) -> Path:
    """The folder that `spanwise` is imported from there: in an editable install, the checkout."""
    (installed,) = python.parents[1].glob("lib/python*/site-packages")
    return installed / "spanwise" if (installed / "spanwise").exists() else PROJECT / "src" / "spanwise"


def test_a_script_beside_namesakes_gets_ours(python: Path, decoys: Path) -> None:
    """`python program.py` in a folder with a `components/` of its own imports `spanwise.components` all the same."""
    where = call([str(python), program(decoys, WHERE)], cwd=decoys).splitlines()

    assert where == [str(home(python) / folder / "__init__.py") for folder in FOLDERS]


def test_no_bare_name_can_be_imported(python: Path, tmp_path: Path) -> None:
    """Where no namesake is, `import components` finds nothing: the folders exist only inside `spanwise`."""
    text = f"from importlib.util import find_spec; print([name for name in {FOLDERS} if find_spec(name)])"

    assert call([str(python), program(tmp_path, text)], cwd=tmp_path).strip() == "[]"


def test_the_command_is_not_misled_by_the_folder_it_is_typed_in(python: Path, decoys: Path) -> None:
    """`spanwise --version`, and `python -m spanwise`, answer in a folder that has `components/`, ... of its own."""
    for command in ([str(python.with_name("spanwise"))], [str(python), "-m", "spanwise"]):
        assert spanwise.__version__ in call([*command, "--version"], cwd=decoys)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_processes_find_the_package(python: Path, decoys: Path, method: str) -> None:
    """A child that starts from nothing, in a folder with namesakes, imports the installed package too."""
    text = f"""
import multiprocessing

def where():
    import spanwise.components
    return spanwise.components.__file__

if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(1) as pool:
        print(pool.apply(where))
"""

    where = call([str(python), program(decoys, text)], cwd=decoys)

    assert Path(where.strip()) == home(python) / "components" / "__init__.py"


PIPELINE = """
from spanwise import ExampleGen, Pipeline, RollingWindow, component, Examples, Input, Output, Report
from components.mine import greeting  # the project's own

@component
def Count(examples: Input[list[Examples]], report: Output[Report]) -> None:
    report.path.mkdir(parents=True, exist_ok=True)
    (report.path / "report.txt").write_text(greeting())

def rides(data: str = "data") -> Pipeline:
    ingest = ExampleGen(pattern=f"{data}/{{SPAN}}/*.csv")
    window = RollingWindow(ingest["examples"], size=1)
    return Pipeline("rides", [ingest, window, Count(examples=window["examples"])])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project with folders called as ours, one of which its pipeline imports; and one span of data."""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "components" / "mine.py").write_text("def greeting() -> str:\n    return 'hello'\n")
    (tmp_path / "rides.py").write_text(PIPELINE)
    (tmp_path / "data" / "1").mkdir(parents=True)
    (tmp_path / "data" / "1" / "rides.csv").write_text("a,b\n1,2\n3,4\n")
    return tmp_path


@pytest.mark.slow
def test_a_pipeline_uses_the_projects_own_components(python: Path, project: Path) -> None:
    """`from components.mine import …` beside the pipeline file is the project's, in the command and in Beam's process."""
    call([str(python.with_name("spanwise")), "run", "rides.py", "--span", "1"], cwd=project)

    (report,) = project.glob(".spanwise/rides/Count/report/*/report.txt")
    assert report.read_text() == "hello"


def test_no_module_is_loaded_under_two_names(python: Path, project: Path) -> None:
    """After a pipeline was loaded, by path or by import, each file of ours belongs to exactly one module."""
    text = """
import os, sys
from collections import Counter
import spanwise.pipelines.flights
from spanwise.scheduler.project.load import load
load("rides.py")
load(os.path.realpath(spanwise.pipelines.flights.__file__), typed=["data=d", "serving=s"])
files = Counter(os.path.realpath(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None))
print([file for file, count in files.items() if count > 1 and "spanwise" in file])
"""

    assert call([str(python), program(project, text)], cwd=project).strip() == "[]"


def test_pickles_name_the_package(python: Path, decoys: Path) -> None:
    """What is pickled is found again by its name under `spanwise`, in another process with namesakes around."""
    dump = "import pickle, sys; from spanwise import Run, Threshold; sys.stdout.write(pickle.dumps([Run, Threshold]).hex())"
    pickled = call([str(python), "-c", dump], cwd=decoys.parent)
    load = f"import pickle; print(*[c.__module__ for c in pickle.loads(bytes.fromhex('{pickled}'))])"

    modules = call([str(python), program(decoys, load)], cwd=decoys).split()

    assert [module.partition(".")[0] for module in modules] == ["spanwise", "spanwise"]


TYPED = """
from spanwise import ExampleGen, Pipeline, RollingWindow, Schedule, Trainer, TrainerTask, days_before
from spanwise.input import Dataset, from_parquet


def train(task: TrainerTask) -> None:
    rows: int = len(task.table("train"))
    print(rows)


def rides(data: str = "data") -> Pipeline:
    ingest = ExampleGen(pattern=f"{data}/{{YYYY}}-{{MM}}-{{DD}}/*.csv")
    window = RollingWindow(ingest["examples"], size=3)
    return Pipeline("rides", [ingest, window, Trainer(examples=window["examples"], run_fn=train)])


daily = Schedule(rides, cron="0 3 * * *", zone="UTC", span=days_before(1))
ds: Dataset = from_parquet("a.parquet").shuffle(10).batch(2)
"""
MISTYPED = "from spanwise import Schedule\n\nwrong: int = Schedule\n"

#: Libraries of which no type stands in a signature that users see: mypy would take half its time for them.
WITHIN = (
    "IPython", "anyio", "apprise", "cryptography", "httpcore2", "httpx2", "hypothesis", "mypy", "obstore", "openlineage",
    "prometheus_client", "prompt_toolkit", "requests", "rich", "traitlets", "typer", "urllib3", "watchdog",
)  # fmt: skip


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy has found out about the libraries, which are the same for both installs."""
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_type_checkers_see_through_the_package(python: Path, decoys: Path, mypy_cache: Path, checker: str) -> None:
    """Mypy and pyright accept a typed pipeline file and refuse a wrong one: names are typed, not Unknown."""
    command = {
        "mypy": ["-m", "mypy", "--strict", "--python-executable", str(python), "--cache-dir", str(mypy_cache)],
        "basedpyright": ["-m", "basedpyright", "--level", "error", "--pythonpath", str(python)],
    }[checker]
    (decoys / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    within = ",".join(f"{name}.*" for name in WITHIN)
    (decoys / "mypy.ini").write_text(f"[mypy]\n[mypy-{within}]\nfollow_imports = skip\n")

    (decoys / "mistyped.py").write_text(MISTYPED)
    checked = subprocess.run(
        [sys.executable, *command, program(decoys, TYPED), "mistyped.py"],
        cwd=decoys, capture_output=True, text=True, check=False,
    )  # fmt: skip

    errors = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert checked.returncode == 1
    assert len(errors) == 1, checked.stdout
    assert "mistyped.py:3" in errors[0]
    assert "Schedule" in errors[0]
