"""What a task has ready: who gets which of it, how far it goes ahead, and what makes room."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.errors import FunctionFailed, ServiceError
from spanwise.pipelines.input.service.wire.connection import error_bytes
from spanwise.pipelines.input.service.wire.requests import Fetch
from spanwise.pipelines.input.service.worker import buffers, runs
from spanwise.pipelines.input.service.worker.buffers import RoundLanes, SharedQueue, TrainerWindow
from spanwise.pipelines.input.service.worker.runs import BatchRun, pack
from spanwise.pipelines.input.snapshot.encoding import ENCODINGS

ELEMENTS, ROWS, BATCHES = ENCODINGS["elements"], ENCODINGS["rows"], ENCODINGS["batches"]
SIZE = ELEMENTS.size_bytes(1)


def asking(limit=1 << 20, **reader):
    return Fetch(task=1, client=1, number=0, limit_bytes=limit, **reader)


def taken(buffer, limit=1 << 20, **reader):
    pieces, error = buffer.take(asking(limit, **reader))
    return list(pieces) if error is None else error


def fill(buffer, elements):
    for element in elements:
        buffer.put(element, ELEMENTS)


def test_who_comes_first_gets_the_first():
    """A queue has room until it holds its limit, and gives about as much as is asked for."""
    queue = SharedQueue(3 * SIZE)
    fill(queue, range(2))
    before = queue.has_room
    fill(queue, [2])

    assert (before, queue.has_room) == (True, False)
    assert taken(queue, 2 * SIZE) == [0, 1]
    assert queue.has_room
    assert taken(queue) == [2]
    assert queue.is_empty


def test_an_error_is_given_in_its_turn():
    """What lies before it goes first."""
    queue = SharedQueue(1_000)
    error = FunctionFailed("no")
    fill(queue, [0])
    queue.fail(error)
    fill(queue, [1])

    assert [taken(queue), taken(queue), taken(queue)] == [[0], error, [1]]


@pytest.mark.parametrize(
    "make", [SharedQueue, lambda limit: TrainerWindow(limit, limit), lambda limit: RoundLanes(1, limit)]
)
def test_errors_that_wait_take_room(make):
    """A dataset whose elements all fail filled the memory of its worker."""
    buffer = make(10_000)
    for _ in range(20):
        buffer.fail(FunctionFailed("no"))

    assert not buffer.has_room
    assert buffer.held_bytes > 10_000


@pytest.mark.parametrize("make", [SharedQueue, lambda limit: TrainerWindow(limit, limit)])
def test_each_consumer_hears_once_of_the_error_that_has_ended_a_pass(make):
    """Behind what is left: whoever hears nothing would take what it got for all there is."""
    buffer = make(1_000)
    fill(buffer, [0])
    buffer.end(error := ServiceError("no"))
    left, right = (Fetch(task=1, client=client, number=0, limit_bytes=1 << 20) for client in (1, 2))

    assert [buffer.take(left), buffer.is_empty] == [([0], None), False]
    assert [buffer.take(each) for each in (left, right)] == [([], error)] * 2
    assert buffer.is_empty
    assert not any(map(buffer.has, (left, right)))


def test_each_consumer_has_every_nth_element():
    """Blocks of rows are cut for it; an error counts as an element."""
    lanes = RoundLanes(3, 1_000)
    lanes.put(pa.record_batch({"n": list(range(4))}), ROWS)
    error = FunctionFailed("no")
    lanes.fail(error)
    lanes.put(pa.record_batch({"n": list(range(5, 9))}), ROWS)

    found = [[n for piece in taken(lanes, index=index) for n in piece["n"].to_pylist()] for index in (0, 2)]
    first = taken(lanes, 1, index=1)

    assert found == [[0, 3, 6], [2, 5, 8]]
    assert [first[0]["n"][0].as_py(), taken(lanes, index=1)] == [1, error]


@given(
    consumers=st.integers(1, 4),
    size=st.integers(1, 3),
    pieces=st.lists(st.one_of(st.integers(1, 13), st.just("error")), max_size=8),
    limit=st.sampled_from([1, 64, 1 << 20]),
    copied=st.sampled_from([0, 1 << 20]),
)
def test_batches_in_blocks_are_dealt_as_one_by_one(consumers, size, pieces, limit, copied):
    """In round r consumer i of n gets batch r * n + i, however the batches lie in blocks; an error is one of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_COPIED_ROWS", copied)
        lanes, wanted, end = RoundLanes(consumers, 1 << 20), [], 0
        for piece in pieces:
            if piece == "error":
                lanes.fail(FunctionFailed(str(end)))
                wanted.append(str(end))
            else:
                block = pa.record_batch({"n": range(end, end + piece)})
                lanes.put(BatchRun(block, size), BATCHES)
                wanted += [block["n"][at : at + size].to_pylist() for at in range(0, piece, size)]
            end += piece if piece != "error" else 1

        held = lanes.held_bytes
        for index in range(consumers):
            assert read_lane(lanes, index, limit) == wanted[index::consumers]
        assert lanes.is_empty
        sizes = [error_bytes(FunctionFailed(each)) if isinstance(each, str) else 8 * len(each) for each in wanted]
        assert (lanes.held_bytes, held) == (0, sum(sizes))


def read_lane(lanes, index, limit):
    """All that a consumer gets, as it unpacks it."""
    found = []
    while lanes.has(asking(index=index)):
        answer = taken(lanes, limit, index=index)
        if isinstance(answer, list):
            _, blocks, layout = pack(BATCHES, answer)
            found += [batch["n"].to_pylist() for batch in BATCHES.unpack(blocks, layout, 0)]
        else:
            found.append(str(answer))
    return found


def test_a_round_that_has_begun_is_made_whole(monkeypatch):
    """There is room for the rest of it whatever the limit says, and only for so many rounds."""
    monkeypatch.setattr(buffers, "MAX_ROUNDS_AHEAD", 2)
    small, large = RoundLanes(3, 1), RoundLanes(3, 1 << 20)
    fill(small, range(1))
    begun = small.has_room
    fill(small, range(1, 3))
    fill(large, range(6))

    assert (begun, small.has_room, large.has_room) == (True, False, False)


def test_all_consumers_hear_of_the_end():
    """Whether there was an error or the elements ran out, no round comes behind it."""
    lanes = RoundLanes(2, 1_000)
    lanes.end(None)

    assert [str(taken(lanes, index=index)) for index in (0, 1)] == [
        "distribute: the dataset ended, which coordinated reads do not allow."
    ] * 2
    with pytest.raises(ServiceError, match="there is no consumer 2 among 2"):
        lanes.take(asking(index=2))


@given(
    st.lists(st.tuples(st.sampled_from(["make", "a", "b", "c"]), st.integers(1, 9)), max_size=60), st.integers(1, 12)
)
def test_a_window_gives_each_trainer_an_ascending_part_and_keeps_its_limit(steps, cache):
    """No trainer gets an element twice or out of order; only what slid out is skipped; whoever leads, skips nothing."""
    window = TrainerWindow(cache * SIZE, 1 << 20)
    end, lead = 0, 0
    places = {"a": 0, "b": 0, "c": 0}
    for step, count in steps:
        if step == "make":
            for _ in range(count):
                if window.has_room:
                    window.put(end, ELEMENTS)
                    end += 1
        else:
            found = taken(window, count * SIZE, trainer=step)
            if found:
                assert found == list(range(found[0], found[0] + len(found)))
                assert found[0] == places[step] or (places[step] < found[0] <= lead and found[0] >= end - cache)
                places[step] = found[-1] + 1
                lead = max(lead, places[step])
            else:
                assert places[step] == end
        assert window._bytes <= (cache + 1) * SIZE
