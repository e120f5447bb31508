"""Who is let in, and what a stranger, a broken client and a stalled one can do: nothing that others would notice."""

import datetime as dt
import hashlib
import ipaddress
import json
import resource
import time

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyarrow import flight

from spanwise.orchestrator.errors import ServiceError, SettingsError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig, WorkerConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, environment
from spanwise.pipelines.input.service.wire.requests import (
    ExchangeSplits,
    GetStatus,
    Heartbeat,
    JoinJob,
    LeaveJob,
    PollJob,
)
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph, pack_graph, unpack_graph
from spanwise.pipelines.input.service.worker.worker import WorkerServer
from tests.pipelines.input.service.servers import Service

TOKEN = Security(token="open sesame")


@pytest.fixture
def guarded():
    """A service with a token."""
    with (
        DispatchServer(DispatcherConfig(security=TOKEN)) as dispatcher,
        WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target, security=TOKEN)) as worker,
    ):
        yield dispatcher, worker


@pytest.mark.parametrize("shown", [Security(), Security(token="open barley")], ids=["none", "wrong"])
def test_without_the_token_nothing_is_answered_and_no_code_runs(guarded, shown, tmp_path):
    """The dispatcher takes no graph, the worker no ticket."""
    dispatcher, worker = guarded
    trace = tmp_path / "ran"
    dataset = inputs.range(3).map(lambda number: trace.write_text("yes") and number)

    with pytest.raises(ServiceError, match="without its token"):
        list(dataset.distribute(dispatcher.target, security=shown))
    with pytest.raises(ServiceError, match="without its token"):
        ServiceConnection(worker.address, shown).fetch(b"{}", 5.0)
    assert not trace.exists()
    assert list(dataset.distribute(dispatcher.target, security=TOKEN)) == [0, 1, 2]


def test_a_worker_without_the_token_gets_no_work(guarded):
    """It is refused when it starts."""
    dispatcher, _ = guarded

    with pytest.raises(ServiceError, match="without its token"):
        WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target))


def test_other_addresses_than_loopback_want_a_token_and_tls():
    """Refused, with what is missing; the token is not shown where configurations are printed."""
    with pytest.raises(SettingsError, match=r"a token .* and a certificate"):
        DispatchServer(DispatcherConfig(host="0.0.0.0"))
    with pytest.raises(SettingsError, match="needs a certificate"):
        DispatchServer(DispatcherConfig(host="0.0.0.0", security=TOKEN))
    assert "sesame" not in repr(DispatcherConfig(security=TOKEN))


def test_a_worker_that_listens_everywhere_has_to_say_where_it_is():
    """Else it would be registered under an address that nobody reaches."""
    with pytest.raises(SettingsError, match=r"--address HOST:PORT"):
        WorkerConfig(dispatcher_address="grpc://127.0.0.1:5050", host="0.0.0.0")


class Authority:
    """Certificates for 127.0.0.1, as files."""

    def __init__(self, folder):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed("authority", self.key, days=10, is_authority=True)
        self.path = self._written("authority.pem", self.certificate.public_bytes(serialization.Encoding.PEM))

    def security(self, who, *, days=10, made_out_to=None, **more):
        key = ec.generate_private_key(ec.SECP256R1())
        pem = serialization.Encoding.PEM
        signed = self._signed(who, key, days=days, is_authority=False, made_out_to=made_out_to)
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Security(
            token="t",
            certificate=self._written(f"{who}.pem", signed.public_bytes(pem)),
            key=self._written(f"{who}.key", private),
            authority=self.path,
            **more,
        )

    def _signed(self, name, key, *, days, is_authority, made_out_to=None):
        now = dt.datetime.now(dt.UTC)
        title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        here = x509.IPAddress(ipaddress.ip_address("127.0.0.1")) if made_out_to is None else x509.DNSName(made_out_to)
        return (
            x509.CertificateBuilder()
            .subject_name(title)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=20))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([here]), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def _written(self, name, content):
        (self.folder / name).write_bytes(content)
        return str(self.folder / name)


def test_mutual_tls_lets_in_who_has_a_certificate(tmp_path):
    """Elements come through it; without a certificate of the authority, or with an expired one, nothing does."""
    authority = Authority(tmp_path)
    server = authority.security("server", mutual=True)
    with (
        DispatchServer(DispatcherConfig(security=server)) as dispatcher,
        WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target, security=server)),
    ):
        client = authority.security("client")
        found = list(inputs.range(5).distribute(dispatcher.target, security=client))
        for stranger in (Security(token="t", authority=authority.path), authority.security("old", days=-1)):
            with pytest.raises(ServiceError):
                ServiceConnection(dispatcher.target, stranger).ask(GetStatus())

    assert dispatcher.target.startswith("grpc+tls://")
    assert found == [0, 1, 2, 3, 4]


def test_one_certificate_serves_many_addresses_under_a_name(tmp_path):
    """Its name is looked at in place of the address; without being told so, no client believes it."""
    authority = Authority(tmp_path)
    server = authority.security("server", made_out_to="spanwise.example", name="spanwise.example")
    with (
        DispatchServer(DispatcherConfig(security=server)) as dispatcher,
        WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target, security=server)),
    ):
        found = list(inputs.range(3).distribute(dispatcher.target, security=server))
        with pytest.raises(ServiceError, match="do not trust each other's certificates"):
            ServiceConnection(dispatcher.target, Security(token="t", authority=authority.path)).ask(GetStatus())

    assert found == [0, 1, 2]


def test_settings_for_other_machines_hold_the_files_themselves(tmp_path):
    """They serve when the files are gone, and show neither the token nor the key where they are printed."""
    authority = Authority(tmp_path)
    carried = authority.security("server", mutual=True).inlined()
    for file in tmp_path.iterdir():
        file.unlink()

    with DispatchServer(DispatcherConfig(security=carried)) as dispatcher:
        answer, _ = ServiceConnection(dispatcher.target, carried).ask(GetStatus())

    assert answer.workers == ()
    assert "PRIVATE" not in repr(carried)
    assert "'t'" not in repr(carried)


def test_an_expired_certificate_of_a_server_is_refused(tmp_path):
    """The client says that the certificates are the trouble, and does not wait for better times."""
    authority = Authority(tmp_path)
    expired = authority.security("server", days=-1)
    with (
        DispatchServer(DispatcherConfig(security=expired)) as dispatcher,
        pytest.raises(ServiceError, match="do not trust each other's certificates"),
    ):
        list(inputs.range(3).distribute(dispatcher.target, security=authority.security("client")))


def test_what_is_too_large_or_malformed_is_refused_and_the_rest_goes_on():
    """Garbage in every place where something arrives from outside."""
    with Service(1, max_message_bytes=10_000) as service:
        worker = ServiceConnection(service.workers[0].address, Security())
        dispatcher = ServiceConnection(service.target, Security())
        with pytest.raises(ServiceError, match="at most 10000 are allowed"):
            list(inputs.from_tensors(np.random.default_rng(0).bytes(20_000)).distribute(service.target))
        for header in ({}, {"client": "x"}, {"client": -1}, {"client": 1, "more": 2}):
            with pytest.raises(ServiceError, match="malformed"):
                dispatcher.exchange("leave", json.dumps(header).encode())
        with pytest.raises(ServiceError, match="there is no request"):
            dispatcher.exchange("open_the_door", b"{}")
        raw = flight.connect(service.target)
        for body in (b"", b"\xff\x00", b"[" * 5_000, b"null"):
            with pytest.raises(flight.FlightServerError, match="refused"):
                list(raw.do_action(flight.Action("join", body)))
        for ticket in (b"", b"{", b"\xff" * 100, b'{"client": 1}'):
            with pytest.raises(ServiceError, match="malformed"):
                worker.fetch(ticket, 5.0)
        assert list(inputs.range(3).distribute(service.target)) == [0, 1, 2]


def test_a_client_that_stops_reading_costs_one_answer():
    """The worker goes no further ahead than its buffer, and others are served."""
    big = inputs.range(10_000).map(lambda number: np.full(100_000, number, np.int64))  # 8 GB, were it all made
    with Service(0) as service:
        service.add_worker(buffer_bytes=8_000_000)
        with big.distribute(service.target).iterator() as stalled:
            next(stalled)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(3):
                assert list(inputs.range(1_000).distribute(service.target)) == list(range(1_000))
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert grown < 400_000  # KiB


def test_another_environment_is_refused_before_anything_is_unpickled():
    """The message says what differs."""
    content = pack_graph(ShippedGraph.of(inputs.range(3)))
    other = json.dumps({**environment(), "python": "3.8", "numpy": "1.0"}).encode()

    with pytest.raises(ServiceError, match=r"python 3.8 there, .*; numpy 1.0 there"):
        unpack_graph(other + b"\n" + b"this is no pickle", "dataset 'x'")
    assert unpack_graph(content, "dataset 'x'").op.name == "Range"


def test_a_client_of_another_protocol_or_without_a_certificate_learns_which_within_seconds(tmp_path):
    """It would wait for ever: to it, nobody seems to answer."""
    authority = Authority(tmp_path)
    server = authority.security("server", mutual=True)
    own = authority.security("client")
    cases = [
        ("grpc", own, "speaks TLS, but this client does not: use grpc.tls://"),
        ("grpc+tls", Security(token="t", authority=authority.path), "requires a certificate of its clients"),
    ]
    started = time.monotonic()
    with DispatchServer(DispatcherConfig(security=server)) as dispatcher:
        place = dispatcher.target.partition("://")[2]
        for scheme, client, why in cases:
            with pytest.raises(ServiceError, match=why):
                list(inputs.range(3).distribute(f"{scheme}://{place}", security=client))
        ServiceConnection(dispatcher.target, own).ask(GetStatus())
    with DispatchServer() as plain, pytest.raises(ServiceError, match="does not speak TLS, but this client does"):
        list(inputs.range(3).distribute(plain.target.replace("grpc", "grpc+tls"), security=cases[1][1]))

    assert time.monotonic() - started < 60, "5 s each where nothing else runs"


def test_each_role_may_do_its_own_and_no_more():
    """A consumer reads what is registered, and runs no code; a worker registers nothing; one token allows everything."""
    secrets = {"token": "all", "worker_token": "work", "consumer_token": "read"}
    digests = {name: f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}" for name, secret in secrets.items()}
    worker = Security(**{**digests, "worker_token": "work"})
    consumer = Security(consumer_token="read")
    with Service(0, security=Security(**digests)) as service:
        service.add_worker(security=worker)
        dataset = inputs.register_dataset(service.target, inputs.range(5), security=Security(token="all"))
        found = sorted(inputs.from_dataset_id("dynamic", service.target, dataset, security=consumer))
        for who in (consumer, Security(worker_token="work")):
            with pytest.raises(ServiceError, match=r"refused the request 'put_dataset'.*SPANWISE_SERVICE_TOKEN does"):
                inputs.register_dataset(service.target, inputs.range(6), security=who)
        beat = Heartbeat(worker="w", address="127.0.0.1:1", process="p", wait_s=0)
        with pytest.raises(ServiceError, match="refused the request 'heartbeat': the token of a consumer"):
            ServiceConnection(service.target, consumer).ask(beat)
        with pytest.raises(ServiceError, match="without its token"):
            ServiceConnection(service.target, Security(token="guessed")).ask(GetStatus())

    assert found == [0, 1, 2, 3, 4]


def test_nobody_ends_or_speaks_for_another_client():
    """Their numbers can be guessed, their keys cannot."""
    with Service(0) as service:
        dataset = inputs.register_dataset(service.target, inputs.range(5))
        connection = ServiceConnection(service.target, Security())
        join = JoinJob(dataset=dataset, mode="exactly_once", name="j", epoch="0", key="secret")
        client = connection.ask(join)[0].client
        for request in (
            LeaveJob(client=client),
            ExchangeSplits(client=client, key="other", number=1, want=4),
            PollJob(client=client, targets="any", process="p", wait_s=0),
        ):
            with pytest.raises(ServiceError, match="has joined with another key"):
                connection.ask(request)
        held = connection.ask(ExchangeSplits(client=client, key="secret", number=1, want=4))[0].held

    assert len(held) == 4
