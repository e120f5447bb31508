"""The settings of a dispatcher and of a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from spanwise.orchestrator.errors import SettingsError
from spanwise.orchestrator.storage import is_object_url, refuse_url
from spanwise.pipelines.input.service.wire.security import Security

MIB: Final = 1 << 20
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  refused
_SHORTEST_TAKEOVER_S: Final = 1.0


def _with_port(address: str, port: int) -> str:
    address = address.replace("%port%", str(port))
    return address if address.rpartition(":")[2].isdigit() and ":" in address else f"{address}:{port}"


@dataclass(frozen=True, kw_only=True)
class DispatcherConfig:
    host: str = "127.0.0.1"  #: where it listens; other than on loopback it needs a token and TLS
    port: int = 0  #: 0 takes a free one
    address: str | None = None  #: by which others reach it: `host`, `host:port` or `host:%port%`
    work_dir: str | None = None  #: where its journal and the registered datasets are: a folder, or a URL
    takeover_after_s: float = 15.0  #: another dispatcher with the same URL takes over after this silence
    fault_tolerant_mode: bool = False  #: whether it recovers its state when it is restarted; needs `work_dir`
    worker_addresses: tuple[str, ...] = ()  #: `host:port` of each worker, for static sharding
    worker_timeout_s: float = 10.0  #: a worker that is silent for longer is lost
    client_timeout_s: float = 20.0  #: a consumer that is silent for longer is gone, and its leases with it
    job_gc_timeout_s: float = 300.0  #: a job that nobody has read for longer is forgotten
    kept_job_timeout_s: float = 7 * 86_400.0  #: likewise, a job that a stored state can continue
    gc_dynamic_sharding_jobs: bool = False  #: also a job that hands out splits, and so would yield elements again
    max_message_bytes: int = 256 * MIB  #: a larger request is refused
    security: Security = field(default_factory=Security)

    def __post_init__(self) -> None:
        if self.fault_tolerant_mode and self.work_dir is None:
            raise SettingsError("Cannot enable fault tolerant mode without configuring a work dir: pass work_dir=….")
        if self.work_dir is None:
            return
        refuse_url("the dispatcher's work_dir", self.work_dir, object_storage=True)
        if not is_object_url(self.work_dir):
            return
        if self.host in _EVERYWHERE and self.address is None:
            raise SettingsError(
                f"a dispatcher that listens on all interfaces (host {self.host}) with its journal at a URL needs an "
                f"address by which others find it: --address HOST:PORT, or DispatcherConfig(address=…)."
            )
        if self.takeover_after_s < _SHORTEST_TAKEOVER_S:
            raise SettingsError(
                f"takeover_after_s is {self.takeover_after_s:g}: wants at least {_SHORTEST_TAKEOVER_S:g} s, or a slow "
                f"answer of the storage would end the dispatcher."
            )

    def address_at(self, port: int) -> str:
        """By which others reach it, once it listens on a port."""
        return _with_port(self.address or self.host, port)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    dispatcher_address: str  #: or the URL of its journal
    host: str = "127.0.0.1"  #: where it listens; other than on loopback it needs a token and TLS
    port: int = 0  #: 0 takes a free one
    worker_address: str | None = None  #: by which consumers reach it: `host`, `host:port` or `host:%port%`
    heartbeat_s: float = 0.5  #: how often it reports to the dispatcher
    buffer_bytes: int = 64 * MIB  #: how far each task works ahead of its consumers
    cross_trainer_cache_bytes: int = 1024 * MIB  #: of elements that each shared task keeps for slower trainers
    shared_bytes: int = 256 * MIB  #: of memory that it lends to consumers on its host; 0 sends them everything
    max_requests: int = 1_024  #: how many consumers it answers at once
    security: Security = field(default_factory=Security)

    def address_at(self, port: int) -> str:
        """By which consumers reach it, once it listens on a port."""
        return _with_port(self.worker_address or self.host, port)

    def __post_init__(self) -> None:
        if self.host in _EVERYWHERE and self.worker_address is None:
            raise SettingsError(
                f"a worker that listens on all interfaces (host {self.host}) needs an address by which consumers reach "
                f"it: --address HOST:PORT, or WorkerConfig(worker_address=…)."
            )
