"""Gates: components that judge what they are given, and pass it on when they accept it.

What a gate accepts or refuses is a verdict on the artifact, recorded when its execution is published. Windows, drift
baselines and inferred schemas read accepted artifacts only (docs/decisions/0071-windows-of-accepted-spans.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from spanwise.orchestrator.artifact import Artifact, properties_of
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Channel, Component, Node, Resolver
from spanwise.orchestrator.errors import PipelineError
from spanwise.orchestrator.signature import Signature, read_signature


class Gate(Component):
    """A component that accepts or refuses a span. `run` returns to accept it, and raises Refused to refuse it.

        class RowCount(Gate):
            def run(self, examples: Input[Examples], at_least: int) -> None:
                rows = sum((examples.rows or {}).values())
                if rows < at_least:
                    raise Refused(f"{rows} rows; a day needs at least {at_least}")

        count = RowCount(examples=ingest["examples"], at_least=100)
        recent = RollingWindow(count["examples"], size=7)

    Its output of the same name is the artifact that it was given, so whatever reads that channel waits for the gate and
    gets accepted spans only. When `run` fails in any other way, the span is not judged. A verdict of a person
    (`spanwise accept`, `spanwise refuse`) is followed without calling `run`; the gate then has no other outputs.
    """

    judged: ClassVar[str] = "examples"
    """The input that is judged and passed on."""

    @property
    def source(self) -> Channel:
        """The channel that it judges."""
        return self.inputs[self.judged][0]

    @property
    def calendar(self) -> Calendar:
        """How the spans that it judges are written."""
        return calendar_of(self.source)

    def _make_outputs(self, signature: Signature) -> Mapping[str, Channel]:
        made = super()._make_outputs(signature)
        spec = signature.inputs.get(self.judged)
        if spec is None or spec.many or spec.optional or not has_spans(spec.kind):
            raise PipelineError(
                f"{self.name} is a gate, so its `run` takes the span that it judges as {self.judged!r}, such as "
                f"{self.judged}: Input[Examples]; or name another input: judged = '…'."
            )
        if self.judged in made:
            raise PipelineError(
                f"{self.name} is a gate and passes {self.judged!r} on; rename its own output {self.judged}_."
            )
        if isinstance(self.source.producer, Resolver):
            raise PipelineError(
                f"{self.name} is a gate and judges the span of its run; {self.source!r} is a resolver's choice. Pass "
                f"the channel that {self.source.node} chooses from."
            )
        return {self.judged: Channel(self.name, self.judged, self.source.kind, self), **made}


def has_spans(kind: type[Artifact]) -> bool:
    """Whether artifacts of this kind belong to one span each."""
    return "span" in properties_of(kind)


def ingested_calendar(node: Node) -> Calendar | None:
    """How a node counts that ingests one span a run; None for others, such as one of a table without spans."""
    calendar = getattr(node, "calendar", None)
    takes = hasattr(node, "available") and getattr(node, "takes_span", True)
    return calendar if takes and isinstance(calendar, Calendar) else None


def passed_by(channel: Channel, producer: Node | None) -> Gate | None:
    """The gate that passes on what it was given on this channel; None for channels of what a node makes itself."""
    return producer if isinstance(producer, Gate) and channel.key == producer.judged else None


def calendar_of(channel: Channel) -> Calendar:
    """How the spans of a channel are written: by the calendar of the node that ingests them, or else as numbers."""
    return find_calendar(channel) or Calendar.NUMBER


def find_calendar(channel: Channel) -> Calendar | None:
    """The calendar of the node that ingests the spans of a channel; None where no node of the pipeline says.

    A component that reads spans of several calendars says by its attribute `calendar` how it counts its own; without
    it, that of its first input is taken.
    """
    producer = channel.producer
    calendar = getattr(producer, "calendar", None)
    if isinstance(calendar, Calendar):
        return calendar
    known = [found for c in _spans_read(producer) if (found := find_calendar(c)) is not None]
    return next((found for found in known if found is not Calendar.NUMBER), known[0] if known else None)


def describe_taken_calendar(channel: Channel) -> str:
    """How the spans of a channel are counted where nothing says it: a component joins spans of several calendars.

    Empty where they are of one calendar, or the component has said which its own is.
    """
    producer = channel.producer
    if isinstance(producer, Gate):
        return describe_taken_calendar(producer.source)
    if isinstance(getattr(producer, "calendar", None), Calendar):
        return ""
    read = [(c, found) for c in _spans_read(producer) if (found := find_calendar(c)) not in (None, Calendar.NUMBER)]
    by_calendar = {found: c for c, found in reversed(read) if found is not None}
    if len(by_calendar) <= 1:
        return next(filter(None, (describe_taken_calendar(c) for c, _ in read)), "")
    first, *others = [found for _, found in read if found is not None]
    other = next(found for found in others if found is not first)
    each = " and ".join(f"{by_calendar[found]!r} by the {found.value}" for found in (first, other))
    return (
        f"{channel.node} joins {each}, and its own spans are taken to be counted as the first. If they are not, say so "
        f"in the class of {channel.node}:  calendar = Calendar.{other.name}"
    )


def _spans_read(producer: Node | None) -> list[Channel]:
    """The channels of spans that a component reads."""
    if not isinstance(producer, Component):
        return []
    specs = read_signature(type(producer)).inputs
    return [c for name, channels in producer.inputs.items() if has_spans(specs[name].kind) for c in channels]


_ACCEPT = "Or accept the span as it is:  "


def describe_fixes(again: str, accept: str) -> str:
    """What to type when a gate has refused a span: to run it again once it is correct, or to accept it."""
    return f"Correct the data and run its new version:  {again}\n{_ACCEPT}{accept}"


def describe_accept(source: str, label: str, *, node: str = "") -> str:
    """The command that accepts a span; `source` is the pipeline file, `node` names who made it, where several do."""
    return f"spanwise accept {source} --span {f'{node}={label}' if node else label} --because TEXT"


def printed_accept(error: str | None) -> str:
    """The command by which a person accepts what a gate has refused with this error; empty for other errors."""
    return next((line.removeprefix(_ACCEPT) for line in (error or "").splitlines() if line.startswith(_ACCEPT)), "")
