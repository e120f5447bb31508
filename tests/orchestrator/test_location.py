"""Locations of the metadata: who may write a file, and what to type where somebody else owns it."""

from __future__ import annotations

import os
import pwd
from urllib.parse import unquote

import pytest
from ml_metadata import errors

from spanwise.orchestrator.errors import SettingsError, StoreUnavailable
from spanwise.orchestrator.mlmd import location
from spanwise.orchestrator.mlmd.failures import translate_error
from spanwise.orchestrator.mlmd.location import DatabaseServer, SqliteFile, describe_read_only, parse_location

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def database(tmp_path):
    """A file of this user in a folder whose name needs quotes."""
    file = tmp_path / "the root" / "metadata.db"
    file.parent.mkdir()
    file.touch()
    return file


@pytest.mark.parametrize("is_folder", [True, False])
def test_what_belongs_to_another_user_is_handed_over_as_a_whole(database, is_folder, monkeypatch):
    """A root has files of several processes: all of them or none."""
    monkeypatch.setattr(location.os, "geteuid", lambda: 54321)
    path = database.parent if is_folder else database

    assert describe_read_only(path) == (
        f"{path} belongs to {ME}, and you are 54321. Run as that user, or hand all of it over:  "
        f"sudo chown -R 54321 '{database.parent}'"
    )


def test_a_folder_that_cannot_be_made_is_made_for_the_user(database):
    """Not the folder above it, which may be everybody's."""
    missing = database.parent / "new"

    assert describe_read_only(missing) == f"Create it for {ME}:  sudo install -d -o {ME} '{missing}'"


@pytest.mark.parametrize(("mode", "what"), [(0o444, "chmod u+rwX"), (0o644, "findmnt -T")])
def test_what_is_ones_own_is_protected_or_on_a_disk_that_is(database, mode, what):
    """Who may write by the mode and cannot has a file system without writing."""
    database.chmod(mode)

    assert describe_read_only(database).endswith(f":  {what} '{database}'")


@pytest.mark.parametrize("name", ["metadata.db", "metadata.db-wal", "metadata.db-shm", "metadata.db.lock"])
def test_a_refused_write_names_the_file_that_is_read_only(database, name, monkeypatch):
    """Not the request of ml-metadata, which says nothing to a user."""
    file = database.with_name(name)
    file.touch()
    monkeypatch.setattr(location.os, "access", lambda path, mode: not (path == file and mode == os.W_OK))
    monkeypatch.setattr(location.os, "geteuid", lambda: 54321)
    refused = errors.InternalError('Cannot create node for type_id: 10 name: "lease:rides#4"')

    error = translate_error(refused, SqliteFile(database))

    assert isinstance(error, StoreUnavailable)
    assert str(error).startswith(f"The metadata {database} cannot be written. {file} belongs to {ME}")


@pytest.mark.parametrize("url", ["postgresql:/ann:secret@db/meta", "mysql:ann:secret@db/meta", "sqlite:/m.db"])
def test_a_url_that_lacks_a_slash_is_no_file(url):
    """A database would be created in a folder that is named by the password."""
    with pytest.raises(SettingsError, match="needs :// after") as refused:
        parse_location(url)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "password", ["/S3cret", "12/S3cret", "a/S3cret", "12#S3cret", "12?S3cret", "a[S3cret", "/?S3cret="]
)
@pytest.mark.parametrize("scheme", ["mysql", "PostgreSQL"])
def test_a_password_that_ends_the_host_is_not_shown(scheme, password):
    """It is refused with the characters to write: the rest of it would be a part of the database's name."""
    with pytest.raises(SettingsError, match="as %2F %23 %3F %40") as refused:
        parse_location(f"{scheme}://ann:{password}@db.example:5432/meta")

    assert "S3cret" not in str(refused.value)


def test_a_url_of_sqlite_with_a_host_is_not_shown():
    """It may be that of a server, with its password, to which a wrong scheme was given."""
    with pytest.raises(SettingsError, match="three slashes") as refused:
        parse_location("sqlite://ann:S3cret@db/meta")

    assert "S3cret" not in str(refused.value)


@pytest.mark.parametrize("password", ["S3@cret", "S3%2Fcret", "%23%3F%40"])
def test_a_password_may_have_any_characters_that_are_escaped(password):
    """And an @, which ends with the last one."""
    found = parse_location(f"postgresql://ann:{password}@db/meta?sslmode=require")

    assert found == DatabaseServer(
        kind="postgresql", host="db", port=5432, database="meta", user="ann", password=unquote(password),
        options={"sslmode": "require"},
    )  # fmt: skip


@pytest.mark.parametrize("path", ["a:b.db", "data/a:/b.db"])
def test_a_file_may_have_a_colon_in_its_name(path, tmp_path, monkeypatch):
    """It begins with no scheme of a database."""
    monkeypatch.chdir(tmp_path)

    assert parse_location(path) == SqliteFile(tmp_path / path)
