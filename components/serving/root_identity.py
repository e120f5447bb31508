"""Root identities: which root is at a place, and whether one that was pushed from has been copied or moved."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.run_dir import NOTE
from spanwise.orchestrator.storage import is_object_url, open_bucket, parse_url

_PATIENCE = timedelta(seconds=5)  # a root that was moved may have left a bucket that is gone


def read_identity(root: str) -> str:
    """The identity of the root at a folder or URL; empty where there is none, such as in a trial.

    Raises:
        StorageError: it is in object storage, which cannot be reached or refuses.
    """
    if is_object_url(root):
        url = parse_url(root)
        found = open_bucket(url.home, retry_for=_PATIENCE).read((url / NOTE).key)
        return "" if found is None else found[0].decode(errors="replace").strip()
    try:
        return (Path(root) / NOTE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def was_copied(root: str, identity: str, *, to: str) -> bool:
    """Whether the root of this identity is where it was, beside the one that has the identity now; if unseen, it is."""
    try:
        return read_identity(root) == identity and not _are_same(root, to)
    except StorageError:
        return True


def _are_same(root: str, other: str) -> bool:
    """Whether two names are those of one folder, as by a link."""
    return not is_object_url(root) and Path(root).samefile(other)
