"""The API: the documents that commands print with `--json`, under `/api/…`, and their description as OpenAPI."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from spanwise.orchestrator.lineage import Direction, walk
from spanwise.orchestrator.run import Run
from spanwise.scheduler.data_service.observation import read_status
from spanwise.scheduler.formatting import iso_time
from spanwise.scheduler.inspect import find, lineage, records
from spanwise.scheduler.inspect.taint import find_calendar, taint_document, trace_taint
from spanwise.scheduler.ledger.schedule_status import read_forecast
from spanwise.scheduler.ledger.status_formatting import scheduler_document, status_document
from spanwise.scheduler.schedule.forecast import forecast_document
from spanwise.scheduler.web.actions.jobs import list_requests
from spanwise.scheduler.web.queries.data import snapshot_documents
from spanwise.scheduler.web.queries.health import judge_health, read_schedules
from spanwise.scheduler.web.queries.model_metrics import read_trained
from spanwise.scheduler.web.queries.search import search
from spanwise.scheduler.web.queries.spans import find_history, read_channels
from spanwise.scheduler.web.site import Ask, WebSite
from spanwise.version import __version__

Answer: TypeAlias = object
_LIMIT = 20
_MOST = 1000
_MOST_SPANS = 100_000


@dataclass(frozen=True)
class Endpoint:
    """One question."""

    path: str
    summary: str
    answer: Callable[[WebSite, Ask], Answer]
    query: Sequence[tuple[str, str]] = ()  #: names of what may be asked, and what each is

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"[{](\w+)[}]", r"(?P<\1>[^/]+)", self.path))


def _pipelines(site: WebSite, _ask: Ask) -> Answer:
    return [
        {"pipeline": name, "health": health.word, "why": health.why, "latest": records.run_document(runs[0])}
        for name, runs in site.store.latest_runs(10).items()
        if runs
        for health in [judge_health(site.store, runs, read_schedules(site.store, name))]
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
        history = find_history(site, pipeline, address)
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
    runs: list[Run] = list(
        itertools.islice(site.store.runs(find.pipeline(site.store, ask.path["pipeline"])), _limit(ask))
    )
    return [
        {
            "model": each.name,
            "id": each.model,
            "run": each.run.name,
            "metrics": dict(each.metrics),
            "baseline_metrics": dict(each.baseline),
            "blessed": each.blessed,
        }
        for each in read_trained(site, runs)
    ]


def _schedules(site: WebSite, _ask: Ask) -> Answer:
    now = datetime.now(UTC)
    found = []
    for status in site.client.schedules():
        ahead = read_forecast(site.store, status.schedule.key, now)
        load = site.client.settings.alerts.of(ahead.pipeline).forecast_load
        found.append(status_document(status, forecast_document(ahead, load)))
    return {"schedules": found, "schedulers": [scheduler_document(one) for one in site.client.schedulers()]}


def _artifact(site: WebSite, ask: Ask) -> Answer:
    return site.client.artifact(ask.path["id"]).document()


def _lineage(site: WebSite, ask: Ask) -> Answer:
    record = site.client.artifact(ask.path["id"])
    direction = Direction.DOWN if ask.query.get("direction") == "down" else Direction.UP
    found = walk(site.store, [record.artifact], direction, depth=ask.number("depth", 3, least=1, most=50))
    return lineage.lineage_document(found, lineage.find_calendars(site.store, found.artifacts.values()))


def _tainted(site: WebSite, ask: Ask) -> Answer:
    pipeline = find.pipeline(site.store, ask.path["pipeline"])
    calendar = find_calendar(site.store, pipeline, ask.path["span"])
    version = ask.number("version", -1)
    span = calendar.parse(ask.path["span"])
    return taint_document(
        trace_taint(site.store, pipeline, span, version=None if version < 0 else version, calendar=calendar)
    )


def _search(site: WebSite, ask: Ask) -> Answer:
    return [vars(hit) for hit in search(site, ask.query.get("q", "")[:200])]


def _service(site: WebSite, _ask: Ask) -> Answer:
    return read_status(site.dispatcher) if site.dispatcher else None


def _snapshots(site: WebSite, _ask: Ask) -> Answer:
    return snapshot_documents(site)


def _activity(site: WebSite, ask: Ask) -> Answer:
    asked = list_requests(site.store, _limit(ask))
    return [{"job": a.number, "who": a.who, "command": a.line, "at": iso_time(a.at)} for a in asked]


def _limit(ask: Ask) -> int:
    return ask.number("limit", _LIMIT, least=1, most=_MOST)


_COUNT = ("limit", "at most so many")
ENDPOINTS = (
    Endpoint("/api/pipelines", "All pipelines, with their health and their newest run", _pipelines),
    Endpoint(
        "/api/pipelines/{pipeline}/runs",
        "Runs, newest first, as `spanwise runs --json` prints them",
        _runs,
        (_COUNT, ("state", "of this state"), ("trigger", "of this trigger"), ("span", "of this span"),
         ("before", "with a lower number")),
    ),
    Endpoint("/api/runs/{pipeline}/{number}", "One run, as `spanwise show --json` prints it", _run),
    Endpoint(
        "/api/pipelines/{pipeline}/spans",
        "The state of every span",
        _spans,
        (("first", "from this span"), ("last", "to this span")),
    ),
    Endpoint("/api/pipelines/{pipeline}/models", "The models of the last runs, with their metrics", _models, (_COUNT,)),
    Endpoint(
        "/api/pipelines/{pipeline}/tainted/{span}",
        "What learned from a span, as `spanwise tainted --json` prints it",
        _tainted,
        (("version", "of this version"),),
    ),
    Endpoint("/api/schedules", "All schedules, as `spanwise schedule status --json` prints them", _schedules),
    Endpoint("/api/artifacts/{id}", "One artifact, as `spanwise artifacts --json` prints it", _artifact),
    Endpoint(
        "/api/artifacts/{id}/lineage",
        "Its lineage, as `spanwise lineage --json` prints it",
        _lineage,
        (("direction", "up or down"), ("depth", "so many executions")),
    ),
    Endpoint("/api/search", "Pipelines, runs, spans and artifacts by anything typed", _search, (("q", "the text"),)),
    Endpoint(
        "/api/service",
        "The data service of --dispatcher, as `spanwise service top --json` prints it; null without one",
        _service,
    ),
    Endpoint("/api/snapshots", "The snapshots, as `spanwise snapshot ls --json` prints them", _snapshots),
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
        {"name": name, "in": "query", "description": what, "schema": {"type": "string"}} for name, what in each.query
    ]
    answers = {"200": {"description": each.summary, "content": {"application/json": {}}}}
    refused = {code: {"description": text} for code, text in (("404", "Not recorded"), ("401", "A token is needed"))}
    return {"summary": each.summary, "parameters": [*places, *asked], "responses": {**answers, **refused}}
