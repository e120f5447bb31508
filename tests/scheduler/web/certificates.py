"""Certificates that sign themselves, made by openssl."""

import shutil
import subprocess

import pytest


def make_certificate(folder, name="server"):
    """A certificate of 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(["openssl", *words.split(), *options], check=True, capture_output=True)
    return certificate, key
