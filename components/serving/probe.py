"""Serving probe: a program that loads a model and predicts, as a process that serves it would; started on its own.

It has Python, NumPy, pyarrow and what `predict_fn` imports, and nothing of ours unless `predict_fn` asks for it. On
its standard input it gets one JSON object, and it leaves the predictions in an `.npz` file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
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

    found: object = _user_code(str(asked["user_code"])).load_module(asked["module"], asked["file"])
    for name in str(asked["function"]).split("."):
        found = getattr(found, name)
    assert callable(found)
    table = pq.read_table(str(asked["rows"]))
    made = found(Path(str(asked["model"])), table)
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


def _user_code(file: str) -> ModuleType:
    """The module that loads the files of users; it needs nothing but Python."""
    spec = importlib.util.spec_from_file_location("spanwise_user_code", file)
    assert spec is not None and spec.loader is not None  # noqa: PT018  it is a Python file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
