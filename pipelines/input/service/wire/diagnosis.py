"""Diagnosis: why a server does not answer a client that speaks another protocol, or that shows no certificate."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

from spanwise.pipelines.input.service.wire.security import Security

_PATIENCE_S: Final = 1.0


def diagnose(address: str, security: Security) -> str:
    """What is wrong between this client and the server at an address with its scheme; empty if that is unknown.

    It opens one connection, says that it speaks TLS, and looks at how the server takes it.
    """
    if security.certificate is not None and address.startswith("grpc+tls://"):
        return ""  # a server that requires certificates would log this one's absence at each connection
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    try:
        speaks_tls, wants_certificate = _shake_hands(host.strip("[]"), int(port))
    except (OSError, ValueError):
        return ""  # nobody listens there, or not in time
    if scheme == "grpc" and speaks_tls:
        return (
            f"{address} speaks TLS, but this client does not: use grpc+tls://{place}, and set "
            f"SPANWISE_SERVICE_AUTHORITY to the PEM file of the authority that signed its certificate."
        )
    if scheme == "grpc+tls" and not speaks_tls:
        return (
            f"{address} does not speak TLS, but this client does: use grpc://{place}, or give the server a certificate."
        )
    if scheme == "grpc+tls" and wants_certificate:
        return (
            f"{address} requires a certificate of its clients, and this one has none: set SPANWISE_SERVICE_CERTIFICATE "
            f"and SPANWISE_SERVICE_KEY, or pass security=Security(certificate=…, key=…)."
        )
    return ""


def _shake_hands(host: str, port: int) -> tuple[bool, bool]:
    """Whether a server speaks TLS, and whether it requires a certificate. Nothing secret is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is only asked, and not trusted
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port), _PATIENCE_S) as connection:
        connection.settimeout(_PATIENCE_S)
        try:
            with context.wrap_socket(connection, server_hostname=host) as secured:
                with contextlib.suppress(TimeoutError):  # with TLS 1.3 a refusal comes after the handshake
                    return True, not secured.recv(1)
                return True, False
        except ssl.SSLError as error:
            text = str(error).upper()
            return "ALERT" in text, "CERTIFICATE" in text
        except OSError:
            return False, False
