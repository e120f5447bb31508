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
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

import spanwise

PROJECT = Path(__file__).parents[1]
FOLDERS = ["components", "orchestrator", "pipelines", "resolvers", "scheduler"]
WHERE = f"import {', '.join(FOLDERS)}; print(*[m.__file__ for m in ({', '.join(FOLDERS)})], sep='\\n')"


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


@pytest.fixture(scope="module")
def installed(environment: Callable[..., Path], wheel: Path) -> Path:
    return environment(str(wheel))


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A folder such as a user works in: it has `components/` and the others too, each of which fails to import."""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('imported the decoy {name}')")
    return tmp_path


def test_the_wheel_keeps_the_five_folders_under_one_of_its_own(wheel: Path) -> None:
    """At the top of site-packages the wheel puts one folder, one line in a `.pth` file, and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        pth = archive.read("spanwise.pth").decode()

    version = spanwise.__version__
    assert {name.split("/")[0] for name in names} == {"spanwise", "spanwise.pth", f"spanwise-{version}.dist-info"}
    assert {name.split("/")[1] for name in names if name.startswith("spanwise/")} == set(FOLDERS)
    assert pth == "spanwise\n"


def test_the_wheel_holds_every_file_of_the_five_folders(wheel: Path) -> None:
    """Templates, `py.typed` and whatever else stands beside the modules is in the wheel; caches are not."""
    here = {
        f"spanwise/{path.relative_to(PROJECT)}"
        for folder in FOLDERS
        for path in (PROJECT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if name.startswith("spanwise/")}

    assert there == here
    assert {f"spanwise/{folder}/py.typed" for folder in FOLDERS} <= there


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """A wheel built from the unpacked sdist holds the same bytes under the same names as one built from the checkout."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
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


def test_an_installed_wheel_answers_with_its_own_folders(installed: Path, decoys: Path) -> None:
    """A program elsewhere on disk gets the installed folders, although its working folder holds namesakes."""
    (decoys / "bin").mkdir()
    (decoys / "bin" / "program.py").write_text(WHERE)

    where = call([str(installed), "bin/program.py"], cwd=decoys).splitlines()

    home = next(installed.parents[1].glob("lib/python*/site-packages")) / "spanwise"
    assert where == [str(home / folder / "__init__.py") for folder in FOLDERS]


@pytest.mark.skipif(find_spec("spanwise.scheduler.main") is None, reason="there is no command line yet")
def test_the_command_is_not_misled_by_the_folder_it_is_typed_in(installed: Path, decoys: Path) -> None:
    """`spanwise --version` answers in a folder that has `components/`, `scheduler/`, ... of its own."""
    said = call([str(installed.with_name("spanwise")), "--version"], cwd=decoys)

    assert spanwise.__version__ in said


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_processes_find_the_folders(installed: Path, decoys: Path, method: str) -> None:
    """A child that starts from nothing, in a folder with namesakes, imports the installed folders too."""
    (decoys / "bin").mkdir()
    (decoys / "bin" / "program.py").write_text(f"""
import multiprocessing

def where():
    import spanwise.components
    return components.__file__

if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(1) as pool:
        print(pool.apply(where))
""")

    where = call([str(installed), "bin/program.py"], cwd=decoys)

    assert Path(where.strip()).is_relative_to(installed.parents[1])


def test_an_editable_install_answers_with_the_checkout(environment: Callable[..., Path], decoys: Path) -> None:
    """After `pip install --editable` an edit in the checkout is what runs next, wherever the program stands."""
    python = environment("--editable", str(PROJECT))
    (decoys / "bin").mkdir()
    (decoys / "bin" / "program.py").write_text(WHERE)

    where = call([str(python), "bin/program.py"], cwd=decoys).splitlines()

    assert where == [str(PROJECT / folder / "__init__.py") for folder in FOLDERS]
