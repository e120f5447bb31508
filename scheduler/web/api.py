"""The API: the documents that commands print with `--json`, under `/api/…`, and their description as OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.lineage import Direction, walk
from spanwise.scheduler.data_service.observation import read_status
from spanwise.scheduler.formatting import iso_time
from spanwise.scheduler.inspect import find, lineage, records, verdicts
from spanwise.scheduler.inspect.diff import differences_document
from spanwise.scheduler.inspect.judged_models import find_blessings, is_blessed
from spanwise.scheduler.inspect.taint import split_span, taint_document, trace_taint
from spanwise.scheduler.inspect.why import explanation_document
from spanwise.scheduler.ledger.holder import note_left_open
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.schedule_status import ScheduleStatus, read_forecast
from spanwise.scheduler.ledger.status_formatting import scheduler_document, status_document, tick_document
from spanwise.scheduler.schedule.forecast import forecast_document
from spanwise.scheduler.web.actions.catalog import ACTIONS
from spanwise.scheduler.web.actions.jobs import list_requests, number_of_job, read_job
from spanwise.scheduler.web.queries.data import read_service, snapshot_documents
from spanwise.scheduler.web.queries.health import find_pipeline, list_latest_runs, read_health, read_schedules
from spanwise.scheduler.web.queries.logs import find_log
from spanwise.scheduler.web.queries.model_metrics import find_newest
from spanwise.scheduler.web.queries.runs import number_of_run
from spanwise.scheduler.web.queries.search import search
from spanwise.scheduler.web.queries.spans import find_history, read_channels
from spanwise.scheduler.web.site import Ask, WebSite
from spanwise.version import __version__

Answer: TypeAlias = object
_LIMIT = 20
_MOST_SPANS = 100_000


@dataclass(frozen=True)
class QueryParameter:
    """What may be asked beside the path, and the values that it takes: any text, whole numbers or some words."""

    name: str
    what: str
    values: range | Sequence[str] = ()

    def check(self, text: str) -> None:
        """Raises UsageError for a text that is not one of the values; an empty one asks for the default."""
        if not text or not self.values:
            return
        if isinstance(self.values, range):
            taken = f"a whole number from {self.values[0]} to {self.values[-1]}"
            fits = text.isascii() and text.isdecimal() and len(text) < 20 and int(text) in self.values  # noqa: PLR2004
        else:
            taken, fits = " or ".join(self.values), text in self.values
        if not fits:
            raise UsageError(f"{self.name}={text[:40]}: expected {taken}.")

    @property
    def schema(self) -> dict[str, object]:
        """As JSON Schema describes the values."""
        if isinstance(self.values, range):
            return {"type": "integer", "minimum": self.values[0], "maximum": self.values[-1]}
        return {"type": "string", **({"enum": list(self.values)} if self.values else {})}


@dataclass(frozen=True)
class Endpoint:
    """One question."""

    path: str
    summary: str
    answer: Callable[[WebSite, Ask], Answer]
    query: Sequence[QueryParameter] = ()  #: what may be asked

    def reply(self, site: WebSite, ask: Ask) -> Answer:
        """The answer to a question whose values it takes.

        Raises:
            UsageError: it does not take one of them.
        """
        for query in self.query:
            query.check(ask.query.get(query.name, ""))
        return self.answer(site, ask)

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"[{](\w+)[}]", r"(?P<\1>[^/]+)", self.path))


def _pipelines(site: WebSite, _ask: Ask) -> Answer:
    return [
        {
            "pipeline": name,
            "health": health.word,
            "why": health.why,
            "latest": records.run_document(note_left_open(site.store, runs[0])) if runs else None,
        }
        for name, runs in list_latest_runs(site.store).items()
        for health, _ in [read_health(site.store, name, runs)]
    ]


def _runs(site: WebSite, ask: Ask) -> Answer:
    pipeline = site.client.pipeline(ask.path["pipeline"])
    chosen = {name: ask.query.get(name) or None for name in ("state", "trigger", "span")}
    found = pipeline.runs(**chosen, before=ask.number("before", 0) or None, limit=_limit(ask))
    return [records.run_document(record.run) for record in found]


def _run(site: WebSite, ask: Ask) -> Answer:
    return site.client.run_record(f"{ask.path['pipeline']}/{ask.path['number']}").document()


def _spans(site: WebSite, ask: Ask) -> Answer:
    pipeline = find.pipeline(site.store, ask.path["pipeline"])
    found: list[Mapping[str, object]] = []
    for address, calendar in read_channels(site, pipeline).items():
        history = find_history(site, pipeline, address, calendar)
        extent = history.extent
        if extent is None:
            continue
        first = calendar.parse(ask.query["first"]) if ask.query.get("first") else extent[0]
        last = calendar.parse(ask.query["last"]) if ask.query.get("last") else extent[1]
        for span, status in history.statuses(site.store, max(first, last - _MOST_SPANS), last).items():
            entry = history.entries.get(span)
            found.append(
                {
                    "node": address.node,
                    "span": span,
                    "span_label": calendar.label(span),
                    "state": status.value,
                    "version": None if entry is None else entry.version,
                    "rows": None if entry is None else entry.rows,
                    "publications": 0 if entry is None else entry.publications,
                    "created": None if entry is None else iso_time(entry.created),
                    "in_window": span in history.window,
                }
            )
    return found


def _models(site: WebSite, ask: Ask) -> Answer:
    trained, _ = find_newest(site, find.pipeline(site.store, ask.path["pipeline"]), _limit(ask))
    standings = find_blessings(site.store, [each.artifact for each in trained])
    return [
        {
            "model": each.artifact.name,
            "id": each.artifact.id,
            "run": each.run.name,
            "metrics": dict(each.metrics),
            "baseline_metrics": dict(each.baseline),
            "blessed": is_blessed(standings[each.artifact.id]),
        }
        for each in trained
    ]


def _span(site: WebSite, ask: Ask) -> Answer:
    pipeline = site.client.pipeline(ask.path["pipeline"])
    record = pipeline.span(ask.path["span"], node=ask.query.get("node") or None)
    return {
        "node": record.address.node,
        "span": record.span,
        "span_label": record.label,
        "state": record.status,
        "in_window": record.in_window,
        "versions": [version.document() for version in record.versions()],
        "runs": [records.run_document(run.run) for run in record.runs()],
    }


def _diff(site: WebSite, ask: Ask) -> Answer:
    pipeline = site.client.pipeline(ask.path["pipeline"])
    run = pipeline.run(_number(ask))
    if not (number := ask.number("with", run.number - 1)):
        return None
    before = pipeline.run(number)
    return differences_document(before.run, run.run, run.diff(before))


def _why(site: WebSite, ask: Ask) -> Answer:
    return explanation_document(site.client.pipeline(ask.path["pipeline"]).run(_number(ask)).why(ask.path["node"]))


def _log(site: WebSite, ask: Ask) -> Answer:
    execution, log = find_log(site, ask)
    return {
        "node": execution.node,
        "attempt": execution.attempt,
        "state": execution.state.value,
        "size_bytes": log.size_bytes,
        "cut": log.cut,
        "text": log.text,
    }


def _number(ask: Ask) -> int:
    return number_of_run(ask.path["number"], ask.path["pipeline"])


def _schedules(site: WebSite, _ask: Ask) -> Answer:
    return _describe_schedules(site, site.client.schedules())


def _schedule(site: WebSite, ask: Ask) -> Answer:
    found = read_schedules(site.store, find_pipeline(site.store, ask.path["pipeline"]))
    missed = [(s.schedule, tick) for s in found for tick in list_missed(site.store, s.schedule.key)]
    return {**_describe_schedules(site, found), "missed": [tick_document(tick, of) for of, tick in missed]}


def _describe_schedules(site: WebSite, statuses: Iterable[ScheduleStatus]) -> dict[str, object]:
    now = datetime.now(UTC)
    found = []
    for status in statuses:
        ahead = read_forecast(site.store, status.schedule.key, now)
        load = site.client.settings.alerts.of(ahead.pipeline).forecast_load
        found.append(status_document(status, forecast_document(ahead, load)))
    return {"schedules": found, "schedulers": [scheduler_document(one) for one in site.client.schedulers()]}


def _artifact(site: WebSite, ask: Ask) -> Answer:
    return site.client.artifact(ask.path["id"]).document()


def _lineage(site: WebSite, ask: Ask) -> Answer:
    record = site.client.artifact(ask.path["id"])
    direction = Direction(ask.query.get("direction") or Direction.UP)
    found = walk(site.store, [record.artifact], direction, depth=ask.number("depth", 3))
    document = lineage.lineage_document(found, lineage.find_calendars(site.store, found.artifacts.values()))
    return {**document, "verdicts": verdicts.list_verdicts(site.store, found.artifacts.values())}


def _tainted(site: WebSite, ask: Ask) -> Answer:
    pipeline = find.pipeline(site.store, ask.path["pipeline"])
    node, label, calendar = split_span(site.store, pipeline, ask.path["span"])
    version = ask.number("version", -1)
    wrong = None if version < 0 else version
    return taint_document(
        trace_taint(site.store, pipeline, calendar.parse(label), node=node, version=wrong, calendar=calendar)
    )


def _search(site: WebSite, ask: Ask) -> Answer:
    return [vars(hit) for hit in search(site, ask.query.get("q", "")[:200])]


def _service(site: WebSite, _ask: Ask) -> Answer:
    return read_status(site.dispatcher) if site.dispatcher else None


def _snapshots(site: WebSite, _ask: Ask) -> Answer:
    return snapshot_documents(site)


def _data(site: WebSite, ask: Ask) -> Answer:
    service = read_service(site)
    return {"service": None if service is None else service.status, "snapshots": _snapshots(site, ask)}


def _actions(_site: WebSite, _ask: Ask) -> Answer:
    return [
        {"action": a.name, "title": a.title, "does": a.does, "fields": [each.name for each in a.fields]}
        for a in ACTIONS.values()
    ]


def _job(site: WebSite, ask: Ask) -> Answer:
    job = read_job(site, number_of_job(ask.path["number"]))
    asked = job.request
    return {
        "job": asked.number,
        "who": asked.who,
        "command": asked.line,
        "at": iso_time(asked.at),
        "state": job.state,
        "exit_code": job.code,
        "output": job.output,
    }


def _activity(site: WebSite, ask: Ask) -> Answer:
    asked = list_requests(site.store, _limit(ask))
    return [{"job": a.number, "who": a.who, "command": a.line, "at": iso_time(a.at)} for a in asked]


def _limit(ask: Ask) -> int:
    return ask.number("limit", _LIMIT)


_REFUSALS: Mapping[str, str] = {
    "400": "A place or a value of the query is not understood; the answer says what may stand there",
    "401": "A token is needed",
    "404": "Not recorded",
    "503": "The metadata does not answer",
}
"""What every question may be answered with instead."""

_ANY = range(10**18 + 1)
_NUMBERS = _ANY[1:]
_COUNT = QueryParameter("limit", "at most so many", range(1, 1001))
ENDPOINTS = (
    Endpoint("/api/pipelines", "All pipelines, with their health and their newest run", _pipelines),
    Endpoint(
        "/api/pipelines/{pipeline}/runs",
        "Runs, newest first, as `spanwise runs --json` prints them",
        _runs,
        (_COUNT, QueryParameter("state", "of this state"), QueryParameter("trigger", "of this trigger"),
         QueryParameter("span", "of this span"), QueryParameter("before", "with a lower number", _NUMBERS)),
    ),
    Endpoint("/api/runs/{pipeline}/{number}", "One run, as `spanwise show --json` prints it", _run),
    Endpoint(
        "/api/pipelines/{pipeline}/spans",
        "The state of every span",
        _spans,
        (QueryParameter("first", "from this span"), QueryParameter("last", "to this span")),
    ),
    Endpoint(
        "/api/pipelines/{pipeline}/spans/{span}",
        "One span: its versions and its runs",
        _span,
        (QueryParameter("node", "that ingests it, where there are several"),),
    ),
    Endpoint("/api/pipelines/{pipeline}/models", "The newest models, with their metrics", _models, (_COUNT,)),
    Endpoint(
        "/api/pipelines/{pipeline}/tainted/{span}",
        "What learned from a span, as `spanwise tainted --json` prints it",
        _tainted,
        (QueryParameter("version", "of this version", _ANY),),
    ),
    Endpoint(
        "/api/runs/{pipeline}/{number}/diff",
        "What differs from the run before, as `spanwise diff --json` prints it; null for the first",
        _diff,
        (QueryParameter("with", "the number of another run", _NUMBERS),),
    ),
    Endpoint(
        "/api/runs/{pipeline}/{number}/why/{node}",
        "Why a node was executed or reused, as `spanwise why --json` prints it",
        _why,
    ),
    Endpoint(
        "/api/runs/{pipeline}/{number}/log/{node}",
        "The end of the log of a node",
        _log,
        (QueryParameter("attempt", "its number", _NUMBERS), QueryParameter("q", "only the lines that hold this")),
    ),
    Endpoint(
        "/api/pipelines/{pipeline}/schedule",
        "The schedules of a pipeline, and its missed ticks, as `spanwise schedule status` and `missed` print them",
        _schedule,
    ),
    Endpoint("/api/schedules", "All schedules, as `spanwise schedule status --json` prints them", _schedules),
    Endpoint("/api/artifacts/{id}", "One artifact, as `spanwise artifacts --json` prints it", _artifact),
    Endpoint(
        "/api/artifacts/{id}/lineage",
        "Its lineage, as `spanwise lineage --json` prints it",
        _lineage,
        (QueryParameter("direction", "to what it was made of, or to what was made of it", ("up", "down")),
         QueryParameter("depth", "so many executions, 3 by default", range(1, 51))),
    ),
    Endpoint(
        "/api/search",
        "Pipelines, runs, spans and artifacts by anything typed",
        _search,
        (QueryParameter("q", "the text"),),
    ),
    Endpoint(
        "/api/service",
        "The data service of --dispatcher, as `spanwise service top --json` prints it; null without one",
        _service,
    ),
    Endpoint("/api/snapshots", "The snapshots, as `spanwise snapshot ls --json` prints them", _snapshots),
    Endpoint("/api/data", "The data service and the snapshots", _data),
    Endpoint("/api/actions", "What can be asked for on the page", _actions),
    Endpoint("/api/jobs/{number}", "What was asked for, and what it has printed so far", _job),
    Endpoint("/api/activity", "What was asked for on the page, and by whom", _activity, (_COUNT,)),
)  # fmt: skip


def find_endpoint(path: str) -> tuple[Endpoint, dict[str, str]] | None:
    """The endpoint of a path, and what its places hold."""
    for endpoint in ENDPOINTS:
        if (found := endpoint.pattern.fullmatch(path)) is not None:
            return endpoint, found.groupdict()
    return None


def describe_api() -> dict[str, object]:
    """The description of the API, as OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "spanwise", "version": __version__, "description": "What the metadata knows; read only."},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
        "paths": {each.path: {"get": _describe(each)} for each in ENDPOINTS},
    }


def _describe(each: Endpoint) -> dict[str, object]:
    places = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"[{](\w+)[}]", each.path)
    ]
    asked = [
        {"name": query.name, "in": "query", "description": query.what, "schema": query.schema} for query in each.query
    ]
    answers = {"200": {"description": each.summary, "content": {"application/json": {}}}}
    refused = {code: {"description": text} for code, text in _REFUSALS.items()}
    return {"summary": each.summary, "parameters": [*places, *asked], "responses": {**answers, **refused}}
