"""Transform graphs: a user's preprocessing with the values of its analyzers, stored on disk and applied anywhere.

A graph is three files that people can read and later versions can load:

- `preprocessing.py`: the function's own source, with what it uses (`spanwise.components.transform.standalone`);
- `graph.json`: what its analyzers learned, the types of inputs and outputs, and the versions it was made with;
- `inputs.parquet`: a table without rows, whose schema says exactly what the inputs are.

Loading a graph runs `preprocessing.py`: load graphs of people whose code you would run. The digest in `graph.json`
notices a file that was changed by accident, not one that was changed on purpose.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import polars as pl

from spanwise.components.transform import standalone
from spanwise.components.transform.analyzers import Plain, PreprocessingError, plain
from spanwise.components.transform.trace import (
    Columns,
    Preprocessing,
    PreprocessingTrace,
    format_expression,
    trace_function,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PreprocessingError", "Preprocessor"]

FORMAT = 1
"""Of the files. A later format is refused; earlier ones are read."""

_ANYTHING = (Exception, pl.exceptions.PanicException)
"""What an expression may raise: it may call the user's functions, and a panic of Polars is no Exception."""

T = TypeVar("T", "pl.DataFrame", "pa.Table", "pa.RecordBatch")


@dataclass(frozen=True, kw_only=True)
class Preprocessor:
    """One preprocessing function, with all that it learned from the rows of a window.

    graph = Preprocessor.load("models/7/graph")
    features = graph.apply(table, serving=True)
    """

    function: str  #: its name in the source
    source: str  #: of a module of its own
    inputs: Mapping[str, pl.DataType]  #: every column the examples had, whether it is used or not
    unreadable: Mapping[str, str] = field(default_factory=dict)  #: columns Polars cannot read, and why
    values: Mapping[str, Plain]  #: what the analyzers learned, by the names of their calls
    features: Mapping[str, pl.Expr]  #: by name, in order
    outputs: Mapping[str, pl.DataType]  #: the type of each feature

    @classmethod
    def of(
        cls,
        source: str,
        function: str,
        inputs: Mapping[str, pl.DataType],
        values: Mapping[str, Plain],
        unreadable: Mapping[str, str] | None = None,
    ) -> Self:
        """The graph whose analyzers have these values.

        Raises:
            PreprocessingError: the function fails, or calls other analyzers than those that the values are of.
        """
        unreadable = dict(unreadable or {})
        trace = PreprocessingTrace(columns=Columns(inputs, unreadable), values=values)
        trace_function(load_function(source, function), trace)
        unused = sorted(values.keys() - trace.names.values())
        if unused:
            raise PreprocessingError(f"the graph has a value for '{unused[0]}', which {function} does not call.")
        return cls(
            function=function,
            source=source,
            inputs=dict(inputs),
            unreadable=unreadable,
            values=dict(values),
            features=dict(trace.features),
            outputs={name: type_of(each, inputs, feature_label(name)) for name, each in trace.features.items()},
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The graph in a folder, such as the artifact's `uri`. This runs the code in it.

        Raises:
            PreprocessingError: there is no graph, it is damaged, or of a later format.
        """
        folder = Path(path)
        try:
            stored = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
            source = (folder / "preprocessing.py").read_text(encoding="utf-8")
            types = pl.read_parquet(folder / "inputs.parquet").schema
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            raise PreprocessingError(f"{folder} has no transform graph that can be read: {error}") from error
        if stored["format"] > FORMAT:
            raise PreprocessingError(
                f"{folder} was written in format {stored['format']} by spanwise {stored['versions'].get('spanwise')}; "
                f"this version reads up to {FORMAT}. Install that one or a later one."
            )
        if standalone.digest(source) != stored["source_digest"]:
            raise PreprocessingError(
                f"{folder}/preprocessing.py is not the file that graph.json was written with: it was edited or "
                "damaged. Restore it, or run Transform again."
            )
        values = {each["name"]: plain.from_json(each["value"]) for each in stored["values"]}
        return cls.of(source, stored["function"], types, values, stored["unreadable"])

    def save(self, path: str | Path) -> None:
        """Writes the graph: the same bytes for the same graph and versions."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "preprocessing.py").write_text(self.source, encoding="utf-8")
        pl.DataFrame(schema=dict(self.inputs)).write_parquet(folder / "inputs.parquet")
        stored = {
            "format": FORMAT,
            "function": self.function,
            "source_digest": standalone.digest(self.source),
            "versions": _versions(),
            "inputs": {name: str(type_) for name, type_ in self.inputs.items()},
            "unreadable": dict(self.unreadable),
            "outputs": {name: str(type_) for name, type_ in self.outputs.items()},
            "values": [{"name": name, "value": plain.to_json(value)} for name, value in self.values.items()],
        }
        text = json.dumps(stored, ensure_ascii=False, allow_nan=False, indent=1)
        (folder / "graph.json").write_text(text + "\n", encoding="utf-8")

    def needs(self, outputs: Iterable[str] | None = None) -> tuple[str, ...]:
        """The input columns that these features are made of; all features unless some are named."""
        names = [root for name in self._chosen(outputs) for root in self.features[name].meta.root_names()]
        return tuple(dict.fromkeys(names))

    def apply(self, data: T, *, outputs: Sequence[str] | None = None, serving: bool = False) -> T:
        """The features of some rows, as the same kind of table: a Polars frame, or an Arrow table or record batch.

        The rows may be any number and in any pieces: each row's features are those it has in training, bit by bit.

        Args:
            data: has the columns that the features are made of, and maybe others; types may be narrower or wider
                than those in training, if every value survives.
            outputs: only these features; columns that only others need may be missing.
            serving: features of which a column is missing are left out: the label is one such.

        Raises:
            PreprocessingError: a column is missing or of another type, or an expression fails; names the feature.
        """
        chosen = self._chosen(outputs)
        there = set(_column_names(data))
        if serving:
            chosen = [name for name in chosen if there.issuperset(self.features[name].meta.root_names())]
        self._refuse_missing(chosen, there)
        needed = self.needs(chosen)
        given = [self._conform(column) for column in _columns(data, needed)]
        conformed = pl.DataFrame(given) if needed else pl.select(pl.repeat(0, len(data)).alias("\x1arows"))
        features = {name: self.features[name] for name in chosen}
        return cast("T", _convert_like(data, evaluate(features, conformed)))

    def _chosen(self, outputs: Iterable[str] | None) -> list[str]:
        if outputs is None:
            return list(self.features)
        chosen = list(outputs)
        for name in chosen:
            if name not in self.features:
                raise PreprocessingError(f"the graph makes no {name!r}; it makes: {', '.join(self.features)}.")
        return chosen

    def _refuse_missing(self, chosen: Sequence[str], there: set[str]) -> None:
        for name in chosen:
            for root in self.features[name].meta.root_names():
                if root not in there:
                    raise PreprocessingError(
                        f"feature {name!r} is made of column {root!r}, which the data lacks; it has: "
                        f"{', '.join(sorted(there)) or 'none'}. To leave such features out: apply(…, serving=True)."
                    )

    def _conform(self, column: pl.Series) -> pl.Series:
        """The column in the type it had in training.

        Raises:
            PreprocessingError: a value would not survive.
        """
        wanted = self.inputs[column.name]
        if column.dtype == wanted:
            return column
        try:
            if column.dtype == pl.Null or (_is_text(column.dtype) and _is_text(wanted)):
                return column.cast(wanted)
            if _are_alike(column.dtype, wanted):
                found = column.cast(wanted)
                if found.cast(column.dtype).equals(column, null_equal=True):
                    return found
        except pl.exceptions.PolarsError:
            pass  # the error below says it
        raise PreprocessingError(
            f"column {column.name!r} is {column.dtype} here and was {wanted} where the graph was made, and not every "
            "value can be read as that; cast it before."
        )


def load_function(source: str, function: str) -> Preprocessing:
    """The function that a source defines."""
    try:
        return cast("Preprocessing", getattr(standalone.load(source), function))
    except Exception as error:
        raise PreprocessingError(
            f"the source of {function} cannot be run here: {type(error).__name__}: {error}. Install what it imports, "
            "in the versions of graph.json."
        ) from error


def type_of(expression: pl.Expr, inputs: Mapping[str, pl.DataType], who: str) -> pl.DataType:
    """The type of an expression over columns of these types.

    Raises:
        PreprocessingError: Polars refuses the expression, or Arrow has no such type; names `who`.
    """
    roots = {name: inputs[name] for name in expression.meta.root_names() if name in inputs}
    try:
        found = pl.LazyFrame(schema=roots).select(expression.alias("value")).collect_schema()["value"]
    except pl.exceptions.PolarsError as error:
        raise evaluation_error(who, expression, error) from error
    if _has_128_bits(found):
        raise PreprocessingError(
            f"{who} is {found}, which Arrow and Parquet do not have: {format_expression(expression)}. Polars makes it "
            "of UInt64 beside a signed number; cast the column: .cast(pl.Int64)."
        )
    return found


def _has_128_bits(type_: pl.DataType) -> bool:
    if isinstance(type_, pl.Struct):
        return any(_has_128_bits(cast("pl.DataType", field.dtype)) for field in type_.fields)
    if isinstance(type_, pl.List | pl.Array):
        return _has_128_bits(cast("pl.DataType", type_.inner))
    return type_.is_integer() and str(type_).endswith("128")


def feature_label(name: str) -> str:
    """A feature as an error names it."""
    return f"feature {name!r}"


def evaluate(
    features: Mapping[str, pl.Expr], frame: pl.DataFrame, label: Callable[[str], str] = feature_label
) -> pl.DataFrame:
    """Each expression over the rows of the frame. `label` gives the text by which an error names one.

    Raises:
        PreprocessingError: one fails; it is named.
    """
    if not features:
        return frame.select()
    if len(frame) == 1:
        return evaluate(features, pl.DataFrame([pl.concat([c, c]) for c in frame.get_columns()]), label).head(1)
    # Polars divides a constant by another, but multiplies a column by the inverse of a constant; and it takes a column,
    # or a chunk, of one row, or one that was made of a constant, for a constant. So there must be two rows in one
    # chunk, each a value of its own: else a row that is served would differ in its last bits from training.
    frame = pl.DataFrame([column.rechunk() for column in frame.get_columns()])
    named = [each.alias(name) for name, each in features.items()]
    try:
        found = frame.select(named)
        # constants alone have one row; with_columns makes them as long as the frame
        return found if len(found) == len(frame) else frame.with_columns(named).select(list(features))
    except _ANYTHING as error:
        for name, each in features.items():
            try:
                frame.with_columns(each.alias(name))
            except _ANYTHING as its_own:
                raise evaluation_error(label(name), each, its_own) from error
        raise PreprocessingError(f"the features cannot be computed together: {error}") from error


def evaluation_error(who: str, expression: pl.Expr, error: BaseException) -> PreprocessingError:
    """The error for an expression that cannot be computed."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    return PreprocessingError(f"{who} cannot be computed: {format_expression(expression)}: {said[0]}")


def _is_text(type_: pl.DataType) -> bool:
    return type_ == pl.String or isinstance(type_, pl.Categorical | pl.Enum)


def _are_alike(one: pl.DataType, other: pl.DataType) -> bool:
    """Whether values of one type mean the same in the other, where it holds them."""
    if isinstance(one, pl.List | pl.Array) and isinstance(other, pl.List | pl.Array):
        return _are_alike(cast("pl.DataType", one.inner), cast("pl.DataType", other.inner))
    if isinstance(one, pl.Struct) and isinstance(other, pl.Struct):
        types = {field.name: cast("pl.DataType", field.dtype) for field in other.fields}
        fields = [(cast("pl.DataType", field.dtype), types.get(field.name)) for field in one.fields]
        return all(theirs is None or _are_alike(mine, theirs) for mine, theirs in fields)
    return pl.Null in (one, other) or _family(one) == _family(other)


def _family(type_: pl.DataType) -> str:
    if type_.is_numeric():
        return "number"
    if type_ in (pl.Date, pl.Datetime):
        # which moment a wall clock shows depends on a zone that it does not tell
        return "wall clock" if getattr(type_, "time_zone", None) is None else "moment"
    return "text" if _is_text(type_) else str(type_)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("spanwise", "polars"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _column_names(data: pl.DataFrame | pa.Table | pa.RecordBatch) -> list[str]:
    if isinstance(data, pl.DataFrame):
        return data.columns
    if not hasattr(data, "schema"):
        raise PreprocessingError(
            f"apply takes a Polars frame, an Arrow table or record batch, not {type(data).__name__}; "
            "make one: pl.DataFrame(rows)."
        )
    return list(data.schema.names)


def _columns(data: pl.DataFrame | pa.Table | pa.RecordBatch, names: Sequence[str]) -> list[pl.Series]:
    """These columns; those that no feature is made of may have types that Polars does not read."""
    if isinstance(data, pl.DataFrame):
        return [data[name] for name in names]
    try:
        return cast("pl.DataFrame", pl.from_arrow(data.select(list(names)))).get_columns() if names else []
    except _ANYTHING as error:
        raise PreprocessingError(f"Polars cannot read one of the columns {', '.join(names)}: {error}") from error


def _convert_like(data: object, found: pl.DataFrame) -> object:
    if isinstance(data, pl.DataFrame):
        return found
    import pyarrow as pa

    table = to_arrow(found)
    if isinstance(data, pa.RecordBatch):
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
    return table


def to_arrow(frame: pl.DataFrame) -> pa.Table:
    """The frame in Arrow's most common types, so that every reader of the files knows them."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    return table.cast(_plain_schema(table))


def _plain_schema(table: pa.Table) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(field.name, _plain_type(field.type)) for field in table.schema])


def _plain_type(type_: Any) -> Any:  # noqa: PLR0911  one line per type; the stubs have a class for each type, and none for what they share
    import pyarrow as pa

    if pa.types.is_large_string(type_) or pa.types.is_dictionary(type_):
        return pa.string()
    if pa.types.is_large_binary(type_):
        return pa.binary()
    if pa.types.is_large_list(type_):
        return pa.list_(_plain_type(type_.value_type))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_plain_type(type_.value_type), type_.list_size)
    if pa.types.is_map(type_):
        return pa.map_(_plain_type(type_.key_type), _plain_type(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([(child.name, _plain_type(child.type)) for child in type_])
    return type_
