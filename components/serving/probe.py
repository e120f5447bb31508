"""Serving probe: a program that loads a model and predicts, as a serving process would.

It uses Python, NumPy, pyarrow and what `predict_fn` imports, and nothing of ours unless `predict_fn` imports it. It
reads one JSON object from its standard input, and writes the predictions to an `.npz` file.
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
    request: Mapping[str, object] = json.load(sys.stdin)
    # behind what this interpreter has itself: it may be another one than ours, with libraries of its own
    paths = request["paths"]
    assert isinstance(paths, list)
    sys.path.extend(path for path in paths if path not in sys.path)
    import numpy as np
    import pyarrow.parquet as pq

    function: object = _user_code(str(request["user_code"])).load_module(request["module"], request["file"])
    for name in str(request["function"]).split("."):
        function = getattr(function, name)
    assert callable(function)
    with pq.ParquetFile(str(request["rows"]), page_checksum_verification=True) as file:
        table = file.read()  # read_table would import pyarrow.dataset, and that pandas
    predictions = function(Path(str(request["model"])), table)
    found = arrays(predictions)
    # by their numbers: a name may be that of an option of NumPy
    numbered = {f"column {number}": values for number, values in enumerate(found.values())}
    with Path(str(request["predictions"])).open("wb") as out:
        np.savez(out, names=np.array(json.dumps(list(found))), **numbered)  # type: ignore[arg-type]  # options, to the stub


def arrays(predictions: object) -> dict[str, object]:
    """Predictions as arrays by name; a plain array has the name "prediction"."""
    if hasattr(predictions, "schema"):  # a table or batch of pyarrow
        return {name: _array(predictions.column(name)) for name in predictions.schema.names}  # type: ignore[attr-defined]
    if isinstance(predictions, Mapping):
        return {str(name): _array(values) for name, values in predictions.items()}
    return {"prediction": _array(predictions)}


def _array(values: object) -> object:
    """An array, in which what a masked array masks, and the NA of pandas, is None."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray) and isinstance(values.type, pa.DictionaryType):
        values = values.cast(values.type.value_type)  # NumPy would get another category where one is missing
    if isinstance(values, np.ma.MaskedArray):
        found = values.data.astype(object)
        found[np.ma.getmaskarray(values)] = None
        return found
    found = np.asarray(values)
    pandas = sys.modules.get("pandas")
    if pandas is None or found.dtype.kind != "O" or not found.ndim:
        return found
    return np.frompyfunc(lambda each: None if each is pandas.NA else each, 1, 1)(found)


def _user_code(file: str) -> ModuleType:
    """The module that loads users' files, from its file: it imports the standard library only."""
    spec = importlib.util.spec_from_file_location("spanwise_user_code", file)
    assert spec is not None and spec.loader is not None  # noqa: PT018  it is a Python file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
