import re
from xml.etree import ElementTree as ET

import pytest

from spanwise.orchestrator import Component, Input, Model, Output, Pipeline, Report, Resolver, past
from spanwise.scheduler.inspect import graph

SVG = "{http://www.w3.org/2000/svg}"


class Make(Component):
    def run(self, report: Output[Report], model: Output[Model]) -> None: ...


class Read(Component):
    def run(self, reports: Input[list[Report]], report: Output[Report]) -> None: ...


class Start(Component):
    def run(self, base: Input[Model | None], report: Output[Report]) -> None: ...


def diamond() -> Pipeline:
    """A chain of four that a fifth reads from at both ends, with a look into the past."""
    top = Make(name="Top")
    left = Read(name="Left", reports=top["report"])
    right = Read(name="A_node_with_a_long_name", reports=top["report"])
    low = Read(name="Low", reports=[left["report"], right["report"]])
    end = Read(name="End", reports=[low["report"], top["report"]])
    before = Resolver(past("Top", "model", Model), name="Before", many=False, optional=True)
    warm = Start(name="Warm", base=before["model"])
    return Pipeline("diamond", [top, left, right, low, end, before, warm])


def test_a_node_is_below_everything_it_waits_for() -> None:
    """Layers count the longest way from the start; the past is not waited for."""
    assert graph.assign_layers(diamond()) == [
        ["Top", "Before"],
        ["Left", "A_node_with_a_long_name", "Warm"],
        ["Low"],
        ["End"],
    ]


def test_an_edge_into_the_past_is_marked() -> None:
    """It is drawn otherwise: it holds nothing up."""
    assert [(e.source, e.target) for e in graph.list_edges(diamond()) if e.past] == [("Top", "Before")]


def test_a_node_that_only_waits_is_drawn_below_what_it_waits_for() -> None:
    """The edge has no key: nothing goes along it."""
    first = Make(name="First")
    pipeline = Pipeline("waiting", [first, Make(name="Then", after=[first])])

    assert graph.list_edges(pipeline) == [graph.Edge("First", "Then", "", waits=True)]
    assert graph.format_text(pipeline) == "First\n   Then  <- after First"
    assert "n0 --> n1" in graph.format_mermaid(pipeline)
    assert ">then</text>" in graph.draw_svg(pipeline)


def test_text_says_what_each_node_reads() -> None:
    """A node per line, indented by its layer."""
    lines = graph.format_text(diamond()).splitlines()

    assert "      Low  <- Left['report'], A_node_with_a_long_name['report']" in lines
    assert lines[0] == "Top"


def test_mermaid_has_every_node_and_edge() -> None:
    """Resolvers are round, edges into the past dotted."""
    text = graph.format_mermaid(diamond())

    assert text.startswith("flowchart TD\n")
    assert text.count("-->") == 7
    assert text.count("-.->") == 1
    assert '(["Before' in text


def boxes(picture: str) -> dict[str, tuple[float, float, float, float]]:
    root = ET.fromstring(picture)
    rects = [r for r in root.iter(f"{SVG}rect") if "x" in r.attrib]
    names = [t for t in root.iter(f"{SVG}text") if t.get("font-size") == "13"]
    return {
        str(name.text): tuple(float(rect.attrib[k]) for k in ("x", "y", "width", "height"))  # type: ignore[misc]
        for rect, name in zip(rects, names, strict=True)
    }


def test_boxes_do_not_overlap_and_lie_in_the_picture() -> None:
    """Every node has room of its own."""
    picture = graph.draw_svg(diamond())
    found = boxes(picture)
    root = ET.fromstring(picture)

    assert set(found) == set(diamond().order)
    for name, (x, y, width, height) in found.items():
        assert x >= 0
        assert x + width <= float(root.attrib["width"])
        for other, (x2, y2, width2, height2) in found.items():
            apart = x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
            assert apart or name == other


def test_no_edge_runs_behind_a_box() -> None:
    """An edge that passes a layer has a place of its own there, where it goes straight down."""
    picture = graph.draw_svg(diamond())
    straight = re.findall(r"([\d.]+) ([\d.]+) L([\d.]+) ([\d.]+)", picture)
    passed = [(float(x), float(top)) for x, top, _, _ in straight]

    assert passed
    for x, top in passed:
        assert not [n for n, (left, y, width, _) in boxes(picture).items() if y == top and left < x < left + width]


@pytest.mark.parametrize("draw", [graph.format_text, graph.format_mermaid, graph.draw_svg])
def test_an_empty_pipeline_can_be_drawn(draw: object) -> None:
    """There is nothing in it."""
    assert isinstance(draw(Pipeline("empty", [])), str)  # type: ignore[operator]


def test_a_picture_needs_nothing_beside_itself() -> None:
    """No fonts, images or scripts are fetched; a name is text, whatever is in it."""
    picture = graph.draw_svg(diamond())

    assert re.findall(r"https?://[^\"]+", picture) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in picture
