"""Jobs: commands that readers have started, each in a process that outlives the page and the server.

A job has a folder below the root: when it was asked for, its process, its output, and its exit code when it has ended.
Who asked, when, and the command are recorded in the metadata, as the n-th claim `asked #n`. A folder of another time is
that of a job which the metadata do not know any more.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator import durable
from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.process import Identity, identity, is_alive
from spanwise.orchestrator.record import from_plain, to_plain
from spanwise.orchestrator.run_dir import set_aside
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.client.folders import locate
from spanwise.scheduler.formatting import strip_control
from spanwise.scheduler.ledger.numbered import newest_number
from spanwise.scheduler.web.site import WebSite

FOLDER = ".ui"
KIND = "asked"
OUTPUT_BYTES = 64 * 1024
WAIT_S = 2.0
"""How long the page waits for a command that is over soon."""

_POLL_S = 0.05
_ASKED_AT, _PROCESS = "asked_at", "process.json"

# The shell outlives the server, so that the exit code is known whoever has started the job.
_SCRIPT = """
folder=$1; shift
"$@" >"$folder/output" 2>&1; echo "$?" >"$folder/exit.part"; mv "$folder/exit.part" "$folder/exit"
"""


@dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """What somebody has asked for."""

    number: int
    who: str
    command: tuple[str, ...]  #: the words after `spanwise`
    at: datetime

    @property
    def line(self) -> str:
        """The command as a person types it."""
        return shlex.join(["spanwise", *self.command])


@dataclass(frozen=True, kw_only=True)
class ActionJob:
    """A request and what has become of it."""

    request: ActionRequest
    output: str
    code: int | None  #: None while it runs, and where it was killed
    here: bool  #: its output is on this machine
    alive: bool | None = None  #: None where its process cannot be seen from here

    @property
    def state(self) -> str:
        if self.code is None:
            return "unknown" if self.alive is None else "running" if self.alive else "failed"
        return {0: "complete", 3: "refused"}.get(self.code, "failed")


def start_job(site: WebSite, words: Sequence[str], who: str) -> int:
    """Starts a command where what it continues or repeats began, or else in the folder of this server.

    Records who asked, and returns its number.
    """
    asked = record_request(site.store, words, who)
    place, words = locate(site.store, words, site.root)
    folder = make_job_folder(site.root, asked)
    environment = {**site.client.session.environment, "SPANWISE_USER": who}
    for secret in ("SPANWISE_UI_TOKEN", "SPANWISE_UI_VIEWER_TOKEN"):
        environment.pop(secret, None)
    config = [] if site.client.session.config is None else ["--config", str(site.client.session.config)]
    dashes = words.index("--") if "--" in words else len(words)
    command = [sys.executable, "-m", "spanwise", *words[:dashes], *config, *words[dashes:]]
    process = subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT, "sh", str(folder), *command],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    record_process(folder, process.pid)
    threading.Thread(target=process.wait, name=f"job-{asked.number}", daemon=True).start()  # so that no zombie is left
    _wait(folder)
    return asked.number


def _wait(folder: Path) -> None:
    """Waits a little for a command that is over soon, so that its outcome is there at once."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and not (folder / "exit").exists():
        time.sleep(_POLL_S)


def job_folder(root: Path, number: int) -> Path:
    """Where a job writes."""
    return root / FOLDER / "jobs" / str(number)


def make_job_folder(root: Path, asked: ActionRequest) -> Path:
    """An empty folder for a job; one that another history has left there is set aside."""
    folder = job_folder(root, asked.number)
    set_aside(folder)
    folder.mkdir(parents=True)
    (folder / _ASKED_AT).write_text(asked.at.isoformat(), encoding="ascii")
    return folder


def record_process(folder: Path, pid: int) -> None:
    """Records which process does a job, so that its death is seen also where it could not say so."""
    durable.put(folder / _PROCESS, [json.dumps(to_plain(identity(pid))).encode()])


def record_request(store: Store, words: Sequence[str], who: str) -> ActionRequest:
    """Records what somebody asks for under the next number."""
    while True:
        number = newest_number(store, KIND, "") + 1
        asked = ActionRequest(number=number, who=who, command=tuple(words), at=datetime.now(UTC))
        try:
            store.claim(Claim(KIND, f"#{number}", facts_of(asked)))
        except AlreadyClaimed:
            continue
        return asked


def list_requests(store: Store, limit: int) -> list[ActionRequest]:
    """What was asked for last, newest first."""
    newest = newest_number(store, KIND, "")
    claims = (store.find_claim(KIND, f"#{n}") for n in range(newest, max(0, newest - limit), -1))
    return [record_of(ActionRequest, claim) for claim in claims if claim is not None]


def number_of_job(text: str) -> int:
    """The number of a job, as an address says it.

    Raises:
        NotRecorded: it is no number, so there is no such job.
    """
    if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004
        raise NotRecorded(f"{text!r} is not the number of a job. See what was asked for on the page Activity.")
    return int(text)


def read_job(site: WebSite, number: int) -> ActionJob:
    """A job with its output so far.

    Raises:
        NotRecorded: nobody has asked for it.
    """
    claim = site.store.find_claim(KIND, f"#{number}")
    if claim is None:
        raise NotRecorded(f"There is no job {number}. See what was asked for on the page Activity.")
    request, folder = record_of(ActionRequest, claim), job_folder(site.root, number)
    if _read_end(folder / _ASKED_AT) != request.at.isoformat():
        return ActionJob(request=request, output="", code=None, here=False)
    alive = _read_alive(folder / _PROCESS)  # before its exit code, which it may write meanwhile
    return ActionJob(
        request=request,
        output=strip_control(_read_end(folder / "output")),
        code=_read_code(folder / "exit"),
        here=True,
        alive=alive,
    )


def _read_end(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - OUTPUT_BYTES))
            return opened.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _read_alive(file: Path) -> bool | None:
    try:
        return is_alive(from_plain(Identity, json.loads(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError):  # its server died while it started it
        return None


def _read_code(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
