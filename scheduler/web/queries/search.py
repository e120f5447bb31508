"""Search: pipelines, runs, spans and artifacts, by anything typed. It looks things up by name, and reads no history."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.scheduler.formatting import format_run_span
from spanwise.scheduler.ledger.schedules import list_schedules
from spanwise.scheduler.schedule.schedule_key import pipeline_of
from spanwise.scheduler.web.pages import artifact_url, make_url, run_url
from spanwise.scheduler.web.queries.spans import read_channels
from spanwise.scheduler.web.site import WebSite

MOST = 40
_LAST_RUNS = 300  # of all pipelines, whose errors and causes are searched
_MOST_PIPELINES = 200  # whose runs and spans are looked up


@dataclass(frozen=True)
class Hit:
    """Something that was found."""

    kind: str
    name: str
    href: str
    note: str = ""


def search(site: WebSite, text: str) -> list[Hit]:
    """What fits, the nearest first."""
    wanted = text.strip()
    if not wanted:
        return []
    seen: dict[str, Hit] = {}
    for hit in itertools.chain(
        _pipelines(site, wanted),
        _runs(site, wanted),
        _spans(site, wanted),
        _artifacts(site, wanted),
        _texts(site, wanted),
    ):
        seen.setdefault(hit.href, hit)
        if len(seen) == MOST:
            break
    return list(seen.values())


def _pipelines(site: WebSite, wanted: str) -> Iterator[Hit]:
    known = site.store.pipelines()
    scheduled = dict.fromkeys(pipeline_of(key) for key in list_schedules(site.store))
    for name in [*known, *(name for name in scheduled if name not in known)]:
        if wanted.lower() in name.lower():
            yield Hit("pipeline", name, make_url("p", name, "runs" if name in known else "schedule"))


def _runs(site: WebSite, wanted: str) -> Iterator[Hit]:
    name, slash, number = wanted.rpartition("/")
    if not number.isdecimal() or len(number) > 9:  # noqa: PLR2004
        return
    for pipeline in [name] if slash else site.store.pipelines()[:_MOST_PIPELINES]:
        try:
            run = site.store.run(pipeline, int(number))
        except SpanwiseError:
            continue
        yield Hit("run", run.name, run_url(pipeline, run.number), f"{format_run_span(run)}, {run.state.value}")


def _spans(site: WebSite, wanted: str) -> Iterator[Hit]:
    for pipeline in site.store.pipelines()[:_MOST_PIPELINES]:
        for address, calendar in read_channels(site, pipeline).items():
            try:
                span = calendar.parse(wanted)
            except SpanwiseError:
                continue
            if site.store.of_span(address, span):
                label = calendar.label(span)
                href = make_url("p", pipeline, "spans", label, node=address.node)
                yield Hit("span", f"{label} of {pipeline}", href)


def _artifacts(site: WebSite, wanted: str) -> Iterator[Hit]:
    try:
        record = site.client.artifact(wanted)
    except (SpanwiseError, OSError, ValueError):
        return
    yield Hit("artifact", record.name, artifact_url(record.id), record.kind)


def _texts(site: WebSite, wanted: str) -> Iterator[Hit]:
    """Recent runs by span, error, cause or argument."""
    latest = site.store.latest_runs(max(5, _LAST_RUNS // max(1, len(site.store.pipelines()))))
    for run in itertools.chain(*latest.values()):
        words = " ".join([format_run_span(run), run.error or "", run.cause, *run.typed, run.trigger.value])
        if wanted.lower() in words.lower():
            note = (run.error or run.cause or run.state.value).split("\n")[0][:120]
            yield Hit("run", run.name, run_url(run.pipeline, run.number), f"{format_run_span(run)}: {note}")
