"""How a master and its workers trust each other: a token of their own, and TLS where they are on several machines.

Both are made for one master, and go to its workers over the lines that their controller has to them.
"""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from spanwise.orchestrator.errors import NodeFailed
from spanwise.pipelines.input.service.wire.security import Security, is_loopback

NAME: Final = "spanwise-master"
"""In the certificate that a master makes for itself."""

_DAYS: Final = 30
"""How long it is valid. A training that takes longer has a retry."""

_OPENSSL_S: Final = 60.0


def secure(host: str) -> Security:
    """What a master at this address requires: the certificate of the data service there, or one that it makes.

    Raises:
        NodeFailed: there is neither a certificate nor the program that makes one.
    """
    token = secrets.token_urlsafe(16)
    if is_loopback(host):
        return Security(token=token)
    given = Security.from_environment()
    if given.is_tls:
        return replace(given.inlined(), token=token, worker_token=None, consumer_token=None)
    certificate, key = _make_certificate()
    return Security(token=token, certificate=certificate, key=key, authority=certificate, name=NAME)


def clients_of(server: Security) -> Security:
    """What the workers of a master need. Its key is among that only where they have to show a certificate too."""
    return server if server.mutual else replace(server, certificate=None, key=None)


def _make_certificate() -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="spanwise-") as folder:
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        command = [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", str(key), "-out", str(certificate), "-days", str(_DAYS), "-subj", f"/CN={NAME}",
            "-addext", f"subjectAltName=DNS:{NAME}",
        ]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_OPENSSL_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise NodeFailed(
                f"the master of an elastic job needs a certificate where other machines can connect, and openssl could "
                f"not make one ({error}). Install it there, or set SPANWISE_SERVICE_CERTIFICATE, "
                f"SPANWISE_SERVICE_KEY and SPANWISE_SERVICE_AUTHORITY."
            ) from error
        return certificate.read_text(encoding="ascii"), key.read_text(encoding="ascii")
