"""ExampleValidator: finds the anomalies of a span and publishes them. It is `AnomalyGate` that stops a run."""

from __future__ import annotations

import logging
from typing import ClassVar

from spanwise.components.statistics.counted_examples import refuse_other_statistics
from spanwise.orchestrator.artifact import Anomalies, Schema, Statistics
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.signature import Input, Output

log = logging.getLogger("spanwise.statistics")


class ExampleValidator(Component):
    """Compares the statistics of a span with a schema and with the span before, and its splits with each other.

        before = Previous(statistics["statistics"])
        validator = ExampleValidator(
            statistics=statistics["statistics"], schema=schema["schema"], previous=before["statistics"]
        )

    Publishes `anomalies.json` and the page `anomalies.html`, also when there are none. The schema says what is checked,
    and how severe each anomaly is (docs/reference/schema.md).
    """

    preload: ClassVar = ("spanwise.components.statistics.anomalies", "spanwise.components.statistics.anomalies_page")
    libraries: ClassVar = ("datasketches", "numpy")

    def check(self) -> None:
        refuse_other_statistics(self, "previous")

    def run(
        self,
        statistics: Input[Statistics],
        schema: Input[Schema],
        previous: Input[Statistics | None],
        anomalies: Output[Anomalies],
    ) -> None:
        from spanwise.components.statistics.anomalies import FILE, PAGE, validate, worst, write
        from spanwise.components.statistics.anomalies_page import page
        from spanwise.components.statistics.schema import DataSchema
        from spanwise.components.statistics.span_statistics import SpanStatistics

        now = SpanStatistics.load(statistics.path)
        before = None if previous is None else SpanStatistics.load(previous.path)
        found = validate(now, DataSchema.load(schema.path), before)
        for anomaly in found:
            facts = {"span": statistics.span, "check": anomaly.check.value, "anomaly": anomaly}
            log.warning("anomaly-found", extra=facts)
        write(found, anomalies.path / FILE)
        titles = ["" if s is None else Calendar(s.calendar or "number").label(s.span) for s in (statistics, previous)]
        html = page(found, now, before, title=titles[0], before=titles[1])
        (anomalies.path / PAGE).write_text(html, encoding="utf-8")
        severity = worst(found)
        anomalies.span = statistics.span
        anomalies.version = statistics.version
        anomalies.found = len(found)
        anomalies.calendar = statistics.calendar
        anomalies.severity = None if severity is None else severity.value
