"""A consumer's leases, by what its threads do to them, in an order that is rare when they run."""

from spanwise.pipelines.input.service.client.leases import Leases


def test_a_split_that_is_acknowledged_before_its_reader_has_left_is_not_read_again():
    """The last element may be used, and the next one asked for, while the reader has yet to go on."""
    leases = Leases(exact=True)
    leases.take([7], [])
    split = leases.begin(0)
    leases.note(split, 4)
    leases.end(split)

    leases.acknowledge(split)
    leases.leave(split)

    assert leases.begin(0) is None
    assert leases.wanted(8) == ([7], 8)
