"""Operations on published artifacts, alone (`op`) and combined (`fn`, `span_driven_eval`).

What a resolver node of ours chooses is asked of that node; an operation that a resolver of one's own may call is asked
of `spanwise.resolvers.spans`. Combinations that no resolver of ours makes are not mapped: made here, they would show
only what this module does.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from spanwise.orchestrator import Channel, Resolver
from spanwise.orchestrator.artifact import Artifact, Examples
from spanwise.resolvers import Fixed, LatestSpans, RollingWindow
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
    sliding_windows,
    static_span_range,
    unnest,
)
from tests.conformance.apis.published import publish_spans
from tests.conformance.judge import NotMapped

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
    """Without `min_spans` all spans are wanted, so it is a window; with 1 whatever exists is enough."""
    size, excluded = params.get("num_spans", 1), params.get("exclude_span_numbers", ())
    if size < 1 or not params.keys() <= {"num_spans", "exclude_span_numbers", "min_spans"}:
        return None
    if params.get("min_spans") == 1:
        return LatestSpans(channel, n=size, exclude=excluded)
    return RollingWindow(channel, size=size) if params.get("min_spans") is None and not excluded else None


def _static_node(channel: Channel, params: Params) -> Resolver | None:
    start, end = params.get("start_span_number", -1), params.get("end_span_number", -1)
    known = {"start_span_number", "end_span_number", "exclude_span_numbers"}
    if min(start, end) < 0 or not params.keys() <= known:
        return None
    return Fixed(channel, first=start, last=end, exclude=params.get("exclude_span_numbers", ()))


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
    if kind == "Unnest":
        channels = {key: _artifacts(found, kind) for key, found in records.items()}
        return {"dicts": [{key: _ids(found) for key, found in one.items()} for one in unnest(channels, params["key"])]}
    if kind == "SkipIfEmpty":
        return {"dicts": enough(records["dicts"])}
    raise NotMapped(kind)


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
    known: Mapping[tuple[str, ...], Callable[[Any], tuple[float, ...]]] = {
        (): by_version,
        ("mlmd_artifact.create_time_since_epoch", "id"): by_creation,
    }
    if tuple(keys) not in known:
        raise NotMapped("other orders of versions")
    return known[tuple(keys)]


def evaluate_spans(given: Mapping[str, Any]) -> dict[str, Any]:
    """Which model is evaluated on which spans; no resolver of ours chooses both."""
    raise NotMapped("SpanDrivenEvaluatorInputs")


APIS = {"op": operate, "fn": operate, "span_driven_eval": evaluate_spans}
