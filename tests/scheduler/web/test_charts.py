"""Charts: when each node of a run waited, worked and published; and values over spans."""

import re

import pytest

from spanwise.scheduler.web.pictures.charts import Bar, ChartLine, draw_gantt, draw_lines


def bars_of(drawn):
    """Where each bar begins and how long it is, by its class."""
    found = re.findall(r"<rect [^>]*>", str(drawn))
    numbers = {}
    for each in found:
        name = re.search(r'class="bar (\w+)"', each)[1]
        numbers[name] = tuple(float(re.search(rf'\b{key}="([\d.]+)"', each)[1]) for key in ("x", "width"))
    return numbers


def test_a_bar_has_its_queue_before_it_and_its_publication_at_its_end():
    """Each as long as it took, and all of it in words for those who do not see it."""
    drawn = draw_gantt([Bar("Trainer", "complete", "#node-Trainer", 3.0, 6.0, 2.0, 1.0)], 12.0)
    found = bars_of(drawn)
    second = found["complete"][1] / 6

    assert found["queued"][1] == pytest.approx(2 * second, abs=0.1)
    assert sum(found["queued"]) == pytest.approx(found["complete"][0], abs=0.1)
    assert found["publish"][1] == pytest.approx(second, abs=0.1)
    assert sum(found["publish"]) == pytest.approx(sum(found["complete"]), abs=0.1)
    for words in ("Trainer: complete, 6.0 s", "3.0 s after the start", "it had waited 2.0 s", "1.0 s to publish"):
        assert words in str(drawn)


def test_a_bar_without_queue_or_publication_is_one_rectangle():
    """As of runs that were recorded before these moments were."""
    assert set(bars_of(draw_gantt([Bar("Trainer", "failed", "#x", 0.0, 1.0)], 1.0))) == {"failed"}


@pytest.mark.parametrize("count", [1, 2, 6, 8, 9, 16, 17, 40])
def test_labels_of_days_are_whole(count):
    """The first and the last are as wide as the others, and the picture ends at neither."""
    labels = [f"2013-01-{day:02}" for day in range(1, count + 1)]
    drawn = str(draw_lines(labels, [ChartLine("auc", [0.7] * count, "line")], "AUC"))
    reach = {"start": (0, 68), "middle": (34, 34), "end": (68, 0)}  # a day in the font of the axis

    found = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="(\w+)"[^>]*>2013', drawn)

    assert found
    for x, anchor in found:
        left, right = reach[anchor]
        assert float(x) - left >= 0
        assert float(x) + right <= 720
