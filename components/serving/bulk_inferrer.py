"""BulkInferrer: predicts every row of a span with the blessed model, here or on the workers of a Beam runner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from spanwise.components.serving.judged import refuse_other_blessings
from spanwise.orchestrator.artifact import Blessing, Examples, InferenceResult, Model
from spanwise.orchestrator.beam_settings import (
    BEAM_PARAMETERS,
    HERE,
    BeamOptions,
    BeamSettings,
    check_given,
    choose_beam,
)
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, SpanwiseError, UnreadableInput
from spanwise.orchestrator.signature import Attempt, Input, Output, check_call, check_least

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from spanwise.orchestrator.verdict import Verdict

log = logging.getLogger("spanwise.serving")


class BulkInferrer(Component):
    """Predicts the rows of one span.

        BulkInferrer(examples=ingest["examples"], model=champion["model"], predict_fn=predict, columns=("flight",))

    `inference_result` has a file for each file of the examples, with the rows in the same order: the `columns` that
    identify them, and the result of `predict_fn(model_dir, table)`. An array becomes the column `prediction` (with
    several numbers a row: a list); a mapping or a table has column names of its own. It carries span and version.

    The files are predicted here one after the other, unless `beam_runner` or the settings name a runner of Beam, whose
    workers then share them; `predict_fn` is sent to them, and the model is read where they are.

    Without a model, or with a connected `blessing` that is not positive, nothing is published and the log says why. A
    person's verdict on the model (`spanwise bless|unbless`) replaces `blessing`, connected or not.
    """

    preload: ClassVar = (
        "numpy",
        "pyarrow",
        "pyarrow.parquet",
        "spanwise.components.predictions",
        "spanwise.components.rows",
        "spanwise.components.transform.graph_digest",
    )
    hints: ClassVar = BEAM_PARAMETERS
    libraries: ClassVar = ("numpy", "pyarrow")

    def check(self) -> None:
        check_call(f"{self.name}.predict_fn", self.parameters["predict_fn"], "model_dir", "table")
        check_given(self.name, self.parameters)
        check_least(self.name, self.parameters, batch_size=1)
        refuse_other_blessings(self, "blessing")
        for key in ("columns", "splits"):
            given = self.parameters[key]
            names = given if isinstance(given, list | tuple) else ()
            if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
                raise ParameterError(f"{self.name}.{key} has {twice!r} twice; name each once.")
        columns = self.parameters["columns"]
        if isinstance(columns, Sequence) and self.parameters["output"] in columns:
            raise ParameterError(
                f"{self.name}: {self.parameters['output']!r} is both a column and the name of the prediction; "
                "rename the prediction: output='score'."
            )

    def run(
        self,
        *,
        attempt: Attempt,
        examples: Input[Examples],
        model: Input[Model | None],
        blessing: Input[Blessing | None],
        inference_result: Output[InferenceResult | None],
        predict_fn: Callable[..., object],
        splits: Sequence[str] | None = None,
        columns: Sequence[str] = (),
        output: str = "prediction",
        batch_size: int = 1 << 16,
        beam_runner: str | None = None,
        beam_options: BeamOptions | None = None,
    ) -> None:
        from spanwise.components.transform.graph_digest import refuse_other_graph

        person = None if model is None else attempt.verdicts.get(model.name)
        reason = _find_refusal(model, blessing, person, connected=bool(self.inputs["blessing"]))
        if reason is not None or model is None:
            log.warning("prediction-skipped", extra={"reason": reason})
            return
        assert inference_result is not None, "outputs are always passed"
        refuse_other_graph(self.name, [examples], model, "model")
        names = list(splits if splits is not None else examples.split_names)
        predictor = FilePredictor(predict_fn, model.path, tuple(columns), output, batch_size)
        beam = choose_beam(attempt.run, beam_runner, beam_options)
        tasks = [
            PredictionTask(split, path, inference_result.path / f"Split-{split}" / path.name)
            for split in names
            for path in _files(examples, split)
        ]
        for split in names:
            (inference_result.path / f"Split-{split}").mkdir()
        predicted = predict_files(predictor, tasks, beam, attempt.scratch)
        schema = predictor.finish(tasks, predicted)
        counts = dict.fromkeys(names, 0)
        for task, file in zip(tasks, predicted, strict=True):
            counts[task.split] += file.rows
        inference_result.span = examples.span
        inference_result.version = examples.version
        inference_result.calendar = examples.calendar
        inference_result.split_names = names
        inference_result.model = model.name
        inference_result.rows = counts
        inference_result.columns = {field.name: str(field.type) for field in schema}
        log.info("examples-predicted", extra={"model": model.name, "rows": counts})


def _find_refusal(
    model: Model | None, blessing: Blessing | None, person: Verdict | None, *, connected: bool
) -> str | None:
    """Why nothing is predicted; None if the model may be used. What a person said of it replaces its blessing."""
    if model is None:
        return "there is no model yet"
    if person is not None:
        return None if person.given else f"{model.name} is {person}"
    if not connected:
        return None
    if blessing is None:
        return f"{model.name} has no verdict: an Evaluator that compares nothing with a threshold gives none"
    if blessing.blessed != 1:
        return f"{model.name} is not blessed: {'; '.join(blessing.reasons or ()) or 'its blessing is negative'}"
    return None


def _files(examples: Examples, split: str) -> list[Path]:
    return sorted(examples.split(split).glob("*.parquet"))


@dataclass(frozen=True)
class PredictionTask:
    """A file to predict."""

    split: str
    source: Path
    target: Path


@dataclass(frozen=True)
class PredictedFile:
    """What was predicted of a file."""

    rows: int
    schema: pa.Schema  #: of its predictions; without rows, of the columns that identify them


def predict_files(
    predictor: FilePredictor, tasks: Sequence[PredictionTask], beam: BeamSettings, scratch: Path
) -> list[PredictedFile]:
    """Predicts the files here, one after the other, or on the workers of a runner.

    Raises:
        UnreadableInput: a file is damaged.
        ParameterError: `predict_fn` returned something else than it should, or it cannot be sent to workers.
        NodeFailed: it raised an error on one of them.
    """
    if beam == HERE:
        return [_predict_task(predictor, task) for task in tasks]
    from spanwise.components.beam import map_with_user_code

    return map_with_user_code(predictor, _predict_task, tasks, beam=beam, scratch=scratch)


def _predict_task(predictor: FilePredictor, task: PredictionTask) -> PredictedFile:
    return predictor.predict(task.source, task.target)


@dataclass(frozen=True)
class FilePredictor:
    """Predicts one file, holding one batch in memory."""

    predict_fn: Callable[..., object]
    model: Path
    columns: tuple[str, ...]  #: that identify the rows
    output: str  #: the column of an array
    batch_size: int

    def predict(self, source: Path, target: Path) -> PredictedFile:
        """Writes the predictions of a file, if it has any rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from spanwise.components import rows

        count = 0
        schema: pa.Schema | None = None
        writer: pq.ParquetWriter | None = None
        try:
            with _damage(source):
                file = pq.ParquetFile(source, page_checksum_verification=True)
            with file:
                identifying = rows.choose_columns(file.schema_arrow, self.columns)
                for batch in _read_batches(file, source, self.batch_size):
                    predictions = self._predict_batch(batch)
                    schema = schema or predictions.schema
                    _refuse_mixed(predictions.schema, schema)
                    writer = writer or pq.ParquetWriter(target, schema, write_page_checksum=True)
                    writer.write_batch(predictions)
                    count += len(batch)
        finally:
            if writer is not None:
                writer.close()
        return PredictedFile(count, schema or pa.schema(list(identifying)))

    def finish(self, tasks: Sequence[PredictionTask], predicted: Sequence[PredictedFile]) -> pa.Schema:
        """Writes the files without rows, and returns the columns of all.

        Raises:
            ParameterError: `predict_fn` returned other columns for one file than for another.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema: pa.Schema | None = None
        for file in predicted:
            if file.rows:
                schema = schema or file.schema
                _refuse_mixed(file.schema, schema)
        for task, file in zip(tasks, predicted, strict=True):
            if not file.rows:
                schema = schema or self._predict_no_rows(task.source, file.schema)
                pq.write_table(schema.empty_table(), task.target, write_page_checksum=True)
        return schema or pa.schema([])

    def _predict_no_rows(self, source: Path, identifying: pa.Schema) -> pa.Schema:
        """The columns of what `predict_fn` returns for no rows; where it fails, only those that identify rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with _damage(source):
            schema = pq.read_schema(source)
        try:
            return self._predict_batch(pa.RecordBatch.from_pylist([], schema)).schema
        except SpanwiseError:
            raise
        except Exception as error:  # noqa: BLE001  whatever a model says of no rows
            reason = f"there are no rows, and predict_fn fails without any ({type(error).__name__}: {error})"
            log.warning("prediction-columns-unknown", extra={"reason": reason})
            return identifying

    def _predict_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        from spanwise.components import predictions

        table = pa.Table.from_batches([batch])
        columns = predictions.columns(self.predict_fn(self.model, table), len(batch), self.output, table)
        if taken := sorted(set(columns) & set(self.columns)):
            raise ParameterError(
                f"predict_fn returns a column {taken[0]!r}, which is also one of `columns`; rename it."
            )
        arrays = [*(batch.column(name) for name in self.columns), *columns.values()]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.columns, *columns])


@contextmanager
def _damage(source: Path) -> Iterator[None]:
    """Takes what pyarrow says of a file for damage. Nothing of the user's runs inside, which raises errors alike."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(f"{source}: damaged ({error}). Ingest its span again.") from error


def _read_batches(file: pq.ParquetFile, source: Path, size: int) -> Iterator[pa.RecordBatch]:
    """The batches that have rows."""
    with _damage(source):
        for batch in file.iter_batches(size):
            if len(batch):
                yield batch


def _refuse_mixed(schema: pa.Schema, first: pa.Schema) -> None:
    if len(schema) != len(first):
        some, others = (", ".join(each.names) for each in (first, schema))
        raise ParameterError(
            f"predict_fn returned the columns {some} for some rows and {others} for others; "
            "return the same columns and types for all."
        )
    for mine, theirs in zip(schema, first, strict=True):
        if mine.name != theirs.name or mine.type != theirs.type:
            raise ParameterError(
                f"predict_fn returned {theirs.name} as {theirs.type} for some rows and {mine.name} as {mine.type} "
                "for others; return the same columns and types for all."
            )
