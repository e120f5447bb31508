"""What Google Cloud Storage does and fake-gcs-server does not, before such a server: conditions, and uploads in parts.

    python -m tests.contract.google_front PORT http://127.0.0.1:UPSTREAM

The server behind it, the fork that object_store is tested with, has listings, ranges, copies and deletions, and ignores
conditions: a writer would always win. What is added is that of Google's documents of its XML interface:
`x-goog-if-generation-match` (0: there must be nothing), `If-Match`, the generation in the answer to a write, the codes of
errors, and multipart uploads, which are kept here until they are completed. `test_bucket_of_google.py` compares the
conditions with those of Google's own testbench.
"""

from __future__ import annotations

import re
import sys
import threading
import urllib.parse
import uuid
from email.message import Message
from http.server import BaseHTTPRequestHandler

from tests.contract.faulty_proxy import Answer, FaultyProxy

_JSON = ("/storage/", "/upload/", "/download/", "/batch/", "/_internal/")  # the other interface, which is passed on


class GoogleFront(FaultyProxy):
    """Answers as Google does."""

    def __init__(self, upstream: str, port: int = 0) -> None:
        self._writing = threading.Lock()
        self._uploads: dict[str, dict[int, bytes]] = {}
        super().__init__(upstream, port)
        self._host = Message()
        self._host["Host"] = urllib.parse.urlsplit(self.url).netloc  # by which it knows the XML interface

    def forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        """Passes a request on if its conditions hold; answers it otherwise."""
        method, path, headers = handler.command, handler.path, handler.headers
        headers.replace_header("Host", self._host["Host"])  # another proxy may stand before this one
        if path.startswith(_JSON):
            headers.replace_header("Host", self._upstream)  # by the other it would take an upload for an object
            return self.ask(method, path, headers, body)
        place = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(place.query, keep_blank_values=True))
        if "uploads" in query or "uploadId" in query:
            return self._in_parts(method, place.path, query, headers, body)
        if method in ("PUT", "DELETE"):
            with self._writing:
                return self._write(method, path, headers, body)
        if _conditions(headers):  # a write must not come between
            with self._writing:
                return self._refusal(path, headers) or self._named(self.ask(method, path, headers, body), path)
        return self._named(self.ask(method, path, headers, body), path)

    def _write(self, method: str, path: str, headers: Message, body: bytes) -> Answer:
        if (refusal := self._refusal(path, headers)) is not None:
            return refusal
        status, answered, content = self._named(self.ask(method, path, headers, body), path)
        if method == "PUT" and status == 200:
            answered = [*answered, ("x-goog-generation", self._revision(path)[0])]
        return status, answered, content

    def _revision(self, path: str) -> tuple[str, str]:
        """The generation and the etag of what there is; 0 and nothing where there is nothing."""
        status, answered, _ = self.ask("HEAD", path.partition("?")[0], self._host, b"")
        found = {name.lower(): value for name, value in answered}
        return (found["x-goog-generation"], found["etag"]) if status == 200 else ("0", "")

    def _refusal(self, path: str, headers: Message) -> Answer | None:
        generation, etag = _conditions(headers) or (None, None)
        if generation is None and etag is None:
            return None
        found = self._revision(path)
        if generation not in (None, found[0]) or etag not in (None, found[1]):
            return _error(412, "PreconditionFailed")
        return None

    def _named(self, answer: Answer, path: str) -> Answer:
        """The answer, with Google's code of an error where there is no such bucket or object."""
        if answer[0] < 400:
            return answer
        bucket = urllib.parse.urlsplit(path).path.split("/")[1]
        if self.ask("GET", f"/storage/v1/b/{bucket}", self._host, b"")[0] == 404:
            return _error(404, "NoSuchBucket")
        return _error(404, "NoSuchKey") if answer[0] == 404 else answer

    def _in_parts(self, method: str, path: str, query: dict[str, str], headers: Message, body: bytes) -> Answer:
        if "uploads" in query:
            name = uuid.uuid4().hex
            self._uploads[name] = {}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>")
        parts = self._uploads.get(query["uploadId"])
        if parts is None:
            return _error(404, "NoSuchUpload")
        if method == "PUT":
            parts[int(query["partNumber"])] = body
            return 200, [("ETag", f'"{query["partNumber"]}"')], b""
        del self._uploads[query["uploadId"]]
        return (204, [], b"") if method == "DELETE" else self._complete(path, headers, parts, body)

    def _complete(self, path: str, headers: Message, parts: dict[int, bytes], body: bytes) -> Answer:
        numbers = [int(found) for found in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        if numbers != sorted(parts):
            return _error(400, "InvalidPart")
        with self._writing:
            written = self._write("PUT", path, headers, b"".join(parts[number] for number in numbers))
            generation, etag = self._revision(path)
        if written[0] != 200:
            return written
        status, answered, content = _xml(
            f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        )
        return status, [*answered, ("x-goog-generation", generation)], content


def _conditions(headers: Message) -> tuple[str | None, str | None] | None:
    found = headers.get("x-goog-if-generation-match"), headers.get("if-match")
    return None if found == (None, None) else found


def _xml(text: str, status: int = 200) -> Answer:
    return status, [("Content-Type", "application/xml")], f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()


def _error(status: int, code: str) -> Answer:
    return _xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status)


if __name__ == "__main__":
    GoogleFront(sys.argv[2], int(sys.argv[1]))
    threading.Event().wait()
