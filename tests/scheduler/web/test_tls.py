"""TLS by option, with a real certificate that signs itself, on a real server."""

import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.scheduler.web.certificates import make_certificate


def test_a_server_with_a_certificate_is_read_over_tls_only(folder):
    """Whoever trusts the certificate reads it, whoever does not or speaks plain HTTP does not; cookies are for TLS."""
    certificate, key = make_certificate(folder)
    command = [sys.executable, "-P", "-m", "spanwise", "ui", "--port", "0"]
    with subprocess.Popen(
        [*command, "--certificate", str(certificate), "--key", str(key)], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            url = re.search(r"http\S+", server.stdout.readline())[0]
            trusting = ssl.create_default_context(cafile=str(certificate))
            with urllib.request.urlopen(url, context=trusting, timeout=60) as found:
                text, cookie = found.read().decode(), found.headers["set-cookie"]
            with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
                urllib.request.urlopen(url, timeout=60)
            with pytest.raises(OSError):  # noqa: PT011  closed or reset, as the system sees fit
                urllib.request.urlopen(url.replace("https", "http"), timeout=60)
        finally:
            server.terminate()

    assert url.startswith("https://127.0.0.1:")
    assert "Nothing has run" in text
    assert "Secure" in cookie
    assert "HttpOnly" in cookie


def test_a_certificate_of_no_use_is_refused_in_our_words(folder, spanwise):
    """No PEM file, or the key of another; nothing is served."""
    certificate, key = make_certificate(folder)
    _, other = make_certificate(folder, "other")
    Path("empty.pem").touch()

    for pair in ((certificate, other), ("empty.pem", key)):
        code, _, err = spanwise("ui", "--port", "0", "--certificate", str(pair[0]), "--key", str(pair[1]))
        assert code == 2
        assert f"TLS cannot use {pair[0]} with the key {pair[1]}" in err
    assert spanwise("ui", "--certificate", str(certificate))[0] == 2
