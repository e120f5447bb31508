"""Counted examples: which examples statistics are of, as connected, and whether others were meant. Pure."""

from __future__ import annotations

from spanwise.components.statistics.statistics_gen import StatisticsGen
from spanwise.orchestrator.component import Channel, Component, published_channel
from spanwise.orchestrator.errors import PipelineError
from spanwise.orchestrator.gate import passed_by


def find_counted(statistics: Channel) -> Channel | None:
    """The examples that statistics were counted of; None where another node than a StatisticsGen makes them."""
    counted = published_channel(statistics).producer
    if not isinstance(counted, StatisticsGen):
        return None
    examples = _find_origin(counted.inputs["examples"][0])
    return None if examples.producer is None else examples


def belong_together(one: Channel, other: Channel) -> bool:
    """Whether these are the same examples, before or after a gate, or the ones are made of the others."""
    return _is_made_of(one, _find_origin(other)) or _is_made_of(other, _find_origin(one))


def refuse_other_statistics(node: Component, name: str) -> None:
    """Refuses statistics connected as `name` that are of other examples than those connected as `statistics`.

    Raises:
        PipelineError: both examples are named.
    """
    given = node.inputs["statistics"]
    counted = [find_counted(channel) for channel in given]
    for channel in node.inputs[name]:
        examples = find_counted(channel)
        if examples is None or any(each is None or belong_together(each, examples) for each in counted):
            continue
        raise PipelineError(
            f"{node.name} takes the statistics {given[0]!r}, which are of {counted[0]!r}, and {name!r} from "
            f"{channel!r}, which are of {examples!r}. Connect both to statistics of the same examples."
        )


def _is_made_of(made: Channel, origin: Channel) -> bool:
    made = _find_origin(made)
    if (made.node, made.key) == (origin.node, origin.key):
        return True
    read = made.producer.inputs.values() if isinstance(made.producer, Component) else ()
    return any(_is_made_of(each, origin) for channels in read for each in channels)


def _find_origin(channel: Channel) -> Channel:
    """The channel of the node that made what a resolver chooses or a gate passes on."""
    published = published_channel(channel)
    gate = passed_by(published, published.producer)
    return published if gate is None else _find_origin(gate.source)
