"""Who may import whom (docs/decisions/0001-import-names.md), read from the source; and what an import costs."""

import ast
import contextlib
import functools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parents[1]
FOLDERS = ["components", "orchestrator", "pipelines", "resolvers", "scheduler"]
PACKAGES = [f"spanwise.{folder}" for folder in FOLDERS]
SURFACES = ["spanwise", "spanwise.input", *PACKAGES, "spanwise.pipelines.input"]  # what users import from

#: What the modules under the first name may import of ours, beside themselves. The longest name that fits counts.
MAY_IMPORT = {
    "spanwise.orchestrator": ["spanwise.version"],
    "spanwise.resolvers": ["spanwise.orchestrator"],
    "spanwise.scheduler": ["spanwise.orchestrator", "spanwise.version"],
    "spanwise.scheduler.cli.snapshot": ["spanwise.orchestrator", "spanwise.scheduler", "spanwise.pipelines.input"],
    "spanwise.scheduler.data_service": ["spanwise.orchestrator", "spanwise.scheduler", "spanwise.pipelines.input"],
    "spanwise.scheduler.cli.service": ["spanwise.orchestrator", "spanwise.scheduler", "spanwise.pipelines.input"],
    "spanwise.components": ["spanwise.orchestrator", "spanwise.pipelines.input", "spanwise.input"],
    "spanwise.pipelines": ["spanwise"],
    "spanwise.pipelines.input": [
        f"spanwise.orchestrator.{name}"
        for name in ("code_meaning", "durable", "errors", "fingerprint", "logs", "process", "storage", "user_code")
    ],
}

#: The only modules that may import a library that speaks to the outside, or that is dear to import.
DOORS = {
    "ml_metadata": ["spanwise.orchestrator.mlmd"],
    "apprise": ["spanwise.scheduler.alerts.channel"],
    "croniter": ["spanwise.scheduler.schedule.cron"],
    "typer": ["spanwise.scheduler.cli"],
    "psycopg2": ["spanwise.orchestrator.mlmd.postgresql"],
    "prometheus_client": ["spanwise.scheduler.daemon.metrics"],
    "apache_beam": ["spanwise.components"],
    "obstore": ["spanwise.orchestrator.storage"],
    "ray": ["spanwise.orchestrator.agents.ray_engine"],
    "jinja2": ["spanwise.scheduler.web"],
    "markupsafe": ["spanwise.scheduler.web"],
    "starlette": ["spanwise.scheduler.web"],
    "uvicorn": ["spanwise.scheduler.web"],
}

#: Libraries that users bring, and the modules that give elements to them; and the half of pydantic in which its hooks
#: are written.
BROUGHT = {library: ["spanwise.pipelines.input.sinks"] for library in ("jax", "pandas", "tensorflow", "torch")}
BROUGHT["torch"].append("spanwise.pipelines.input.torch_dataset")
BROUGHT["jax"] += ["spanwise.pipelines.input.jax_arrays", "spanwise.pipelines.input.orbax"]
BROUGHT["orbax"] = ["spanwise.pipelines.input.orbax"]
BROUGHT["tensorflow"].append("spanwise.pipelines.input.tf_dataset")
BROUGHT["pydantic_core"] = ["spanwise.components.training.elastic.job"]
BROUGHT |= {library: ["spanwise.orchestrator.storage.profiles"] for library in ("boto3", "botocore")}

#: What no package of ours may bring in by being imported: `spanwise --help` answers in 150 ms.
HEAVY = ["apache_beam", "apprise", "grpc", "ml_metadata", "numpy", "pandas", "pyarrow"]

#: What the commands that only read the metadata do without, beside those.
NEEDLESS = [
    "absl.logging",
    "attr",
    "http.client",
    "psycopg2",
    "pydantic",
    "rich.console",
    "spanwise.orchestrator.runner",
    "ssl",
]


class Import(NamedTuple):
    importer: str  #: dotted name of the module that imports
    imported: str  #: dotted name of what is imported, down to the name after `import`
    line: int


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def imports_of(source: str, module: str, *, is_package: bool) -> Iterator[Import]:
    """Every import in a source, wherever it stands: in functions, under TYPE_CHECKING, relative, or by name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (Import(module, alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=origin, names=names, level=level):
                parts = module.split(".") if is_package else module.split(".")[:-1]
                parents = parts[: len(parts) - level + 1] if level else []
                stem = ".".join([*parents, *([origin] if origin else [])])
                yield from (Import(module, f"{stem}.{alias.name}", node.lineno) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(module, name, node.lineno)


def modules() -> Iterator[tuple[str, Path]]:
    for folder in FOLDERS:
        for path in sorted((PROJECT / folder).rglob("*.py")):
            parts = path.relative_to(PROJECT).with_suffix("").parts
            yield ".".join(["spanwise", *(parts[:-1] if parts[-1] == "__init__" else parts)]), path


@functools.cache
def all_imports() -> tuple[Import, ...]:
    return tuple(
        found
        for module, path in modules()
        for found in imports_of(path.read_text(), module, is_package=path.name == "__init__.py")
    )


#: One process parses all sources, not each.
reads_sources = pytest.mark.xdist_group("sources")


def skip_unless_there(module: str) -> None:
    spec = find_spec(module)
    if spec is None or spec.origin is None:  # without an origin it is a folder without modules
        pytest.skip(f"there is no {module} yet")


def test_every_form_of_import_is_seen() -> None:
    """The reader of imports misses none of the ways in which Python can be told to import."""
    source = """
import a.b as x, c
from d import e
if TYPE_CHECKING:
    from f.g import (h, i)
def later():
    from . import j
    from ..k import l
    importlib.import_module("m.n")
    import_module("o")
"""

    seen = [found.imported for found in imports_of(source, "top.mid.leaf", is_package=False)]

    assert sorted(seen) == ["a.b", "c", "d.e", "f.g.h", "f.g.i", "m.n", "o", "top.k.l", "top.mid.j"]


@reads_sources
def test_folders_import_only_what_lies_below_them() -> None:
    """`components`, `resolvers` and `scheduler` see `orchestrator` but not each other; `pipelines` sees everything."""
    breaches = []
    for found in all_imports():
        home = max((name for name in MAY_IMPORT if is_in(found.importer, name)), key=len)
        ours = is_in(found.imported, "spanwise")
        if ours and not any(is_in(found.imported, allowed) for allowed in [home, *MAY_IMPORT[home]]):
            breaches.append(f"{found.importer}, line {found.line}: {found.imported}")

    assert breaches == []


@reads_sources
@pytest.mark.parametrize("library", DOORS)
def test_each_outside_system_has_one_door(library: str) -> None:
    """No module but the door imports the library, so that its errors and its quirks are met in one place."""
    breaches = [
        f"{found.importer}, line {found.line}: {found.imported}"
        for found in all_imports()
        if is_in(found.imported, library) and not any(is_in(found.importer, door) for door in DOORS[library])
    ]

    assert breaches == []


NAMED = {"psycopg2": "psycopg2-binary", "websocket": "websocket-client"}
"""Libraries that need not be installed, whose packages have other names."""


@reads_sources
def test_every_library_that_is_imported_is_declared() -> None:
    """No module counts on a library that is only there because another library brings it."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = ("demo", "images", "kubernetes", "openlineage", "postgresql", "ray", "storage", "ui")
    brought = [requirement for extra in optional for requirement in extras[extra]]
    requirements = [*project["dependencies"], *brought]
    declared = {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}
    distributions = packages_distributions()

    undeclared = []
    for found in all_imports():
        library = found.imported.split(".")[0]
        if found.importer in BROUGHT.get(library, []):
            continue
        if library not in {"spanwise", *sys.stdlib_module_names} and declared.isdisjoint(
            name.replace("_", "-").lower()
            for name in distributions.get(library, [NAMED.get(library, library)])  # Ray need not be installed
        ):
            undeclared.append(f"{found.importer}, line {found.line}: {library}")

    assert undeclared == []


@reads_sources
def test_no_module_of_ours_is_imported_by_a_bare_name() -> None:
    """Inside and outside, `components` and the like are imported as parts of `spanwise`, or they would exist twice."""
    breaches = [
        f"{found.importer}, line {found.line}" for found in all_imports() if found.imported.split(".")[0] in FOLDERS
    ]

    assert breaches == []


def test_the_package_pipelines_is_empty() -> None:
    """Importing `spanwise.pipelines.input` imports `pipelines` first, which must not bring in a training pipeline."""
    assert (PROJECT / "pipelines" / "__init__.py").read_text().strip() == ""


@pytest.mark.parametrize("package", SURFACES)
def test_a_package_exports_what_it_lists(package: str) -> None:
    """`__all__` names each public name that the package takes in or defines, and each can be had from it."""
    skip_unless_there(package)
    module = import_module(package)
    listed = set(getattr(module, "__all__", ()))

    body = ast.parse(Path(str(module.__file__)).read_text()).body  # without what stands under TYPE_CHECKING
    taken_in = {
        alias.asname or alias.name
        for node in body
        if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).split(".")[0] == "spanwise")
        for alias in node.names
    }
    defined = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    public = {name for name in taken_in | defined if not name.startswith("_")}

    assert public <= listed
    assert [name for name in sorted(listed) if not hasattr(module, name)] == []


@pytest.mark.parametrize("module", [*SURFACES, "spanwise.scheduler.cli", "spanwise.scheduler.main"])
def test_importing_is_cheap(module: str) -> None:
    """No heavy library is loaded before something needs it."""
    skip_unless_there(module)
    assert modules_after_import(module) & {*HEAVY} == set()


def test_the_command_line_waits_for_no_other_room() -> None:
    """`spanwise --help` imports typer and the command line itself; each command imports what it needs when it runs."""
    loaded = modules_after_import("spanwise.scheduler.cli")

    assert [name for name in loaded if is_in(name, "spanwise.orchestrator")] == []
    assert loaded & {"asyncio", "pydantic", "rich.console", "secrets"} == set()


def test_a_pipeline_of_all_components_is_built_without_heavy_libraries() -> None:
    """The process that decides what to run needs none of the libraries that do the work."""
    program = "import sys; from benchmarks.taxi import taxi; taxi('data', 'serving'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) & {*HEAVY, *NEEDLESS, "polars", "sklearn"} == set()


def modules_after_import(module: str) -> set[str]:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HISTORY_COMMANDS = {
    "runs": ["runs", "p"],
    "show": ["show", "p"],
    "missed": ["schedule", "missed"],
    "status": ["schedule", "status"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a run and a schedule."""
    from spanwise.orchestrator import Run, State
    from spanwise.orchestrator.mlmd import open_store
    from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
    from spanwise.scheduler.schedule.timetable import Timetable

    root = tmp_path_factory.mktemp("home")
    with contextlib.closing(open_store(str(root / "metadata.db"))) as store:
        store.begin_run(Run(pipeline="p", state=State.COMPLETE))
        put_schedule(store, ScheduleRecord(timetable=Timetable("p", cron="@daily"), since=datetime.now(UTC)))
    return root


@pytest.mark.parametrize("command", HISTORY_COMMANDS)
def test_a_command_that_shows_history_imports_no_heavy_library(command: str, home: Path) -> None:
    """Reading the metadata needs ml_metadata: neither what typer and ml_metadata import beside, nor what runs nodes.

    Nor does reading where the root is.
    """
    (home / "spanwise.toml").write_text('root = "elsewhere"\njobs = 2\n[params.p]\nwindow = 3\n')
    program = (
        "import sys; from spanwise.scheduler.main import main; code = main(sys.argv[1:]); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *HISTORY_COMMANDS[command], "--root", str(home)],
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("SPANWISE_")},
    )
    loaded = set(done.stderr.split())

    assert "ml_metadata" in loaded
    assert loaded & {*HEAVY, *NEEDLESS} == {"ml_metadata"}
