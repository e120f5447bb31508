"""Answer parts: an answer of a database in ranges of a key, read side by side and put together in the key's order.

With a key, the answer is in its order, and whoever reads it in however many parts writes the same bytes. All parts see
the database at one moment: they share a snapshot, which PostgreSQL has. Any other database is read in one part.

Each part runs the query for itself, which may answer otherwise each time: `row_number()` without an order numbers rows
as they are found, `random()` draws again. So PostgreSQL finds rows in one order, and a sum that it makes of the whole
answer has to be that of the parts.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanwise.components.beam import map_in_order
from spanwise.components.ingest.database import Database, connect
from spanwise.components.ingest.query import Query
from spanwise.orchestrator.beam_settings import HERE, BeamSettings
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ParameterError, SpanwiseError, UnreadableInput

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

log = logging.getLogger("spanwise.ingest")

_KEY = re.compile(r'[A-Za-z_]\w*|"[^"]+"')
_WORD = 2**64
#: One number for all that is in a row of PostgreSQL, which hands on no bytes that could be hashed alike here and there.
_ROW_HASH = "hashtextextended((answer.*)::text, 0)"


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """What to ask, and where to write the answer."""

    node: str
    connection: str  #: as the user wrote it, without a password
    query: Query
    span: int
    calendar: Calendar
    key: str | None = None  #: the column that gives the order, as SQL names it; None: the query's own order
    snapshot: str | None = None  #: the moment at which to see the database; None: now
    file: str  #: for the answer, in Arrow's IPC format


@dataclass(frozen=True, kw_only=True)
class AnswerSum:
    """What was written: the same rows have the same sums, whatever their order and parts."""

    rows: int
    total: int  #: of the hashes of the rows, modulo 2**64
    mixed: int  #: of their squares
    schema: str  #: names and types
    hashed: int = 0  #: of a part: the sum of the hashes that PostgreSQL has made of its rows, modulo 2**64


def check_key(key: str, who: str) -> None:
    """Refuses what names no column.

    Raises:
        ParameterError: it is no plain or quoted name.
    """
    if not _KEY.fullmatch(key):
        raise ParameterError(f'{who} is the name of a column of the answer, such as id or "Id", and not {key!r}.')


def fetch_answer(request: AnswerRequest, partitions: int, beam: BeamSettings, scratch: Path) -> AnswerSum:
    """Writes an answer as it comes in, in parts if a key allows it: by Beam's engine if one is named, else in threads.

    `scratch` is a folder that every worker sees.

    Raises:
        ParameterError: the key is no column of whole numbers, or not unique; or two columns have one name.
        UnreadableInput: the database cannot be reached, refuses, or fails while it answers; or the parts are not those
            of one answer.
    """
    if request.key is None:
        return _write_part(request)
    with connect(request.connection, request.node) as database:
        if partitions == 1 or not database.shares_snapshots:
            database.refuse_renamed(request.query, request.span, request.calendar, f"{request.node}.query")
            return _write_part(_ordered(request))
        # the snapshot lives as long as this connection's transaction
        parts, hashed = _divide(request, database, partitions, scratch)
        sums = _read(parts, beam, scratch)
    if sum(each.hashed for each in sums) % _WORD != hashed:
        raise UnreadableInput(
            f"{request.node}.query gives other rows each time that it is run, so {len(parts)} ranges of {request.key} "
            "are not those of one answer. Such are row_number() and LIMIT without an ORDER BY of unique columns, "
            "random(), now(), TABLESAMPLE without REPEATABLE, and sums of floats. Change the query, or read it in one "
            "piece: partitions=1."
        )
    _join([Path(part.file) for part in parts], Path(request.file), f"{request.node}.query")
    return AnswerSum(
        rows=sum(each.rows for each in sums),
        total=sum(each.total for each in sums) % _WORD,
        mixed=sum(each.mixed for each in sums) % _WORD,
        schema=sums[0].schema,
    )


def _ordered(request: AnswerRequest, condition: str = "TRUE", columns: str = "*") -> AnswerRequest:
    after = f") AS answer WHERE {condition} ORDER BY {request.key}"
    return replace(request, query=request.query.wrap(f"SELECT {columns} FROM (", after))  # noqa: S608  ours


def _divide(
    request: AnswerRequest, database: Database, partitions: int, scratch: Path
) -> tuple[list[AnswerRequest], int]:
    """The parts, and the sum of the hashes of all their rows."""
    snapshot = database.share_snapshot()
    database.scan_in_order()
    asked = f"SELECT min({request.key}), max({request.key}), sum({_ROW_HASH})::text FROM ("  # noqa: S608  a name
    with database.query(request.query.wrap(asked, ") AS answer"), request.span, request.calendar) as answer:
        lowest, highest, hashed = (column[0].as_py() for column in answer.read_all().columns)
    for found in (lowest, highest):
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise ParameterError(
                f"{request.node}.partition_by names {request.key}, which holds {found!r}; it has to hold whole numbers."
            )
    columns = f"answer.*, {_ROW_HASH}"
    parts = [
        replace(
            _ordered(request, condition, columns), snapshot=snapshot, file=str(scratch / f"answer-{number:03}.arrow")
        )
        for number, condition in enumerate(_conditions(str(request.key), lowest, highest, partitions))
    ]
    return parts, int(hashed or 0) % _WORD


def _conditions(key: str, lowest: int | None, highest: int | None, partitions: int) -> Iterator[str]:
    """Ranges of equal width, of which the outer ones are open, so that no row is left out."""
    if lowest is None or highest is None or highest == lowest:
        yield "TRUE"
        return
    count = min(partitions, highest - lowest + 1)
    bounds = [lowest + (highest - lowest + 1) * number // count for number in range(1, count)]
    yield f"{key} < {bounds[0]}"
    for lower, upper in itertools.pairwise(bounds):
        yield f"{key} >= {lower} AND {key} < {upper}"
    yield f"{key} >= {bounds[-1]} OR {key} IS NULL"


def _read(parts: Sequence[AnswerRequest], beam: BeamSettings, scratch: Path) -> list[AnswerSum]:
    """The sums of the parts; of those that fail, the error of the first is raised."""
    if beam == HERE:
        with ThreadPoolExecutor(len(parts)) as threads:
            results = list(threads.map(_try_part, parts))
    else:
        results = map_in_order(parts, _try_part, beam=beam, scratch=scratch)
    sums = []
    for result in results:
        if isinstance(result, SpanwiseError):
            raise result
        sums.append(result)
    return sums


def _try_part(request: AnswerRequest) -> AnswerSum | SpanwiseError:
    try:
        return _write_part(request)
    except SpanwiseError as error:  # Beam would wrap it
        return error


def _write_part(request: AnswerRequest) -> AnswerSum:
    import pyarrow as pa

    from spanwise.components.ingest.answers import answer_schema, rebatch
    from spanwise.components.row_hash import hash_rows

    who = f"{request.node}.query"
    rows, total, mixed = 0, 0, 0
    hashed: list[int] = []
    with connect(request.connection, request.node) as database:
        if request.snapshot is not None:
            database.take_snapshot(request.snapshot)
        if request.key is not None:
            database.scan_in_order()
        facts = {"connection": request.connection, "query": request.query.fill(request.span, request.calendar)}
        log.info("query-started", extra=facts)
        with database.query(request.query, request.span, request.calendar) as answer:
            reader = answer if request.snapshot is None else _take_hashes(answer, hashed)
            schema = answer_schema(reader.schema, who)
            batches: Iterable[pa.RecordBatch] = rebatch(reader, schema, who)
            if request.key is not None:
                batches = check_order(batches, schema, request.key, request.node)
            with pa.OSFile(request.file, "wb") as sink, pa.ipc.new_file(sink, schema, options=_ipc_options()) as out:
                for batch in batches:
                    out.write_batch(batch)
                    hashes = hash_rows(batch)
                    rows += batch.num_rows
                    total = (total + _sum(hashes)) % _WORD
                    mixed = (mixed + _sum(hashes * hashes)) % _WORD
    mark = schema.to_string(show_field_metadata=False, show_schema_metadata=False)
    return AnswerSum(rows=rows, total=total, mixed=mixed, schema=mark, hashed=sum(hashed) % _WORD)


def _take_hashes(reader: pa.RecordBatchReader, hashed: list[int]) -> pa.RecordBatchReader:
    """The answer without its last column, the hashes of the rows, whose sums are appended to `hashed`."""
    import numpy as np
    import pyarrow as pa

    schema = pa.schema(list(reader.schema)[:-1])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            hashed.append(_sum(batch.columns[-1].to_numpy().view(np.uint64)))
            yield pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def check_order(batches: Iterable[pa.RecordBatch], schema: pa.Schema, key: str, node: str) -> Iterator[pa.RecordBatch]:
    """The batches, whose key has to be whole numbers that ascend: only then they have one order."""
    import numpy as np
    import pyarrow as pa

    who = f"{node}.partition_by"
    wanted = key.strip('"') if key.startswith('"') else key.lower()
    name = next((name for name in schema.names if (name if key.startswith('"') else name.lower()) == wanted), None)
    if name is None:
        raise ParameterError(f"{who} names {key}, which is no column of the answer: {', '.join(schema.names)}.")
    if not pa.types.is_integer(schema.field(name).type):
        raise ParameterError(
            f"{who} names {key}, which is of type {schema.field(name).type}; it has to hold whole numbers."
        )
    last: np.integer[Any] | None = None
    for batch in batches:
        column = batch.column(name)
        if column.null_count:
            raise UnreadableInput(f"{who}: {key} is missing in a row, which then has no place in the order.")
        keys = column.to_numpy()
        if last is not None:
            keys = np.concatenate(([last], keys))
        repeated = keys[1:][keys[1:] == keys[:-1]]
        if len(repeated):
            raise UnreadableInput(
                f"{who}: several rows have {key} {repeated[0]}, so they have no order. Name a column that is unique."
            )
        if (keys[1:] < keys[:-1]).any():
            raise UnreadableInput(
                f"{who}: the database does not give the rows in the order of {key}. Does it take that for a text? Give "
                f"the column a name without quotes in the query."
            )
        last = keys[-1]
        yield batch


def _join(parts: Sequence[Path], whole: Path, who: str) -> None:
    """Puts the files of parts into one, in batches of one size, and removes them."""
    import pyarrow as pa

    from spanwise.components.ingest.answers import rebatch

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            with pa.memory_map(str(part)) as source, pa.ipc.open_file(source) as reader:
                yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
            part.unlink()

    with pa.memory_map(str(parts[0])) as source, pa.ipc.open_file(source) as reader:
        schema = reader.schema
    with pa.OSFile(str(whole), "wb") as sink, pa.ipc.new_file(sink, schema, options=_ipc_options()) as out:
        for batch in rebatch(batches(), schema, who):
            out.write_batch(batch)


def _ipc_options() -> pa.ipc.IpcWriteOptions:
    import pyarrow as pa

    return pa.ipc.IpcWriteOptions(compression="lz4")


def _sum(hashes: NDArray[np.uint64]) -> int:
    return int(hashes.sum(dtype=hashes.dtype))
