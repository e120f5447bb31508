"""Storage: the door to objects in S3, Google Cloud Storage and Azure Blob Storage, beside files on this machine.

Names are imported when they are first used: most commands see files only.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanwise.orchestrator.storage.archive import BucketArchive
    from spanwise.orchestrator.storage.bucket import StorageBucket, as_os_errors, forget_buckets, open_bucket
    from spanwise.orchestrator.storage.copies import LocalCopies, machine_copies
    from spanwise.orchestrator.storage.listing import find_newest_span, leave_out_markers, list_objects
    from spanwise.orchestrator.storage.object_lease import ObjectLease, write_once
    from spanwise.orchestrator.storage.side_by_side import call_side_by_side
    from spanwise.orchestrator.storage.unfinished import UnfinishedUpload
    from spanwise.orchestrator.storage.url import (
        SCHEMES,
        ObjectInfo,
        ObjectUrl,
        is_object_url,
        is_readable_url,
        is_web_url,
        local_path,
        parse_url,
        refuse_url,
    )

__all__ = [
    "SCHEMES",
    "BucketArchive",
    "LocalCopies",
    "ObjectInfo",
    "ObjectLease",
    "ObjectUrl",
    "StorageBucket",
    "UnfinishedUpload",
    "as_os_errors",
    "call_side_by_side",
    "find_newest_span",
    "forget_buckets",
    "is_object_url",
    "is_readable_url",
    "is_web_url",
    "leave_out_markers",
    "list_objects",
    "local_path",
    "machine_copies",
    "open_bucket",
    "parse_url",
    "refuse_url",
    "write_once",
]

_MODULES = {
    "archive": ("BucketArchive",),
    "bucket": ("StorageBucket", "as_os_errors", "forget_buckets", "open_bucket"),
    "copies": ("LocalCopies", "machine_copies"),
    "listing": ("find_newest_span", "leave_out_markers", "list_objects"),
    "object_lease": ("ObjectLease", "write_once"),
    "side_by_side": ("call_side_by_side",),
    "unfinished": ("UnfinishedUpload",),
    "url": (
        "SCHEMES",
        "ObjectInfo",
        "ObjectUrl",
        "is_object_url",
        "is_readable_url",
        "is_web_url",
        "local_path",
        "parse_url",
        "refuse_url",
    ),
}
_MODULE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE[name]}"), name)
