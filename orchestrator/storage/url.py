"""URLs of object storage: which texts are URLs, the bucket and key in one, and what a listing says of an object."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from spanwise.orchestrator.errors import ParameterError

SCHEMES = {"s3": "Amazon S3 and what speaks its protocol", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}
"""The schemes of object storage that can be read and written."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)  # `Path` leaves one slash of two


@dataclass(frozen=True)
class ObjectUrl:
    """A place in object storage: `s3://bucket/key`. `key` has no slash at its ends; empty for the bucket itself."""

    scheme: str
    bucket: str  #: `az`: the container; the account is that of the environment
    key: str

    def __truediv__(self, name: str) -> ObjectUrl:
        return replace(self, key=f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}" if self.key else f"{self.scheme}://{self.bucket}"

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


def parse_url(text: str) -> ObjectUrl:
    """Reads a URL of object storage.

    Raises:
        ParameterError: it is none, or names no bucket.
    """
    scheme, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES or not bucket:
        known = ", ".join(f"{name}://bucket/…" for name in SCHEMES)
        raise ParameterError(f"{text!r} is no URL of object storage; it begins with one of: {known}.")
    return ObjectUrl(scheme, bucket, key.strip("/"))


def refuse_url(who: str, place: object, *, object_storage: bool = False) -> None:
    """Refuses a place that is a URL where a path is needed, instead of making a folder called `s3:`.

    With `object_storage`, URLs of object storage are welcome and others are not.

    Raises:
        ParameterError: it is one; the message begins with `who` and says what to give instead.
    """
    found = _URL.fullmatch(str(place))
    if found is None or (object_storage and is_object_url(str(place))):
        return
    scheme = found["scheme"].lower()
    if scheme == "file":
        instead = f"Give /{found['rest'].lstrip('/')}"
    elif object_storage:
        instead = f"Give a path, or a URL of object storage: {', '.join(f'{name}://…' for name in SCHEMES)}"
    else:
        instead = "Mount that storage, and give the path"
    works = "paths of this machine and object storage work" if object_storage else "only paths of this machine work"
    raise ParameterError(f"{who} is {str(place)!r}, a URL, but {works} here. {instead}.")
