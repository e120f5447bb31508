"""OpenLineage: sends the events of runs and nodes to lineage servers (openlineage.io, spec 2).

A run neither waits for a server nor fails because of it: a thread sends the events, and warns about unsent ones. A
server that does not answer costs a run at most `ANSWER_S`, at its end, once everything about it is recorded. Ends that
have not arrived are sent by the next run (see openlineage_delivery).
A pipeline is a job and so is each of its nodes, `flights` and `flights.Trainer`; a channel is a dataset, and the spans
that were read or written are its partitions. The library is imported only when OpenLineage is configured.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import SettingsError, SpanwiseError
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.run_request import Event, Observer
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import format_count, format_run_span, run_calendar
from spanwise.scheduler.inspect import records
from spanwise.scheduler.project import root
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.openlineage_delivery import list_undelivered, note_delivered
from spanwise.version import __version__

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client import event_v2 as spec
    from openlineage.client import facet_v2 as facets

log = logging.getLogger("spanwise.openlineage")

NAMESPACE = "spanwise"
"""The namespace of jobs and datasets, unless the settings or OPENLINEAGE_NAMESPACE have another."""

ANSWER_S = 2.0
"""How long a run that has ended waits for the answer to one event, counted from when the event was sent."""

LINGER_S = 10.0
"""How long it waits for all unsent events, from a server that answers."""

_POLL_S = 0.02

_SWITCHES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__")  # variables that configure a destination
_STARTED = "START"
_ENDS = {State.COMPLETE: "COMPLETE", State.CACHED: "COMPLETE", State.FAILED: "FAIL", State.CANCELED: "ABORT"}

Facets: TypeAlias = "dict[str, facets.RunFacet]"


def is_enabled(settings: Settings) -> bool:
    """Whether settings or environment variables configure a destination."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    return bool(settings.openlineage) or any(name.startswith(_SWITCHES) for name in os.environ)


@contextlib.contextmanager
def emitting(settings: Settings, store: Store, observe: Observer) -> Iterator[Observer]:
    """Yields an observer that also sends events; the same observer when OpenLineage is not configured.

    Environment variables may be meant for other programs, so errors in them are only logged.

    Raises:
        SettingsError: `[openlineage]` is wrong, or the extra is not installed.
    """
    client = None
    if is_enabled(settings):
        try:
            client = _client(settings)
        except SettingsError as error:
            if settings.openlineage:
                raise
            log.warning("openlineage-send-failed", extra={"reason": str(error)})
    if client is None:
        yield observe
        return
    converter = EventConverter(
        namespace=str(settings.openlineage.get("namespace") or os.environ.get("OPENLINEAGE_NAMESPACE") or NAMESPACE),
        home=root.identity(store) or "",
    )
    sender = _EventSender(client, converter)

    def both(event: Event) -> None:
        observe(event)
        try:
            for each in _spell_out(store, event):
                sender.put(each)
        except SpanwiseError as error:
            log.warning("openlineage-send-failed", extra={"reason": f"{event.message or event.what}: {error}"})

    try:
        yield both
    except BaseException:  # the metadata may be away: whoever ends now does not ask them again
        sender.close()
        raise
    try:
        note_delivered(store, sender.close())
    except SpanwiseError as error:  # they are sent once more
        log.warning("openlineage-delivery-not-recorded", extra={"reason": str(error)})


def send_end(settings: Settings, store: Store, run: Run) -> None:
    """Sends the end of a run that another process has closed: its own had died or was killed, and could not."""
    with contextlib.suppress(SettingsError), emitting(settings, store, lambda _event: None) as observe:
        observe(Event(what="abandoned-run-closed", run=run, message=run.name))


def _spell_out(store: Store, event: Event) -> Iterator[Event]:
    """The event; of a run that died and was closed, its ends; of one that begins, also those that have not arrived."""
    if event.what == "abandoned-run-closed":
        pipeline, _, number = event.message.rpartition("/")
        yield from _ends(store, store.run(pipeline, int(number)))
        return
    yield event
    if event.what == "run-started":
        for run in list_undelivered(store, event.run):
            yield from _ends(store, run)


def _ends(store: Store, run: Run) -> Iterator[Event]:
    """The ends of a run's nodes and its own, whatever was sent of them: to send an end again changes nothing."""
    for execution in store.executions(run):
        if execution.state.ended and not execution.supplied:
            yield Event(what="node-completed", run=run, node=execution.node, execution=execution)
    yield Event(what="run-ended", run=run)


def _client(settings: Settings) -> OpenLineageClient:
    """A client as configured by `[openlineage]`, or by the standard variables and files.

    Raises:
        SettingsError: it could not be created.
    """
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.event_v2 import set_producer
    except ImportError as error:
        raise SettingsError(
            "OpenLineage is configured, but its library is not installed: pip install 'spanwise[openlineage]'"
        ) from error
    set_producer(f"urn:spanwise:{__version__}")
    transport = settings.openlineage.get("transport")
    try:
        return OpenLineageClient(config={"transport": transport} if transport else None)
    except Exception as error:  # each transport raises its own errors
        where = f"{settings.file}: openlineage.transport" if transport else "The variables OPENLINEAGE_*"
        raise SettingsError(f"{where}: could not create the transport: {error}.") from error


class _EventSender:
    """Sends events in order, on a thread of its own."""

    def __init__(self, client: OpenLineageClient, converter: EventConverter) -> None:
        self._client = client
        self._converter = converter
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._unsent = 0
        self._ended: list[Run] = []  # whose ends have arrived
        self._incomplete: set[str] = set()  # names of runs of which an event has not
        self._sent_s: float | None = None  # monotonic: since when the event that was sent last waits for its answer
        self._thread = threading.Thread(target=self._send_all, name="openlineage", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        self._waiting.put(event)

    def close(self) -> dict[str, set[int]]:
        """Waits for unsent events: at most `LINGER_S`, and no longer than `ANSWER_S` for the answer to one.

        Returns the runs of each pipeline whose ends have arrived, with those of their nodes.
        """
        self._waiting.put(None)
        deadline = time.monotonic() + LINGER_S
        while self._thread.is_alive() and time.monotonic() < deadline and not self._is_stuck():
            self._thread.join(_POLL_S)
        left = max(0, self._waiting.qsize() - 1) + self._unsent
        if self._thread.is_alive() or left:
            log.warning(
                "openlineage-events-unsent", extra={"reason": f"{format_count(max(1, left), 'event')} not sent"}
            )
        arrived: dict[str, set[int]] = {}
        for run in [*self._ended]:
            if run.name not in self._incomplete:
                arrived.setdefault(run.pipeline, set()).add(run.number)
        return arrived

    def _is_stuck(self) -> bool:
        sent_s = self._sent_s
        return sent_s is not None and time.monotonic() - sent_s >= ANSWER_S

    def _send_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                message = self._converter.message(event)
                if message is not None:
                    self._sent_s = time.monotonic()
                    self._client.emit(message)
            except Exception as error:  # noqa: BLE001  the run continues
                if not self._unsent:
                    log.warning("openlineage-send-failed", extra={"reason": f"{type(error).__name__}: {error}"})
                self._unsent += 1
                if not _is_refused(error):
                    self._incomplete.add(event.run.name)
            finally:
                self._sent_s = None
            if event.what == "run-ended":
                self._ended.append(event.run)
        with contextlib.suppress(Exception):  # all events are sent by now
            self._client.close(ANSWER_S)


def _is_refused(error: Exception) -> bool:
    """Whether a server has read the event and will refuse it whenever it comes: HTTP 4xx, but not 408 and 429."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return status in range(400, 500) and status not in (408, 429)


@dataclass(frozen=True, kw_only=True)
class EventConverter:
    """Converts events of a run to events of the specification."""

    namespace: str
    home: str  #: identity of the store; run numbers are unique within a store only

    def message(self, event: Event) -> spec.RunEvent | None:
        """The event to send; None when the specification has no such event."""
        run, execution = event.run, event.execution
        match event.what:
            case "run-started":
                return self._message(_STARTED, run.started, self._of_run(run), self._pipeline_job(run))
            case "run-ended":
                facts = self._of_run(run, error=run.error)
                return self._message(_ENDS[run.state], run.ended, facts, self._pipeline_job(run))
            case "node-started" if execution is not None:
                facts, job = self._of_node(run, execution), self._node_job(execution)
                return self._message(_STARTED, execution.started, facts, job)
            case "node-reused" | "node-completed" | "node-failed" | "retry-scheduled" | "node-canceled" if execution:
                return self._ended_node_event(run, execution)
        return None

    def _ended_node_event(self, run: Run, execution: Execution) -> spec.RunEvent:
        return self._message(
            _ENDS[execution.state],
            execution.ended,
            self._of_node(run, execution),
            self._node_job(execution),
            inputs=[self._input(d) for d in _channels(execution.inputs, run)],
            outputs=[] if execution.chosen else [self._output(d) for d in _channels(execution.outputs, run)],
        )

    def _message(
        self,
        kind: str,
        at: datetime | None,
        run: spec.Run,
        job: spec.Job,
        *,
        inputs: list[spec.InputDataset] | None = None,
        outputs: list[spec.OutputDataset] | None = None,
    ) -> spec.RunEvent:
        from openlineage.client import event_v2 as spec

        return spec.RunEvent(
            eventType=spec.RunState(kind),
            eventTime=(at or datetime.now(UTC)).isoformat(),
            run=run,
            job=job,
            inputs=inputs or [],
            outputs=outputs or [],
        )

    def _id(self, name: str) -> str:
        """The same id for the same run or attempt, in whichever process: another one closes abandoned runs."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"spanwise:{self.home}/{name}"))

    def _of_run(self, run: Run, *, error: str | None = None) -> spec.Run:
        from openlineage.client import event_v2 as spec

        tags = {"trigger": run.trigger.value, **_span(run), **({} if run.base is None else {"base": str(run.base)})}
        run_facets = {**_parameters({n: str(v) for n, v in run.parameters.items()}), **_tags(tags)}
        return spec.Run(runId=self._id(run.name), facets={**run_facets, **_nominal(run), **_failure(error)})

    def _of_node(self, run: Run, execution: Execution) -> spec.Run:
        from openlineage.client import event_v2 as spec
        from openlineage.client import facet_v2 as facets

        parent = facets.parent_run.ParentRunFacet(
            run=facets.parent_run.Run(runId=self._id(run.name)),
            job=facets.parent_run.Job(namespace=self.namespace, name=run.pipeline),
        )
        tags = {"reused": str(execution.reused is not None).lower(), "attempt": str(execution.attempt), **_span(run)}
        run_facets = {"parent": parent, **_parameters(execution.parameters), **_tags(tags), **_nominal(run)}
        return spec.Run(runId=self._id(execution.name), facets={**run_facets, **_failure(execution.error)})

    def _pipeline_job(self, run: Run) -> spec.Job:
        return self._job(run.pipeline, "PIPELINE")

    def _node_job(self, execution: Execution) -> spec.Job:
        return self._job(f"{execution.pipeline}.{execution.node}", "NODE")

    def _job(self, name: str, kind: str) -> spec.Job:
        from openlineage.client import event_v2 as spec
        from openlineage.client import facet_v2 as facets

        type_ = facets.job_type_job.JobTypeJobFacet(processingType="BATCH", integration="SPANWISE", jobType=kind)
        return spec.Job(namespace=self.namespace, name=name, facets={"jobType": type_})

    def _input(self, channel: _ChannelDataset) -> spec.InputDataset:
        from openlineage.client import event_v2 as spec
        from openlineage.client import facet_v2 as facets

        counted = facets.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=channel.rows, size=channel.size_bytes
        )
        subset = facets.base_subset_dataset.InputSubsetInputDatasetFacet(inputCondition=channel.partitions())
        return spec.InputDataset(
            namespace=self.namespace,
            name=channel.name,
            facets=channel.facets(),
            inputFacets={"inputStatistics": counted, "subset": subset},
        )

    def _output(self, channel: _ChannelDataset) -> spec.OutputDataset:
        from openlineage.client import event_v2 as spec
        from openlineage.client import facet_v2 as facets

        counted = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=channel.rows, size=channel.size_bytes
        )
        subset = facets.base_subset_dataset.OutputSubsetOutputDatasetFacet(outputCondition=channel.partitions())
        return spec.OutputDataset(
            namespace=self.namespace,
            name=channel.name,
            facets=channel.facets(),
            outputFacets={"outputStatistics": counted, "subset": subset},
        )


@dataclass(frozen=True, kw_only=True)
class _ChannelDataset:
    """The artifacts of one channel that an execution read or published: one dataset, with a partition per artifact."""

    name: str  #: `pipeline/node/key`
    artifacts: tuple[Artifact, ...]
    calendar: Calendar

    @property
    def size_bytes(self) -> int:
        return sum(a.size_bytes for a in self.artifacts)

    @property
    def rows(self) -> int | None:
        """None where an artifact does not record it."""
        counts = [rows for a in self.artifacts if isinstance(rows := a.properties.get("rows"), Mapping)]
        known = [n for rows in counts for n in rows.values() if isinstance(n, int)]
        return sum(known) if len(counts) == len(self.artifacts) else None

    def partitions(self) -> facets.base_subset_dataset.PartitionSubsetCondition:
        """Each artifact, with its span and version."""
        from openlineage.client import facet_v2 as facets

        subset = facets.base_subset_dataset
        return subset.PartitionSubsetCondition(
            partitions=[
                subset.Partition(identifier=a.name, dimensions=_dimensions(a, self.calendar)) for a in self.artifacts
            ]
        )

    def facets(self) -> dict[str, facets.DatasetFacet]:
        """The name, location and columns of the artifact; of several, those of the newest."""
        from openlineage.client import facet_v2 as facets

        newest = max(self.artifacts, key=lambda a: a.id)
        dataset_facets: dict[str, facets.DatasetFacet] = {
            "version": facets.dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=newest.name),
            "dataSource": facets.datasource_dataset.DatasourceDatasetFacet(name=newest.kind, uri=_uri(newest)),
        }
        columns = newest.properties.get("columns")
        if isinstance(columns, Mapping):
            schema = facets.schema_dataset
            fields = [schema.SchemaDatasetFacetFields(name=n, type=str(t)) for n, t in columns.items()]
            dataset_facets["schema"] = schema.SchemaDatasetFacet(fields=fields)
        return dataset_facets


def _channels(side: Mapping[str, Iterable[Artifact]], run: Run) -> list[_ChannelDataset]:
    """The artifacts by the channel that they were published on, each once."""
    by_channel: dict[str, dict[int, Artifact]] = {}
    for artifact in itertools.chain(*side.values()):
        by_channel.setdefault("/".join(artifact.name.split("/")[:3]), {})[artifact.id] = artifact
    calendar = run_calendar(run)
    return [
        _ChannelDataset(name=n, artifacts=tuple(those.values()), calendar=calendar) for n, those in by_channel.items()
    ]


def _dimensions(artifact: Artifact, calendar: Calendar) -> dict[str, object]:
    span, version = artifact.properties.get("span"), artifact.properties.get("version")
    partition: dict[str, object] = (
        {"span": records.artifact_calendar(artifact, calendar).label(span)} if isinstance(span, int) else {}
    )
    return partition if version is None else {**partition, "version": version}


def _uri(artifact: Artifact) -> str:
    return artifact.uri if "://" in artifact.uri else Path(artifact.uri).as_uri()


def _span(run: Run) -> dict[str, str]:
    return {} if run.span is None else {"span": format_run_span(run)}


def _parameters(values: Mapping[str, str]) -> Facets:
    from openlineage.client import facet_v2 as facets

    module = facets.execution_parameters_run
    parameters = [module.ExecutionParameter(key=name, name=name, value=value) for name, value in values.items()]
    return {"executionParameters": module.ExecutionParametersRunFacet(parameters=parameters)} if parameters else {}


def _tags(values: Mapping[str, str]) -> Facets:
    from openlineage.client import facet_v2 as facets

    module = facets.tags_run
    tags = [module.TagsRunFacetFields(key=name, value=value, source="SPANWISE") for name, value in values.items()]
    return {"tags": module.TagsRunFacet(tags=tags)}


def _nominal(run: Run) -> Facets:
    """The time range of the run's span, where spans are dates."""
    from openlineage.client import facet_v2 as facets

    if run.span is None:
        return {}
    calendar = run_calendar(run)
    start, end = calendar.start_of(run.span), calendar.start_of(run.span + 1)
    if start is None or end is None:
        return {}
    facet = facets.nominal_time_run.NominalTimeRunFacet
    first, last = (moment.replace(tzinfo=UTC).isoformat() for moment in (start, end))
    return {"nominalTime": facet(nominalStartTime=first, nominalEndTime=last)}


def _failure(error: str | None) -> Facets:
    from openlineage.client import facet_v2 as facets

    if not error:
        return {}
    message, _, trace = error.partition("\n")
    facet = facets.error_message_run.ErrorMessageRunFacet
    return {"errorMessage": facet(message=message, programmingLanguage="Python", stackTrace=trace or None)}
