"""Renewals: which artifact of a place is current. A reuse of an older one makes it current again.

A run that reuses an artifact gives it to its readers just as a run that publishes a new one. When another artifact was
published or reused in between, the reuse is recorded as a renewal, a claim in the transaction that publishes the
execution. So the order of a place (`pipeline/node/key`, with a span where the kind has spans) is that in which its
artifacts were last published or reused; nothing is amended, and the order at any earlier moment can be read back.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.store import Address, Claim, Store

RENEWED = "renewed"
"""The kind of the claims; the n-th renewal at a place is named `<place>#<n>`."""


def current_first(
    store: Store, place: str, published: Iterable[Artifact], *, as_of: datetime | None = None
) -> Iterator[Artifact]:
    """The artifacts of a place, the one that was published or reused last first, each once.

    `published` are all artifacts of the place, the newest publication first. With `as_of`, later renewals do not count.
    """
    renewals = _newest_first(store, place, as_of)
    renewal = next(renewals, None)
    seen: set[str] = set()
    for artifact in published:
        while renewal is not None and renewal.get_int("after") >= artifact.id:
            name = str(renewal.facts["artifact"])
            if name not in seen:
                seen.add(name)
                yield store.artifact(name)
            renewal = next(renewals, None)
        if artifact.name not in seen:
            seen.add(artifact.name)
            yield artifact


def current_without_span(store: Store, address: Address, *, as_of: datetime | None = None) -> Iterator[Artifact]:
    """The artifacts of a kind without spans, the current one first."""
    return current_first(store, str(address), store.newest(address), as_of=as_of)


def current_of_span(store: Store, address: Address, span: int, *, as_of: datetime | None = None) -> list[Artifact]:
    """The artifacts of a span, of any version, the one that was published or reused last at the end."""
    return current_of_spans(store, address, [span], as_of=as_of)[span]


def current_of_spans(
    store: Store, address: Address, spans: Collection[int], *, as_of: datetime | None = None
) -> dict[int, list[Artifact]]:
    """The same of each of many spans."""
    found = store.of_spans(address, spans)
    several = {f"{address}/{span}": span for span, published in found.items() if len(published) > 1}
    for place in find_renewed(store, several):
        span = several[place]
        found[span] = [*current_first(store, place, reversed(found[span]), as_of=as_of)][::-1]
    return found


def find_renewed(store: Store, places: Iterable[str]) -> set[str]:
    """The places among these that have renewals. At all others, what was published last is current."""
    firsts = [f"{place}#1" for place in places]
    return {name.rpartition("#")[0] for name in store.find_claims(RENEWED, firsts)} if firsts else set()


def renewals_of(store: Store, reused: Iterable[Artifact]) -> list[Claim]:
    """The claims that make reused artifacts current again; none for those that are current."""
    by_place: dict[str, list[Artifact]] = defaultdict(list)
    for artifact in reused:
        by_place[place_of(artifact)].append(artifact)
    return [claim for place, artifacts in by_place.items() for claim in _renew(store, place, artifacts)]


def place_of(artifact: Artifact) -> str:
    """`pipeline/node/key`, or `pipeline/node/key/span` for kinds with spans, of a published artifact."""
    return artifact.name.rpartition("/")[0]


def _renew(store: Store, place: str, artifacts: Sequence[Artifact]) -> Iterator[Claim]:
    newest = next(_published(store, artifacts[0]))
    current = itertools.islice(current_first(store, place, _published(store, artifacts[0])), len(artifacts))
    if [a.id for a in current] == [a.id for a in reversed(artifacts)]:
        return
    last = _count(store, place)
    for number, artifact in enumerate(artifacts, start=last + 1):
        yield Claim(RENEWED, f"{place}#{number}", {"artifact": artifact.name, "after": newest.id})


def _published(store: Store, artifact: Artifact) -> Iterator[Artifact]:
    """All artifacts at the place of this one, the newest publication first."""
    address, span = Address(*artifact.name.split("/")[:3]), artifact.properties.get("span")
    return reversed(store.of_span(address, span)) if isinstance(span, int) else store.newest(address)


def _newest_first(store: Store, place: str, as_of: datetime | None) -> Iterator[Claim]:
    for number in range(_count(store, place), 0, -1):
        claim = store.find_claim(RENEWED, f"{place}#{number}")
        assert claim is not None, "renewals are numbered without gaps, and none is ever removed"
        if as_of is None or datetime.fromisoformat(str(claim.facts["created"])) <= as_of:
            yield claim


def _count(store: Store, place: str) -> int:
    return store.last_claim(RENEWED, f"{place}#")
