"""One span: its versions with what was measured and found in each, the models that learned from each, and its runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.artifact import Anomalies, Statistics
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.verdict import Verdict
from spanwise.scheduler.client import ArtifactRecord, SpanRecord
from spanwise.scheduler.inspect.span_history import ingesting_channels
from spanwise.scheduler.inspect.taint import TaintedModel, TaintReport, number_of_version
from spanwise.scheduler.web.queries.artifacts import sign_page
from spanwise.scheduler.web.site import WebSite

VERSIONS = 5
"""Of how many versions, the newest, the descendants are looked for."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """Something that was measured or found in a version, with its pages."""

    record: ArtifactRecord
    frames: Sequence[tuple[str, str]]  #: names and addresses of sandboxed frames


@dataclass(frozen=True, kw_only=True)
class VersionView:
    """One publication of a span."""

    record: ArtifactRecord
    verdicts: Sequence[Verdict]
    described: Sequence[Described]  #: statistics and anomalies


@dataclass(frozen=True, kw_only=True)
class SpanView:
    """One span."""

    record: SpanRecord
    named: str  #: the span as commands take it: after its node, where several ingest
    versions: Sequence[VersionView]  #: newest first
    models: Sequence[tuple[TaintedModel, str]]  #: that learned from it, newest first, with the versions that they read
    others: int  #: other artifacts that were made from it
    runs: Sequence[Run]
    repair: str  #: the command that trains without what is wrong with it
    before: str
    after: str


def read_span(site: WebSite, pipeline: str, label: str, node: str | None) -> SpanView:
    """One span of a channel.

    Raises:
        NotRecorded: no recent run of the pipeline has ingested spans.
        UsageError: the label is no span.
    """
    record = site.client.pipeline(pipeline).span(label, node=node)
    versions = record.versions()[::-1]
    numbers = list(dict.fromkeys(number_of_version(version.artifact) for version in versions))[:VERSIONS]
    reports = {number: record.taint(number) for number in numbers}
    several = len({address.node for address in ingesting_channels(site.store, pipeline)}) > 1
    return SpanView(
        record=record,
        named=f"{record.address.node}={record.label}" if several else record.label,
        versions=[
            VersionView(
                record=version,
                verdicts=version.verdicts(),
                described=_describe(site, version, reports.get(number_of_version(version.artifact))),
            )
            for version in versions
        ],
        models=_list_models(reports),
        others=len({artifact.id for report in reports.values() for artifact in report.others}),
        runs=[run.run for run in record.runs()],
        repair=next((report.backfill for report in reports.values()), ""),
        before=record.calendar.label(record.span - 1),
        after=record.calendar.label(record.span + 1),
    )


def _describe(site: WebSite, version: ArtifactRecord, report: TaintReport | None) -> list[Described]:
    """The newest statistics and the newest anomalies of this publication; the pages of each are in its folder."""
    found: dict[tuple[str, str], ArtifactRecord] = {}
    for artifact in report.others if report is not None else ():
        if artifact.is_a(Statistics, Anomalies) and artifact.properties.get("span") == version.span:
            record = ArtifactRecord(version.session, artifact, version.calendar)
            found[record.kind, record.node] = record
    return [
        Described(record=each, frames=[(name, sign_page(site, each.id, name)) for name in _pages(each)])
        for each in found.values()
    ]


def _pages(record: ArtifactRecord) -> list[str]:
    return [str(name) for name in record.files() if name.match("*.html") and len(name.parts) == 1]


def _list_models(reports: Mapping[int, TaintReport]) -> list[tuple[TaintedModel, str]]:
    read: dict[int, list[int]] = {}
    models: dict[int, TaintedModel] = {}
    for number, model in itertools.chain(*([(n, m) for m in report.models] for n, report in reports.items())):
        read.setdefault(model.model.id, []).append(number)
        models[model.model.id] = model
    return [(models[id], ", ".join(map(str, sorted(read[id])))) for id in sorted(models, reverse=True)]  # noqa: A001
