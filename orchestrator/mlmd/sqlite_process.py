"""The process that reads an SQLite file by SQL for the one that started it, `sqlite`. It knows no tables.

It is a program of its own and needs nothing but the standard library. Two lines of JSON on stdin are a question, a
statement and its parameter; a line on stdout is the answer: an array of rows, or a text that says why there are none.
"""

import json
import select
import signal
import sqlite3
import sys

IDLE_S = 30.0
"""It ends when nothing was asked for so long: a fork of the process that started it may hold its stdin open."""

LOCK_S = 1.0
"""How long it waits for a writer, where the file has no write-ahead log. Then ml-metadata may wait for longer."""


def main(file: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; who asks decides what it means
    try:
        database = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=LOCK_S)
    except sqlite3.Error as error:
        _read()
        _write(_refuse(error))
        return
    database.text_factory = bytes
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (question := _read())[1]:
        _write(_answer(database, *question))


def _read() -> tuple[bytes, bytes]:
    """A statement and its parameter; empty when nothing more will come."""
    return sys.stdin.buffer.readline(), sys.stdin.buffer.readline()


def _answer(database: sqlite3.Connection, statement: bytes, parameter: bytes) -> bytes:
    """Each column is a JSON array; a row has the elements of all of them."""
    try:
        rows = database.execute(json.loads(statement), (parameter.decode(),)).fetchall()
    except sqlite3.Error as error:
        return _refuse(error)
    return b"[%b]" % b",".join([b"[%b]" % b",".join([column[1:-1] for column in row]) for row in rows])


def _refuse(error: sqlite3.Error) -> bytes:
    return json.dumps(str(error)).encode()


def _write(answer: bytes) -> None:
    sys.stdout.buffer.write(answer + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
