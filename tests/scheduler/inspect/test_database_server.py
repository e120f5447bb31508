"""`doctor --deep` on a database server: its own tool checks the tables, and the password is nowhere to be seen."""

import stat

import pytest

from spanwise.orchestrator.mlmd.location import parse_location
from spanwise.scheduler.inspect.database_server import check_server, format_check_command, format_dump_command

MYSQL = parse_location("mysql://ann:secret@db.example:3307/spanwise")
POSTGRESQL = parse_location("postgresql://ann:secret@db.example/spanwise")
WHOLE = 'test "$MYSQL_PWD$PGPASSWORD" = secret || { echo "access denied"; exit 1; }'


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts the only programs that are found on the path: shell scripts with these lines."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def tool(name, script):
        file = tmp_path / name
        file.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/typed\n{script}\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return tmp_path / "typed"

    return tool


@pytest.mark.parametrize(
    ("server", "name", "script", "damage", "why_not"),
    [
        (MYSQL, "mysqlcheck", WHOLE, "", ""),
        (MYSQL, "mariadb-check", WHOLE, "", ""),
        (MYSQL, "mysqlcheck", "echo spanwise.Event; echo 'error : Corrupt'", "spanwise.Event; error : Corrupt", ""),
        (MYSQL, "mysqlcheck", "echo 'Access denied'; exit 2", "", "mysqlcheck failed: Access denied"),
        (POSTGRESQL, "pg_amcheck", WHOLE, "", ""),
        (POSTGRESQL, "pg_amcheck", "echo 'item order invariant violated'; exit 2", "item order invariant violated", ""),
        (POSTGRESQL, "pg_amcheck", "exit 1", "", "pg_amcheck failed: exit code 1"),
        (POSTGRESQL, "mysqlcheck", "", "", "pg_amcheck is not installed here"),
    ],
)
def test_the_tool_of_the_server_says_what_is_damaged(tool, server, name, script, damage, why_not):
    """What could not be checked is not called sound."""
    tool(name, script)

    checked = check_server(server)

    assert (checked.damage, checked.why_not) == (damage, why_not)


def test_the_password_is_no_argument(tool):
    """Other users of the host can list arguments; the printed command asks for it."""
    typed = tool("mysqlcheck", WHOLE)

    check_server(MYSQL)

    assert typed.read_text() == "--host=db.example --port=3307 --user=ann --check --silent spanwise\n"
    assert format_check_command(POSTGRESQL) == (
        "pg_amcheck --password --host=db.example --port=5432 --username=ann spanwise"
    )


@pytest.mark.parametrize(
    ("url", "command"),
    [
        (
            "postgresql://ann:secret@db.example:5433/my%20meta?sslmode=require",
            "env PGSSLMODE=require pg_dump --password --host=db.example --port=5433 --username=ann 'my meta'",
        ),
        (
            "mysql://ann:secret@db.example/meta?ssl_ca=/ca.pem",
            "mysqldump --password --single-transaction --host=db.example --port=3306 --user=ann --ssl-ca=/ca.pem meta",
        ),
        ("postgresql://db.example/meta", "pg_dump --host=db.example --port=5432 meta"),
    ],
)
def test_a_dump_is_of_the_database_on_its_server(url, command):
    """Without the server, another database of this name would be dumped, of this host. It asks for the password."""
    assert format_dump_command(parse_location(url)) == f"{command} > metadata.sql"
