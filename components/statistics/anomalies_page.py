"""The page of anomalies: those of a span, the worst first, with a plot of each affected feature."""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.components.report.page import Cell, ReportPage
from spanwise.components.statistics.anomalies import Anomaly
from spanwise.components.statistics.schema import Severity
from spanwise.components.statistics.span_statistics import SpanStatistics, SplitCounts
from spanwise.components.statistics.statistics_page import write_features

_TONES = {Severity.INFO: "faint", Severity.WARNING: "warn", Severity.ERROR: "bad"}


def page(
    anomalies: Sequence[Anomaly],
    statistics: SpanStatistics,
    previous: SpanStatistics | None,
    *,
    title: str,
    before: str = "",
) -> str:
    """The anomalies, then the affected features: of the span and the one before, or else of the span's splits."""
    document = ReportPage(f"Anomalies: {title}")
    counts = [(s, sum(a.severity is s for a in anomalies)) for s in reversed(Severity)]
    summary = ", ".join(f"{count} of severity {severity.value}" for severity, count in counts if count)
    document.paragraph(summary or "None. The span agrees with the schema and with the span before.")
    if not anomalies:
        return document.html()
    rows = [
        (
            Cell(a.severity.value, _TONES[a.severity]),
            Cell(a.check.value.replace("_", " "), "text"),
            Cell(a.feature, "text"),
            Cell(a.split, "text"),
            Cell(a.message, "text"),
        )
        for a in anomalies
    ]
    head = ("severity", Cell("check", "text"), Cell("feature", "text"), Cell("split", "text"), Cell("anomaly", "text"))
    document.table(head, rows, wide=True)
    document.heading("Affected features")
    splits: dict[str, SplitCounts] = dict(statistics.splits)
    if previous is not None:
        splits = {before or "the span before": previous.whole(), title: statistics.whole()}
    affected = dict.fromkeys(a.feature for a in anomalies if a.feature)
    write_features(document, splits, [name for name in affected if any(name in s.features for s in splits.values())])
    return document.html()
