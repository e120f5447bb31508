"""Storage: the door to objects in S3, Google Cloud Storage and Azure Blob Storage, beside files on this machine."""

from spanwise.orchestrator.storage.archive import BucketArchive
from spanwise.orchestrator.storage.bucket import StorageBucket, as_os_errors, forget_buckets, open_bucket
from spanwise.orchestrator.storage.copies import LocalCopies, machine_copies
from spanwise.orchestrator.storage.listing import find_newest_span, list_objects
from spanwise.orchestrator.storage.unfinished import UnfinishedUpload
from spanwise.orchestrator.storage.url import (
    SCHEMES,
    ObjectInfo,
    ObjectUrl,
    is_object_url,
    is_readable_url,
    is_web_url,
    parse_url,
    refuse_url,
)

__all__ = [
    "SCHEMES",
    "BucketArchive",
    "LocalCopies",
    "ObjectInfo",
    "ObjectUrl",
    "StorageBucket",
    "UnfinishedUpload",
    "as_os_errors",
    "find_newest_span",
    "forget_buckets",
    "is_object_url",
    "is_readable_url",
    "is_web_url",
    "list_objects",
    "machine_copies",
    "open_bucket",
    "parse_url",
    "refuse_url",
]
