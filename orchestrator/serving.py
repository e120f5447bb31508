"""What serves: the pushes of the models of one channel, in order. An append-only log, by name.

The n-th push of a model of a channel is a claim: kind `served`, name `pipeline/node/key#<n>`. It is written in the
transaction that publishes the push, so what served at any earlier moment can be read back. What happens in a
destination without a Pusher, such as a version that somebody has moved away, or that is newer than restored metadata,
is not recorded; `version_instead` looks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact, PushedModel
from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.errors import NotRecorded, StorageError
from spanwise.orchestrator.node_history import find_newest_successes, list_outputs
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.storage import ObjectUrl, is_object_url, open_bucket, parse_url
from spanwise.orchestrator.store import Address, Claim, Store
from spanwise.orchestrator.verdict import find_origins

log = logging.getLogger("spanwise.serving")

_LOOK_BACK = 20  # pushes
_OUTPUTS = 100  # of a Pusher
_PATIENCE = timedelta(seconds=5)  # whoever asks only says what it sees

SERVED = "served"
"""The kind of the claims."""

RECORD = ".spanwise.json"
"""The file of a version that names its model and its push."""

POINTER = "serving.json"
"""The object of a destination that says which version serves."""


@dataclass(frozen=True, kw_only=True)
class Push:
    """One push: from then on, the model serves there."""

    model: str  #: name of the artifact
    node: str  #: of the Pusher
    run: str  #: `pipeline/number`
    destination: str  #: the folder or URL of the version
    created: datetime | None = None  #: when it was recorded, UTC; None before

    @property
    def place(self) -> str:
        """The folder or URL that holds its version and others; where it names no version, what the Pusher says."""
        return find_place(self.destination, self.node)


def find_place(destination: str, node: str) -> str:
    """The place that a destination of a Pusher is in: what is pushed there later serves instead."""
    folder, _, version = destination.rpartition("/")
    return folder if version.isdecimal() else destination or node


def pushes(store: Store, channel: str, *, as_of: datetime | None = None) -> Iterator[Push]:
    """The pushes of the models of a channel, `pipeline/node/key`, newest first; recorded by `as_of`."""
    for number in range(_count(store, channel), 0, -1):
        claim = store.find_claim(SERVED, f"{channel}#{number}")
        assert claim is not None, "pushes are numbered without gaps, and none is ever removed"
        push = record_of(Push, claim)
        if as_of is None or (push.created is not None and push.created <= as_of):
            yield push


def find_pushed(store: Store, channels: Iterable[str]) -> set[str]:
    """The names of all models of these channels that were ever pushed, or something that was made of them."""
    places = [f"{channel}#{number}" for channel in channels for number in range(1, _count(store, channel) + 1)]
    return {record_of(Push, claim).model for claim in store.find_claims(SERVED, places).values()}


def _last_push(store: Store, channel: str, node: str) -> Push | None:
    return next((push for push in pushes(store, channel) if push.node == node), None)


def newest_push(store: Store, pusher: Address) -> Push | None:
    """The last push of a Pusher, by the address of its output; None where it has pushed none.

    What it did not push again, because it serves already, is no push.
    """
    found: dict[str, Push | None] = {}
    for artifact in itertools.islice(store.newest(pusher), _OUTPUTS):  # the models may have been of other nodes before
        model = artifact.properties.get("model")
        if isinstance(model, str) and (channel := channel_of(model)) not in found:
            found[channel] = _last_push(store, channel, pusher.node)
        if artifact.properties.get("pushed"):
            break
    by_time = {push.created: push for push in found.values() if push is not None and push.created is not None}
    return by_time[max(by_time)] if by_time else None


def last_pushes(store: Store, pipeline: str) -> list[Push]:
    """The last push of each Pusher of a pipeline, the newest first, however many runs have pushed nothing since.

    What another Pusher has pushed later to the same destination has taken its place.
    """
    found = [push for pusher in list_pushers(store, pipeline) if (push := newest_push(store, pusher)) is not None]
    by_place: dict[str, Push] = {}
    for push in sorted(found, key=lambda push: push.created or datetime.now(UTC), reverse=True):
        by_place.setdefault(push.place, push)
    return list(by_place.values())


def list_pushers(store: Store, pipeline: str) -> list[Address]:
    """The Pushers of the recent runs of a pipeline, by the addresses of their outputs."""
    outputs = list_outputs(store, find_newest_successes(store, pipeline).values(), most=_OUTPUTS)
    pushed = (artifact for _, made in outputs for artifact in made if artifact.is_a(PushedModel))
    return list(dict.fromkeys(Address(*artifact.name.split("/")[:3]) for artifact in pushed))


def pushing_runs(store: Store, pusher: Address) -> Iterator[int]:
    """The numbers of the last runs in which a Pusher has pushed, or had pushed before what serves; newest first."""
    for artifact in itertools.islice(store.newest(pusher), _OUTPUTS):
        if artifact.properties.get("pushed"):
            yield store.producer(artifact).run


def find_served(store: Store, pipeline: str) -> list[tuple[Artifact, Push]]:
    """The models of a pipeline that serve, by its last pushes, the last pushed first; as far as they are recorded.

    Where another version serves in the place of a push, that one's push counts, if this pipeline has made it.
    """
    found = []
    for last in last_pushes(store, pipeline):
        push = _find_push_that_serves(store, last)
        if push is not None and push.run.rpartition("/")[0] == pipeline:
            with contextlib.suppress(NotRecorded):  # another program has named it
                found.append((store.artifact(push.model), push))
    return found


def _find_push_that_serves(store: Store, last: Push) -> Push | None:
    """The push that made the version which serves where a model was pushed last; None if no recorded run did."""
    try:
        instead = version_instead(store, last)
    except StorageError as error:
        log.warning("destination-unseen", extra={"destination": last.place, "reason": str(error)})
        return last
    return last if instead is None else instead.push


def find_serving(store: Store, pipeline: str) -> dict[str, list[Push]]:
    """The same by name, with the models that they were made of: the pushes by which each serves."""
    found: dict[str, list[Push]] = defaultdict(list)
    for model, push in find_served(store, pipeline):
        for each in (model, *find_origins(store, model)):
            found[each.name].append(push)
    return found


@dataclass(frozen=True, kw_only=True)
class PointedVersion:
    """What the pointer of a destination in object storage says."""

    place: ObjectUrl  #: of the version that serves
    content: str  #: digest of its model; empty where the pointer does not say
    model: str = ""  #: name of its model; empty where the pointer does not say


def read_pointed(destination: str) -> PointedVersion | None:
    """What serves from a destination in object storage; None where its pointer is missing or damaged.

    Raises:
        StorageError: the storage cannot be reached, or refuses.
    """
    top = parse_url(destination)
    found = open_bucket(top.home, retry_for=_PATIENCE).read((top / POINTER).key)
    try:
        document = {} if found is None else json.loads(found[0])
        version = str(int(document["version"]))
        record = document.get("versions", {}).get(version, {})
        return PointedVersion(
            place=top / version, content=str(record.get("content", "")), model=str(record.get("model", ""))
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, kw_only=True)
class VersionInstead:
    """The version that serves in the place of what was pushed last."""

    place: Path | ObjectUrl
    push: Push | None  #: of a model of another channel, which made it; None if no recorded run did


def version_instead(store: Store, push: Push) -> VersionInstead | None:
    """The version that serves in the place of what was pushed last; None where that serves, or cannot be seen.

    Raises:
        StorageError: it is in object storage, which cannot be reached or refuses.
    """
    if is_object_url(push.destination):
        pointed = read_pointed(push.destination.rpartition("/")[0])
        if pointed is None or str(pointed.place) == push.destination:
            return None
        return VersionInstead(place=pointed.place, push=_find_push(store, pointed.model, pointed.place))
    pushed = Path(push.destination)
    if not push.destination or not pushed.name.isdigit() or not pushed.parent.is_dir():
        return None
    highest = highest_version(pushed.parent)
    if highest is None or highest.name == pushed.name:
        return None
    return VersionInstead(place=highest, push=_find_push(store, read_record(highest, "model") or "", highest))


def _find_push(store: Store, model: str, place: Path | ObjectUrl) -> Push | None:
    """The push that made a version of a model."""
    newest = itertools.islice(pushes(store, channel_of(model)), _LOOK_BACK) if model else ()
    return next((push for push in newest if push.destination == str(place)), None)


def read_record(version: Path, name: str) -> str | None:
    """What the record of a version says, such as its `model`; None where no Pusher has made it."""
    try:
        return str(json.loads((version / RECORD).read_text())[name])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def highest_version(destination: Path) -> Path | None:
    """The version that servers load from a folder; None where there is none."""
    versions = [path for path in destination.iterdir() if re.fullmatch("[0-9]+", path.name) and path.is_dir()]
    return max(versions, key=lambda path: int(path.name), default=None)


def claim_pushes(store: Store, execution: Execution, outputs: Iterable[Artifact]) -> list[Claim]:
    """The claims that record what an execution pushed; none for a version that this node had pushed last.

    A push of an export is also one of the models that it was made of.
    """
    before: Counter[str] = Counter()
    claims = []
    for artifact in outputs:
        model, pushed = artifact.properties.get("model"), artifact.properties.get("pushed")
        if not artifact.is_a(PushedModel) or not pushed or not isinstance(model, str):
            continue
        destination = str(artifact.properties.get("pushed_destination") or "")
        for name in (model, *_find_origins(store, model)):
            channel = channel_of(name)
            last = _last_push(store, channel, execution.node)
            if last is not None and (last.model, last.destination) == (name, destination):
                continue
            before[channel] += 1
            place = f"{channel}#{_count(store, channel) + before[channel]}"
            push = Push(model=name, node=execution.node, run=execution.run_name, destination=destination)
            claims.append(Claim(SERVED, place, facts_of(push, without=("created",))))
    return claims


def _find_origins(store: Store, model: str) -> list[str]:
    """The names of the models that a model was made of; none where another program has named what was pushed."""
    try:
        return [origin.name for origin in find_origins(store, store.artifact(model))]
    except NotRecorded:
        return []


def channel_of(model: str) -> str:
    """`pipeline/node/key`, of the name of an artifact without a span."""
    return model.rpartition("/")[0]


def _count(store: Store, channel: str) -> int:
    return store.last_claim(SERVED, f"{channel}#")
