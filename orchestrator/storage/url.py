"""URLs of object storage: which texts are URLs, the bucket and key in one, and what a listing says of an object."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from spanwise.orchestrator.errors import ParameterError
from spanwise.orchestrator.redaction import is_signed

SCHEMES = {"s3": "Amazon S3 and what speaks its protocol", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}
"""The schemes of object storage that can be read and written."""

ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}
"""The variables that name an endpoint, by scheme; the first that is set counts. Google's is part of its account."""

WEB = ("https", "http")
"""The schemes of web servers: their files can be read by name, and neither be listed nor be written."""

_MEMORY = "memory"  # objects of this process alone, for trials

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)  # `Path` leaves one slash of two


@dataclass(frozen=True)
class ObjectUrl:
    """A place in object storage: `s3://bucket/key`. `key` has no slash at its ends; empty for the bucket itself."""

    scheme: str
    bucket: str  #: `az`: the container; the account is that of the environment; `https`: the host
    key: str
    query: str = field(default="", repr=False)  #: of a web server's URL; it may be a secret, so it is not shown

    def __truediv__(self, name: str) -> ObjectUrl:
        return replace(self, key=f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        key = quote(self.key) if self.scheme in WEB else self.key
        text = f"{self.scheme}://{self.bucket}/{key}" if key else f"{self.scheme}://{self.bucket}"
        return f"{text}?…" if self.query else text

    @property
    def name(self) -> str:
        """The last part of the key."""
        return PurePosixPath(self.key).name

    @property
    def home(self) -> ObjectUrl:
        """The bucket itself."""
        return replace(self, key="")


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """What a listing says of an object."""

    key: str
    size_bytes: int
    etag: str  #: changes whenever the object is replaced; empty where the storage has none
    modified_ns: int  #: when it was written, since 1970


def is_object_url(text: str) -> bool:
    """Whether the text is a URL of object storage."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def is_web_url(text: str) -> bool:
    """Whether the text is a URL of a web server's file."""
    return text.partition("://")[0] in WEB and "://" in text


def is_readable_url(text: str) -> bool:
    """Whether the text is a URL of what can be read: object storage, or a web server's file."""
    return "://" in text and text.partition("://")[0] in (*SCHEMES, *WEB, _MEMORY)


def parse_url(text: str) -> ObjectUrl:
    """Reads a URL of object storage, or of a web server's file.

    Raises:
        ParameterError: it is none, names no bucket, or holds a secret: a web server's may have one in its query.
    """
    scheme, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    if not is_readable_url(text) or not bucket:
        known = ", ".join(f"{name}://bucket/…" for name in SCHEMES)
        raise ParameterError(f"{text!r} is no URL of object storage; it begins with one of: {known}.")
    if "@" in bucket or (scheme not in WEB and ":" in bucket and "@" in key):  # many keys of S3 have a slash
        raise ParameterError(f"{scheme}://…@{rest.rpartition('@')[2]} holds a password, which would be shown.")
    if scheme not in WEB:
        if is_signed(text):
            raise ParameterError(
                f"{text} holds a signature, which would be shown. Give the URL without it, and set credentials in the "
                f"environment."
            )
        return ObjectUrl(scheme, bucket, key.strip("/"))
    key, _, query = key.partition("?")
    return ObjectUrl(scheme, bucket, unquote(key.partition("#")[0]).strip("/"), query.partition("#")[0])


def local_path(text: str) -> str:
    """The path on this machine that a `file://` URL names; any other text as it is.

    Raises:
        ParameterError: it names another host.
    """
    if not text.startswith("file://"):
        return text
    host, _, path = text.removeprefix("file://").partition("/")
    if host not in ("", "localhost"):
        raise ParameterError(f"{text!r} is on the host {host!r}, which is not reached by files. Give /{unquote(path)}.")
    return unquote(f"/{path}")


def refuse_url(who: str, place: object, *, object_storage: bool = False, web: bool = False, fix: str = "") -> None:
    """Refuses a place that is a URL where a path is needed, instead of making a folder called `s3:`.

    With `object_storage`, URLs of object storage are welcome; with `web`, also those of web servers' files, all of them
    if they hold no secret: places are recorded. `fix` says what to do instead, as a sentence without its period.

    Raises:
        ParameterError: it is one, or holds a secret; the message says what to give instead.
    """
    text = str(place)
    found = _URL.fullmatch(text)
    if found is None:
        return
    if object_storage and is_object_url(text):
        parse_url(text)
        return
    if web and is_web_url(text):
        url = parse_url(text)
        if url.query:
            raise ParameterError(
                f"{who} is {str(url)!r}, a URL with a query, which may be a secret and would be recorded. "
                f"Give a URL without one, or copy the file to object storage, and give its URL."
            )
        return
    scheme = found["scheme"].lower()
    allowed = [f"{name}://…" for name in SCHEMES] + ["https://…"] * web
    if scheme == "file":
        instead = f"Give /{found['rest'].lstrip('/')}"
    elif object_storage:
        instead = f"Give a path, or a URL of object storage: {', '.join(allowed)}"
    else:
        instead = fix or "Mount that storage, and give the path"
    works = "paths of this machine and object storage work" if object_storage else "only paths of this machine work"
    raise ParameterError(f"{who} is {text!r}, a URL, but {works} here. {instead}.")
