"""Who may call a server of the service, and how this is proven: a token and TLS certificates."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from spanwise.orchestrator.errors import ServiceError, SettingsError

if TYPE_CHECKING:
    import ssl

Role: TypeAlias = Literal["all", "worker", "consumer"]
"""What a member may do that presents a token."""

_ROLES: Final[Mapping[str, Role]] = {"token": "all", "worker_token": "worker", "consumer_token": "consumer"}

_DIGEST: Final = "sha256:"
"""Begins a token that a server can recognise, and that nobody can present."""

_LOOPBACK_NAMES: Final = frozenset({"localhost"})


@dataclass(frozen=True, kw_only=True)
class Security:
    """What a server requires of its clients, and what a client presents. PEM is a file's path or the text itself."""

    token: str | None = field(
        default=None, repr=False
    )  #: whoever presents it may do everything, also run code on workers
    worker_token: str | None = field(default=None, repr=False)  #: whoever presents it may be a worker
    consumer_token: str | None = field(default=None, repr=False)  #: whoever presents it may read what is registered
    certificate: str | None = None  #: of this server, or of this client if the server requires one
    key: str | None = field(default=None, repr=False)  #: the certificate's private key
    authority: str | None = None  #: whose certificates are trusted
    name: str | None = None  #: the name in servers' certificates, if it is not their address
    mutual: bool = False  #: whether a server requires a certificate of its clients

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("the data service needs a certificate and its key together; pass both or none.")
        if self.mutual and (self.certificate is None or self.authority is None):
            raise SettingsError("mutual TLS needs a certificate, its key and the authority; pass all three.")
        for name in _ROLES:
            if (secret := getattr(self, name)) is None:
                continue
            object.__setattr__(self, name, secret.strip())  # a file's last line ends with a newline
            if not (secret.isascii() and secret.strip().isprintable() and secret.strip()):
                raise SettingsError(
                    f"the data service's {name} is empty, or has characters that are not printable ASCII, such as a "
                    f"newline in its middle. Use letters and digits:  openssl rand -hex 32"
                )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """From the variables SPANWISE_SERVICE_TOKEN, _WORKER_TOKEN, _CONSUMER_TOKEN and those of certificates.

        They are _CERTIFICATE, _KEY, _AUTHORITY, _NAME and _MUTUAL.
        """

        def value(name: str) -> str | None:
            return environment.get(f"SPANWISE_SERVICE_{name}") or None

        return cls(
            token=value("TOKEN"),
            worker_token=value("WORKER_TOKEN"),
            consumer_token=value("CONSUMER_TOKEN"),
            certificate=value("CERTIFICATE"),
            key=value("KEY"),
            authority=value("AUTHORITY"),
            name=value("NAME"),
            mutual=value("MUTUAL") == "1",
        )

    def inlined(self) -> Self:
        """The same with texts in place of paths, for a machine without these files."""

        def text(pem: str | None) -> str | None:
            return None if pem is None else _content(pem).decode()

        return replace(self, certificate=text(self.certificate), key=text(self.key), authority=text(self.authority))

    @property
    def is_tls(self) -> bool:
        """Whether a server with it speaks TLS."""
        return self.certificate is not None

    @property
    def wants_token(self) -> bool:
        """Whether a server with it admits only who presents a token."""
        return any(getattr(self, name) is not None for name in _ROLES)

    def role_of(self, headers: Mapping[str, list[str]]) -> Role | None:
        """What a client may do whose request has these headers; None if it has no token of this service."""
        if not self.wants_token:
            return "all"
        presented = (headers.get("authorization") or [""])[0].removeprefix("Bearer ")
        digest = f"{_DIGEST}{hashlib.sha256(presented.encode()).hexdigest()}"
        for name, role in _ROLES.items():
            secret = getattr(self, name)
            if secret is None:
                continue
            wanted = secret if secret.startswith(_DIGEST) else f"{_DIGEST}{hashlib.sha256(secret.encode()).hexdigest()}"
            if hmac.compare_digest(digest, wanted):
                return role
        return None

    @property
    def presents(self) -> str | None:
        """The token that a client with it presents: the one that may do most."""
        secrets = (getattr(self, name) for name in _ROLES)
        return next((each for each in secrets if each is not None and not each.startswith(_DIGEST)), None)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [] if self.presents is None else [(b"authorization", f"Bearer {self.presents}".encode())]

    def server_arguments(self) -> dict[str, Any]:
        """The arguments of a Flight server."""
        if self.certificate is None or self.key is None:
            return {}
        arguments: dict[str, Any] = {"tls_certificates": [(_content(self.certificate), _content(self.key))]}
        if self.mutual and self.authority is not None:
            arguments |= {"verify_client": True, "root_certificates": _content(self.authority)}
        return arguments

    def tls_context(self) -> ssl.SSLContext | None:
        """What a server of Python's needs to speak TLS to clients of gRPC, on Linux; None if it speaks none."""
        if self.certificate is None or self.key is None:
            return None
        import ssl

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["h2"])
        handle = os.memfd_create("certificate")  # it is loaded from a file, and a key that came as text is in none
        try:
            os.write(handle, _content(self.certificate) + b"\n" + _content(self.key))
            context.load_cert_chain(f"/proc/self/fd/{handle}")
        except ssl.SSLError as error:
            raise ServiceError(f"the data service's certificate and key do not fit: {error}.") from error
        finally:
            os.close(handle)
        return context

    def client_arguments(self, address: str) -> dict[str, Any]:
        """The arguments of a Flight client."""
        if not address.startswith("grpc+tls://"):
            return {}
        arguments: dict[str, Any] = {} if self.name is None else {"override_hostname": self.name}
        if self.authority is not None:
            arguments["tls_root_certs"] = _content(self.authority)
        if self.certificate is not None and self.key is not None:
            arguments |= {"cert_chain": _content(self.certificate), "private_key": _content(self.key)}
        return arguments

    def check_bind(self, host: str) -> None:
        """Refuses to listen where other machines can connect, without a token and TLS.

        Raises:
            SettingsError: names what is missing.
        """
        if is_loopback(host):
            return
        missing = [
            name
            for name, value in (
                ("a token (SPANWISE_SERVICE_TOKEN)", self.wants_token),
                ("a certificate and its key (SPANWISE_SERVICE_CERTIFICATE, SPANWISE_SERVICE_KEY)", self.certificate),
            )
            if not value
        ]
        if missing:
            raise SettingsError(
                f"the data service would listen at {host}, where other machines can connect and run code. It needs "
                f"{' and '.join(missing)}; or listen at 127.0.0.1."
            )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in _LOOPBACK_NAMES


def _content(pem: str) -> bytes:
    if pem.startswith("-----BEGIN"):
        return pem.encode()
    try:
        return Path(pem).read_bytes()
    except OSError as error:
        raise ServiceError(f"the data service could not read {pem}: {error}.") from error
