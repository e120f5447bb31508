"""The client: one door to a root and its metadata, for notebooks, scripts and the web page.

Reading is done here, in any thread. What runs a pipeline is started as the command line starts it, in a process of its
own, and this waits for it. What a person decides is recorded here, by the functions that the commands call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from spanwise.orchestrator.errors import UsageError
from spanwise.scheduler.client.artifacts import ArtifactRecord, find_artifact, find_artifacts
from spanwise.scheduler.client.runs import RunRecord, record_of
from spanwise.scheduler.client.session import Session
from spanwise.scheduler.inspect import find
from spanwise.scheduler.project.settings import Settings, read

if TYPE_CHECKING:
    from spanwise.orchestrator.artifact import Artifact
    from spanwise.scheduler.client.models import ModelRecord
    from spanwise.scheduler.client.pipelines import PipelineRecord, PlannedBackfill
    from spanwise.scheduler.ledger.heartbeat import SchedulerRecord
    from spanwise.scheduler.ledger.pauses import SchedulePause
    from spanwise.scheduler.ledger.schedule_status import ScheduleStatus
    from spanwise.scheduler.project.load import Loaded
    from spanwise.scheduler.run.judge import PersonalVerdict
    from spanwise.scheduler.run.models import Decision

Show = Callable[[str], None]
"""Gets each line of the progress of what runs."""


def connect(root: str | Path | None = None, *, metadata: str | None = None, config: str | Path | None = None) -> Client:
    """Connects to a root and its metadata; without arguments, to those of the nearest `spanwise.toml`.

    `metadata` is a file or URL, by default what the settings say. Nothing is created; where nothing has run yet, there
    is nothing to see.

    Raises:
        SettingsError: a setting is wrong.
    """
    file = None if config is None else Path(config).absolute()
    settings = read(config=file, root=root)
    return Client(settings if metadata is None else replace(settings, metadata=metadata), config=file)


class Client:
    """A connection to one root. Threads may share it; a forked process opens its own connection."""

    def __init__(self, settings: Settings, *, config: Path | None = None, deadline_s: float = 30.0) -> None:
        self.session = Session(settings, config=config, deadline_s=deadline_s)
        self._pipelines: dict[str, PipelineRecord] = {}
        self.session.when_replaced.append(self._pipelines.clear)

    @property
    def settings(self) -> Settings:
        """The settings; they may hold secrets."""
        return self.session.settings

    def close(self) -> None:
        """Closes the connection."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.settings.place!r})"

    # --- reading

    def pipelines(self) -> list[PipelineRecord]:
        """All pipelines that have ever run, by name."""
        return [self._pipeline(name) for name in self.session.store.pipelines()]

    def pipeline(self, name: str | None = None) -> PipelineRecord:
        """One pipeline; without a name, the only one.

        Raises:
            NotRecorded: there is none of that name, or there are several; the message names them.
        """
        return self._pipeline(find.pipeline(self.session.store, name))

    def _pipeline(self, name: str) -> PipelineRecord:
        from spanwise.scheduler.client.pipelines import PipelineRecord

        return self._pipelines.setdefault(name, PipelineRecord(self.session, name))

    def runs(self, limit: int = 20, *, pipeline: str | None = None) -> list[RunRecord]:
        """The newest runs of all pipelines, or of one, newest first.

        Raises:
            NotRecorded: there is no such pipeline.
        """
        from spanwise.scheduler.ledger.holder import listen

        found = list(find.runs(self.session.store, pipeline, limit))
        listen(self.session.store, {run.pipeline for run in found if not run.state.ended})
        return [record_of(self.session, run) for run in found]

    def run_record(self, reference: str) -> RunRecord:
        """A run: `flights/42`, `flights` for its newest, or `42` where only one pipeline is known.

        Raises:
            NotRecorded: there is none.
        """
        return record_of(self.session, find.run(self.session.store, reference))

    def artifact(self, reference: str | int) -> ArtifactRecord:
        """An artifact by its name, its id, or the path of its folder or of a file in it.

        Raises:
            NotRecorded: there is none.
        """
        return find_artifact(self.session, reference)

    def artifacts(
        self, pipeline: str | None = None, *, kind: str | None = None, span: str | None = None, limit: int = 20
    ) -> list[ArtifactRecord]:
        """The newest artifacts, newest first; of one pipeline, type or span."""
        return find_artifacts(self.session, pipeline, kind=kind, span=span, limit=limit)

    def model(self, reference: str | int) -> ModelRecord:
        """A model, by what `artifact` takes.

        Raises:
            NotRecorded: there is none.
        """
        from spanwise.scheduler.client.models import find_model

        return find_model(self.session, self.artifact(reference).name)

    def schedules(self, *names: str) -> list[ScheduleStatus]:
        """How all schedules stand, or these.

        Raises:
            NotRecorded: one was never scheduled here.
        """
        from spanwise.scheduler.ledger.holder import listen
        from spanwise.scheduler.ledger.schedule_status import expand_keys, read_status
        from spanwise.scheduler.schedule.schedule_key import pipeline_of

        store, now = self.session.store, datetime.now(UTC)
        keys = list(expand_keys(store, names or None))
        listen(store, {pipeline_of(key) for key in keys})
        return [read_status(store, key, now) for key in keys]

    def schedulers(self) -> list[SchedulerRecord]:
        """The schedulers that are not known to be dead."""
        from spanwise.scheduler.ledger.heartbeat import list_living

        return list_living(self.session.store)

    # --- running

    def run(
        self,
        file: str | Path,
        *,
        span: str | Mapping[str, str] | None = None,
        params: Mapping[str, object] | None = None,
        only: Sequence[str] = (),
        first: Sequence[str] = (),
        last: Sequence[str] = (),
        cache: bool = True,
        show: Show | None = None,
    ) -> RunRecord:
        """Runs a pipeline file, or a part of it, as `spanwise run` does, and waits until the run has ended.

        A run that fails is returned: see its `state` and `error`. `span` is a label, or one for each node that ingests;
        `first` and `last` are the nodes of --from and --to.

        Raises:
            Held: another run holds the pipeline.
            UsageError: the file or an argument is wrong; nothing was started.
        """
        spans = [span] if isinstance(span, str) else [f"{node}={label}" for node, label in (span or {}).items()]
        arguments = [*(f"--span={each}" for each in spans), *_params(params)]
        arguments += [f"--only={node}" for node in only] + [f"--from={node}" for node in first]
        arguments += [f"--to={node}" for node in last] + ([] if cache else ["--no-cache"])
        return self._started("run", [*arguments, "--", str(file)], show)

    def resume(self, run: RunRecord | str, *, show: Show | None = None) -> RunRecord:
        """Continues a run that did not complete, as `spanwise resume` does, and returns the run that did it.

        Raises:
            UsageError: nothing is left of it.
            Held: it, or another one, is still running.
        """
        return self._continued("resume", ["--", run if isinstance(run, str) else run.name], show)

    def push(
        self, model: ArtifactRecord | str, *, because: str, node: str | None = None, show: Show | None = None
    ) -> RunRecord:
        """Pushes a model by name, or the champion of a pipeline, as `spanwise push` does.

        Raises:
            UsageError: there is no such model or Pusher, or the model is not blessed.
        """
        which = [] if node is None else [f"--node={node}"]
        name = model if isinstance(model, str) else model.name
        return self._continued("push", [f"--because={because}", *which, "--", name], show)

    def _continued(self, command: str, arguments: Sequence[str], show: Show | None) -> RunRecord:
        from spanwise.scheduler.client.folders import locate

        folder, words = locate(self.session.store, [command, *arguments], self.settings.root)
        return self._started(command, words[1:], show, folder)

    def _started(
        self, command: str, arguments: Sequence[str], show: Show | None, folder: Path | None = None
    ) -> RunRecord:
        from spanwise.scheduler.client.commands import run_command

        document = run_command(self.session, command, arguments, folder=folder, show=show)
        return self.run_record(str(document["run"]))

    def stop(self, run: RunRecord | str) -> RunRecord:
        """Stops a run, as `spanwise stop` does, and returns it when it has ended.

        Raises:
            RunError: it is on another machine and did not end in time.
        """
        from spanwise.scheduler.ledger.schedule_status import user_name
        from spanwise.scheduler.run import openlineage
        from spanwise.scheduler.run.stop import stop

        found = self.run_record(run if isinstance(run, str) else run.name)
        settings = self.settings
        stopped = stop(self.session.store, found.run, settings.root, grace_s=settings.grace_s, by=user_name())
        if stopped.closed:
            openlineage.send_end(settings, self.session.store, stopped.run)
        return found.refresh()

    # --- backfills

    def plan_backfill(
        self,
        file: str | Path,
        *,
        span: str | None = None,
        missed: bool = False,
        stale: bool = False,
        train_once: bool = False,
        force: bool = False,
        skip_absent: bool = False,
        warm_start: bool = False,
        parallel: int = 1,
        params: Mapping[str, object] | None = None,
    ) -> PlannedBackfill:
        """Plans a backfill, as `spanwise backfill --dry-run` does; this imports the file, and starts nothing.

        Raises:
            UsageError: it selects no spans, or in two ways.
            SpanNotFound: none of the spans has input.
        """
        from spanwise.scheduler.backfill.command import BackfillRequest, plan_request
        from spanwise.scheduler.backfill.plan import BackfillOptions
        from spanwise.scheduler.client.pipelines import PlannedBackfill
        from spanwise.scheduler.run.launch import ExecutionOptions

        request = BackfillRequest(
            reference=str(file),
            span=span,
            missed=missed,
            stale=stale,
            options=BackfillOptions(
                train_once=train_once, parallel=parallel, force=force, skip_absent=skip_absent, warm_start=warm_start
            ),
            params=[each.removeprefix("--param=") for each in _params(params)],
            execution=ExecutionOptions(),
            elsewhere=self.session.options,
        )
        plan, _ = plan_request(request, self.settings)
        return PlannedBackfill(plan, request)

    def backfill(self, planned: PlannedBackfill, *, show: Show | None = None) -> Mapping[str, object]:
        """Carries a planned backfill out and waits; returns the document that `spanwise backfill --json` prints.

        Exactly what was planned is run: the plan is recorded, and continued by a process of its own.

        Raises:
            UsageError: the plan has no spans.
        """
        from spanwise.scheduler.backfill.command import close_outside, record_plan
        from spanwise.scheduler.client.commands import run_command
        from spanwise.scheduler.client.pipelines import load_file

        if not planned.plan.targets:
            raise UsageError("The plan has no spans, so there is nothing to run.")
        assert planned.request.reference is not None, "plans are made from files"
        loaded = load_file(self.session, planned.request.reference, planned.request.params)
        close_outside(self.settings, planned.plan, loaded)
        recorded = record_plan(planned.request, self.settings, planned.plan, loaded)
        document: Mapping[str, object] = run_command(self.session, "backfill", [f"--resume={recorded.name}"], show=show)
        return document

    # --- deciding

    def load(self, file: str | Path, *, params: Sequence[str] = ()) -> Loaded:
        """Loads the pipeline of a file, with arguments such as `window=7`; this imports the file.

        Raises:
            LoadError: it defines no pipeline, or cannot be imported.
            UsageError: an argument is wrong.
        """
        from spanwise.scheduler.client.pipelines import load_file

        return load_file(self.session, str(file), params)

    def accept(
        self, file: str | Path | Loaded, span: str, *, because: str, version: int | None = None
    ) -> list[PersonalVerdict]:
        """Accepts a span, or `A..B`, that a gate has refused, as `spanwise accept` does; this imports the file.

        Raises:
            UsageError: no reason is given, or the pipeline has no gate.
            NotRecorded: nothing was published for the span.
        """
        return self._judge(file, span, because, version, given=True)

    def refuse(
        self, file: str | Path | Loaded, span: str, *, because: str, version: int | None = None
    ) -> list[PersonalVerdict]:
        """Refuses a span, or `A..B`, that gates have accepted, as `spanwise refuse` does; this imports the file.

        Raises:
            UsageError: no reason is given, or the pipeline has no gate.
            NotRecorded: nothing was published for the span.
        """
        return self._judge(file, span, because, version, given=False)

    def _judge(
        self, file: str | Path | Loaded, span: str, because: str, version: int | None, *, given: bool
    ) -> list[PersonalVerdict]:
        from spanwise.scheduler.ledger.schedule_status import user_name
        from spanwise.scheduler.run import judge

        loaded = self.load(file) if isinstance(file, str | Path) else file
        with self.session.writing() as store:
            return judge.judge_spans(
                store, loaded, span, version=version, given=given, because=because, who=user_name()
            )

    def bless(self, model: ArtifactRecord | str, *, because: str) -> Decision:
        """Blesses a model, as `spanwise bless` does.

        Raises:
            UsageError: it is no model, or no reason is given.
        """
        return self._decide(model, because, given=True)

    def unbless(self, model: ArtifactRecord | str, *, because: str) -> Decision:
        """Takes the blessing of a model back, as `spanwise unbless` does.

        Raises:
            UsageError: it is no model, or no reason is given.
        """
        return self._decide(model, because, given=False)

    def _decide(self, model: ArtifactRecord | str, because: str, *, given: bool) -> Decision:
        from spanwise.scheduler.run import models as deciding

        found: Artifact = (self.artifact(model) if isinstance(model, str) else model).artifact
        with self.session.writing() as store:
            return deciding.decide(store, found, given=given, because=because)

    def pause(self, pipeline: str, *, because: str, until: datetime | None = None) -> SchedulePause:
        """Pauses the schedule of a pipeline, as `spanwise schedule pause` does.

        Raises:
            NotRecorded: it was never scheduled here.
            UsageError: the end of the pause is in the past, or has no time zone; or a part is named.
        """
        from spanwise.scheduler.ledger.pauses import pause_schedule
        from spanwise.scheduler.ledger.schedule_status import expand_keys, find_schedule, user_name

        _refuse_part(pipeline)
        now = datetime.now(UTC)
        if until is not None and (until.tzinfo is None or until <= now):
            raise UsageError(f"A pause ends at a later time with a zone, not at {until.isoformat()}.")
        with self.session.writing() as store:
            find_schedule(store, expand_keys(store, [pipeline])[0])
            return pause_schedule(store, pipeline, who=user_name(), why=because, now=now, until=until)

    def unpause(self, pipeline: str) -> SchedulePause | None:
        """Ends the pause of a schedule, as `spanwise schedule resume` does; None when it was not paused.

        Raises:
            NotRecorded: it was never scheduled here.
            UsageError: a part is named.
        """
        from spanwise.scheduler.ledger.pauses import resume_schedule
        from spanwise.scheduler.ledger.schedule_status import expand_keys, find_schedule, user_name

        _refuse_part(pipeline)
        with self.session.writing() as store:
            find_schedule(store, expand_keys(store, [pipeline])[0])
            return resume_schedule(store, pipeline, who=user_name(), now=datetime.now(UTC))


def _refuse_part(key: str) -> None:
    """Refuses a part of a pipeline where a pause is meant, which the other parts would obey too."""
    from spanwise.scheduler.schedule.schedule_key import pipeline_of

    if key != (whole := pipeline_of(key)):
        raise UsageError(f"A pause holds for all parts of {whole!r}: give {whole} in place of {key}.")


def _params(params: Mapping[str, object] | None) -> list[str]:
    return [f"--param={name}={value}" for name, value in (params or {}).items()]
