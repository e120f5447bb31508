"""InfraValidator: whether a model, in the form in which it will be served, loads and predicts in a fresh process."""

from __future__ import annotations

import inspect
import itertools
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from spanwise.orchestrator import user_code
from spanwise.orchestrator.artifact import Examples, InfraBlessing, Model
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.orchestrator.serving import RECORD
from spanwise.orchestrator.signature import Attempt, Input, Output, check_call, check_least

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

log = logging.getLogger("spanwise.serving")

_PROBE = Path(__file__).parent / "probe.py"
_TAIL_LINES = 12  # of a traceback, in the report


class InfraValidator(Component):
    """Tries a model before it is pushed.

        infra = InfraValidator(model=trainer["model"], examples=recent["examples"], predict_fn=predict)
        Pusher(model=trainer["model"], blessing=evaluator["blessing"], infra_blessing=infra["blessing"], …)

    The model's files are copied as Pusher would put them. A new Python interpreter, in a folder of its own, imports
    `predict_fn` and calls it with the copy and some rows. The `blessing` is 1 when it answers in time with one finite
    prediction for each row, and these are the numbers that `predict_fn` gives here; otherwise 0, with the reasons. A
    refused model does not fail the run.

    `python` is the interpreter of the environment that serves; by default it is ours. It needs pyarrow, NumPy and what
    `predict_fn` imports. The answer depends on more than inputs, so it is never served from the cache.
    """

    cacheable: ClassVar = False
    preload: ClassVar = (
        "numpy",
        "pyarrow.parquet",
        "spanwise.components.rows",
        "spanwise.components.transform.graph_digest",
    )

    def check(self) -> None:
        check_call(f"{self.name}.predict_fn", self.parameters["predict_fn"], "model_dir", "table")
        _check_importable(self.name, self.parameters["predict_fn"])
        check_least(self.name, self.parameters, tolerance=0)
        for name in ("rows", "wait_s"):
            value = self.parameters[name]
            if isinstance(value, int | float) and value <= 0:
                raise ParameterError(f"{self.name}.{name} is {value:g}; it is more than 0.")

    def run(
        self,
        *,
        model: Input[Model],
        examples: Input[list[Examples]],
        blessing: Output[InfraBlessing],
        attempt: Attempt,
        predict_fn: Callable[..., object],
        split: str = "eval",
        rows: int = 64,
        wait_s: float = 300.0,
        tolerance: float = 1e-6,
        python: str | None = None,
    ) -> None:
        import pyarrow.parquet as pq

        from spanwise.components.transform.graph_digest import refuse_other_graph

        refuse_other_graph(self.name, examples, model, "model")
        served = attempt.scratch / "serving" / "1"
        shutil.copytree(model.path, served, symlinks=True)
        (served / RECORD).write_text(json.dumps({"model": model.name}) + "\n")
        sample = _read_sample(examples, split, rows)
        pq.write_table(sample, attempt.scratch / "rows.parquet", write_page_checksum=True)
        began = time.monotonic()
        arrays_there, problem = _predict_in_fresh_process(
            predict_fn, served, attempt.scratch, wait_s, python or sys.executable
        )
        took_s = time.monotonic() - began
        reasons = [problem] if problem else list(_find_invalid(arrays_there, len(sample)))
        if not reasons:
            from spanwise.components.serving.probe import arrays

            here = {name: _array(a) for name, a in arrays(predict_fn(served, sample)).items()}
            reasons = list(_find_differences(arrays_there, here, tolerance))
        blessing.model = model.name
        blessing.blessed = int(not reasons)
        blessing.reasons = reasons
        facts = {"model": model.name, "rows": len(sample), "took_s": round(took_s, 3), "reasons": reasons}
        text = json.dumps(facts, indent=2, ensure_ascii=False)
        (blessing.path / "infra.json").write_text(text + "\n", encoding="utf-8")
        (blessing.path / ("INFRA_NOT_BLESSED" if reasons else "INFRA_BLESSED")).touch()
        if reasons:
            log.warning("infra-validation-failed", extra={"model": model.name, "reasons": reasons})
        else:
            log.info("infra-validation-passed", extra={"model": model.name, "rows": len(sample), "took_s": took_s})


def _check_importable(node: str, predict_fn: object) -> None:
    """Refuses a function that a serving process could not import."""
    function = inspect.unwrap(predict_fn) if callable(predict_fn) else predict_fn
    if not inspect.isfunction(function) or "<" in function.__qualname__:
        raise ParameterError(
            f"{node}: a fresh process cannot import predict_fn, {getattr(function, '__qualname__', function)!r}; "
            "write it with def at the top of a module."
        )


def _read_sample(examples: list[Examples], split: str, count: int) -> pa.Table:
    """The first rows of the newest span that has any."""
    import pyarrow as pa

    from spanwise.components import rows

    schema = rows.read_schema(examples, split)
    for artifact in sorted(examples, key=lambda e: e.span, reverse=True):
        found: list[pa.RecordBatch] = []
        parts = rows.list_parts([artifact], split)
        for batch in itertools.chain.from_iterable(rows.read_part(part, schema, count) for part in parts):
            found.append(batch.slice(0, count - sum(map(len, found))))
            if sum(map(len, found)) == count:
                break
        if found:
            return pa.Table.from_batches(found).combine_chunks()
    raise UnreadableInput(f"the split {split!r} has no rows, so there is nothing to try the model on.")


def _predict_in_fresh_process(
    predict_fn: Callable[..., object], model: Path, scratch: Path, wait_s: float, python: str
) -> tuple[dict[str, NDArray[np.generic]], str]:
    """The predictions of a fresh process, or why there are none."""
    import numpy as np

    function = inspect.unwrap(predict_fn)
    predictions, output = scratch / "predictions.npz", scratch / "output.txt"
    request = {
        "module": function.__module__,
        "file": inspect.getfile(function),
        "function": function.__qualname__,
        "model": str(model),
        "rows": str(scratch / "rows.parquet"),
        "predictions": str(predictions),
        "paths": user_code.search_paths(),
        "user_code": user_code.__file__,
    }
    (scratch / "request.json").write_text(json.dumps(request))
    (scratch / "home").mkdir()
    with (scratch / "request.json").open() as stdin, output.open("w") as stdout:
        try:
            process = subprocess.run(
                [python, "-P", str(_PROBE)],  # -P: nothing is imported from the folder of the probe
                stdin=stdin,
                stdout=stdout,
                stderr=stdout,
                cwd=scratch / "home",
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                timeout=wait_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}, f"it did not answer within {wait_s:g} s (wait_s)"
        except OSError as error:
            return {}, f"{python} could not be started ({error.strerror})"
    if process.returncode:
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        sys.stderr.writelines(f"{line}\n" for line in lines[-_TAIL_LINES:])  # into the log of the node
        log.warning("serving-probe-failed", extra={"status": process.returncode})
        how = f"was killed by signal {-process.returncode}" if process.returncode < 0 else "failed"
        return {}, f"a fresh process {how}: {lines[-1] if lines else 'it printed nothing'}"
    with np.load(predictions, allow_pickle=True) as file:
        names = json.loads(str(file["names"]))
        return {name: _array(file[f"column {number}"]) for number, name in enumerate(names)}, ""


def _array(values: object) -> NDArray[np.generic]:
    import numpy as np

    return np.asarray(values)


def _find_invalid(served: Mapping[str, NDArray[np.generic]], rows: int) -> list[str]:
    """Why predictions are invalid, whatever the right ones are."""
    import numpy as np

    reasons = [] if served else ["predict_fn returned no columns"]
    for name, values in served.items():
        if not values.shape or values.shape[0] != rows:
            reasons.append(f"{name} has {values.shape[0] if values.shape else 1} values for {rows} rows")
            continue
        numbers = np.issubdtype(values.dtype, np.number)
        plain = [] if numbers else list(_list_values(values))
        odd = int((~np.isfinite(values)).sum()) if numbers else sum(map(_is_odd, plain))
        if missing := plain.count(None):
            reasons.append(f"{name} has {missing} missing values")
        if odd:
            reasons.append(f"{name} has {odd} values that are not finite numbers")
    return reasons


def _is_odd(value: object) -> bool:
    import numpy as np

    return isinstance(value, float | np.floating) and not np.isfinite(value)


def _list_values(values: object) -> Iterator[object]:
    """All single values, also those within lists and structs, as Python has them."""
    import numpy as np

    plain = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(plain, Mapping):
        plain = list(plain.values())
    if isinstance(plain, list | tuple):
        for each in plain:
            yield from _list_values(each)
    else:
        yield plain


def _find_differences(
    served: Mapping[str, NDArray[np.generic]], here: Mapping[str, NDArray[np.generic]], tolerance: float
) -> list[str]:
    """Where the predictions of the fresh process differ from those of this one."""
    import numpy as np

    if list(served) != list(here):
        return [f"a fresh process predicts {', '.join(served)}, and this one {', '.join(here)}"]
    reasons = []
    for name, values in served.items():
        mine = here[name]
        rounded = values.dtype.kind in "fc" or mine.dtype.kind in "fc"
        numbers = rounded and values.dtype.kind in "biufc" and mine.dtype.kind in "biufc"  # others are equal or not
        if values.shape != mine.shape:
            reasons.append(f"{name} has the shape {values.shape} in a fresh process and {mine.shape} here")
        elif numbers and not np.allclose(values, mine, rtol=tolerance, atol=tolerance):
            apart = np.abs(values.astype(np.float64) - mine.astype(np.float64))
            row = int(np.unravel_index(apart.argmax(), apart.shape)[0])
            reasons.append(f"{name} of row {row} is {values[row]} in a fresh process and {mine[row]} here")
        elif not numbers and not _are_close(values, mine, tolerance):
            reasons.append(f"{name} is not the same in a fresh process as here")
    return reasons


def _are_close(one: object, other: object, tolerance: float) -> bool:
    """Whether two values are the same, but for the rounding of numbers, also within lists and structs."""
    import numpy as np

    one, other = (each.tolist() if isinstance(each, np.ndarray) else each for each in (one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_close(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(
            _are_close(mine, theirs, tolerance) for mine, theirs in zip(one, other, strict=True)
        )
    if isinstance(one, float | np.floating) and isinstance(other, float | np.floating):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)
