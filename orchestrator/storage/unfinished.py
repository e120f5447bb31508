"""Unfinished uploads: the hidden parts of large objects whose upload in parts was killed, as S3 has them.

A listing of objects does not show them, and the library has no request for them. But it signs any URL that it is given
as an endpoint, with whichever credentials there are; so such a URL, with the query that lists or aborts uploads in it,
is signed and asked for by itself. What the library appends to its endpoint becomes the value of `x-id`, a parameter
that S3 ignores.

Azure drops what was not committed after a week. Google Cloud Storage needs a lifecycle rule of the bucket.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode

from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.storage.url import ENDPOINT_VARIABLES

if TYPE_CHECKING:
    from spanwise.orchestrator.storage.url import ObjectUrl

_VALID_FOR = timedelta(minutes=5)
_TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class UnfinishedUpload:
    """An upload that was begun, and neither completed nor aborted."""

    url: ObjectUrl  #: what would have been written
    id: str
    begun_s: float  #: since 1970


def list_uploads(folder: ObjectUrl, **options: Any) -> Iterator[UnfinishedUpload]:
    """Those below a folder, oldest first by name; none where the storage has no such thing. `options` has credentials.

    Raises:
        StorageError: the storage cannot be reached, or refuses.
    """
    if folder.scheme != "s3":
        return
    from xml.etree import ElementTree as ET

    home = folder.home
    marker: dict[str, str] = {}
    while True:
        answer = _ask(
            home, "GET", "", {"uploads": "", "prefix": f"{folder.key}/" if folder.key else "", **marker}, options
        )
        try:
            found = ET.fromstring(answer)  # noqa: S314  the answer of the storage, which has the objects anyway
            is_known = found.tag.endswith("ListMultipartUploadsResult")
        except ET.ParseError:
            is_known = False
        if not is_known:
            raise StorageError(f"{home}: unfinished uploads: the server does not answer as object storage does.")
        for each in found.iterfind("{*}Upload"):
            key, upload, begun = (each.findtext(f"{{*}}{name}") or "" for name in ("Key", "UploadId", "Initiated"))
            yield UnfinishedUpload(url=home / key, id=upload, begun_s=datetime.fromisoformat(begun).timestamp())
        if found.findtext("{*}IsTruncated") != "true":
            return
        names = {"key-marker": "NextKeyMarker", "upload-id-marker": "NextUploadIdMarker"}
        marker = {name: found.findtext(f"{{*}}{tag}") or "" for name, tag in names.items()}


def abort_upload(upload: UnfinishedUpload, **options: Any) -> None:
    """Removes its parts; one that has been completed or aborted meanwhile is no error.

    Raises:
        StorageError: the storage cannot be reached, or refuses.
    """
    _ask(upload.url.home, "DELETE", upload.url.key, {"uploadId": upload.id}, options)


def _ask(
    home: ObjectUrl, method: Literal["GET", "DELETE"], key: str, query: Mapping[str, str], options: Mapping[str, Any]
) -> bytes:
    import urllib.error
    import urllib.request

    import obstore
    from obstore.store import S3Store

    place = f"{_address(home)}/{quote(key)}?{urlencode({**query, 'x-id': ''})}"
    store = S3Store(
        home.bucket,
        aws_endpoint_url_s3=place,  # no variable of the environment comes before it
        virtual_hosted_style_request=True,
        client_options={"allow_http": True},
        **options,
    )
    url = obstore.sign(store, method, "x", _VALID_FOR)
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=_TIMEOUT_S) as answer:  # noqa: S310
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        with error:
            if method == "DELETE" and b"<Code>NoSuchUpload</Code>" in error.read():
                return b""
            raise StorageError(
                f"{home}: unfinished uploads: the storage answered {error.code} {error.reason}."
            ) from None
    except OSError as error:
        raise StorageError(f"{home}: unfinished uploads: the storage could not be reached.") from error


def _address(home: ObjectUrl) -> str:
    """Where the bucket is on the network."""
    endpoint = next((set_to for name in ENDPOINT_VARIABLES["s3"] if (set_to := os.environ.get(name))), "")
    if not endpoint:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return f"https://{home.bucket}.s3.{region}.amazonaws.com"
    is_of_bucket = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true")
    return endpoint.rstrip("/") if is_of_bucket else f"{endpoint.rstrip('/')}/{home.bucket}"
