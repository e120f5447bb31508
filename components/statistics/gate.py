"""AnomalyGate: fails when a span has bad anomalies, so that nothing after it runs.

It is a node of its own, because the outputs of a failed node are removed: the anomalies of a bad span are published,
with their report and lineage, and it is the gate that fails (docs/decisions/0020-validation-stops-the-run.md).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from spanwise.orchestrator.artifact import Anomalies
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import InputError
from spanwise.orchestrator.signature import Input

_NAMED = 10  # anomalies that a message names; the report has all


class AnomalyGate(Component):
    """Fails when a span has anomalies of severity `stop_at` or worse, so that nothing that comes `after` it runs.

        gate = AnomalyGate(anomalies=validator["anomalies"], stop_at="error")
        trainer = Trainer(examples=recent["examples"], after=[gate], ...)

    The message names the anomalies and the report. To train anyway, start after the gate:
    `spanwise run PIPELINE --from Trainer`.
    """

    preload: ClassVar = ("spanwise.components.statistics.anomalies",)

    def run(self, anomalies: Input[Anomalies], stop_at: Literal["info", "warning", "error"] = "error") -> None:
        from spanwise.components.statistics.anomalies import FILE, PAGE, read
        from spanwise.components.statistics.schema import Severity

        found = [a for a in read(anomalies.path / FILE) if a.severity.rank >= Severity(stop_at).rank]
        if not found:
            return
        label = Calendar(anomalies.calendar or "number").label(anomalies.span)
        named = "\n".join(f"  {anomaly}" for anomaly in found[:_NAMED])
        more = f"\n  and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        count = "1 anomaly" if len(found) == 1 else f"{len(found)} anomalies"
        raise InputError(
            f"span {label} has {count} of severity {stop_at} or worse:\n{named}{more}\n"
            f"Report: {anomalies.path / PAGE}\n"
            "Correct the data and ingest a new version of the span, or change the schema. To accept the span as "
            "it is, run the pipeline from the node after this one (--from)."
        )
