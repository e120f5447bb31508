"""Judged models: whether the blessings that a node takes are of the model that it takes, as connected. Pure."""

from __future__ import annotations

from spanwise.orchestrator.component import Channel, Component, Resolver
from spanwise.orchestrator.errors import PipelineError
from spanwise.orchestrator.lineage import may_hold_rows


def refuse_other_blessings(node: Component, *names: str) -> None:
    """Refuses a connected blessing of another model than the one connected as `model`: that one would be unjudged.

    A model that a component makes of the judged one without rows, such as an export, may have its blessing; one that
    was trained from it may not. A type of the user's own may hold rows. A judge that has no input `model` is believed.

    Raises:
        PipelineError: both models are named.
    """
    for model in node.inputs["model"]:
        for name in names:
            for blessing in node.inputs[name]:
                _refuse_other(node, name, model, blessing)


def _refuse_other(node: Component, name: str, model: Channel, blessing: Channel) -> None:
    judge = blessing.producer
    if isinstance(judge, Resolver) and judge is not model.producer:
        raise PipelineError(
            f"{node.name} takes {name!r} from {blessing!r}, which may be of another model than {model!r}. Connect the "
            "node that judges this model, or choose the model by LatestBlessed or Champion, without a blessing."
        )
    for judged in judge.inputs.get("model", ()) if isinstance(judge, Component) else ():
        if not _is_made_of(model, judged):
            raise PipelineError(
                f"{node.name} takes the model {model!r}, and {name!r} from {blessing!r}, which judges {judged!r}. "
                f"Connect a node that judges {model!r}, or take the model {judged!r}."
            )


def _is_made_of(model: Channel, judged: Channel) -> bool:
    """Whether it is the judged model, or made of that in the same run, by components that read no rows."""
    if (model.node, model.key) == (judged.node, judged.key):
        return True
    if not isinstance(model.producer, Component):
        return False
    read = [channel for channels in model.producer.inputs.values() for channel in channels]
    return not any(may_hold_rows(each.kind) for each in read) and any(_is_made_of(each, judged) for each in read)
