"""Where the time of a pass goes, and who waits for whom."""

import re
import time
from xml.etree import ElementTree as ET

import pytest

import spanwise.pipelines.input as tfdata


def slow(x):
    time.sleep(0.002)
    return x


def quick(x):
    return x + 1


@pytest.fixture(scope="module")
def sequential():
    """A slow function called by the consumer itself, and a quick step."""
    return tfdata.range(100).map(quick).map(slow).batch(10).options(optimize=False).profile(lambda batch: None)


def test_an_input_that_is_waited_for_is_the_bottleneck(sequential):
    """With what to do about the op whose work is most."""
    assert sequential.bottleneck == "input"
    assert "The input is the bottleneck" in sequential.verdict
    assert sequential.advice.startswith("Most of the work is Map slow's")
    assert "num_parallel=AUTOTUNE" in sequential.advice


def test_a_consumer_that_is_slower_is_the_bottleneck():
    """Then there is nothing to mend in the input."""
    profile = tfdata.range(40).map(quick).options(optimize=False).profile(lambda x: time.sleep(0.002))

    assert profile.bottleneck == "consumer"
    assert "The consumer is the bottleneck" in profile.verdict
    assert "make the step faster" in profile.advice


def test_without_a_step_nobody_is_blamed():
    """Nothing was done with the elements, so all there is to tell is how fast they came."""
    profile = tfdata.range(40).map(quick).profile()

    assert not profile.stepped
    assert "profile(step)" in profile.verdict


def test_every_op_has_its_own_time(sequential):
    """Without that of its inputs; together they are what the consumer waited."""
    by_name = {op.op: op for op in sequential.ops}

    assert list(by_name) == ["Batch", "Map slow", "Map quick", "Range"]
    assert [op.calls for op in sequential.ops] == [10, 100, 100, 100]
    assert by_name["Map slow"].share > 0.8
    assert sum(op.share for op in sequential.ops) == pytest.approx(1)
    assert sum(op.own_s for op in sequential.ops) == pytest.approx(sequential.waited_s, rel=0.2)


def test_work_in_the_background_and_waiting_for_it_are_told_apart():
    """Four calls at once work four times as long as the consumer waits."""
    dataset = tfdata.range(200).map(slow, num_parallel=4).options(optimize=False)

    parallel, _ = dataset.profile().ops

    assert parallel.own_s > 200 * 0.002
    assert 0 < parallel.waiting_s < parallel.own_s / 2


def test_a_profile_ends_after_its_limit():
    """Endless datasets can be profiled."""
    profile = tfdata.range(1).repeat().map(slow).profile(limit_s=0.1)

    assert 0.1 <= profile.elapsed_s < 5


def test_a_profile_changes_no_later_pass():
    """It is a pass of its own: the numbering of passes, which shuffles depend on, goes on as without it."""
    dataset, other = (tfdata.range(50).shuffle(50).options(seed=3) for _ in range(2))
    dataset.profile()

    assert list(dataset) == list(other)


def test_printed_it_is_a_table(sequential):
    """An indented line for each op, then what it means."""
    lines = str(sequential).splitlines()

    assert lines[0].split() == ["op", "calls", "elements", "own", "s", "waiting", "s", "share", "MB"]
    assert lines[2].startswith("  Map slow  ")
    assert sequential.verdict in lines
    assert re.fullmatch(r"Timing has taken [\d.e-]+ ms\.", lines[-1])


def test_saved_it_is_a_page_with_a_timeline(tmp_path, sequential):
    """One file that needs nothing else: an SVG with a lane for each op in each thread."""
    file = tmp_path / "profile.html"
    sequential.save(file)

    page = file.read_text(encoding="utf-8")
    assert "http" not in page.replace("http://www.w3.org", "")
    svg = ET.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL).group())
    assert len(svg.findall("rect")) == len(sequential.spans) == 100 * 3 + 10 + 4  # each op asks once more, at the end
    assert "Map slow in MainThread" in [text.text for text in svg.findall("text")]


def test_the_advice_fits_the_op():
    """A source is read in parallel, a quick function vectorized, a parallel one that computes moved to processes."""

    def busy(x):
        return sum(range(50_000)) + x

    cases = [
        (tfdata.from_generator(lambda: map(slow, range(100))), "read several files at once"),
        (tfdata.range(20_000).map(quick), "vectorized"),
        (tfdata.range(100).map(busy, num_parallel=2, workers="threads"), "workers='processes'"),
        (tfdata.range(100).map(slow, num_parallel=2), "parallel already"),
    ]

    for dataset, advice in cases:
        assert advice in dataset.options(optimize=False).profile().advice
