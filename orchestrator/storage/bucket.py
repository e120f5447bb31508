"""Buckets: reads, lists and writes objects; the one door to object storage.

Nothing here assumes that objects can be renamed, or that a listing shows what was written a moment ago. An object is
replaced as a whole, and only if it is what the writer believes it to be, where the caller asks for that.

Credentials and endpoints come from the environment's standard variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`) and from the
machine's own identity; profiles in `~/.aws` are read where boto3 is installed (`profiles`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spanwise.orchestrator.digest import new_hash
from spanwise.orchestrator.errors import Conflict, StorageError
from spanwise.orchestrator.storage.helper import HelpedBucket
from spanwise.orchestrator.storage.profiles import NOTHING, ProfileCredentials, has_profiles
from spanwise.orchestrator.storage.side_by_side import call_side_by_side
from spanwise.orchestrator.storage.unfinished import UnfinishedUpload, abort_upload, list_uploads
from spanwise.orchestrator.storage.url import ENDPOINT_VARIABLES, SCHEMES, WEB, ObjectInfo, ObjectUrl

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

_RETRY_FOR = timedelta(seconds=60)  # a server that is away for longer is an error
_SILENT_FOR = timedelta(seconds=30)  # a server that sends nothing for longer is asked again
_UPLOADED_WITHIN = timedelta(minutes=10)  # nothing says how far a part has come, and several share a slow line
_NO_LIMIT = timedelta(days=30)  # the library's own is half a minute for a request, however large the object is
_UPLOADED_BYTES = 8 << 20
_HASHED_BYTES = 1 << 20  # what a processor's cache still has when it is hashed
_KNOWN_FOR_S = 600.0  # what answers at an endpoint seldom changes
_MOST_DELETED = 1000  # objects in one request, the limit of S3
_ABSENT = ("NoSuchKey", "BlobNotFound")  # what a 404 says where there is no such object
_used_by: int | None = None  # the process in which the library's threads run
_forgotten = 0  # how often buckets were forgotten: a thread may be opening one meanwhile, by the settings of before


class StorageBucket:
    """The objects of one bucket. Every method raises StorageError when the storage cannot be reached or refuses."""

    def __init__(self, home: ObjectUrl, objects: ObjectStore, uploads: ObjectStore) -> None:
        self.home = home
        self._objects = objects
        self._uploads = uploads  # the same, by connections that let an upload take longer
        self._known_s = float("-inf")  # monotonic: when something was last said to be absent, as storage says it

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below a folder, in the order of the storage; `prefix` is whole parts of keys, or empty."""
        import obstore

        found = False
        with self._translated(prefix):
            for chunk in obstore.list(self._objects, prefix or None):
                found = found or bool(chunk)
                yield from map(_info, chunk)
        if not found:
            self._check_absence(prefix)

    def list_folder(self, prefix: str) -> tuple[tuple[str, ...], tuple[ObjectInfo, ...]]:
        """The names of the folders in a folder, whatever lies below them, and its objects: a request per thousand."""
        import obstore

        with self._translated(prefix):
            found = obstore.list_with_delimiter(self._objects, prefix or None)
        folders = tuple(str(name).rstrip("/").rpartition("/")[2] for name in found["common_prefixes"])
        if not folders and not found["objects"]:
            self._check_absence(prefix)
        return folders, tuple(map(_info, found["objects"]))

    def head(self, key: str) -> ObjectInfo | None:
        """What there is at a key; None if there is nothing."""
        import obstore
        from obstore import exceptions

        with self._translated(key):
            try:
                return _info(obstore.head(self._objects, key))
            except FileNotFoundError:
                pass
            except exceptions.BaseError as error:
                if not _BAD_REQUEST <= _status(str(error)) < _SERVER_ERROR:
                    raise
            found = self._get(key)  # an answer to HEAD has no body, which would say what is wrong
            return None if found is None else _info(found.meta)

    def read(self, key: str) -> tuple[bytes, str] | None:
        """The bytes of a small object and its etag; None if there is no such object."""
        with self._translated(key):
            found = self._get(key)
            return None if found is None else (bytes(found.bytes()), found.meta["e_tag"] or "")

    def read_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Some bytes of an object; with an etag, of that revision and no other.

        Raises:
            Conflict: the object is gone, or is another revision.
        """
        return b"".join(self._stream(key, start, start + size_bytes, etag=etag))

    def copy(self, old: str, new: str) -> None:
        """Gives a second object the bytes of one, without moving them here."""
        import obstore

        with self._translated(old):
            obstore.copy(self._objects, old, new)

    def download(self, key: str, path: Path, *, etag: str = "") -> None:
        """Writes an object to a new local file, through to the disk; with an etag, that revision of it and no other.

        Raises:
            Conflict: the object is gone, or is another revision.
        """
        with path.open("xb") as file:
            for chunk in self._stream(key, etag=etag):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    def upload(self, path: Path, key: str) -> None:
        """Writes a local file as an object, in parts if it is large; readers see all of it or nothing."""
        import obstore

        with self._translated(key):
            obstore.put(self._uploads, key, path, chunk_size=_UPLOADED_BYTES)

    def upload_part(self, path: Path, key: str, start: int, size_bytes: int) -> None:
        """Writes some bytes of a local file as an object, by one request."""
        import obstore

        with path.open("rb") as file:
            file.seek(start)
            content = file.read(size_bytes)
        with self._translated(key):
            obstore.put(self._uploads, key, content, use_multipart=False)

    def download_part(self, key: str, path: Path, start: int) -> bytes:
        """Writes an object into a local file, from a byte on, through to the disk; returns the digest of its bytes.

        They are hashed while they are at hand, by each of the threads that fetch parts.

        Raises:
            Conflict: there is no such object.
        """
        with path.open("r+b") as file:
            file.seek(start)
            state = new_hash()
            for chunk in self._stream(key):
                file.write(chunk)
                state.update(chunk)
            file.flush()
            os.fsync(file.fileno())
        return state.digest()

    def write(self, key: str, content: bytes, *, replacing: str | None = None) -> str:
        """Writes a small object, and returns its etag.

        `replacing` is the etag of what it replaces; empty: there must be nothing yet; None: whatever there is.

        Raises:
            Conflict: somebody else has written it since.
        """
        import obstore

        with self._translated(key, conditional=replacing is not None):
            if replacing is None:
                return obstore.put(self._objects, key, content, use_multipart=False)["e_tag"] or ""
            mode = self._revision(key, replacing) if replacing else "create"
            return obstore.put(self._objects, key, content, mode=mode, use_multipart=False)["e_tag"] or ""  # type: ignore[arg-type]  # mypy widens the literal

    def _revision(self, key: str, etag: str) -> dict[str, str]:
        """How the storage knows what is to be replaced; Google's knows it by its generation, not by its etag."""
        import obstore

        if self.home.scheme != "gs":
            return {"e_tag": etag}
        try:
            found = obstore.head(self._objects, key)
        except FileNotFoundError:
            raise Conflict(f"{self.home / key} is gone.") from None
        if found["e_tag"] != etag:
            raise Conflict(f"{self.home / key} was written by somebody else meanwhile.")
        return {"version": found["version"] or ""}

    def list_uploads(self, prefix: str) -> tuple[UnfinishedUpload, ...]:
        """The uploads below a folder that were begun, and neither completed nor aborted."""
        folder = self.home / prefix if prefix else self.home
        with self._translated(prefix):
            return tuple(list_uploads(folder, **_profile()))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Removes the parts of one."""
        with self._translated(upload.url.key):
            abort_upload(upload, **_profile())

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that do not exist are no error."""
        import obstore

        remaining = list(keys)
        for start in range(0, len(remaining), _MOST_DELETED):
            part = remaining[start : start + _MOST_DELETED]
            with self._translated(part[0]):
                try:
                    obstore.delete(self._objects, part)
                except FileNotFoundError as error:
                    if not self._says_absent(error):
                        raise
                    # Google's has no request for many: the first that is gone ends the others
                    call_side_by_side(self._delete_one, part)

    def _delete_one(self, key: str) -> None:
        import obstore

        try:
            obstore.delete(self._objects, key)
        except FileNotFoundError as error:
            if not self._says_absent(error):
                raise

    def _get(self, key: str, options: Any = None) -> GetResult | None:
        """Asks for an object; None where the storage says that there is none."""
        import obstore

        try:
            return obstore.get(self._objects, key, options=options)
        except FileNotFoundError as error:
            if not self._says_absent(error):
                raise
            self._known_s = time.monotonic()
            return None

    def _get_present(self, key: str, options: Any = None) -> GetResult:
        """Asks for an object; raises Conflict where the storage says that there is none."""
        found = self._get(key, options)
        if found is None:
            raise Conflict(f"{self.home / key} is gone.")
        return found

    def _stream(self, key: str, start: int = 0, end: int | None = None, *, etag: str = "") -> Iterator[bytes]:
        """The bytes of an object, or some of them; with an etag, of that revision and no other.

        Where they break off, the others are asked for: a large object may take longer than a server may be away.
        """
        from obstore import exceptions

        options: Any = {} if end is None else {"range": (start, end)}
        with self._translated(key, conditional=True):
            while True:
                found = self._get_present(key, options | _if_match(etag))
                etag = etag or _info(found.meta).etag
                came = False
                try:
                    for chunk in found.stream(min_chunk_size=_HASHED_BYTES):
                        came, start = True, start + len(chunk)
                        yield bytes(chunk)
                except exceptions.BaseError:
                    if not came or not etag:  # else the others may be of another revision
                        raise
                    options = {"range": {"offset": start} if end is None else (start, end)}
                else:
                    return

    def _says_absent(self, error: FileNotFoundError) -> bool:
        """Whether the bucket says that it has no such object: gateways and missing buckets answer 404 as well."""
        code = _code(str(error))
        return code in _ABSENT or (not code and self.home.scheme != "s3")

    def _check_absence(self, prefix: str) -> None:
        """Believes an empty listing only of a server that has said lately of one object that it does not exist.

        The library reads a page of HTML, such as that of a console or a login, as a listing without objects.
        """
        if self.home.scheme not in ("s3", "gs") or time.monotonic() - self._known_s < _KNOWN_FOR_S:
            return
        from obstore import exceptions

        key = f"{prefix}/{uuid.uuid4().hex}" if prefix else uuid.uuid4().hex
        with self._translated(prefix):
            try:
                found = self._get(key)
            except exceptions.PermissionDeniedError:  # a role that may list need not be allowed to read
                self._known_s = time.monotonic()
                return
        if found is not None:
            raise StorageError(f"{self.home / prefix if prefix else self.home}: {_describe_other_server(self.home)}")

    @contextlib.contextmanager
    def _translated(self, key: str, *, conditional: bool = False) -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except (exceptions.BaseError, ValueError, FileNotFoundError) as error:
            if conditional and isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
                raise Conflict(f"{self.home / key} was written by somebody else meanwhile.") from error
            raise StorageError(f"{self.home / key}: {explain(error, self.home)}") from error


def _if_match(etag: str) -> Any:
    return {"if_match": etag} if etag else {}


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
    """Raises what goes wrong with storage as libraries expect it of files."""
    try:
        yield
    except StorageError as error:
        raise OSError(str(error)) from error


def open_bucket(home: ObjectUrl, *, retry_for: timedelta | None = None) -> StorageBucket:
    """The bucket of a URL. A process opens it once, and keeps its connections.

    `retry_for` is how long a request is made again while the storage is away, and an answer is waited for twice as
    long; without it, a minute, and as long as bytes of it come.

    Raises:
        StorageError: the library for object storage is not installed, or the environment's settings are wrong.
    """
    global _used_by  # noqa: PLW0603  of this process, like the library's threads
    me = os.getpid()
    if _used_by not in (None, me):
        return cast("StorageBucket", _open_helped(home, me))
    _used_by = me
    return _open(home, retry_for, _forgotten)


def forget_buckets() -> None:
    """Closes the buckets of this process: the next one is opened with the settings of the environment then."""
    global _forgotten  # noqa: PLW0603
    _forgotten += 1
    _open.cache_clear()
    _open_helped.cache_clear()


@functools.lru_cache(maxsize=64)
def _open_helped(home: ObjectUrl, process: int) -> HelpedBucket:  # noqa: ARG001  a fork has a helper of its own
    return HelpedBucket(home)


@functools.lru_cache(maxsize=64)
def _open(home: ObjectUrl, retry_for: timedelta | None, forgotten: int) -> StorageBucket:  # noqa: ARG001
    try:
        from obstore import exceptions, store
    except ImportError as error:
        raise StorageError(
            f"{home}: object storage needs the extra 'storage':  pip install 'spanwise[storage]'"
        ) from error
    try:
        return StorageBucket(home, *_connect(home, store, retry_for))
    except (exceptions.BaseError, ValueError) as error:
        raise StorageError(f"{home}: {explain(error, home)}") from error


def _connect(home: ObjectUrl, store, retry_for: timedelta | None) -> tuple[ObjectStore, ObjectStore]:  # type: ignore[no-untyped-def]  # noqa: ANN001  a module
    """The connections by which objects are read and small ones written, and those by which large ones are."""
    retries = {"retry_timeout": retry_for or _RETRY_FOR}
    http = _has_plain_endpoint(home)
    credentials = _profile() if home.scheme == "s3" else {}

    def connect(**patience: timedelta) -> ObjectStore:
        options = {"allow_http": http, **patience}
        if home.scheme == "s3":
            return store.S3Store(home.bucket, client_options=options, retry_config=retries, **credentials)  # type: ignore[no-any-return]
        if home.scheme == "az":
            return store.AzureStore(home.bucket, client_options=options, retry_config=retries)  # type: ignore[no-any-return]
        options["allow_http"] = True  # Google's metadata server, which gives credentials, has no TLS
        if home.scheme == "gs":
            return store.GCSStore(home.bucket, client_options=options, retry_config=retries)  # type: ignore[no-any-return]
        url = f"{home.scheme}://{home.bucket}/" + (f"?{home.query}" if home.query else "")
        return store.HTTPStore.from_url(url, client_options=options, retry_config=retries)  # type: ignore[no-any-return]

    if home.scheme not in (*SCHEMES, *WEB):
        objects = uploads = store.MemoryStore()
    elif retry_for is not None:
        objects = uploads = connect(timeout=2 * retry_for)
    else:
        objects, uploads = connect(timeout=_NO_LIMIT, read_timeout=_SILENT_FOR), connect(timeout=_UPLOADED_WITHIN)
    return objects, uploads


def _has_plain_endpoint(home: ObjectUrl) -> bool:
    """Whether the environment names an endpoint without TLS.

    Raises:
        StorageError: one that it names is no URL. The library would end the process with a panic, when it is used.
    """
    named = {name: os.environ[name] for name in ENDPOINT_VARIABLES.get(home.scheme, ()) if name in os.environ}
    for name, value in named.items():
        if not value.lower().startswith(("http://", "https://")):
            raise StorageError(
                f"{home}: {name} is {value!r}; an endpoint begins with http:// or https://, for example "
                f"http://127.0.0.1:9000. If there is none, unset the variable."
            )
    return any(value.lower().startswith("http://") for value in named.values())


def _profile() -> dict[str, object]:
    """Credentials of a profile in `~/.aws`, where the environment has none and boto3 is there to read it.

    Raises:
        ValueError: there is no such profile, or its files cannot be read.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ or not has_profiles():
        return {}
    try:
        profile = ProfileCredentials()
    except ImportError:
        return {}
    return {} if profile.is_empty else {"credential_provider": profile}


def _info(meta: object) -> ObjectInfo:
    found = meta
    assert isinstance(found, dict)
    etag = found["e_tag"] or ""
    return ObjectInfo(
        key=found["path"],
        size_bytes=found["size"],
        etag="" if etag.startswith("W/") else etag,  # a web server's weak one cannot be asked for
        modified_ns=int(found["last_modified"].timestamp() * 1e9),
    )


_MOVED, _BAD_REQUEST, _NOT_FOUND, _SERVER_ERROR = 300, 400, 404, 500
_OVERLOADED = "the storage is overloaded or down, for longer than it was tried again. Try later."

_HINTS = {
    _ABSENT: "there is no such object.",
    ("NoSuchBucket", "ContainerNotFound", "notFound"): "there is no such bucket. Create it, or correct its name.",
    ("AccessDenied", "AuthorizationFailure", "AuthenticationFailed", "InvalidAccessKeyId", "SignatureDoesNotMatch"): (
        "access was denied. Check the credentials in the environment, and what they may do."
    ),
    ("ExpiredToken", "TokenRefreshRequired", "RequestTimeTooSkewed"): (
        "the credentials have expired, or this machine's clock is wrong. Renew them, or set the clock."
    ),
    ("SlowDown", "InternalError", "ServiceUnavailable", "ServerBusy", "RequestTimeout"): _OVERLOADED,
    ("InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"): (
        "the object was moved to an archive, where it cannot be read. Restore it, and let no lifecycle rule move it."
    ),
    ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"): (
        "the bucket is in another region. Set AWS_REGION to its region."
    ),
}

_INVALID_KEY = re.compile(r'object with invalid path: .*?Path "(.*)"(?:: | contained)', re.DOTALL)

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_KEY",
}


def explain(error: BaseException, home: ObjectUrl) -> str:  # noqa: PLR0911  one line per kind of failure
    """What went wrong in a sentence, with what to do, and without what a signed URL or a header may hold."""
    text = str(error).partition("\n\nDebug source")[0]
    code = _code(text)
    for codes, hint in _HINTS.items():
        if code in codes:
            return hint
    if type(error).__name__ == "NotSupportedError":
        return (
            "the server sends no parts of files. Copy the file to this machine or to object storage, and name it there."
        )
    if by_text := _explain_text(text):
        return by_text
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return "access was denied. Check the credentials in the environment, and what they may do."
    if "169.254." in text or "CredentialsError" in text or "InstanceCredential" in str(error):
        variable = _CREDENTIALS.get(home.scheme, "AWS_ACCESS_KEY_ID")
        return f"found no credentials for {home.scheme}://. Set those of the environment, such as {variable}."
    if by_status := _explain_status(_status(text), text, home):
        return by_status
    if "incorrectly configured region" in text:
        return "the bucket is in another region. Set AWS_REGION to its region."
    if "error sending request" in text or "timed out" in text:
        endpoint = _endpoint_variable(home)
        also = f" and the endpoint, such as {endpoint}" if endpoint else ""
        return f"the storage could not be reached. Check the network{also}."
    message = re.search(r"<Message>([^<]*)</Message>", text)
    shown = message[1] if message else re.sub(r"\?\S*", "", text).strip()
    return f"{shown} ({code})" if code else shown


def _explain_text(text: str) -> str:
    """What the library says without an answer of the storage, or about one that it cannot take."""
    if why := re.search(rf"{NOTHING}[^\n\"]*", text):  # it calls it a denial
        return why[0].strip()
    if odd := _INVALID_KEY.search(text):
        return (
            f"the object {odd[1]!r} keeps its folder from being listed: a part of its key is empty, '.' or '..', or "
            f"has a control character. Rename or delete it."
        )
    return ""


def _explain_status(status: int, text: str, home: ObjectUrl) -> str:
    """What an answer says that has none of the codes of storage: one to HEAD, or that of another server."""
    if status >= _SERVER_ERROR:
        return _OVERLOADED
    if _MOVED <= status < _BAD_REQUEST:
        return f"the server sends requests elsewhere ({status}). Check the endpoint and the region of the bucket."
    if re.search("invalid [A-Za-z]+ response|Unable to extract metadata", text) or (
        status == _NOT_FOUND and home.scheme == "s3"
    ):
        return _describe_other_server(home)
    return ""


def _code(text: str) -> str:
    """The code in the body of an answer; empty where there is none."""
    found = re.search(r"<Code>([^<]*)</Code>", text)
    return "" if found is None else found[1]


def _status(text: str) -> int:
    """The status of an answer that was an error; 0 where there was no answer."""
    found = re.search(r"non-2xx status code: (\d+)", text)
    return 0 if found is None else int(found[1])


def _endpoint_variable(home: ObjectUrl) -> str:
    return {"s3": "AWS_ENDPOINT_URL", "az": "AZURE_STORAGE_ENDPOINT"}.get(home.scheme, "")


def _describe_other_server(home: ObjectUrl) -> str:
    endpoint = _endpoint_variable(home)
    names = f", such as {endpoint}: it may be that of a console, a login or a gateway" if endpoint else ""
    return f"the server does not answer as object storage does. Check the endpoint{names}."
