"""The page of anomalies: what is odd about a span, the worst first, with a plot of each feature that is concerned."""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.components.report.page import Cell, Page
from spanwise.components.statistics.anomalies import Anomaly
from spanwise.components.statistics.schema import Severity
from spanwise.components.statistics.span_statistics import Split, Statistics
from spanwise.components.statistics.statistics_page import write_features

_TONES = {Severity.INFO: "faint", Severity.WARNING: "warn", Severity.ERROR: "bad"}


def page(
    anomalies: Sequence[Anomaly], statistics: Statistics, previous: Statistics | None, *, title: str, before: str = ""
) -> str:
    """What is odd, then those features: of the span and of the one before, or else of the span's splits."""
    made = Page(f"Anomalies: {title}")
    counts = [(s, sum(a.severity is s for a in anomalies)) for s in reversed(Severity)]
    told = ", ".join(f"{count} of severity {severity.value}" for severity, count in counts if count)
    made.paragraph(told or "None. The span is as the schema and the span before lead to expect.")
    if not anomalies:
        return made.html()
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
    head = ("severity", Cell("check", "text"), Cell("feature", "text"), Cell("split", "text"), Cell("what", "text"))
    made.table(head, rows, wide=True)
    made.heading("The features concerned")
    splits: dict[str, Split] = dict(statistics.splits)
    if previous is not None:
        splits = {before or "the span before": previous.whole(), title: statistics.whole()}
    concerned = dict.fromkeys(a.feature for a in anomalies if a.feature)
    write_features(made, splits, [name for name in concerned if any(name in s.features for s in splits.values())])
    return made.html()
