"""What serves: the pushes of the models of one channel, in order. An append-only log, by name.

The n-th push of a model of a channel is a claim: kind `served`, name `pipeline/node/key#<n>`. It is written in the
transaction that publishes the push, so what served at any earlier moment can be read back. What happens in a
destination without a Pusher, such as a version that somebody has moved away, is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact, PushedModel
from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import Claim, Store, find_last

SERVED = "served"
"""The kind of the claims."""


@dataclass(frozen=True, kw_only=True)
class Push:
    """One push: from then on, the model serves there."""

    model: str  #: name of the artifact
    node: str  #: of the Pusher
    run: str  #: `pipeline/number`
    destination: str  #: the folder or URL of the version
    created: datetime | None = None  #: when it was recorded, UTC; None before


def pushes(store: Store, channel: str, *, as_of: datetime | None = None) -> Iterator[Push]:
    """The pushes of the models of a channel, `pipeline/node/key`, newest first; recorded by `as_of`."""
    for number in range(_count(store, channel), 0, -1):
        claim = store.find_claim(SERVED, f"{channel}#{number}")
        assert claim is not None, "pushes are numbered without gaps, and none is ever removed"
        push = record_of(Push, claim)
        if as_of is None or (push.created is not None and push.created <= as_of):
            yield push


def claim_pushes(store: Store, execution: Execution, outputs: Iterable[Artifact]) -> list[Claim]:
    """The claims that record what an execution pushed; none for a model that this node had pushed last."""
    before: Counter[str] = Counter()
    claims = []
    for artifact in outputs:
        model, pushed = artifact.properties.get("model"), artifact.properties.get("pushed")
        if artifact.kind != PushedModel.kind or not pushed or not isinstance(model, str):
            continue
        channel = channel_of(model)
        last = next((push for push in pushes(store, channel) if push.node == execution.node), None)
        if last is not None and last.model == model:
            continue
        before[channel] += 1
        place = f"{channel}#{_count(store, channel) + before[channel]}"
        push = Push(
            model=model,
            node=execution.node,
            run=execution.run_name,
            destination=str(artifact.properties.get("pushed_destination") or ""),
        )
        claims.append(Claim(SERVED, place, facts_of(push, without=("created",))))
    return claims


def channel_of(model: str) -> str:
    """`pipeline/node/key`, of the name of an artifact without a span."""
    return model.rpartition("/")[0]


def _count(store: Store, channel: str) -> int:
    return find_last(lambda number: store.find_claim(SERVED, f"{channel}#{number}") is not None)
