"""ExampleValidator finds what is odd about a span; AnomalyGate stops the run when it is too odd.

They are two nodes, because what a failed node made is taken away: the anomalies of a bad span are published, with
their report and lineage, and it is the gate that fails (docs/decisions/0020-validation-stops-the-run.md).
"""

from __future__ import annotations

import logging
from typing import ClassVar, Literal

from spanwise.orchestrator.artifact import Anomalies
from spanwise.orchestrator.artifact import Schema as SchemaArtifact
from spanwise.orchestrator.artifact import Statistics as StatisticsArtifact
from spanwise.orchestrator.component import Component, Input, Output
from spanwise.orchestrator.errors import InputError
from spanwise.orchestrator.span import Calendar

log = logging.getLogger("spanwise.example_validator")

FILE = "anomalies.json"
PAGE = "anomalies.html"

_NAMED = 10  # a message names so many anomalies; the report has all


class ExampleValidator(Component):
    """Compares the statistics of a span with a schema, with the span before, and its splits with each other.

        before = Previous(statistics["statistics"])
        validator = ExampleValidator(
            statistics=statistics["statistics"], schema=schema["schema"], previous=before["statistics"]
        )

    Publishes `anomalies.json` and the page `anomalies.html`, also when nothing is odd. What is checked, and how bad
    each departure is, stands in the schema (docs/reference/schema.md).
    """

    preload: ClassVar = ("spanwise.components.statistics.anomalies", "spanwise.components.report.anomalies_page")
    libraries: ClassVar = ("datasketches", "numpy")

    def run(
        self,
        statistics: Input[StatisticsArtifact],
        schema: Input[SchemaArtifact],
        previous: Input[StatisticsArtifact | None],
        anomalies: Output[Anomalies],
    ) -> None:
        from spanwise.components.report.anomalies_page import page
        from spanwise.components.statistics.anomalies import validate, worst, write
        from spanwise.components.statistics.schema import Schema
        from spanwise.components.statistics.span_statistics import Statistics

        now = Statistics.load(statistics.path)
        before = None if previous is None else Statistics.load(previous.path)
        found = validate(now, Schema.load(schema.path), before)
        for anomaly in found:
            log.warning("%s", anomaly, extra={"span": statistics.span, "check": anomaly.check.value})
        write(found, anomalies.path / FILE)
        titles = [_label(statistics), "" if previous is None else _label(previous)]
        html = page(found, now, before, title=titles[0], before=titles[1])
        (anomalies.path / PAGE).write_text(html, encoding="utf-8")
        severity = worst(found)
        anomalies.span = statistics.span
        anomalies.version = statistics.version
        anomalies.found = len(found)
        anomalies.calendar = statistics.calendar
        anomalies.severity = None if severity is None else severity.value


class AnomalyGate(Component):
    """Fails, and so keeps back everything that comes `after` it, when a span has anomalies of `stop_at` or worse.

        gate = AnomalyGate(anomalies=validator["anomalies"], stop_at="error")
        trainer = Trainer(examples=recent["examples"], after=[gate], ...)

    The message names the anomalies and the report. To train all the same, start behind it:
    `spanwise run PIPELINE --from Trainer`.
    """

    preload: ClassVar = ("spanwise.components.statistics.anomalies",)

    def run(self, anomalies: Input[Anomalies], stop_at: Literal["info", "warning", "error"] = "error") -> None:
        from spanwise.components.statistics.anomalies import read
        from spanwise.components.statistics.schema import Severity

        found = [a for a in read(anomalies.path / FILE) if a.severity.rank >= Severity(stop_at).rank]
        if not found:
            return
        named = "\n".join(f"  {anomaly}" for anomaly in found[:_NAMED])
        more = f"\n  and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        count = "1 anomaly" if len(found) == 1 else f"{len(found)} anomalies"
        raise InputError(
            f"span {_label(anomalies)} has {count} of severity {stop_at} or worse:\n{named}{more}\n"
            f"Report: {anomalies.path / PAGE}\n"
            "Correct the data and ingest a new version of the span, or change the schema. To go on with the span as "
            "it is, run the pipeline from the node after this one (--from)."
        )


def _label(artifact: StatisticsArtifact | Anomalies) -> str:
    return Calendar(artifact.calendar or "number").label(artifact.span)
