"""Verdicts: whether an artifact is accepted or blessed, by whom and because of what. An append-only log per artifact.

The n-th verdict on an artifact is a claim: kind the mark, name `<artifact>#<n>`. Nothing is ever amended or removed, so
what was decided at any earlier moment can be read back. Each judge's newest verdict counts; that of a person overrules
all judges, until a person takes it back (docs/decisions/0070-verdicts.md).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from spanwise.orchestrator.artifact import Artifact, Judgement, Mark, Model
from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.digest import digest
from spanwise.orchestrator.lineage import find_makers, may_hold_rows
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store

T = TypeVar("T")

_REFUSED: dict[Mark, str] = {"accepted": "refused", "blessed": "not blessed"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One verdict on one artifact."""

    mark: Mark
    artifact: str  #: its name
    given: bool  #: False: the judge refuses the mark, or takes it back
    judge: str = ""  #: the node that decided; empty for a person
    by: str  #: the run (`pipeline/number`) of that node, or `user@host`
    because: str  #: one reason, or several lines of them
    created: datetime | None = None  #: when it was recorded, UTC; None before

    @property
    def personal(self) -> bool:
        """Whether a person decided, from the command line."""
        return not self.judge

    @property
    def word(self) -> str:
        """accepted, refused, blessed or not blessed."""
        return self.mark if self.given else _REFUSED[self.mark]

    @property
    def judged_by(self) -> str:
        """`ann@host`, or `AnomalyGate in run 7`."""
        return self.by if self.personal else f"{self.judge} in run {self.by.rpartition('/')[2]}"

    def __str__(self) -> str:
        first, *_ = self.because.splitlines() or [""]
        return f"{self.word} by {self.judged_by}" + (f": {first.removesuffix(':')}" if first else "")


@dataclass(frozen=True)
class Standing:
    """What the verdicts on one artifact amount to."""

    by_judge: Mapping[str, Verdict]  #: the newest of each judge; only that of a person, under "", while it holds

    @property
    def personal(self) -> Verdict | None:
        """The verdict of a person, which overrules all judges."""
        return self.by_judge.get("")

    def holds(self, judges: Iterable[str] | None = None) -> bool:
        """Whether all these judges have given the mark, or a person has; None: all that have judged, at least one."""
        if self.personal is not None:
            return self.personal.given
        asked = tuple(self.by_judge if judges is None else judges)
        return bool(asked) and all(j in self.by_judge and self.by_judge[j].given for j in asked)

    def refusal(self, judges: Iterable[str] | None = None) -> Verdict | None:
        """The verdict that withholds the mark: a person's, or that of the first judge who refused."""
        asked = ["", *(self.by_judge if judges is None else judges)]
        return next((v for j in asked if (v := self.by_judge.get(j)) is not None and not v.given), None)


def read_logs(
    store: Store, mark: Mark, logs: Iterable[str], *, as_of: datetime | None = None, people_later: bool = False
) -> dict[str, list[Verdict]]:
    """All verdicts in each of these logs that were recorded by `as_of`, oldest first; a few questions for all.

    With `people_later`, also those of people that were recorded after it. A log is named by its artifact, or by what
    all artifacts that are the same model have in common.
    """
    read: dict[str, list[Verdict]] = {log: [] for log in logs}
    left, first, size = list(read), 1, 2  # most have one verdict or none
    while left:
        names = {log: [f"{log}#{n}" for n in range(first, first + size)] for log in left}
        claims = store.find_claims(mark, [*itertools.chain(*names.values())])
        for log in left:
            read[log] += [record_of(Verdict, claims[name]) for name in names[log] if name in claims]
        left = [log for log in left if names[log][-1] in claims]  # numbered without gaps
        first, size = first + size, 2 * size
    if as_of is None:
        return read
    return {
        log: [v for v in found if (people_later and v.personal) or (v.created is not None and v.created <= as_of)]
        for log, found in read.items()
    }


def read_verdicts(store: Store, mark: Mark, artifact: str, *, as_of: datetime | None = None) -> list[Verdict]:
    """All verdicts on the artifact of this name that were recorded by `as_of`, oldest first."""
    return read_logs(store, mark, [artifact], as_of=as_of)[artifact]


def read_verdicts_on(store: Store, mark: Mark, artifact: Artifact) -> list[Verdict]:
    """All verdicts on an artifact, and those of people on the same model published under another name, oldest first."""
    shared = _log_of_data(artifact)
    logs = read_logs(store, mark, filter(None, (artifact.name, shared)))
    others = [verdict for verdict in logs.get(shared, ()) if verdict.artifact != artifact.name]
    return sorted([*logs[artifact.name], *others], key=lambda verdict: verdict.created or datetime.now(UTC))


def find_standings(
    store: Store,
    mark: Mark,
    artifacts: Iterable[Artifact],
    *,
    as_of: datetime | None = None,
    people_later: bool = False,
) -> dict[str, Standing]:
    """What the verdicts on each of these artifacts amount to, by its name, as of a moment or now.

    With `people_later`, what people have said since that moment counts as well. What a person has decided about a model
    holds for the same model published again.
    """
    shared = {artifact.name: _log_of_data(artifact) for artifact in artifacts}
    named = [*shared, *filter(None, shared.values())]
    logs = read_logs(store, mark, named, as_of=as_of, people_later=people_later)
    return {name: _weigh(logs[name], logs[log] if log else ()) for name, log in shared.items()}


def find_standing(
    store: Store, mark: Mark, artifact: Artifact, *, as_of: datetime | None = None, people_later: bool = False
) -> Standing:
    """The same of one artifact."""
    return find_standings(store, mark, [artifact], as_of=as_of, people_later=people_later)[artifact.name]


def _weigh(verdicts: Iterable[Verdict], of_the_same: Sequence[Verdict]) -> Standing:
    """The verdicts on an artifact, and those of people on all artifacts that are the same model."""
    if of_the_same:
        return Standing({"": of_the_same[-1]})
    by_judge: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.personal:
            by_judge = {"": verdict}
        elif "" not in by_judge:  # a judge decided while a person did: the person's holds
            by_judge[verdict.judge] = verdict
    return Standing(by_judge)


def find_standing_of_model(
    store: Store, model: Artifact, *, as_of: datetime | None = None, people_later: bool = False
) -> Standing:
    """What the verdicts on a model amount to, with those on the models that it was made of, as by an export.

    The newest decision of a person about any of them counts; without one, what the judges said of each.
    """
    group = {model.name: [model, *find_origins(store, model)]}
    return find_joint_standings(store, group, as_of=as_of, people_later=people_later)[model.name]


def find_joint_standings(
    store: Store, groups: Mapping[str, Sequence[Artifact]], *, as_of: datetime | None = None, people_later: bool = False
) -> dict[str, Standing]:
    """The same of many groups, each a model with those that it was made of, by the names of the groups."""
    judged = itertools.chain(*groups.values())
    standings = find_standings(store, "blessed", judged, as_of=as_of, people_later=people_later)
    return {name: _weigh_together([standings[each.name] for each in group]) for name, group in groups.items()}


def _weigh_together(standings: Sequence[Standing]) -> Standing:
    personal = [standing.personal for standing in standings if standing.personal is not None]
    if personal:
        return Standing({"": max(personal, key=lambda verdict: verdict.created or datetime.now(UTC))})
    return Standing({judge: verdict for each in standings for judge, verdict in each.by_judge.items()})


def find_origins(store: Store, model: Artifact) -> list[Artifact]:
    """The models that a model was made of by components that read no rows: what is decided about them is about it.

    One that records a base was trained from that, which no export is.
    """
    return find_origins_of_many(store, [model])[model.name]


def find_origins_of_many(
    store: Store, models: Collection[Artifact], known: Iterable[Artifact] = ()
) -> dict[str, list[Artifact]]:
    """The same of each of many models, by its name; `known` are artifacts that need not be read again."""
    names = {model.id: model.name for model in models}
    trained = {model.id for model in models if model.properties.get("base") is not None}
    makers = find_makers(store.links(artifacts=names, read=False))
    read: dict[int, list[int]] = defaultdict(list)
    for link in store.links(executions=set(makers.values()), read=True):
        read[link.execution].append(link.artifact)
    rows = {artifact.id for artifact in known if may_hold_rows(artifact)}
    unread = {i for ids in read.values() if rows.isdisjoint(ids) for i in ids}
    found = {artifact.id: artifact for artifact in store.artifacts_by_id(unread)}
    rows.update(artifact.id for artifact in found.values() if may_hold_rows(artifact))
    direct: dict[str, list[Artifact]] = {name: [] for name in names.values()}
    for model, maker in makers.items():
        if model not in trained and rows.isdisjoint(read[maker]):
            direct[names[model]] = [found[i] for i in sorted(read[maker]) if found[i].is_a(Model)]
    further = find_origins_of_many(store, [*itertools.chain(*direct.values())]) if any(direct.values()) else {}
    return {
        name: [*made_of, *itertools.chain(*(further[each.name] for each in made_of))]
        for name, made_of in direct.items()
    }


def is_given(
    store: Store, mark: Mark, artifact: Artifact, *, as_of: datetime | None = None, people_later: bool = False
) -> bool:
    """Whether an artifact has the mark: the newest verdicts of all its judges give it, or that of a person does."""
    return find_standing(store, mark, artifact, as_of=as_of, people_later=people_later).holds()


def judges_of(store: Store, mark: Mark, artifact: Artifact) -> tuple[str, ...]:
    """The nodes that have ever decided about an artifact, in the order in which they first did."""
    return tuple(dict.fromkeys(v.judge for v in read_verdicts(store, mark, artifact.name) if v.judge))


def first_verdicts(artifact: Artifact) -> tuple[str, ...]:
    """The names of the claims of which one exists where an artifact, or the same model before it, was ever judged."""
    log = _log_of_data(artifact)
    return (f"{artifact.name}#1", f"{log}#1") if log else (f"{artifact.name}#1",)


def append(store: Store, verdicts: Sequence[Verdict]) -> None:
    """Records verdicts in one transaction, each at the next place of its log."""
    write_with(store, verdicts, lambda claims: store.claim(*claims))


def append_personal(store: Store, verdict: Verdict, artifact: Artifact) -> None:
    """Records what a person has decided about an artifact; about a model, also for the same model published again."""
    log = _log_of_data(artifact)
    write_with(store, [verdict], lambda claims: store.claim(*claims), also=[(log, verdict)] if log else [])


def write_with(
    store: Store,
    verdicts: Sequence[Verdict],
    write: Callable[[Sequence[Claim]], T],
    *,
    also: Sequence[tuple[str, Verdict]] = (),
) -> T:
    """Calls `write` with the claims that record these verdicts; again, with others, when someone was faster.

    A judge's verdict that changes nothing is not recorded again, nor one that a person has overruled. `also` has
    verdicts for other logs than those of their artifacts, by the name of the log.
    Raises what `write` raises; AlreadyClaimed only when another claim of that write exists.
    """
    while True:
        changing = [(verdict.artifact, verdict) for verdict in verdicts if _changes(store, verdict)]
        claims = _claim_places(store, [*changing, *also])
        try:
            return write(claims)
        except AlreadyClaimed:
            if not any(store.find_claim(claim.kind, claim.name) for claim in claims):
                raise


def verdicts_of(outputs: Iterable[Artifact], *, judge: str, run: str) -> list[Verdict]:
    """The verdicts that publishing these outputs of a node records: a blessing judges its model."""
    return [verdict_of(judgement, judge=judge, run=run) for artifact in outputs for judgement in artifact.judgements()]


def verdict_of(judgement: Judgement, *, judge: str, run: str) -> Verdict:
    """The judgement as a verdict of a node in a run."""
    return Verdict(
        mark=judgement.mark,
        artifact=judgement.artifact,
        given=judgement.given,
        judge=judge,
        by=run,
        because=judgement.because,
    )


def _log_of_data(artifact: Artifact) -> str:
    """Where people's verdicts on a model are recorded for all artifacts that are the same model; empty for others.

    The same are those of one channel with the same files, learned from the same spans. Without files, nothing says so.
    """
    if not artifact.is_a(Model) or not artifact.content or not artifact.size_bytes:
        return ""
    same = digest("model", artifact.content, repr(artifact.properties.get("spans")))
    return f"{artifact.name.rpartition('/')[0]}={same}"


def _changes(store: Store, verdict: Verdict) -> bool:
    """Whether recording it says anything new. What a person says is always recorded."""
    if verdict.personal:
        return True
    standing = find_standing(store, verdict.mark, Artifact("", name=verdict.artifact))
    known = standing.by_judge.get(verdict.judge)
    if standing.personal is not None:
        return False
    return known is None or (known.given, known.because) != (verdict.given, verdict.because)


def _claim_places(store: Store, verdicts: Sequence[tuple[str, Verdict]]) -> list[Claim]:
    """The claims that record verdicts, each at the next place of the log that is named with it."""
    before: Counter[tuple[Mark, str]] = Counter()
    claims = []
    for name, verdict in verdicts:
        log = (verdict.mark, name)
        before[log] += 1
        place = len(read_verdicts(store, *log)) + before[log]
        claims.append(Claim(verdict.mark, f"{name}#{place}", facts_of(verdict, without=("created",))))
    return claims
