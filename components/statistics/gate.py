"""AnomalyGate: refuses a span that has bad anomalies, so that nothing is learned from it, that day or later.

It is a node of its own, because the outputs of a failed node are removed: the anomalies of a bad span are published,
with their report and lineage, and it is the gate that fails (docs/decisions/0020-validation-stops-the-run.md).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from spanwise.components.statistics.counted_examples import belong_together, find_counted
from spanwise.components.statistics.example_validator import ExampleValidator
from spanwise.orchestrator.artifact import Anomalies, Examples
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Channel, published_channel
from spanwise.orchestrator.errors import ParameterError, PipelineError, Refused
from spanwise.orchestrator.gate import Gate
from spanwise.orchestrator.signature import Input

_NAMED = 10  # anomalies that a message names; the report has all


class AnomalyGate(Gate):
    """Refuses a span that has anomalies of severity `stop_at` or worse, and passes any other on.

        gate = AnomalyGate(examples=ingest["examples"], anomalies=validator["anomalies"], stop_at="error")
        recent = RollingWindow(gate["examples"], size=7)

    The message names the anomalies and the report. No window reads the span until a new version of it is accepted, or
    a person accepts it: `spanwise accept FILE --span S --because TEXT`.
    """

    preload: ClassVar = ("spanwise.components.statistics.anomalies",)

    def check(self) -> None:
        _refuse_other_anomalies(self.name, self.source, self.inputs["anomalies"][0])

    def run(
        self,
        examples: Input[Examples],
        anomalies: Input[Anomalies],
        stop_at: Literal["info", "warning", "error"] = "error",
    ) -> None:
        from spanwise.components.statistics.anomalies import FILE, PAGE, read
        from spanwise.components.statistics.schema import Severity

        if (anomalies.span, anomalies.version) != (examples.span, examples.version):
            raise ParameterError(_other_span(examples, anomalies))
        found = [a for a in read(anomalies.path / FILE) if a.severity.rank >= Severity(stop_at).rank]
        if not found:
            return
        named = "\n".join(f"  {anomaly}" for anomaly in found[:_NAMED])
        more = f"\n  and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        count = "1 anomaly" if len(found) == 1 else f"{len(found)} anomalies"
        raise Refused(
            f"span {_label(examples)} has {count} of severity {stop_at} or worse:\n{named}{more}\n"
            f"Report: {anomalies.path / PAGE}"
        )


def _refuse_other_anomalies(gate: str, examples: Channel, anomalies: Channel) -> None:
    """Refuses anomalies of other examples, of which nothing but the number of the span need be the same.

    Those of what is made of the examples, or of what these are made of, are accepted. Another node than an
    ExampleValidator or a StatisticsGen is believed.
    """
    validator = published_channel(anomalies).producer
    counted = find_counted(validator.inputs["statistics"][0]) if isinstance(validator, ExampleValidator) else None
    if counted is not None and not belong_together(examples, counted):
        raise PipelineError(
            f"{gate} judges {examples!r} by {anomalies!r}, the anomalies of {counted!r}. Connect those of an "
            f"ExampleValidator whose statistics are of {examples!r}."
        )


def _label(artifact: Examples | Anomalies) -> str:
    return Calendar(artifact.calendar or "number").label(artifact.span)


def _other_span(examples: Examples, anomalies: Anomalies) -> str:
    return (
        f"the anomalies are those of span {_label(anomalies)}, version {anomalies.version}, and the examples are span "
        f"{_label(examples)}, version {examples.version}; pass the anomalies of the same span."
    )
