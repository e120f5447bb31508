"""Profiles: credentials from the files of Amazon's tools, as they are now and not as they were when a process began.

Credentials of a profile expire, and whoever renews them writes the files anew, or has a process that boto3 calls. The
library asks for credentials again some minutes before they expire, so each answer is said to expire soon.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from botocore.credentials import Credentials

NOTHING = "the profile gave no credentials"

_VALID_FOR = timedelta(minutes=5, seconds=5)  # the library asks again 5 minutes earlier

_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}

FileStamps: TypeAlias = "tuple[tuple[int, int, int] | None, ...]"
"""What tells whether one of the files was written anew."""

log = logging.getLogger("spanwise.storage")


class ProfileCredentials:
    """The credentials of the profile that `AWS_PROFILE` names, or of the default one, for `obstore.store.S3Store`."""

    def __init__(self) -> None:
        """Reads the profile.

        Raises:
            ValueError: there is no such profile, or its files cannot be read.
        """
        self.config: dict[str, str] = {}  #: of the store
        self._credentials: Credentials | None = None
        self._seen: FileStamps = ()
        self._read()

    @property
    def is_empty(self) -> bool:
        """Whether nobody has credentials: neither the profile, nor what boto3 asks besides."""
        return self._credentials is None

    def __call__(self) -> dict[str, Any]:
        """The credentials, and when to ask for them again."""
        from botocore.exceptions import BotoCoreError

        if _stamps() != self._seen:
            try:
                self._read()
            except ValueError as error:  # it is being written, perhaps
                log.warning("profile-unreadable", extra={"reason": str(error)})
        if self._credentials is None:
            raise ValueError(f"{NOTHING} any more")
        try:
            found = self._credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise ValueError(f"{NOTHING}: {error}") from error
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": datetime.now(UTC) + _VALID_FOR,
        }

    def _read(self) -> None:
        import boto3
        from botocore.exceptions import BotoCoreError

        seen = _stamps()
        try:
            session = boto3.Session()
            self._credentials = session.get_credentials() or self._credentials
        except BotoCoreError as error:
            raise ValueError(f"{NOTHING}: {error}") from error
        if session.region_name is not None and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
            self.config = {"region": session.region_name}
        self._seen = seen


def has_profiles() -> bool:
    """Whether this machine has a profile, as far as can be seen without reading one."""
    return "AWS_PROFILE" in os.environ or any(_stamps())


def _stamps() -> FileStamps:
    return tuple(_stamp(Path(os.environ.get(name, place)).expanduser()) for name, place in _FILES.items())


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
