"""BulkInferrer: predicts every row of a span with the blessed model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from spanwise.orchestrator.artifact import Blessing, Examples, InferenceResult, Model
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.orchestrator.signature import Input, Output

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("spanwise.serving")


class BulkInferrer(Component):
    """Predicts the rows of one span.

        BulkInferrer(examples=ingest["examples"], model=champion["model"], predict_fn=predict, columns=("flight",))

    `inference_result` has a file for each file of the examples, with the rows in the same order: the `columns` that
    identify them, and the result of `predict_fn(model_dir, table)`. An array becomes the column `prediction` (with
    several numbers a row: a list); a mapping or a table has column names of its own. It carries span and version.

    Without a model, or with a connected `blessing` that is not positive, nothing is published and the log says why.
    """

    preload: ClassVar = (
        "numpy",
        "pyarrow",
        "pyarrow.parquet",
        "fsspec",  # which pyarrow imports when it opens the first file
        "spanwise.components.predictions",
        "spanwise.components.rows",
        "spanwise.components.transform.graph_digest",
    )
    libraries: ClassVar = ("numpy", "pyarrow")

    def check(self) -> None:
        columns = self.parameters["columns"]
        if isinstance(columns, Sequence) and self.parameters["output"] in columns:
            raise ParameterError(
                f"{self.name}: {self.parameters['output']!r} is both a column and the name of the prediction; "
                "rename the prediction: output='score'."
            )

    def run(
        self,
        *,
        examples: Input[Examples],
        model: Input[Model | None],
        blessing: Input[Blessing | None],
        inference_result: Output[InferenceResult | None],
        predict_fn: Callable[..., object],
        splits: Sequence[str] | None = None,
        columns: Sequence[str] = (),
        output: str = "prediction",
        batch_size: int = 1 << 16,
    ) -> None:
        from spanwise.components.transform.graph_digest import refuse_other_graph

        reason = _find_refusal(model, blessing, connected=bool(self.inputs["blessing"]))
        if reason is not None or model is None:
            log.warning("prediction-skipped", extra={"reason": reason})
            return
        assert inference_result is not None, "outputs are always passed"
        refuse_other_graph(self.name, [examples], model, "model")
        names = list(splits if splits is not None else examples.split_names)
        predictor = FilePredictor(predict_fn, model.path, tuple(columns), output, batch_size)
        counts = {}
        for split in names:
            folder = inference_result.path / f"Split-{split}"
            folder.mkdir()
            counts[split] = sum(predictor.predict(path, folder / path.name) for path in _files(examples, split))
        schema = predictor.finish()
        inference_result.span = examples.span
        inference_result.version = examples.version
        inference_result.calendar = examples.calendar
        inference_result.split_names = names
        inference_result.model = model.name
        inference_result.rows = counts
        inference_result.columns = {field.name: str(field.type) for field in schema}
        log.info("examples-predicted", extra={"model": model.name, "rows": counts})


def _find_refusal(model: Model | None, blessing: Blessing | None, *, connected: bool) -> str | None:
    """Why nothing is predicted; None if the model may be used."""
    if model is None:
        return "there is no model yet"
    if not connected:
        return None
    if blessing is None:
        return f"{model.name} has no verdict: an Evaluator without thresholds gives none"
    if blessing.blessed != 1:
        return f"{model.name} is not blessed: {'; '.join(blessing.reasons or ()) or 'its blessing is negative'}"
    return None


def _files(examples: Examples, split: str) -> list[Path]:
    return sorted(examples.split(split).glob("*.parquet"))


class FilePredictor:
    """Predicts one file after the other, with the same columns; holds one batch in memory."""

    def __init__(
        self, predict_fn: Callable[..., object], model: Path, columns: tuple[str, ...], output: str, batch_size: int
    ) -> None:
        self._predict_fn = predict_fn
        self._model = model
        self._columns = columns
        self._output = output
        self._batch_size = batch_size
        self._schema: pa.Schema | None = None
        self._empty: list[tuple[Path, pa.Schema]] = []  #: files without rows, with their columns

    def predict(self, source: Path, target: Path) -> int:
        """Writes the predictions of a file; returns their number."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from spanwise.components import rows

        count = 0
        writer: pq.ParquetWriter | None = None
        try:
            with pq.ParquetFile(source, page_checksum_verification=True) as file:
                identifying = rows.choose_columns(file.schema_arrow, self._columns)
                for batch in file.iter_batches(self._batch_size):
                    if not len(batch):
                        continue
                    predictions = self._predict_batch(batch)
                    writer = writer or pq.ParquetWriter(target, predictions.schema, write_page_checksum=True)
                    writer.write_batch(predictions)
                    count += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableInput(f"{source}: damaged ({error}). Ingest its span again.") from error
        finally:
            if writer is not None:
                writer.close()
        if not count:
            self._empty.append((target, identifying))
        return count

    def finish(self) -> pa.Schema:
        """Writes the files without rows, and returns the columns of all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for target, identifying in self._empty:
            self._schema = self._schema or pa.schema([*identifying, pa.field(self._output, pa.float64())])
            pq.write_table(self._schema.empty_table(), target, write_page_checksum=True)
        return self._schema or pa.schema([])

    def _predict_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        from spanwise.components import predictions

        table = pa.Table.from_batches([batch])
        columns = predictions.columns(self._predict_fn(self._model, table), len(batch), self._output)
        if taken := sorted(set(columns) & set(self._columns)):
            raise ParameterError(
                f"predict_fn returns a column {taken[0]!r}, which is also one of `columns`; rename it."
            )
        arrays = [*(batch.column(name) for name in self._columns), *columns.values()]
        found = pa.RecordBatch.from_arrays(arrays, names=[*self._columns, *columns])
        if self._schema is None:
            self._schema = found.schema
        for mine, theirs in zip(found.schema, self._schema, strict=False):
            if mine.name != theirs.name or mine.type != theirs.type:
                raise ParameterError(
                    f"predict_fn returned {theirs.name} as {theirs.type} for some rows and {mine.name} as {mine.type} "
                    "for others; return the same columns and types for all."
                )
        return found
