"""Serving probe: a program that loads a model and predicts, as a process that serves it would; started on its own.

It has Python, NumPy, pyarrow and what `predict_fn` imports, and nothing of ours unless `predict_fn` asks for it. On
its standard input it gets one JSON object, and it leaves the predictions in an `.npz` file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType


def main() -> None:
    """Predicts once, or ends with a traceback."""
    asked: Mapping[str, object] = json.load(sys.stdin)
    # behind what this interpreter has itself: it may be another one than ours, with libraries of its own
    paths = asked["paths"]
    assert isinstance(paths, list)
    sys.path.extend(path for path in paths if path not in sys.path)
    import numpy as np
    import pyarrow.parquet as pq

    function = _function(str(asked["module"]), str(asked["file"]), str(asked["function"]))
    table = pq.read_table(str(asked["rows"]))
    made = function(Path(str(asked["model"])), table)
    with Path(str(asked["predictions"])).open("wb") as file:
        np.savez(file, **arrays(made))  # type: ignore[arg-type]  # numpy's stub takes its own options for all of them


def arrays(made: object) -> dict[str, object]:
    """Predictions as arrays by name; a plain array has the name "prediction"."""
    import numpy as np

    if hasattr(made, "schema"):  # a table or batch of pyarrow
        return {name: np.asarray(made.column(name)) for name in made.schema.names}  # type: ignore[attr-defined]
    if isinstance(made, Mapping):
        return {str(name): np.asarray(values) for name, values in made.items()}
    return {"prediction": np.asarray(made)}


def _function(module: str, file: str, qualified: str) -> Callable[..., object]:
    found: object = _module(module, file)
    for name in qualified.split("."):
        found = getattr(found, name)
    assert callable(found)
    return found


def _module(name: str, file: str) -> ModuleType:
    """By its name when that is the same file, else from the file: a pipeline file is no module that others find."""
    try:
        spec = None if name == "__main__" else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == Path(file).resolve():
        return importlib.import_module(name)
    alone = importlib.util.spec_from_file_location(f"serving_{Path(file).stem}", file)
    if alone is None or alone.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(alone)
    sys.modules[alone.name] = module
    alone.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
