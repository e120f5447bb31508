"""Operations on published artifacts, alone (`op`) and combined (`fn`, `span_driven_eval`).

What a resolver node of ours chooses is asked of that node; an operation that a resolver of one's own may call is asked
of `spanwise.resolvers.spans`. Combinations that no resolver of ours makes are not made here, as they would show only
what this module does: of an operation that is looked for and not there, the answer is that there is none.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from spanwise import resolvers
from spanwise.orchestrator import Channel, Resolver
from spanwise.orchestrator.artifact import Artifact, Examples
from spanwise.resolvers import Fixed, LatestSpans, RollingWindow, UnseenSpans, spans
from spanwise.resolvers.spans import (
    all_spans,
    at_least,
    by_creation,
    by_version,
    consecutive_spans,
    enough,
    exclude_spans,
    latest_created,
    latest_spans,
    latest_version,
    paired_spans,
    sequential_windows,
    sliding_windows,
    static_span_range,
    unnest,
)
from tests.conformance.apis.published import Lineage, publish_spans
from tests.conformance.judge import NotMapped

NONE = "no such operation"

Params = Mapping[str, Any]


def _latest_span(artifacts: Sequence[Examples], params: Params) -> Sequence[Examples]:
    return latest_spans(
        artifacts,
        _all_if_not_positive(params.get("n", 1)),
        skip=params.get("skip_last_n", 0),
        since=params.get("min_span", 0),
        all_versions=params.get("keep_all_versions", False),
        order=_order(params.get("version_sort_keys", ())),
    )


def _latest_spans_node(channel: Channel, params: Params) -> Resolver | None:
    n = params.get("n", 1)
    return LatestSpans(channel, n=n) if params.keys() <= {"n"} and n > 0 else None


def _fixed_node(channel: Channel, params: Params) -> Resolver | None:
    start, end = params.get("start_span", -1), params.get("end_span", -1)
    bounded = params.keys() <= {"start_span", "end_span"} and min(start, end) >= 0
    return Fixed(channel, first=start, last=end) if bounded else None


def _rolling_node(channel: Channel, params: Params) -> Resolver | None:
    """Without `min_spans` all spans are wanted, so it is a window; with 1, or for all spans, what exists is enough."""
    size, excluded = params.get("num_spans", 1), params.get("exclude_span_numbers", ())
    _refuse_unknown(
        params, {"num_spans", "start_span_number", "skip_num_recent_spans", "min_spans", "exclude_span_numbers"}
    )
    ends = {"since": params.get("start_span_number"), "skip": params.get("skip_num_recent_spans", 0)}
    if params.get("min_spans") == 1 or size < 1:
        return LatestSpans(channel, n=_all_if_not_positive(size), exclude=excluded, **ends)
    if params.get("min_spans") is not None:
        return None
    return RollingWindow(channel, size=size, exclude=excluded, **ends)


def _static_node(channel: Channel, params: Params) -> Resolver:
    start, end = params.get("start_span_number", -1), params.get("end_span_number", -1)
    _refuse_unknown(params, {"start_span_number", "end_span_number", "exclude_span_numbers"})
    excluded = params.get("exclude_span_numbers", ())
    return Fixed(channel, first=_open(start), last=_open(end), exclude=excluded)


def _refuse_unknown(params: Params, known: set[str]) -> None:
    """Older versions are read by no node of ours: one that is asked for them reads the newest."""
    if unknown := params.keys() - known - {"keep_all_versions"}:
        raise NotMapped(", ".join(sorted(unknown)))


def _static_span_range(artifacts: Sequence[Examples], params: Params) -> Sequence[Examples]:
    start, end = params.get("start_span", -1), params.get("end_span", -1)
    return static_span_range(artifacts, _open(start), _open(end), all_versions=params.get("keep_all_versions", False))


def _consecutive_spans(artifacts: Sequence[Examples], params: Params) -> Sequence[Examples]:
    return consecutive_spans(
        artifacts,
        _open(params.get("first_span", -1)),
        skip=params.get("skip_last_n", 0),
        exclude=params.get("denylist", ()),
        all_versions=params.get("keep_all_versions", False),
    )


def _sliding_window(artifacts: Sequence[Artifact], params: Params) -> Sequence[Sequence[Artifact]]:
    return sliding_windows(artifacts, params.get("window_size", 1), stride=params.get("stride", 1))


def _sequential_windows(artifacts: Sequence[Examples], params: Params) -> Sequence[Sequence[Examples]]:
    return sequential_windows(
        artifacts,
        params.get("num_spans", 1),
        params.get("start_span_number"),
        stride=params.get("stride", 1),
        skip=params.get("skip_num_recent_spans", 0),
        exclude=params.get("exclude_span_numbers", ()),
    )


NODES: Mapping[str, Callable[[Channel, Params], Resolver | None]] = {
    "LatestSpan": _latest_spans_node,
    "StaticSpanRange": _fixed_node,
    "rolling_range": _rolling_node,
    "static_range": _static_node,
}
"""The resolver node that is asked with these parameters, or None where no node takes them."""

ONE_CHANNEL: Mapping[str, Callable[[Any, Params], Sequence[Artifact]]] = {
    "LatestSpan": _latest_span,
    "AllSpans": lambda artifacts, params: all_spans(artifacts, all_versions=params.get("keep_all_versions", False)),
    "StaticSpanRange": _static_span_range,
    "ConsecutiveSpans": _consecutive_spans,
    "ExcludeSpans": lambda artifacts, params: exclude_spans(artifacts, params.get("denylist", ())),
    "SkipIfLessThanNSpans": lambda artifacts, params: at_least(artifacts, params.get("n", 0)),
    "LatestVersion": lambda artifacts, params: latest_version(artifacts, params.get("n", 1)),
    "LatestCreateTime": lambda artifacts, params: latest_created(artifacts, params.get("n", 1)),
    "all_spans": lambda artifacts, params: all_spans(artifacts, all_versions=params.get("keep_all_versions", False)),
    "latest_version": lambda artifacts, params: latest_version(artifacts, params.get("n", 1)),
    "latest_created": lambda artifacts, params: latest_created(artifacts, params.get("n", 1)),
}

WINDOWS: Mapping[str, Callable[[Any, Params], Sequence[Sequence[Artifact]]]] = {
    "SlidingWindow": _sliding_window,
    "sliding_window": _sliding_window,
    "sequential_rolling_range": _sequential_windows,
}


def operate(given: Mapping[str, Any]) -> dict[str, Any]:
    kind, params, records = given.get("op") or given["fn"], given.get("params", {}), given["artifacts"]
    if kind in NODES:
        published = publish_spans(record for record in records if not record.get("lacks"))
        if (node := NODES[kind](published.channel, params)) is not None:
            return {"ids": published.chosen_by(node)}
    if kind in ONE_CHANNEL:
        return {"ids": _ids(ONE_CHANNEL[kind](_artifacts(records, kind), params))}
    if kind in WINDOWS:
        return {"windows": [_ids(window) for window in WINDOWS[kind](_artifacts(records, kind), params)]}
    if kind in ("PairedSpans", "paired_spans"):
        channels = {key: _artifacts(found, kind) for key, found in records.items()}
        pairs = paired_spans(
            channels,
            match_version=params.get("match_version", True),
            all_versions=params.get("keep_all_versions", False),
        )
        return {"pairs": [{key: artifact.id for key, artifact in pair.items()} for pair in pairs]}
    return {"dicts": _dicts(kind, params, records)} if kind in ("Unnest", "SkipIfEmpty") else _look_for(kind)


def _dicts(kind: str, params: Params, records: Mapping[str, Any]) -> Any:
    """Sets of inputs."""
    if kind == "SkipIfEmpty":
        return enough(records["dicts"])
    channels = {key: _artifacts(found, kind) for key, found in records.items()}
    return [{key: _ids(found) for key, found in one.items()} for one in unnest(channels, params["key"])]


def _look_for(kind: str) -> dict[str, Any]:
    """That neither resolvers nor operations on spans have this name, in either spelling."""
    names = {kind, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()}
    if any(hasattr(place, name) for place in (resolvers, spans) for name in names):
        raise NotMapped(f"{kind}, which is there")
    return {"ids": NONE}


class Edition(Artifact):
    """A kind that has versions and no spans."""

    version: int


def _artifacts(records: Sequence[Mapping[str, Any]], kind: str) -> list[Any]:
    """The records as published artifacts of ours.

    A channel of ours carries one kind, so those of a kind that an operation on spans cannot read are not on it. The
    records of the reference read 0 where nothing was set.
    """
    needs = {"LatestVersion": {"version"}, "latest_version": {"version"}, "ExcludeSpans": {"span"}}
    undated = {"SlidingWindow", "sliding_window", "LatestCreateTime", "latest_created", "Unnest"}
    needed = set() if kind in undated else needs.get(kind, {"span", "version"})
    return [_artifact(record) for record in records if needed.isdisjoint(record.get("lacks", ()))]


def _artifact(record: Mapping[str, Any]) -> Artifact:
    created = None
    if record.get("created") is not None:
        created = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=record["created"])
    lacks = record.get("lacks", ())
    properties = {name: record.get(name, 0) for name in ("span", "version") if name not in lacks}
    return (Edition if "span" in lacks else Examples)("", id=record["id"], created=created, properties=properties)


def _ids(artifacts: Sequence[Artifact]) -> list[int]:
    return [artifact.id for artifact in artifacts]


def _open(bound: int) -> int | None:
    """The reference's -1 is our None."""
    return None if bound < 0 else bound


def _all_if_not_positive(n: int) -> int | None:
    """The reference's 0 and below is our None: all."""
    return n if n > 0 else None


def _order(keys: Sequence[str]) -> Callable[[Any], tuple[float, ...]]:
    """Any function orders versions; two of them are ours."""
    known: Mapping[tuple[str, ...], Callable[[Any], tuple[float, ...]]] = {
        (): by_version,
        ("mlmd_artifact.create_time_since_epoch", "id"): by_creation,
    }
    return known.get(tuple(keys)) or (lambda artifact: tuple(getattr(artifact, key) for key in keys))


def evaluate_spans(given: Mapping[str, Any]) -> dict[str, Any]:
    """Which model is evaluated on which spans: what `UnseenSpans` chooses in a later run."""
    params = given["params"]
    published = Lineage(given["example_spans"], given["models"])
    node = UnseenSpans(
        published.examples,
        published.model,
        size=1 + params.get("additional_spans_per_eval", 0),
        skip=params.get("wait_spans_before_eval", 0),
        offset=params.get("evaluation_training_offset", 0),
        since=params.get("start_span_number"),
    )
    chosen = published.chosen_by(node)
    (model,) = chosen["model"]
    return {"model": published.models[model.name], "spans": [a.properties["span"] for a in chosen["examples"]]}


APIS = {"op": operate, "fn": operate, "span_driven_eval": evaluate_spans}
