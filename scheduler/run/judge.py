"""People's verdicts on spans: what `spanwise accept` and `spanwise refuse` record, and on which artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.errors import NotRecorded, UsageError
from spanwise.orchestrator.gate import calendar_of
from spanwise.orchestrator.history import version_of, versions_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.scope import GatedSource
from spanwise.orchestrator.store import Address, Store, is_marked
from spanwise.orchestrator.verdict import Standing, Verdict, append, find_standing
from spanwise.scheduler.inspect.verdicts import describe_standing
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.project.span_sources import list_span_sources
from spanwise.scheduler.run.span_options import parse_span

_NEAREST = 5  # how many spans to name when one does not exist


@dataclass(frozen=True, kw_only=True)
class PersonalVerdict:
    """What a person has decided about one artifact."""

    span: int
    artifact: Artifact
    verdict: Verdict
    before: Standing  #: what held until then
    calendar: Calendar  #: how its span is written
    read: bool  #: it is the version that windows read

    @property
    def label(self) -> str:
        """Its span, as people write it."""
        return self.calendar.label(self.span)

    @property
    def changed(self) -> bool:
        """Whether it says anything that a person had not said before."""
        known = self.before.personal
        return known is None or (known.given, known.because) != (self.verdict.given, self.verdict.because)


def judge_spans(
    store: Store, loaded: Loaded, spans: str, *, version: int | None, given: bool, because: str, who: str
) -> list[PersonalVerdict]:
    """Records that a person accepts or refuses what was published for a span or a range, in one transaction.

    `spans` is as typed; with `NODE=` before it, only what this node has published is judged. Without `version`, the
    version that windows read. A verdict that repeats the person's last one is not recorded.

    Raises:
        UsageError: no reason is given, the pipeline has no gate, so that its windows ignore verdicts, what is typed is
            no span of what gates judge, or the files of what would be accepted were garbage-collected.
        NotRecorded: nothing was published for the spans, or not that version.
    """
    if not because.strip():
        raise UsageError("Say why, for whoever reads the verdict later:  --because TEXT")
    sources, calendar, wanted = _parse_gated_spans(spans, loaded.pipeline)
    judgements = []
    for source in sources:
        address = Address(loaded.pipeline.name, source.node, source.key)
        there = [s for s in store.spans(address, below=wanted[1] + 1) if s >= wanted[0]]
        for span in reversed(there):
            versions = versions_of(store, address, span, calendar)
            if not versions:
                continue  # the number was that of another calendar
            chosen = [a for a in versions if version is None or version_of(a) == version]
            if not chosen:
                raise NotRecorded(_no_version(calendar.label(span), version, versions))
            verdict = Verdict(mark="accepted", artifact=chosen[-1].name, given=given, by=who, because=because.strip())
            before = find_standing(store, "accepted", chosen[-1])
            read = chosen[-1] is versions[-1]
            judgements.append(
                PersonalVerdict(
                    span=span, calendar=calendar, artifact=chosen[-1], verdict=verdict, before=before, read=read
                )
            )
    if not judgements:
        raise NotRecorded(_format_nothing_published(store, loaded.pipeline.name, sources, calendar, wanted))
    if given:
        _refuse_collected(loaded, judgements, store)
    append(store, [judged.verdict for judged in judgements if judged.changed])
    return judgements


def _parse_gated_spans(text: str, pipeline: Pipeline) -> tuple[list[GatedSource], Calendar, tuple[int, int]]:
    """The channels that a person judges, how their spans are written, and the first and last span."""
    named, equals, spans = text.rpartition("=")
    there = gated_sources(pipeline)
    sources = [source for source in there if not equals or named in (source.node, *source.gates)]
    calendars = {source.node: _calendar_of(source, pipeline) for source in there}
    each = " ".join(f"--span {source.node}={calendars[source.node].example}" for source in there)
    if not sources:
        raise UsageError(f"--span {text}: no gate judges spans of {named!r}. Write one of:  {each}")
    judgements = {calendars[source.node] for source in sources}
    if len(judgements) > 1:
        raise UsageError(f"--span {text}: the nodes that gates judge use different calendars. Write one of:  {each}")
    calendar = judgements.pop()
    for label in spans.split(".."):
        parse_span(label, calendar)  # refuses a number that is hardly meant as one
    return sources, calendar, calendar.parse_range(spans)


def _calendar_of(source: GatedSource, pipeline: Pipeline) -> Calendar:
    return calendar_of(pipeline.nodes[source.node][source.key])


def _refuse_collected(loaded: Loaded, judgements: Sequence[PersonalVerdict], store: Store) -> None:
    """Refuses to accept what no window can read any more; what is published again is another artifact."""
    gone = [judged for judged in judgements if is_marked(store, COLLECTED, judged.artifact)]
    if not gone:
        return
    name = gone[0].artifact.name
    what = f"{name} was" if len(gone) == 1 else f"{name} and {len(gone) - 1} more were"
    last = next(s.gates[-1] for s in loaded.pipeline.judged if s.node == name.split("/")[1])
    spans = dict.fromkeys(judged.label for judged in gone[:_NEAREST])
    more = [f"  … and {len(gone) - _NEAREST} more like these."] if len(gone) > _NEAREST else []
    raise UsageError(
        f"{what} garbage-collected, so no window could read what you accept; nothing was recorded. Ingest and judge "
        "it again, and then accept it:\n"
        + "\n".join([*(f"  spanwise run {loaded.quoted} --span {label} --to {last}" for label in spans), *more])
    )


def gated_sources(pipeline: Pipeline) -> list[GatedSource]:
    """The channels whose spans are judged by gates of the pipeline.

    Raises:
        UsageError: it has no gate.
    """
    if not pipeline.judged:
        raise UsageError(
            f"Pipeline {pipeline.name!r} has no gate, so its windows read every span and ignore verdicts. Leave spans "
            "out of a run with --exclude, or add a gate: docs/reference/components.md#gate"
        )
    return list(pipeline.judged)


def format_judgements(judgements: Sequence[PersonalVerdict], loaded: Loaded) -> str:
    """What was recorded, a line for each artifact, and what to type next."""
    lines = [_line(judged) for judged in judgements]
    if judgements[0].verdict.given:
        lines += ["Windows read it from now on. Train with it:  " + _next_command(judgements, loaded)]
    return "\n".join(lines)


def _line(judged: PersonalVerdict) -> str:
    version = version_of(judged.artifact)
    what = judged.label + (f" v{version}" if version is not None else "")
    if not judged.changed:
        return f"{what} was {describe_standing(judged.before)} already."
    before = f"; before, it was {describe_standing(judged.before) or 'not judged'}"
    old = "" if judged.read else " Windows read a newer version of the span, so this changes nothing for them."
    word = "Accepted" if judged.verdict.given else "Refused"
    return f"{word} {what} ({judged.artifact.name}){before}.{old}"


def _next_command(judgements: Sequence[PersonalVerdict], loaded: Loaded) -> str:
    """The command that trains with what was accepted."""
    first, last = judgements[0].label, judgements[-1].label
    spans = first if first == last else f"{first}..{last}"
    judged = {judged.artifact.name.split("/")[1] for judged in judgements}
    sources = [source.node for source in list_span_sources(loaded.pipeline)]
    fed = [node for node in sources if node in judged | loaded.pipeline.ancestors(*judged)]
    named = f"{fed[0]}={spans}" if len(fed) == 1 < len(sources) else spans  # others may not have these spans yet
    return f"spanwise backfill {loaded.quoted} --span {named}" + (" --train-once" if first != last else "")


def _no_version(label: str, version: int | None, versions: Sequence[Artifact]) -> str:
    there = ", ".join(dict.fromkeys(f"v{version_of(a)}" for a in versions if version_of(a) is not None))
    return f"Span {label} was not published as v{version}; " + (
        f"it has {there}." if there else "its input has no versions, so leave out --version."
    )


def _format_nothing_published(
    store: Store, pipeline: str, sources: Sequence[GatedSource], calendar: Calendar, spans: tuple[int, int]
) -> str:
    addresses = [Address(pipeline, source.node, source.key) for source in sources]
    there = sorted({s for address in addresses for s in store.spans(address)}, key=lambda s: abs(s - spans[0]))
    near = ", ".join(calendar.label(s) for s in sorted(there[:_NEAREST]))
    first, last = (calendar.label(s) for s in spans)
    what = f"span {first}" if first == last else f"the spans {first} to {last}"
    return f"{pipeline!r} has published nothing for {what}, so there is nothing to judge. " + (
        f"Nearest: {near}." if near else "It has published no span yet."
    )
