"""Redaction: no message has the secrets that a URL in it has."""

from __future__ import annotations

import pickle

import pytest

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.orchestrator.redaction import redact_urls


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://h/a.csv?sig=x&y=z: cannot be read", "http://h/a.csv?…: cannot be read"),
        ("('https://h/a.csv?x=1', 'https://h/b.csv?x=1')", "('https://h/a.csv?…', 'https://h/b.csv?…')"),
        ("see https://h/a.csv?x=y.", "see https://h/a.csv?…."),
        ("az://lake/a b?sv=1&sig=x, line 2", "az://lake/a b?…, line 2"),
        ("s3://lake/a?X-Amz-Signature=x", "s3://lake/a?…"),
        ("ftp://me:pass@word@h/x: refused", "ftp://…@h/x: refused"),
        ("https:/me:password@h/x", "https:/…@h/x"),
    ],
)
def test_secrets_of_urls_are_left_out(text, shown):
    """Passwords, queries of web servers' files, and signatures."""
    assert redact_urls(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://lake/day=?/part-[0-9].csv",
        "postgresql://me@host/db?sslmode=require",
        "mysql://me:***@host/db",
        "http://127.0.0.1:9000/x: write to me@host",
        "C:/a:b@c",
        "what? sig=nature",
    ],
)
def test_what_is_no_secret_is_left_as_it_is(text):
    """Wildcards, users, masked passwords, ports."""
    assert redact_urls(text) == text


def test_no_error_has_the_secret_of_a_url():
    """Also one that comes from another process, and one whose message quotes another."""
    inner = UnreadableInput("https://h/a.csv?sig=secret: cannot be read.")

    assert str(pickle.loads(pickle.dumps(inner))) == "https://h/a.csv?…: cannot be read."
    assert str(UnreadableInput(f"day 1: {inner}")) == "day 1: https://h/a.csv?…: cannot be read."
