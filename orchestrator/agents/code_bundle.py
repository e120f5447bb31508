"""Code bundles: the code that a pipeline needs, by content, for a machine that has the libraries and not the files.

What is found is what the cache key covers: the files of the user's that the pipeline's functions are in, and those
which they import, followed through the code without running it.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

from spanwise.orchestrator import user_code
from spanwise.orchestrator.code_digest import spanwise_content
from spanwise.orchestrator.code_meaning import CodeMeaning
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import LoadError, NodeFailed
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.user_code import Import, Owner, Shipment

_ALWAYS = ("apache-beam", "cloudpickle", "numpy", "polars", "pyarrow")
"""What components of spanwise compute with, whatever the pipeline imports."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What code finds where it runs."""

    python: str
    spanwise: str  #: its version and a digest of its files
    libraries: Mapping[str, str] = field(default_factory=dict)  #: versions by distribution


@dataclass(frozen=True, kw_only=True)
class CodeBundle:
    """A pipeline, the files of its code, and the environment that it was packed in."""

    files: Mapping[str, bytes]  #: by place below the folder that modules are imported from
    origins: Mapping[str, str]  #: where each of them lies here
    shipment: Shipment  #: the pipeline, for a machine where they lie at the same places
    environment: Environment
    meanings: Mapping[str, CodeMeaning]  #: what the code of each node means here


def pack(pipeline: Pipeline) -> CodeBundle:
    """Packs a pipeline for another machine.

    Raises:
        ParameterError: something in it cannot be pickled.
    """
    shipment = user_code.ship(pipeline)
    found = _Closure()
    for name, file in shipment.modules:
        found.add(name, file)
    libraries = {*_ALWAYS, *found.libraries}
    for node in pipeline:
        libraries.update(node.libraries if isinstance(node, Component) else ())
    return CodeBundle(
        files=found.files,
        origins=found.origins,
        shipment=shipment,
        environment=environment(libraries),
        meanings={node.name: meaning_of(node) for node in pipeline if isinstance(node, Component)},
    )


def meaning_of(node: Component) -> CodeMeaning:
    """What a node does: its class and what it was created with, as in its cache key."""
    parameters = {f"{name}=": value for name, value in node.definition.items() if name not in node.hints}
    return CodeMeaning.of({f"the code of {node.name}": type(node), **parameters})


def refuse_other_meaning(bundle: CodeBundle, node: Component) -> None:
    """Refuses a node whose code means something else in this process than where it was packed.

    Raises:
        NodeFailed: it does; the message names what differs.
    """
    try:
        bundle.meanings[node.name].refuse_other(meaning_of(node))
    except LoadError as error:
        raise NodeFailed(f"{node.name} was not started: {error}") from error


def environment(libraries: Iterable[str]) -> Environment:
    """The environment of this process, with the versions of these libraries; one that is missing has the version ""."""
    versions = {name: _version(name) for name in sorted(libraries)}
    return Environment(python=platform.python_version(), spanwise=spanwise_content(), libraries=versions)


def differences(wanted: Environment, there: Environment) -> list[str]:
    """What another environment has that is not as wanted, for people; an empty list where work may start."""
    found = []
    if wanted.python.rpartition(".")[0] != there.python.rpartition(".")[0]:
        found.append(f"Python {there.python}, not {wanted.python}")
    if wanted.spanwise != there.spanwise:
        found.append(f"spanwise {there.spanwise}, not {wanted.spanwise}")
    for name, version in wanted.libraries.items():
        has = there.libraries.get(name, "")
        if version and version != has:
            found.append(f"{name} {has}, not {version}" if has else f"no {name}, which is {version} here")
    return found


def unpack(bundle: CodeBundle, folder: Path) -> Pipeline:
    """Loads the pipeline: from its files where this machine has them, or else from copies below a folder.

    Code finds the files beside it by `__file__`, which is that of a copy only where there is nothing to find.
    Runs what the sender says.

    Raises:
        LoadError: a module cannot be imported there.
    """
    shipment = bundle.shipment if _lies_here(bundle) else _copy(bundle, folder)
    sys.path[:0] = [path for path in shipment.paths if path not in sys.path]
    try:
        pipeline = user_code.unpack(shipment)
    except Exception as error:
        raise LoadError(f"the code of the pipeline cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(pipeline, Pipeline):
        raise NodeFailed(f"A bundle held {type(pipeline).__name__} instead of a pipeline.")
    return pipeline


def _lies_here(bundle: CodeBundle) -> bool:
    """Whether this machine has the files where the sender has them, such as on a shared file system."""
    try:
        return all(Path(bundle.origins[name]).read_bytes() == content for name, content in bundle.files.items())
    except OSError:
        return False


def _copy(bundle: CodeBundle, folder: Path) -> Shipment:
    """Writes the files below a folder."""
    for name, content in bundle.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    modules = tuple((name, str(_place_of(bundle, name, folder))) for name, _ in bundle.shipment.modules)
    return Shipment(modules, (str(folder),), bundle.shipment.content)


def _place_of(bundle: CodeBundle, module: str, folder: Path) -> Path:
    path = module.replace(".", "/")
    return folder / (f"{path}/__init__.py" if f"{path}/__init__.py" in bundle.files else f"{path}.py")


class _Closure:
    """The files of modules of the user's, and of all that they import."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.origins: dict[str, str] = {}
        self.libraries: set[str] = set()
        self._seen: set[str] = set()

    def add(self, name: str, file: str, *, package: bool | None = None) -> None:
        """Adds a module by the name under which it is imported, with its parents and what it imports."""
        if name in self._seen:
            return
        self._seen.add(name)
        is_package = Path(file).name == "__init__.py" if package is None else package
        path = name.replace(".", "/")
        content = Path(file).read_bytes()
        place = f"{path}/__init__.py" if is_package else f"{path}{Path(file).suffix}"
        self.files[place], self.origins[place] = content, str(Path(file).absolute())
        above = name.rpartition(".")[0]
        if above:
            self._follow(Import(above, 0, (), None), "")
        if not file.endswith(".py"):
            return
        for code in user_code.code_within(compile(content, file, "exec", dont_inherit=True)):
            for use in user_code.uses(code):
                if isinstance(use, Import):
                    self._follow(use, name if is_package else above)

    def _follow(self, found: Import, package: str) -> None:
        for spec in user_code.find_imported(found, package):
            if spec.origin is None or not spec.has_location:
                continue
            owner = user_code.owner_of(spec.name, spec.origin)
            if owner is Owner.USER:
                self.add(spec.name, spec.origin, package=spec.submodule_search_locations is not None)
            elif owner is Owner.LIBRARY:
                self.libraries.update(_distributions(spec))


def _distributions(spec: ModuleSpec) -> Iterator[str]:
    yield from _by_module().get(spec.name.partition(".")[0], ())


def _by_module() -> Mapping[str, list[str]]:
    if not _known:
        _known.update(importlib.metadata.packages_distributions())
    return types.MappingProxyType(_known)


_known: dict[str, list[str]] = {}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
