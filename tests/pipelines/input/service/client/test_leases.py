"""A consumer's leases, by what its threads do to them, in an order that is rare when they run."""

from spanwise.pipelines.input.service.client.leases import HeldLeases


def test_a_split_that_is_acknowledged_before_its_reader_has_left_is_not_read_again():
    """The last element may be used, and the next one asked for, while the reader has yet to go on."""
    leases = HeldLeases(exact=True)
    leases.update([7], [])
    split = leases.take(0)
    leases.count(split, 4)
    leases.complete(split)

    leases.acknowledge(split)
    leases.leave(split)

    assert leases.take(0) is None
    assert leases.done() == (7,)
