"""Histories: the artifacts published on one channel, as one run may see them. Read only; resolvers choose from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from spanwise.orchestrator.artifact import Artifact, Model
from spanwise.orchestrator.calendar import Calendar, Version
from spanwise.orchestrator.errors import ResolutionError
from spanwise.orchestrator.lineage import Direction, find_makers, may_hold_rows, passes_rows, walk
from spanwise.orchestrator.making import find_making
from spanwise.orchestrator.renewal import current_of_span, current_of_spans, current_without_span
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.scope import GatedSource
from spanwise.orchestrator.serving import Push, pushes
from spanwise.orchestrator.store import Address, Store
from spanwise.orchestrator.verdict import Standing, Verdict, find_standing_of_model, find_standings, is_given

_MOST_AHEAD = 64  # spans that are read ahead at once


@dataclass(frozen=True, kw_only=True)
class Withheld:
    """Why the newest version of a span does not count."""

    artifact: Artifact  #: that version
    gates: tuple[str, ...]  #: those that have to accept it
    verdict: Verdict | None = None  #: the refusal; None when it is not judged yet
    named: str = ""  #: the node that made it, where a command has to name it
    joined: str = ""  #: its span, where the span that does not count was made from another one of that node
    through: str = ""  #: its span, where it was refused since the span that does not count was made from it
    unread_by: str = ""  #: the node of the channel, where it has not read that version, which no gate withholds
    barren_run: int | None = None  #: the run in which that node has read it all the same, and made nothing of it

    def __str__(self) -> str:
        if self.verdict is not None:
            return f"made from {self.through}, {self.verdict}" if self.through else str(self.verdict)
        if self.unread_by:
            known = f"{self.artifact.name} {'is accepted' if self.gates else 'was ingested'}, but {self.unread_by}"
            if self.barren_run is not None:
                return f"{known} made nothing of it in run {self.barren_run}"
            return f"{known} has not read it"
        return f"not judged yet by {' and '.join(self.gates)}"


@dataclass(frozen=True)
class History:
    """The artifacts at one address of the store, as one run sees them.

    With `as_of`, artifacts and verdicts that were recorded later do not exist; but unless the run is a replay, what
    people have said since counts, as in a parallel run of a backfill, which is to see no other run. `mine` holds the
    artifacts that this run has published, so that "the latest model" never means the model that this run has just
    trained (law 8); what its base run has `supplied` may be meant, unless it is compared with the choice. Where gates
    judge the spans, those count whose newest version is accepted (law 13); an older version never takes its place.
    Artifacts that record another calendar do not exist: an hour and a day of the same number are different spans.

    It reads what was published for a span, and what gates said of it, once: one decision is made from one state.
    """

    store: Store
    address: Address
    kind: type[Artifact]  #: of the artifacts
    run: Run
    mine: tuple[Artifact, ...] = ()
    gated: tuple[GatedSource, ...] = ()  #: what the artifacts are, or derive from, as far as gates judge it
    calendar: Calendar | None = None  #: how the spans of the channel are counted now; None when it is not known
    origins: tuple[Address, ...] = ()  #: what the artifacts derive from span by span, as far as no gate judges it
    ingests: tuple[str, ...] = ()  #: the nodes that ingest spans for the artifacts
    ingested: Address | None = None  #: the channel of which each span is made into one of these
    through: tuple[GatedSource, ...] = ()  #: what they may be made from through the choice of another resolver
    compared: bool = True  #: what is chosen is compared with what this run makes, so the champion is none of `mine`
    supplied: bool = False  #: the base run has supplied what is in `mine`
    awaited: frozenset[str] = frozenset()  #: the nodes of this run of which pushes and blessings count

    @property
    def as_of(self) -> datetime | None:
        """Artifacts published later are hidden."""
        return self.run.as_of

    def spans(self, *, below: int | None = None) -> Iterator[int]:
        """The spans that count, highest first, lower than `below`."""
        return (s for s in self.published_spans(below=below) if self.of_span(s))

    def earlier_spans(self) -> Iterator[int]:
        """The spans that count, highest first, except those of which the newest version is one of this run."""
        hidden = self._hidden
        return (s for s in self.spans() if self.published(s)[-1].id not in hidden)

    def of_span(self, span: int) -> list[Artifact]:
        """All artifacts of a span that counts, in the order of `versions_of`; none of one that does not."""
        return [] if self.withheld(span) is not None else self.published(span)

    def newest_version(self, span: int) -> Artifact | None:
        """The newest version of a span that counts; of one that was published several times, the current artifact.

        Raises:
            ResolutionError: it consists of several artifacts.
        """
        found = self.of_span(span)
        if found:
            self.refuse_parts([span])
        return found[-1] if found else None

    def newest_span(self) -> int | None:
        """The highest span that was published, or ingested to be made into one of these: it may have been refused."""
        made = next(self.published_spans(), None)
        if self.ingested is None:
            return made
        there = (s for s in self.store.spans(self.ingested) if self._given(self.ingested, s))
        ingested = next(there, None)
        if ingested is None or (made is not None and ingested <= made) or not self._is_made_span_by_span:
            return made
        return ingested

    def published_spans(self, *, below: int | None = None) -> Iterator[int]:
        """All spans with visible artifacts, whether they count or not, highest first."""
        there = self._spans if below is None else self._read_spans(self.store.spans(self.address, below=below))
        return (s for s in there if self.published(s))

    def published(self, span: int) -> list[Artifact]:
        """All artifacts of a span, whether it counts or not; the one that a window would read is the last."""
        found = _by_version(self._current(span), self.calendar)
        return [a.as_kind(self.kind) for a in found if self._is_visible(a)]

    def refuse_parts(self, spans: Iterable[int]) -> None:
        """Refuses spans of which the newest version consists of several artifacts: one of them is not that span.

        Raises:
            ResolutionError: one execution has made several of the same version.
        """
        there = [published for span in spans if (published := self.published(span))]
        parts = next((found for found in find_parts(self.store, there) if len(found) > 1), None)
        if parts is not None:
            node, key = self.address.node, self.address.key
            raise ResolutionError(
                f"{node} made {len(parts)} artifacts of span {self._label(parts[-1])} in one execution, and only "
                f"{parts[-1].name} would be read: resolvers choose one for each span.\nPublish one for each span, with "
                f"a split or a file for each part, or connect {node.lower()}[{key!r}] itself, without a resolver."
            )

    def last_given(self, span: int) -> Artifact | None:
        """The artifact of a span, of any version, that was published or reused last."""
        counted = (a for a in reversed(self._current(span)) if _is_counted_by(self.calendar, a) and self._is_visible(a))
        return next(counted, None)

    def read_ahead(self, spans: Iterable[int]) -> None:
        """Reads what was published for spans that will be asked about, in a few questions for all of them."""
        unread = [span for span in spans if span not in self._known]
        if not unread:
            return
        self._known.update(current_of_spans(self.store, self.address, unread, as_of=self.as_of))
        if any(self._origin(source) == self.address for source in self.gated):
            self._judge_ahead([newest for span in unread for newest in self.published(span)[-1:]])

    def other_calendar(self) -> Calendar | None:
        """The calendar of the highest span that was published here, where it is another one than now."""
        highest = next(self.store.spans(self.address), None)
        found = [] if highest is None else self.store.of_span(self.address, highest)
        if not found or any(_is_counted_by(self.calendar, artifact) for artifact in found):
            return None
        return Calendar.from_name(found[-1].properties.get("calendar"))

    @property
    def last_nodes(self) -> tuple[str, ...]:
        """The nodes after which a span counts: the last gate that judges it, and the node that makes what is read."""
        if not self.gated:
            return (self.address.node,)
        judged = self.gated[-1].gates[-1]
        return (judged,) if self.address.node in {each.node for each in self.gated} else (judged, self.address.node)

    def name_spans(self, span: int, label: str) -> str:
        """The options of `spanwise run` that name a span of this channel, which may be made of different spans.

        Those that it was made of; of one that was never published, those that it shares its number with in the newest.
        """
        if len(self.ingests) <= 1:
            return f"--span {label}"
        made = next(reversed(self.published(span)), None)
        newest = next(self.published_spans(), None)
        example = made or (None if newest is None else self.published(newest)[-1])
        if example is None:
            return f"--span {label}"
        given = {node: self._ingested_for(example, node) for node in self.ingests}
        shared = {node for node, a in given.items() if a is not None and _is_same_span(a, example)}
        if len(shared) == len(given):
            return f"--span {label}"
        others = {node: "SPAN" if a is None or made is None else self._label(a) for node, a in given.items()}
        return " ".join(f"--span {node}={label if node in shared else others[node]}" for node in self.ingests)

    def withheld(self, span: int) -> Withheld | None:
        """Why a span does not count that is there, or was ingested and not made into one; None when it counts."""
        newest = next(reversed(self.published(span)), None)
        return self._object_unmade(span) if newest is None else self.objection(newest)

    def objection(self, artifact: Artifact) -> Withheld | None:
        """Why an artifact of a span does not count; None when it does."""
        found = (withheld for source in self.gated if (withheld := self._object(source, artifact)) is not None)
        return next(found, None) or self._object_through(artifact)

    def find_refused(self, model: Artifact) -> Withheld | None:
        """What a model, or one that it was made of or trained on from, learned here and was refused since."""
        if not self.gated:
            return None
        above = walk(self.store, [model], Direction.UP, carries=passes_rows).artifacts
        read = (a for _, a in sorted(above.items()) if a.name.startswith(f"{self.address}/"))
        found = (withheld for artifact in read if (withheld := self.objection(artifact)) is not None)
        return next((w for w in found if w.verdict is not None and w.artifact.id in above), None)

    def replaced_origin(self, artifact: Artifact) -> tuple[Artifact, Artifact] | None:
        """What an artifact was made from that other data of the same span has replaced since, and the newest of it.

        The same data published again replaces nothing. What was made from other spans of a channel alone is not
        considered, such as the features of a day that are joined with prices of the day before.
        """
        for address in self.origins:
            visible = self._given(address, span_of(artifact))
            if len({identity_of(a) for a in visible}) > 1:
                made_from = self._made_from(artifact)
                used = [a for a in visible if a.id in made_from]
                if used and identity_of(visible[-1]) not in {identity_of(a) for a in used}:
                    return used[-1], visible[-1]
        return None

    def find_barren_run(self, read: Artifact) -> int | None:
        """The run in which the node of this channel last succeeded on what was ingested, if it made nothing of that."""
        links = self.store.links(artifacts=[read.id], read=False)
        gave = self.store.executions_by_id({link.execution for link in links})
        for number in sorted({e.run for e in gave if not e.replay}, reverse=True):
            executions = self.store.executions(self.store.run(self.address.pipeline, number))
            made = [e for e in executions if e.node == self.address.node and e.state.succeeded]
            if made and (self.as_of is None or (made[-1].ended is not None and made[-1].ended <= self.as_of)):
                return None if made[-1].outputs.get(self.address.key) else number
        return None

    def newest(self) -> Iterator[Artifact]:
        """Artifacts without a span, the one that was published or reused last first, except those of this run.

        Models whose blessing a person has taken back are passed over.
        """
        hidden = self._hidden
        current = current_without_span(self.store, self.address, as_of=self.as_of)
        found = (a for a in current if self._is_visible(a) and a.id not in hidden)
        return (a.as_kind(self.kind) for a in found if not self._is_taken_back(a))

    def latest(self) -> Artifact | None:
        """The newest version of the newest span, or the newest artifact of a kind without spans."""
        highest = next(self.spans(), None)
        return next(self.newest(), None) if highest is None else self.newest_version(highest)

    def blessed(self) -> Iterator[Artifact]:
        """The artifacts that are blessed, the newest publication first, except those of this run.

        A reuse blesses nothing.
        """
        return (a for a in self._by_publication() if self._find_blessing(a).holds())

    def served(self, pushed_by: str | None = None) -> Iterator[tuple[Artifact, Push]]:
        """The artifacts that were pushed, by any node or this one, each with its push, the last push first.

        A push of this run counts if it was awaited; one by a node that runs beside would count by chance.
        """
        for push in pushes(self.store, str(self.address), as_of=self.as_of):
            if pushed_by in (None, push.node) and self._is_settled(push.run, push.node):
                yield self.store.artifact(push.model).as_kind(self.kind), push

    def champion(self, pushed_by: str | None = None) -> Artifact | None:
        """The artifact that was pushed last; while none was, the newest that is blessed.

        Where it is compared with what this run makes, it is never one of this run (law 8). One whose blessing a person
        has taken back is passed over; what its Evaluator says later changes nothing of what serves.
        """
        mine = {a.id for a in self.mine} if self.compared else set()
        for artifact, _ in self.served(pushed_by):
            if artifact.id not in mine and not self._is_taken_back(artifact):
                return artifact
        return next(self.blessed() if self.compared else self._blessed_so_far(), None)

    @cached_property
    def _known(self) -> dict[int, list[Artifact]]:
        """What was published for the spans that were read, the one that was published or reused last at the end."""
        return {}

    @cached_property
    def _spans(self) -> Iterable[int]:
        """All published spans, highest first, read no further than necessary."""
        return _Replayable(self._read_spans(self.store.spans(self.address)))

    @cached_property
    def _standings(self) -> dict[str, Standing]:
        """What gates and people said of the artifacts that were read, by name."""
        return {}

    def judge(self, artifacts: Iterable[Artifact]) -> dict[str, Standing]:
        """What gates and people said of artifacts, as this run sees it, by name."""
        heard = not self.run.replay
        return find_standings(self.store, "accepted", artifacts, as_of=self.as_of, people_later=heard)

    @cached_property
    def _makings(self) -> dict[int, Mapping[str, Execution]]:
        """What ran in the runs that made artifacts, by the ids of these."""
        return {}

    def _making(self, artifact: Artifact) -> Mapping[str, Execution]:
        if artifact.id not in self._makings:
            self._makings[artifact.id] = find_making(self.store, artifact, as_of=self.as_of)
        return self._makings[artifact.id]

    def _ingested_for(self, artifact: Artifact, node: str) -> Artifact | None:
        """What a node that ingests gave in the run that made an artifact."""
        made = self._making(artifact).get(node)
        every = itertools.chain(*made.outputs.values()) if made is not None else ()
        return next((a for a in every if isinstance(a.properties.get("span"), int)), None)

    def _label(self, artifact: Artifact) -> str:
        return Calendar.from_name(artifact.properties.get("calendar") or self.run.calendar).label(span_of(artifact))

    def _judge_ahead(self, artifacts: Sequence[Artifact]) -> None:
        self._standings.update(self.judge(artifacts))

    def _standing(self, artifact: Artifact) -> Standing:
        if artifact.name not in self._standings:
            self._judge_ahead([artifact])
        return self._standings[artifact.name]

    def _origin(self, source: GatedSource) -> Address:
        return Address(self.address.pipeline, source.node, source.key)

    def _current(self, span: int) -> Sequence[Artifact]:
        self.read_ahead([span])
        return self._known[span]

    def _read_spans(self, spans: Iterator[int]) -> Iterator[int]:
        """Yields spans, reading ever more of them ahead: the highest is often all that is asked for."""
        size = 1
        while ahead := list(itertools.islice(spans, size)):
            self.read_ahead(ahead)
            yield from ahead
            size = min(2 * size, _MOST_AHEAD)

    @property
    def _hidden(self) -> set[int]:
        """The ids of what this run made, and of what it was supplied with and compares its choice with."""
        return {a.id for a in self.mine} if self.compared or not self.supplied else set()

    def _by_publication(self, *, own: bool = False) -> Iterator[Artifact]:
        """The newest first; those of this run only with `own`."""
        hidden = set() if own else self._hidden
        found = (a for a in self.store.newest(self.address) if self._is_visible(a) and a.id not in hidden)
        return (a.as_kind(self.kind) for a in found)

    def _blessed_so_far(self) -> Iterator[Artifact]:
        """Those that are blessed, also of this run, unless a node that runs beside has blessed them."""
        for artifact in self._by_publication(own=True):
            blessing = self._find_blessing(artifact)
            if blessing.holds() and all(self._is_settled(v.by, v.judge) for v in blessing.by_judge.values()):
                yield artifact

    def _find_blessing(self, artifact: Artifact) -> Standing:
        """What was said of an artifact; of one that nobody has blessed itself, nothing."""
        heard = not self.run.replay
        if not is_given(self.store, "blessed", artifact, as_of=self.as_of, people_later=heard):
            return Standing({})
        return find_standing_of_model(self.store, artifact, as_of=self.as_of, people_later=heard)

    def _is_taken_back(self, artifact: Artifact) -> bool:
        """Whether it is a model whose blessing a person has taken back."""
        if not artifact.is_a(Model):
            return False
        verdict = find_standing_of_model(self.store, artifact, as_of=self.run.heard_until).personal
        return verdict is not None and not verdict.given

    def _is_settled(self, run: str, node: str) -> bool:
        """Whether what a node has said or done in a run is known before this run chooses."""
        return run != self.run.name or node in self.awaited

    def _object(self, source: GatedSource, artifact: Artifact) -> Withheld | None:
        """What gates say against an artifact, or against the newest version of the span that it was made from.

        Where it was made from another span, such as that of the day before, or of the month, against what was read.
        """
        mine = artifact.id in {a.id for a in self.mine}
        gates = tuple(g for g in source.gates if not (mine and g in source.pending))
        judged, named, unread = artifact, "" if source.alone else source.node, False
        address = self._origin(source)
        if address != self.address:
            if not gates:
                return None
            versions = self._given(address, span_of(artifact))
            made_from = self._made_from(artifact) if versions else set()
            if made_from.isdisjoint(a.id for a in versions) and (joined := self._joined_from(address, artifact)):
                return next((w for a in joined if (w := self._object_joined(source, gates, a)) is not None), None)
            judged = versions[-1] if versions else artifact
            unread = judged.id not in made_from
        if (withheld := self._judge_newest(source, gates, judged)) is not None:
            return withheld
        return self._describe_unread(judged, gates, named) if unread else None

    def _judge_newest(self, source: GatedSource, gates: tuple[str, ...], judged: Artifact) -> Withheld | None:
        """What these gates say against the newest version of a span."""
        standing = self._standing(judged)
        refusal = standing.refusal(gates)
        if refusal is None and (not gates or standing.holds(gates)):
            return None
        named = "" if source.alone else source.node
        return Withheld(artifact=judged, gates=gates, verdict=refusal, named=named)

    def _object_unmade(self, span: int) -> Withheld | None:
        """Why nothing was made of a span that was ingested; None of one that was not, or that is not made into one."""
        given = [] if self.ingested is None else self._given(self.ingested, span)
        if not given or not self._is_made_span_by_span:
            return None
        for source in self.gated:
            judged = self._given(self._origin(source), span)
            if judged and (withheld := self._judge_newest(source, source.gates, judged[-1])) is not None:
                return withheld
        gates = tuple(itertools.chain(*(source.gates for source in self.gated)))
        return self._describe_unread(given[-1], gates)

    def _describe_unread(self, given: Artifact, gates: tuple[str, ...], named: str = "") -> Withheld:
        """Why a span does not count of which nothing was made."""
        barren, node = self.find_barren_run(given), self.address.node
        return Withheld(artifact=given, gates=gates, named=named, unread_by=node, barren_run=barren)

    @cached_property
    def _is_made_span_by_span(self) -> bool:
        """Whether the newest span was made from what was ingested as the same span, as far as that is known."""
        newest = next((a for span in self._spans for a in reversed(self._given(self.address, span))), None)
        given = None if newest is None or self.ingested is None else self._ingested_for(newest, self.ingested.node)
        return newest is None or given is None or _is_same_span(given, newest)

    def _given(self, address: Address, span: int) -> list[Artifact]:
        """What was published for a span at an address, as far as this run sees it, the newest version last."""
        found = versions_of(self.store, address, span, self.calendar, as_of=self.as_of)
        return [a for a in found if self._is_visible(a)]

    def _joined_from(self, address: Address, artifact: Artifact) -> Sequence[Artifact]:
        """What an artifact was made from on a channel, where that is of other spans; empty where it is of the same."""
        if len(self.ingests) <= 1:
            return ()
        made = self._making(artifact).get(address.node)
        given = made.outputs.get(address.key, ()) if made is not None else ()
        return [a for a in given if not _is_same_span(a, artifact)]

    def _object_joined(self, source: GatedSource, gates: tuple[str, ...], read: Artifact) -> Withheld | None:
        standing = self._standing(read)
        refusal = standing.refusal(gates)
        if refusal is None and standing.holds(gates):
            return None
        return Withheld(artifact=read, gates=gates, verdict=refusal, named=source.node, joined=self._label(read))

    def _object_through(self, artifact: Artifact) -> Withheld | None:
        """The refusal of rows that an artifact was made from through the choice of another resolver.

        What a model predicts is not made from what that has learned, nor features from what their graph has seen.
        """
        if not self.through:
            return None
        rows = walk(self.store, [artifact], Direction.UP, carries=lambda read, _made: may_hold_rows(read))
        above = rows.artifacts
        for source in self.through:
            there = f"{self._origin(source)}/"
            read = [a for _, a in sorted(above.items()) if a.id != artifact.id and a.name.startswith(there)]
            self._judge_ahead([a for a in read if a.name not in self._standings])
            for each in read:
                if (refusal := self._standing(each).refusal(source.gates)) is not None:
                    named, label = "" if source.alone else source.node, self._label(each)
                    return Withheld(artifact=each, gates=source.gates, verdict=refusal, named=named, through=label)
        return None

    def _made_from(self, artifact: Artifact) -> set[int]:
        """The ids of all artifacts of the same span that this one was made from, or would be made from again."""
        known: set[int] = set()
        frontier: Iterable[int] = [artifact.id]
        span = span_of(artifact)
        while frontier:
            makers = {link.execution for link in self.store.links(artifacts=list(frontier)) if not link.read}
            read = (
                {link.artifact for link in self.store.links(executions=makers) if link.read} - known
                if makers
                else set()
            )
            same = [a.id for a in self.store.artifacts_by_id(read) if a.properties.get("span") == span]
            known |= read
            frontier = same
        return known

    def _is_visible(self, artifact: Artifact) -> bool:
        return self.as_of is None or (artifact.created is not None and artifact.created <= self.as_of)


def span_of(artifact: Artifact) -> int:
    """The span of an artifact of a kind that has one."""
    span = artifact.properties["span"]
    assert isinstance(span, int)
    return span


def _is_same_span(one: Artifact, other: Artifact) -> bool:
    """Whether two artifacts are of one span, as far as they say how it is counted."""
    calendars = {c for a in (one, other) if (c := a.properties.get("calendar")) is not None}
    return one.properties.get("span") == other.properties.get("span") and len(calendars) <= 1


def version_of(artifact: Artifact) -> Version:
    """The version of the data; None if its span has no versions."""
    version = artifact.properties.get("version")
    return version if isinstance(version, int) else None


def identity_of(artifact: Artifact) -> tuple[Version, str]:
    """What says which data it is; the same published again, as when its files were gone, is no newer version."""
    return version_of(artifact), artifact.content


def version_key(artifact: Artifact) -> int:
    """Orders versions: none is lowest."""
    version = version_of(artifact)
    return -1 if version is None else version


def versions_of(
    store: Store, address: Address, span: int, calendar: Calendar | None, *, as_of: datetime | None = None
) -> list[Artifact]:
    """All artifacts of a span of this calendar: by version, and of the same version the current one last.

    The last of them is the one that windows read, and that supersedes the others.
    """
    return _by_version(current_of_span(store, address, span, as_of=as_of), calendar)


def find_parts(store: Store, spans: Iterable[Sequence[Artifact]]) -> list[list[Artifact]]:
    """Of the artifacts of each span, by version: the last, and others of its version that were made with it."""
    newest = [[a for a in found if version_of(a) == version_of(found[-1])] for found in spans]
    asked = {a.id for found in newest if len(found) > 1 for a in found}
    makers = find_makers(store.links(artifacts=asked, read=False)) if asked else {}
    return [[a for a in found if makers.get(a.id) == makers.get(found[-1].id)] for found in newest]


def _by_version(found: Iterable[Artifact], calendar: Calendar | None) -> list[Artifact]:
    return sorted((a for a in found if _is_counted_by(calendar, a)), key=version_key)


def _is_counted_by(calendar: Calendar | None, artifact: Artifact) -> bool:
    """Whether the span of an artifact is of this calendar, or nothing says that it is not."""
    recorded = artifact.properties.get("calendar")
    return calendar is None or recorded is None or recorded == calendar.value


class _Replayable(Iterable[int]):
    """An iterator that can be iterated again; it is read no further than necessary."""

    def __init__(self, source: Iterator[int]) -> None:
        self._source = source
        self._read: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for place in itertools.count():
            if place == len(self._read):
                item = next(self._source, None)
                if item is None:
                    return
                self._read.append(item)
            yield self._read[place]
