"""QueryExampleGen: publishes the rows that a database has for one span, as ExampleGen does with files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from spanwise.components.ingest.answer_part import AnswerRequest, check_key, fetch_answer
from spanwise.components.ingest.database import check_connection, connect
from spanwise.components.ingest.example_gen import (
    ExampleGen,
    choose_comparison,
    choose_splits,
    describe_examples,
    ingest_compared,
    refuse_dropped_in_use,
)
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.query import Query, span_of
from spanwise.components.ingest.swapped import refuse_swapped
from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.beam_settings import BEAM_PARAMETERS, BeamOptions, BeamSettings, check_given, choose_beam
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, SpanNotFound, UnreadableInput, UsageError
from spanwise.orchestrator.fingerprint import digest
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import Attempt, Output

if TYPE_CHECKING:
    from spanwise.components.ingest.database import Database

_INPUT = ("input",)  # one input split, which the ratios divide
_NEWEST = "SELECT max(day) FROM flights"


class QueryExampleGen(Component):
    """Ingests the rows that a query gives for one span.

        QueryExampleGen(
            connection="env:WAREHOUSE_URL",
            query="SELECT * FROM flights WHERE departed >= {SPAN_START} AND departed < {SPAN_END} ORDER BY id",
        )

    `calendar` says what a span is: an hour, a day, an ISO week, a month, a quarter, or a number; `ingest.query` says
    what the placeholders are then. The run names the span. Only with a `newest_query`, which gives the newest date or
    number there is, may it name none. Rows are divided and typed as ExampleGen does it.

    A database may answer the same query otherwise tomorrow, so it is asked in every run. With a `version_query`, which
    gives a whole number for a span, the number is the version of the Examples, and a version that was ingested is
    served from the cache: the number promises that the rows are the same.

    `partition_by` names a column of unique whole numbers, by which the rows are then ordered. A PostgreSQL gives them
    in `partitions` ranges of it at once, by Beam's engine if one is named; the bytes are the same in any number.
    """

    preload: ClassVar = ExampleGen.preload
    prepared: ClassVar = ("span", "version", "previous", "compare")
    hints: ClassVar = (*BEAM_PARAMETERS, "partitions")
    libraries: ClassVar = ("pyarrow",)

    def check(self) -> None:
        given = self.parameters
        self.calendar = Calendar(given["calendar"])  #: how spans are counted and shown
        self._query = Query.parse(str(given["query"]), f"{self.name}.query")
        self._newest = self._parse_query("newest_query")
        self._version = self._parse_query("version_query")
        self._check_placeholders()
        check_given(self.name, given)
        check_connection(str(given["connection"]), f"{self.name}.connection")
        choose_splits(_INPUT, given["ratios"])
        refuse_dropped_in_use(self.name, given)
        self._check_partitions()
        # nothing but a version tells whether the rows are still the same
        self.cache = self.cache and self._version is not None

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:
        past = history("examples")
        refuse_swapped(past, {name: self.parameters[name] for name in ("query", "connection")})
        span, version = self.requested_span(run), None
        if span is None or self._version is not None:
            with connect(str(self.parameters["connection"]), self.name) as database:
                span = self._newest_span(database) if span is None else span
                version = self._version_of(database, span)
        self._query.bind(span, self.calendar)  # a span that is no date
        return {"span": span, "version": version, **choose_comparison(past, span, version, None)}

    def available(self, spans: Collection[int] | None = None) -> Mapping[int, int | None]:
        """The version of each of these spans that the database has; without names, of the newest span it knows of.

        Where there is no `version_query`, a span counts as ready: only asking for its rows would tell.
        """
        with connect(str(self.parameters["connection"]), self.name) as database:
            if spans is None:
                spans = [] if self._newest is None else [self._newest_span(database)]
            found: dict[int, int | None] = {}
            for span in spans:
                with contextlib.suppress(SpanNotFound):
                    found[span] = self._version_of(database, span)
        return found

    def run(
        self,
        *,
        examples: Output[Examples],
        attempt: Attempt,
        span: int,
        version: int | None,
        previous: Mapping[str, str] | None,
        compare: Literal["all", "shared"],
        query: str,  # noqa: ARG002  read when the node is made
        connection: str,
        calendar: Literal["hour", "day", "week", "month", "quarter", "number"] = "day",
        newest_query: str | None = None,  # noqa: ARG002  as above
        version_query: str | None = None,  # noqa: ARG002  as above
        partition_by: str | None = None,
        partitions: int = 1,
        ratios: Mapping[str, int] | None = None,
        split_key: Sequence[str] = (),
        types: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] = (),
        beam_runner: str | None = None,
        beam_options: BeamOptions | None = None,
    ) -> None:
        answer = attempt.scratch / "answer.arrow"
        beam = choose_beam(attempt.run, beam_runner, beam_options)
        request = AnswerRequest(
            node=self.name,
            connection=connection,
            query=self._query,
            span=span,
            calendar=self.calendar,
            key=partition_by,
            file=str(answer),
        )
        fingerprint = self._fetch(request, partitions, attempt, beam)
        if version is not None:
            self._refuse_other_version(connection, span, version)
        plan = IngestPlan(
            files={_INPUT[0]: (str(answer),)},
            sources={str(answer): f"the answer of {self.name}.query"},
            from_query=True,
            destination=str(examples.path),
            ratios={split.name: split.weight for split in choose_splits(_INPUT, ratios)},
            split_key=tuple(split_key),
            previous=tuple(previous.items()) if previous is not None else None,
            types=dict(types or {}),
            dropped=tuple(drop_columns),
            beam=beam,
        )
        report = ingest_compared(plan, compare)
        describe_examples(
            examples, report, span=span, version=version, fingerprint=fingerprint, calendar=Calendar(calendar)
        )

    def _parse_query(self, name: str) -> Query | None:
        text = self.parameters[name]
        return None if text is None else Query.parse(str(text), f"{self.name}.{name}")

    def _check_partitions(self) -> None:
        key, partitions = self.parameters["partition_by"], cast("int", self.parameters["partitions"])
        if key is not None:
            check_key(str(key), f"{self.name}.partition_by")
        if partitions < 1 or (partitions > 1 and key is None):
            raise ParameterError(
                f"{self.name}.partitions is {partitions}: how many ranges of a key are read side by side, at least 1. "
                "Name the key, a column of unique whole numbers: partition_by='id'."
            )

    def _check_placeholders(self) -> None:
        if self._newest is not None and self._newest.has_span:
            raise ParameterError(f"{self.name}.newest_query finds the newest span, so it has no placeholder for one.")
        if self._newest is not None and not self._query.has_span:
            raise ParameterError(
                f"{self.name}.query has no placeholder such as {{SPAN_START}}, so all its rows are one span, and "
                "newest_query finds nothing that it could ask for."
            )
        inquiries = [query for query in (self._query, self._version) if query is not None]
        if self.calendar is not Calendar.DAY and any(query.counts_days for query in inquiries):
            raise ParameterError(
                f"{self.name} has placeholders of TFX, which are of days, and its calendar is "
                f"'{self.calendar.value}'; write {{SPAN_START}} and {{SPAN_END}} instead."
            )

    @property
    def takes_span(self) -> bool:
        """Whether its rows are of different spans; without that, everything is span 0."""
        return self._query.has_span

    def requested_span(self, run: Run) -> int | None:
        """The span to ask for; None: the newest, which the database knows."""
        span = run.span_for(self.name, self.calendar, takes_span=self.takes_span)
        if not self._query.has_span:
            if span is not None:
                raise UsageError(
                    f"{self.name}.query has no placeholder for a span, so {self.calendar.label(span)} cannot be "
                    "asked for; name no span, or say where it stands: WHERE day >= {SPAN_START} AND day < {SPAN_END}"
                )
            return 0
        if span is None and self._newest is None:
            raise UsageError(
                f"{self.name} asks a database, which does not say by itself what its newest span is. Name the span: "
                f"--span …; or give a newest_query, such as {_NEWEST!r}. {self.calendar.hint}"
            )
        return span

    def _newest_span(self, database: Database) -> int:
        assert self._newest is not None, "asked for only then"
        found = database.one(self._newest, 0, self.calendar, f"{self.name}.newest_query")
        if found is None:
            raise SpanNotFound(f"{self.name}: newest_query gives nothing, so no span is there at all.")
        return span_of(found, self.calendar, f"{self.name}.newest_query")

    def _version_of(self, database: Database, span: int) -> int | None:
        if self._version is None:
            return None
        found = database.one(self._version, span, self.calendar, f"{self.name}.version_query")
        if found is None:
            raise SpanNotFound(
                f"{self.name}: version_query gives nothing for span {self.calendar.label(span)}, so it is not there."
            )
        if not isinstance(found, int) or isinstance(found, bool):
            raise ParameterError(f"{self.name}.version_query gives {found!r}; a version is a whole number.")
        return found

    def _refuse_other_version(self, connection: str, span: int, version: int) -> None:
        """Refuses rows that may be those of another version: the number was read before them, and promises them."""
        with connect(connection, self.name) as database:
            now = self._version_of(database, span)
        if now != version:
            raise UnreadableInput(
                f"{self.name}: the version of span {self.calendar.label(span)} was {version} before its rows were read "
                f"and is {now} after, so nothing was ingested. Run again when it no longer changes."
            )

    def _fetch(self, request: AnswerRequest, partitions: int, attempt: Attempt, beam: BeamSettings) -> str:
        """Writes the answer to the file of the request; returns the fingerprint of its rows, whatever their order."""
        found = fetch_answer(request, partitions, beam, attempt.scratch)
        if not found.rows:
            raise SpanNotFound(
                f"{self.name}: the query returned no rows for span {self.calendar.label(request.span)}. Nothing was "
                f"ingested; the query: {self._query.fill(request.span, self.calendar)}"
            )
        return digest("query answer", found.schema, found.rows, found.total, found.mixed)
