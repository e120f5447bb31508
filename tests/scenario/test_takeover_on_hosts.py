"""The host of a dispatcher dies, is cut off or is paused, and one on another host takes over, whatever their clocks say.

`make test-hosts` runs this; it needs root, network namespaces and versitygw.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest

from spanwise.orchestrator.storage import forget_buckets
from spanwise.pipelines.demo_servers import serve_s3
from tests.pipelines.input.service.wire.test_security import Authority
from tests.scenario import hosts
from tests.scenario.led import SOON_S, LedService
from tests.scenario.relay import relayed
from tests.scenario.test_takeover import ELEMENTS, Reader
from tests.servers import eventually

if not os.environ.get("SPANWISE_TEST_HOSTS"):
    pytest.skip("make test-hosts runs these", allow_module_level=True)

GATEWAY = os.environ.get("SPANWISE_TEST_VERSITYGW")
NAME = "spanwise-service"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hosts")]


@pytest.fixture
def bridge(tmp_path, monkeypatch):
    """A network with a storage that its hosts and this process reach, and what members of a service present."""
    assert not hosts.missing(), hosts.missing()
    assert GATEWAY, "SPANWISE_TEST_VERSITYGW names no gateway"
    (tmp_path / "s3").mkdir()
    bridge = hosts.Bridge(tmp_path, "10.78.0")
    authority = Authority(tmp_path)
    security = authority.security("server", made_out_to=NAME)
    with serve_s3(Path(GATEWAY).absolute(), tmp_path / "s3", "lake") as s3:
        storage, s3["AWS_ENDPOINT_URL"] = relayed(s3["AWS_ENDPOINT_URL"], bridge.address)
        shown = {
            "TOKEN": "t",
            "CERTIFICATE": security.certificate,
            "KEY": security.key,
            "AUTHORITY": security.authority,
        }
        service = {f"SPANWISE_SERVICE_{name}": value for name, value in {**shown, "NAME": NAME}.items()}
        for name, value in {**s3, **service}.items():
            monkeypatch.setenv(name, value)
        forget_buckets()
        try:
            yield bridge
        finally:
            bridge.close()
            storage.close()
            forget_buckets()


@pytest.mark.parametrize(
    ("event", "ahead_s"),
    [("is cut off", 0), ("is cut off", 120), ("is cut off", -120), ("dies", 0), ("is paused", 0)],
)
def test_another_host_takes_over(bridge, tmp_path, event, ahead_s):
    """Each element once; when the first host comes back its dispatcher ends, and says who leads."""
    first, second, third = bridge.add_host(), bridge.add_host(ahead_s=ahead_s), bridge.add_host()
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(LedService(tmp_path, "s3://lake"))
        led = service.add_dispatcher("--host", first.address, host=first)
        service.await_leader(1)
        service.add_worker("--host", third.address, host=third)
        standby = service.add_dispatcher("--host", second.address, host=second)
        standby.await_word("standby: the dispatcher 1 ")
        readers = [Reader(service.url, "exactly_once", "job") for _ in range(2)]
        readers[0].await_elements(200)
        {"dies": first.die, "is cut off": first.cut, "is paused": first.pause}[event]()
        record = service.await_leader(2)
        seen = Counter(element for reader in readers for element in reader.result())
        {"dies": lambda: None, "is cut off": first.join, "is paused": first.resume}[event]()
        if event != "dies":
            eventually(lambda: led.process.poll() is not None, SOON_S)
            assert led.process.returncode == 1
            assert "the dispatcher 1 has lost s3://lake" in led.log.read_text()

    assert record.address.startswith(f"grpc+tls://{second.address}:")
    assert seen == Counter(range(ELEMENTS))
