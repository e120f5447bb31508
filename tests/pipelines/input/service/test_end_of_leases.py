"""The end of a leased job: nobody takes a consumer that was just given more for one that has read everything."""

from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.requests import ExchangeSplits, JoinJob, RegisterDataset
from spanwise.pipelines.input.service.wire.security import Security


def test_a_consumer_waits_for_splits_that_another_one_has_just_been_given():
    """That one may die before it has read them."""
    server = DispatchServer()
    connection = ServiceConnection(server.target, Security())
    try:
        connection.ask(RegisterDataset(dataset="few", structure="", splits=(4,)))
        join = JoinJob(dataset="few", mode="exactly_once", name="shared", epoch="0")
        one, other = (connection.ask(join)[0].client for _ in range(2))
        given = connection.ask(ExchangeSplits(client=one, number=1, want=4, at_end=True, keeps=True))[0].held
        assert len(given) == 4
        assert not connection.ask(ExchangeSplits(client=other, number=1, want=4, at_end=True))[0].finished
        connection.ask(ExchangeSplits(client=one, number=2, want=4, at_end=True, keeps=True))  # it has yielded them
        assert connection.ask(ExchangeSplits(client=other, number=2, want=4, at_end=True))[0].finished
    finally:
        connection.close()
        server.stop()
