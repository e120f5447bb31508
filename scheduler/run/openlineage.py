"""OpenLineage: tells lineage servers what runs and their nodes do, as it happens (openlineage.io, spec 2).

A run neither waits for it nor fails by it: events go through a thread of their own, and what could not be sent is told.
A pipeline is a job and so is each of its nodes, `flights` and `flights.Trainer`; a channel is a dataset, and the spans
that were read or made are its partitions. The library is imported when it is asked for, and only then.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import SettingsError
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.run_request import Event, Observer
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import format_count, run_calendar
from spanwise.scheduler.project import root
from spanwise.scheduler.project.settings import Settings
from spanwise.version import __version__

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client import event_v2 as spec
    from openlineage.client import facet_v2 as facets

log = logging.getLogger("spanwise.openlineage")

NAMESPACE = "spanwise"
"""Of our jobs and datasets, unless the settings or OPENLINEAGE_NAMESPACE say another."""

LINGER_S = 10.0
"""How long a run that has ended waits for what is not sent yet."""

_SWITCHES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__")  # variables that say where to send to
_STARTED = "START"
_ENDS = {State.COMPLETE: "COMPLETE", State.CACHED: "COMPLETE", State.FAILED: "FAIL", State.CANCELED: "ABORT"}

Facets: TypeAlias = "dict[str, facets.RunFacet]"


def asked_for(settings: Settings) -> bool:
    """Whether settings or variables say where to send events to."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    return bool(settings.openlineage) or any(name.startswith(_SWITCHES) for name in os.environ)


@contextlib.contextmanager
def emitting(settings: Settings, store: Store, observe: Observer) -> Iterator[Observer]:
    """The observer, which now also sends what happens; as it was, where nobody has asked for that.

    Variables may be meant for other programs, so what is wrong with them is only told.

    Raises:
        SettingsError: `[openlineage]` is set and cannot be used, or the extra is not installed.
    """
    client = None
    if asked_for(settings):
        try:
            client = _client(settings)
        except SettingsError as error:
            if settings.openlineage:
                raise
            log.warning("openlineage-failed", extra={"reason": str(error)})
    if client is None:
        yield observe
        return
    scribe = Scribe(
        namespace=str(settings.openlineage.get("namespace") or os.environ.get("OPENLINEAGE_NAMESPACE") or NAMESPACE),
        home=root.identity(store) or "",
    )
    sender = _Sender(client, scribe)

    def both(event: Event) -> None:
        observe(event)
        sender.put(event)

    try:
        yield both
    finally:
        sender.close()


def _client(settings: Settings) -> OpenLineageClient:
    """A client as `[openlineage]` says, or the standard's variables and files.

    Raises:
        SettingsError: it cannot be made.
    """
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.event_v2 import set_producer
    except ImportError as error:
        raise SettingsError(
            "OpenLineage events are asked for, but its library is not installed: pip install 'spanwise[openlineage]'"
        ) from error
    set_producer(f"urn:spanwise:{__version__}")
    transport = settings.openlineage.get("transport")
    try:
        return OpenLineageClient(config={"transport": transport} if transport else None)
    except Exception as error:  # each transport raises errors of its own
        where = f"{settings.file}: openlineage.transport" if transport else "The variables OPENLINEAGE_*"
        raise SettingsError(f"{where} cannot be used: {error}.") from error


class _Sender:
    """Sends events in the order in which they come, on a thread of its own."""

    def __init__(self, client: OpenLineageClient, scribe: Scribe) -> None:
        self._client = client
        self._scribe = scribe
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._unsent = 0
        self._thread = threading.Thread(target=self._send_all, name="openlineage", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        self._waiting.put(event)

    def close(self) -> None:
        """Waits for what is not sent yet, but not for ever."""
        self._waiting.put(None)
        self._thread.join(LINGER_S)
        left = max(0, self._waiting.qsize() - 1) + self._unsent
        if self._thread.is_alive() or left:
            log.warning("openlineage-unsent", extra={"reason": f"{format_count(max(1, left), 'event')} not sent"})

    def _send_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                message = self._scribe.message(event)
                if message is not None:
                    self._client.emit(message)
            except Exception as error:  # noqa: BLE001  whatever it is, the run goes on
                if not self._unsent:
                    log.warning("openlineage-failed", extra={"reason": f"{type(error).__name__}: {error}"})
                self._unsent += 1
        with contextlib.suppress(Exception):  # what was sent is sent
            self._client.close(LINGER_S)


@dataclass(frozen=True, kw_only=True)
class Scribe:
    """Puts what happens in a run into the words of the specification."""

    namespace: str
    home: str  #: identity of the store: runs are numbered in each anew

    def message(self, event: Event) -> spec.RunEvent | None:
        """The event as it is sent; None for what the specification has no word for."""
        run, execution = event.run, event.execution
        match event.what:
            case "run-started":
                return self._message(_STARTED, run.started, self._of_run(run), self._pipeline_job(run))
            case "run-ended":
                facts = self._of_run(run, error=run.error)
                return self._message(_ENDS[run.state], run.ended, facts, self._pipeline_job(run))
            case "abandoned-run-closed":
                return self._abandoned(event)
            case "node-started" if execution is not None:
                facts, job = self._of_node(run, execution), self._node_job(execution)
                return self._message(_STARTED, execution.started, facts, job)
            case "node-reused" | "node-completed" | "node-failed" | "retry-scheduled" | "node-canceled" if execution:
                return self._ended(run, execution)
        return None

    def _abandoned(self, event: Event) -> spec.RunEvent:
        """The end of an earlier run: the server has seen it start, and nobody was left to end it."""
        pipeline, _, number = event.message.rpartition("/")
        old = Run(pipeline=pipeline, number=int(number))
        facts = self._of_run(old, error="abandoned: its controller died")
        return self._message(_ENDS[State.FAILED], event.run.started, facts, self._pipeline_job(old))

    def _ended(self, run: Run, execution: Execution) -> spec.RunEvent:
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
        """The same for the same run or attempt, so that whoever closes an abandoned one names the right one."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"spanwise:{self.home}/{name}"))

    def _of_run(self, run: Run, *, error: str | None = None) -> spec.Run:
        from openlineage.client import event_v2 as spec

        told = {"trigger": run.trigger.value, **_span(run), **({} if run.base is None else {"base": str(run.base)})}
        found = {**_parameters({n: str(v) for n, v in run.parameters.items()}), **_tags(told)}
        return spec.Run(runId=self._id(run.name), facets={**found, **_nominal(run), **_failure(error)})

    def _of_node(self, run: Run, execution: Execution) -> spec.Run:
        from openlineage.client import event_v2 as spec
        from openlineage.client import facet_v2 as facets

        parent = facets.parent_run.ParentRunFacet(
            run=facets.parent_run.Run(runId=self._id(run.name)),
            job=facets.parent_run.Job(namespace=self.namespace, name=run.pipeline),
        )
        told = {"reused": str(execution.reused is not None).lower(), "attempt": str(execution.attempt), **_span(run)}
        found = {"parent": parent, **_parameters(execution.parameters), **_tags(told), **_nominal(run)}
        return spec.Run(runId=self._id(execution.name), facets={**found, **_failure(execution.error)})

    def _pipeline_job(self, run: Run) -> spec.Job:
        return self._job(run.pipeline, "PIPELINE")

    def _node_job(self, execution: Execution) -> spec.Job:
        return self._job(f"{execution.pipeline}.{execution.node}", "NODE")

    def _job(self, name: str, kind: str) -> spec.Job:
        from openlineage.client import event_v2 as spec
        from openlineage.client import facet_v2 as facets

        type_ = facets.job_type_job.JobTypeJobFacet(processingType="BATCH", integration="SPANWISE", jobType=kind)
        return spec.Job(namespace=self.namespace, name=name, facets={"jobType": type_})

    def _input(self, channel: _Channel) -> spec.InputDataset:
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

    def _output(self, channel: _Channel) -> spec.OutputDataset:
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
class _Channel:
    """What an execution read or made of one channel: one dataset, an artifact a partition."""

    name: str  #: `pipeline/node/key`
    artifacts: tuple[Artifact, ...]
    calendar: Calendar

    @property
    def size_bytes(self) -> int:
        return sum(a.size_bytes for a in self.artifacts)

    @property
    def rows(self) -> int | None:
        """None where they do not say."""
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
        """Which artifact it is, where that lies and what columns it has; of several, those of the newest."""
        from openlineage.client import facet_v2 as facets

        newest = max(self.artifacts, key=lambda a: a.id)
        found: dict[str, facets.DatasetFacet] = {
            "version": facets.dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=newest.name),
            "dataSource": facets.datasource_dataset.DatasourceDatasetFacet(name=newest.kind, uri=_uri(newest)),
        }
        columns = newest.properties.get("columns")
        if isinstance(columns, Mapping):
            schema = facets.schema_dataset
            fields = [schema.SchemaDatasetFacetFields(name=n, type=str(t)) for n, t in columns.items()]
            found["schema"] = schema.SchemaDatasetFacet(fields=fields)
        return found


def _channels(side: Mapping[str, Iterable[Artifact]], run: Run) -> list[_Channel]:
    """By the channel they were published on, whatever input they came in by, and each artifact once."""
    found: dict[str, dict[int, Artifact]] = {}
    for artifact in itertools.chain(*side.values()):
        found.setdefault("/".join(artifact.name.split("/")[:3]), {})[artifact.id] = artifact
    calendar = run_calendar(run)
    return [_Channel(name=n, artifacts=tuple(those.values()), calendar=calendar) for n, those in found.items()]


def _dimensions(artifact: Artifact, calendar: Calendar) -> dict[str, object]:
    span, version = artifact.properties.get("span"), artifact.properties.get("version")
    found: dict[str, object] = {"span": calendar.label(span)} if isinstance(span, int) else {}
    return found if version is None else {**found, "version": version}


def _uri(artifact: Artifact) -> str:
    return artifact.uri if "://" in artifact.uri else artifact.path.as_uri()


def _span(run: Run) -> dict[str, str]:
    return {} if run.span is None else {"span": run_calendar(run).label(run.span)}


def _parameters(values: Mapping[str, str]) -> Facets:
    from openlineage.client import facet_v2 as facets

    words = facets.execution_parameters_run
    given = [words.ExecutionParameter(key=name, name=name, value=value) for name, value in values.items()]
    return {"executionParameters": words.ExecutionParametersRunFacet(parameters=given)} if given else {}


def _tags(values: Mapping[str, str]) -> Facets:
    from openlineage.client import facet_v2 as facets

    words = facets.tags_run
    tags = [words.TagsRunFacetFields(key=name, value=value, source="SPANWISE") for name, value in values.items()]
    return {"tags": words.TagsRunFacet(tags=tags)}


def _nominal(run: Run) -> Facets:
    """The time that the run's span is about, where spans are days or hours."""
    from openlineage.client import facet_v2 as facets

    lengths = {Calendar.DAY: timedelta(days=1), Calendar.HOUR: timedelta(hours=1)}
    length = lengths.get(run_calendar(run))
    if length is None or run.span is None:
        return {}
    try:
        ends = [datetime(1970, 1, 1, tzinfo=UTC) + length * n for n in (run.span, run.span + 1)]
    except OverflowError:  # a span that is no date
        return {}
    start, end = (moment.isoformat() for moment in ends)
    return {"nominalTime": facets.nominal_time_run.NominalTimeRunFacet(nominalStartTime=start, nominalEndTime=end)}


def _failure(error: str | None) -> Facets:
    from openlineage.client import facet_v2 as facets

    if not error:
        return {}
    message, _, trace = error.partition("\n")
    words = facets.error_message_run.ErrorMessageRunFacet
    return {"errorMessage": words(message=message, programmingLanguage="Python", stackTrace=trace or None)}
