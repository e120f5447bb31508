"""Where the time of a pass goes, and who waits for whom."""

import re
from xml.etree import ElementTree as ET

import pytest

import spanwise.pipelines.input as tfdata
from spanwise.pipelines.input.profiling import profile
from spanwise.pipelines.input.profiling.advice import advise
from spanwise.pipelines.input.tuning.reading import CallTimes, OpReading


@pytest.fixture
def slow(clock):
    """A function that takes 2 ms."""

    def slow(x):
        clock.advance(0.002)
        return x

    return slow


def quick(x):
    return x + 1


@pytest.fixture
def sequential(slow):
    """A slow function called by the consumer itself, and a quick step."""
    return tfdata.range(100).map(quick).map(slow).batch(10).options(optimize=False).profile(lambda batch: None)


def test_an_input_that_is_waited_for_is_the_bottleneck(sequential):
    """With what to do about the op whose work is most."""
    assert sequential.bottleneck == "input"
    assert "The input is the bottleneck" in sequential.verdict
    assert sequential.advice.startswith("Most of the work is Map slow's")
    assert "num_parallel=AUTOTUNE" in sequential.advice


def test_a_consumer_that_is_slower_is_the_bottleneck(slow):
    """Then there is nothing to improve in the input."""
    profile = tfdata.range(40).map(quick).options(optimize=False).profile(slow)

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
    assert by_name["Map slow"].own_s == pytest.approx(0.2)
    assert sum(op.share for op in sequential.ops) == pytest.approx(1)
    assert sum(op.own_s for op in sequential.ops) == pytest.approx(sequential.waited_s)


def parallel_map(dataset, took_s, cpu_s, *, calls=100, parallelism=2, **how):
    """The ops of a parallel map on a dataset, and what they were measured to take."""
    op = dataset.map(quick, num_parallel=parallelism, **how).op
    work = CallTimes(calls=calls, took_s=took_s, cpu_s=cpu_s)
    read = OpReading(calls=calls, units=calls, total_s=0.1, ahead=True, parallelism=parallelism, work=work)
    return {op: read, op.inputs[0]: OpReading(calls=calls, units=calls, total_s=0.01)}


def test_work_in_the_background_and_waiting_for_it_are_told_apart():
    """Four calls at once work four times as long as the consumer waits."""
    readings = parallel_map(tfdata.range(100), took_s=0.4, cpu_s=0.0, parallelism=4)

    parallel, source = profile.op_times(list(readings), readings)

    assert (parallel.own_s, parallel.waiting_s) == (0.4, 0.1)
    assert (source.own_s, source.waiting_s) == (0.01, 0.0)


def test_calls_in_the_background_are_counted_and_timed():
    """By the threads that make them, each call once."""
    dataset = tfdata.range(200).map(quick, num_parallel=4).options(optimize=False)

    parallel, _ = dataset.profile().ops

    assert parallel.calls == 200
    assert parallel.own_s > 0


def test_a_profile_ends_after_its_limit(slow):
    """Endless datasets can be profiled."""
    profile = tfdata.range(1).repeat().map(slow).options(optimize=False).profile(limit_s=0.1)

    assert profile.elapsed_s == pytest.approx(0.1, abs=0.003)


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
    assert re.fullmatch(r"Timing took [\d.e-]+ ms\.", lines[-1])


def test_saved_it_is_a_page_with_a_timeline(tmp_path, sequential):
    """One file that needs nothing else: an SVG with a lane for each op in each thread."""
    file = tmp_path / "profile.html"
    sequential.save(file)

    page = file.read_text(encoding="utf-8")
    assert "http" not in page.replace("http://www.w3.org", "")
    svg = ET.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL).group())
    assert len(svg.findall("rect")) == len(sequential.spans) == 100 * 3 + 10 + 4  # each op asks once more, at the end
    assert "Map slow in MainThread" in [text.text for text in svg.findall("text")]


def test_the_advice_fits_the_op(slow, clock):
    """A source is read in parallel, a quick function vectorized, a slow one called several times at once."""

    def brief(x):
        clock.advance(1e-6)
        return x

    cases = [
        (tfdata.from_generator(lambda: map(slow, range(100))), "read several files at once"),
        (tfdata.range(100).map(brief), "vectorized"),
        (tfdata.range(100).map(slow), "workers='processes' if it is Python code"),
    ]

    for dataset, advice in cases:
        assert advice in dataset.options(optimize=False).profile().advice


@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ({"took_s": 2.0, "cpu_s": 1.0}, "workers='processes' would be up to 2.0 times as fast"),  # Python code
        ({"took_s": 2.0, "cpu_s": 1.9}, "parallel already"),  # NumPy: both cores are busy
        ({"took_s": 2.0, "cpu_s": 0.1}, "parallel already"),  # it waits for a disk
        ({"took_s": 1.0, "cpu_s": 1.0, "parallelism": 1}, "parallel already"),  # one call at a time is one core busy
        ({"took_s": 2.0, "cpu_s": 1.9, "workers": "processes"}, "parallel already"),
        ({"took_s": 2.0, "cpu_s": 0.2, "workers": "processes"}, "computes for 2 ms: try workers='threads'"),
    ],
)
def test_the_advice_says_what_other_workers_would_bring(how, advice):
    """As far as the times of the calls tell, in a pass of a second on four cores."""
    readings = parallel_map(tfdata.range(100), **how)

    assert advice in advise(readings, elapsed_s=1.0, cores=4)
