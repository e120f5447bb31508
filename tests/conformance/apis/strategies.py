"""What a resolver node takes from history: `strategy`.

The reference lists the newest first, ours last; so ours are read backwards.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from spanwise.orchestrator.errors import ResolutionError
from spanwise.orchestrator.verdict import find_standing
from spanwise.resolvers import Fixed, Latest, LatestBlessed, RollingWindow
from tests.conformance.apis.published import publish_models, publish_spans
from tests.conformance.apis.verdicts import a_blessing, publish
from tests.conformance.judge import NotMapped

Given = Mapping[str, Any]


def resolve(given: Given) -> dict[str, Any]:
    if given["strategy"] not in STRATEGIES:
        raise NotMapped(given["strategy"])
    return STRATEGIES[given["strategy"]](given)


def _span_range(given: Given) -> dict[str, Any]:
    """By `RollingWindow`, which may miss all spans but one, as the reference may; or by `Fixed`."""
    published, chosen = publish_spans(given["artifacts"]), given["range"]
    if (static := chosen.get("static")) is not None:
        fixed = Fixed(published.channel, first=static["start"], last=static["end"])
        return _ids(published.chosen_by(fixed))
    if (rolling := chosen.get("rolling")) is None:
        raise ResolutionError("neither the first and last span nor the size of a window is given.")
    size = rolling["num_spans"]
    recent = RollingWindow(published.channel, size=size, since=rolling.get("start", 0), missing=max(size - 1, 0))
    return _ids(published.chosen_by(recent))


def _latest_artifact(given: Given) -> dict[str, Any]:
    published = publish_models(record["id"] for record in given["artifacts"])
    found = published.chosen_by(Latest(published.channel, n=given.get("n", 1)))
    return _ids(found) if found else {"none": True}


def _latest_blessed(given: Given) -> dict[str, Any]:
    """The model that `LatestBlessed` chooses, and the blessing that is on record as the reason."""
    published = publish_models(given["models"])
    blessings: dict[str, int] = {}  # by the run that published them
    for blessing in given["blessings"]:
        model = published.by_number.get(blessing["current_model_id"])
        if model is None or blessing.get("blessed") is None:
            continue  # of a model that is not on the channel; or no verdict, which ours does not publish
        made = publish(published.store, "Evaluator", "blessing", a_blessing(model, blessing["blessed"]))
        blessings[published.store.producer(made).run_name] = blessing["id"]
    found = published.chosen_by(LatestBlessed(published.channel))
    if not found:
        return {"model": None, "blessing": None}
    standing = find_standing(published.store, "blessed", published.by_number[found[0]])
    return {"model": found[0], "blessing": blessings[standing.by_judge["Evaluator"].by]}


def _ids(found: Sequence[int]) -> dict[str, Any]:
    return {"ids": list(reversed(found))}


STRATEGIES = {"SpanRange": _span_range, "LatestArtifact": _latest_artifact, "LatestBlessedModel": _latest_blessed}

APIS = {"strategy": resolve}
