"""Operations on published artifacts, alone (`op`) and combined (`fn`, `span_driven_eval`).

The reference's resolver functions are combinations; so are ours, written here as a user would write an own resolver.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from spanwise.orchestrator.artifact import Artifact, Examples, Model
from spanwise.orchestrator.errors import ParameterError
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
    window,
)
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


def _slice(artifacts: Sequence[Artifact], params: Params) -> Sequence[Artifact]:
    found = artifacts[slice(params.get("start"), params.get("stop"), params.get("step"))]
    return enough(found, params.get("min_count") or 0)


def _sliding_window(artifacts: Sequence[Artifact], params: Params) -> Sequence[Sequence[Artifact]]:
    return sliding_windows(artifacts, params.get("window_size", 1), stride=params.get("stride", 1))


def _pick(artifacts: Sequence[Artifact], params: Params) -> Sequence[Artifact]:
    at = params["i"]
    return enough(artifacts[at : at + 1 or None])


def _rolling_range(artifacts: Sequence[Examples], params: Params) -> Sequence[Examples]:
    size = params.get("num_spans", 1)
    least = params.get("min_spans")
    window = latest_spans(
        artifacts,
        _all_if_not_positive(size),
        skip=params.get("skip_num_recent_spans", 0),
        since=params.get("start_span_number", 0),
        all_versions=params.get("keep_all_versions", False),
        order=_order(params.get("version_sort_keys", ())),
    )
    return at_least(exclude_spans(window, params.get("exclude_span_numbers", ())), size if least is None else least)


def _static_range(artifacts: Sequence[Examples], params: Params) -> Sequence[Examples]:
    start, end = params.get("start_span_number", -1), params.get("end_span_number", -1)
    excluded = set(params.get("exclude_span_numbers", ()))
    least = params.get("min_spans")
    if least is None:
        bounded = start >= 0 and end >= 0
        least = end - start + 1 - sum(start <= span <= end for span in excluded) if bounded else -1
    found = static_span_range(artifacts, _open(start), _open(end), all_versions=params.get("keep_all_versions", False))
    return at_least(exclude_spans(found, excluded), least)


def _sequential_rolling_range(artifacts: Sequence[Examples], params: Params) -> Sequence[Sequence[Examples]]:
    first = params.get("start_span_number")
    run = consecutive_spans(
        artifacts,
        None if first is None else _open(first),
        skip=params.get("skip_num_recent_spans", 0),
        exclude=params.get("exclude_span_numbers", ()),
        all_versions=params.get("keep_all_versions", False),
    )
    return enough(sliding_windows(run, params.get("num_spans", 1), stride=params.get("stride", 1)))


ONE_CHANNEL: Mapping[str, Callable[[Any, Params], Sequence[Artifact]]] = {
    "LatestSpan": _latest_span,
    "AllSpans": lambda artifacts, params: all_spans(artifacts, all_versions=params.get("keep_all_versions", False)),
    "StaticSpanRange": _static_span_range,
    "ConsecutiveSpans": _consecutive_spans,
    "ExcludeSpans": lambda artifacts, params: exclude_spans(artifacts, params.get("denylist", ())),
    "SkipIfLessThanNSpans": lambda artifacts, params: at_least(artifacts, params.get("n", 0)),
    "LatestVersion": lambda artifacts, params: latest_version(artifacts, params.get("n", 1)),
    "LatestCreateTime": lambda artifacts, params: latest_created(artifacts, params.get("n", 1)),
    "Slice": _slice,
    "rolling_range": _rolling_range,
    "static_range": _static_range,
    "all_spans": lambda artifacts, params: all_spans(artifacts, all_versions=params.get("keep_all_versions", False)),
    "latest_version": lambda artifacts, params: latest_version(artifacts, params.get("n", 1)),
    "latest_created": lambda artifacts, params: latest_created(artifacts, params.get("n", 1)),
    "pick": _pick,
    "slice": _slice,
}

WINDOWS: Mapping[str, Callable[[Any, Params], Sequence[Sequence[Artifact]]]] = {
    "SlidingWindow": _sliding_window,
    "sliding_window": _sliding_window,
    "sequential_rolling_range": _sequential_rolling_range,
}


def operate(given: Mapping[str, Any]) -> dict[str, Any]:
    kind, params, records = given.get("op") or given["fn"], given.get("params", {}), given["artifacts"]
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
    undated = {
        "SlidingWindow",
        "sliding_window",
        "LatestCreateTime",
        "latest_created",
        "Slice",
        "slice",
        "pick",
        "Unnest",
    }
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


def _order(keys: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if not keys:
        return by_version
    read: Mapping[str, Callable[[Any], Any]] = {
        "mlmd_artifact.create_time_since_epoch": lambda artifact: by_creation(artifact)[:-1],
        "id": lambda artifact: artifact.id,
        "span": lambda artifact: artifact.span,
        "version": lambda artifact: artifact.version,
    }
    if unknown := [key for key in keys if key not in read]:
        raise ParameterError(f"there is no order by {', '.join(unknown)}; there is: {', '.join(read)}.")
    return lambda artifact: tuple(read[key](artifact) for key in keys)


def choose_to_evaluate(given: Mapping[str, Any]) -> dict[str, Any]:
    """The newest model that has not seen the newest spans, and those spans: as a resolver of one's own would choose."""
    params, since = given["params"], given["params"].get("start_span_number", 0)
    examples = latest_spans(_artifacts([{"id": n, "span": n} for n in given["example_spans"]], ""), None, since=since)
    models = [Model("", id=m["model"], properties={"spans": m["trained_on_spans"]}) for m in given["models"]]
    end = enough(examples)[-1].span - params.get("wait_spans_before_eval", 0)
    wanted = window((end,), 1 + params.get("additional_spans_per_eval", 0), end=end).wanted
    enough([artifact for artifact in examples if artifact.span <= wanted[0]])
    enough([artifact for artifact in examples if artifact.span >= end])
    before = wanted[0] - params.get("evaluation_training_offset", 0)
    (model,) = enough(latest_created([model for model in models if model.spans and max(model.spans) < before]))
    return {"model": model.id, "spans": [artifact.span for artifact in static_span_range(examples, wanted[0], end)]}


APIS = {"op": operate, "fn": operate, "span_driven_eval": choose_to_evaluate}
