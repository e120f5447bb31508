"""Who may speak to a server of the service, and how it is proven: a token, and TLS certificates."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from spanwise.orchestrator.errors import ServiceError, SettingsError

_LOOPBACK_NAMES: Final = frozenset({"localhost"})


@dataclass(frozen=True, kw_only=True)
class Security:
    """What a server asks of its clients, and what a client shows. PEM is a file's path or the text itself."""

    token: str | None = field(default=None, repr=False)  #: known to all members of the service, and to nobody else
    certificate: str | None = None  #: of this server, or of this client if the server asks for one
    key: str | None = field(default=None, repr=False)  #: the certificate's private one
    authority: str | None = None  #: whose certificates are believed
    name: str | None = None  #: whom servers' certificates are made out to, if that is not their address
    mutual: bool = False  #: whether a server asks its clients for a certificate

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("the data service wants a certificate and its key together; give both, or none.")
        if self.mutual and (self.certificate is None or self.authority is None):
            raise SettingsError("mutual TLS wants a certificate, its key and the authority; give all three.")
        if self.token is not None and not self.token.isascii():
            raise SettingsError("the data service's token has letters that are not ASCII; make it of plain ones.")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """As the variables SPANWISE_SERVICE_TOKEN, _CERTIFICATE, _KEY, _AUTHORITY, _NAME and _MUTUAL say."""

        def given(name: str) -> str | None:
            return environment.get(f"SPANWISE_SERVICE_{name}") or None

        return cls(
            token=given("TOKEN"),
            certificate=given("CERTIFICATE"),
            key=given("KEY"),
            authority=given("AUTHORITY"),
            name=given("NAME"),
            mutual=given("MUTUAL") == "1",
        )

    def inlined(self) -> Self:
        """The same with texts in place of paths, for a machine that has not these files."""

        def text(pem: str | None) -> str | None:
            return None if pem is None else _content(pem).decode()

        return replace(self, certificate=text(self.certificate), key=text(self.key), authority=text(self.authority))

    @property
    def is_tls(self) -> bool:
        """Whether a server with it speaks TLS."""
        return self.certificate is not None

    def allows(self, headers: Mapping[str, list[str]]) -> bool:
        """Whether a request with these headers knows the token."""
        if self.token is None:
            return True
        shown = (headers.get("authorization") or [""])[0]
        return hmac.compare_digest(shown.encode(), f"Bearer {self.token}".encode())

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [] if self.token is None else [(b"authorization", f"Bearer {self.token}".encode())]

    def of_server(self) -> dict[str, Any]:
        """What a Flight server is started with."""
        if self.certificate is None or self.key is None:
            return {}
        arguments: dict[str, Any] = {"tls_certificates": [(_content(self.certificate), _content(self.key))]}
        if self.mutual and self.authority is not None:
            arguments |= {"verify_client": True, "root_certificates": _content(self.authority)}
        return arguments

    def of_client(self, address: str) -> dict[str, Any]:
        """What a Flight client is connected with."""
        if not address.startswith("grpc+tls://"):
            return {}
        arguments: dict[str, Any] = {} if self.name is None else {"override_hostname": self.name}
        if self.authority is not None:
            arguments["tls_root_certs"] = _content(self.authority)
        if self.certificate is not None and self.key is not None:
            arguments |= {"cert_chain": _content(self.certificate), "private_key": _content(self.key)}
        return arguments

    def check_bind(self, host: str) -> None:
        """Refuses to listen where strangers can reach, without a token and TLS.

        Raises:
            SettingsError: says what is missing.
        """
        if is_loopback(host):
            return
        missing = [
            words
            for words, there in (
                ("a token (SPANWISE_SERVICE_TOKEN)", self.token),
                ("a certificate and its key (SPANWISE_SERVICE_CERTIFICATE, SPANWISE_SERVICE_KEY)", self.certificate),
            )
            if not there
        ]
        if missing:
            raise SettingsError(
                f"the data service was to listen at {host}, where other machines reach it, and who reaches it runs "
                f"code. It wants {' and '.join(missing)}; or listen at 127.0.0.1."
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
        raise ServiceError(f"{pem} cannot be read, and the data service needs it: {error}.") from error
