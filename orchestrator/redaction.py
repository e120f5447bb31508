"""Redaction: what of a URL may be a secret, and texts without it."""

from __future__ import annotations

import re

# `Path` leaves one slash of two; the words that messages write in the place of both stay.
_PASSWORD = re.compile(r"([A-Za-z0-9+.-]{2,}:/+)(?!user:password@)[^/\s'\"]*:(?!\*\*\*@)[^/\s'\"]*@")
_REST = r"[^\s'\"<>]*[^\s'\"<>.,:;)]"  # a URL may end a sentence, or stand in brackets
_WEB_QUERY = re.compile(rf"(https?:/+[^\s'\"?]*\?){_REST}")
_SIGNED_QUERY = re.compile(rf"(\?)(?:[^\s'\"<>]*&)?(?:x-amz-|x-goog-|sig=|signature=){_REST}", re.IGNORECASE)


def redact_urls(text: str) -> str:
    """The text without the passwords of URLs, the queries of web servers' files, and signatures."""
    for secret, shown in ((_PASSWORD, r"\1…@"), (_WEB_QUERY, r"\1…"), (_SIGNED_QUERY, r"\1…")):
        text = secret.sub(shown, text)
    return text


def is_signed(url: str) -> bool:
    """Whether the URL has a query that a signature is part of: whoever has it may do what its owner may."""
    return _SIGNED_QUERY.search(url) is not None
