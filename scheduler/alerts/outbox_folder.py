"""The outbox of a root that is a folder: a file for each letter and each cause, each written as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from spanwise.orchestrator import durable
from spanwise.scheduler.alerts import outbox_store
from spanwise.scheduler.alerts.alert import Alert
from spanwise.scheduler.alerts.letter import Letter, LetterPlan, OpenCause
from spanwise.scheduler.alerts.outbox_store import (
    FOLDER,
    CauseState,
    digest_cause,
    is_recovery,
    name_letter,
    read_letter,
    read_mark,
    to_json,
    validate,
    write_letter,
)

log = logging.getLogger("spanwise.alerts")


class FolderOutbox:
    """Letters and causes in a folder. An `OutboxStore`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def exists(self) -> bool:
        """Whether anything was ever put into it."""
        return (self.root / FOLDER / "outbox").is_dir()

    def names(self) -> list[str]:
        """Of the letters that are to be sent, oldest first."""
        return sorted(file.stem for file in (self.root / FOLDER / "outbox").glob("*.json"))

    def add(self, alert: Alert) -> None:
        letter = Letter(id=name_letter(alert, self.names()), alert=alert, since=alert.at)
        self.put(self._file("outbox", letter.id), write_letter(letter))

    def was_alerted(self, cause: str) -> bool:
        # A letter leaves the outbox after its cause was recorded as open, so this order misses neither.
        mark = digest_cause(cause)
        last = next((name for name in reversed(self.names()) if read_mark(name) == mark), None)
        if last is not None:
            with contextlib.suppress(OSError):  # whoever delivers was quicker
                return not is_recovery(self._file("outbox", last).read_bytes())
        return self._cause_file(cause).exists()

    def standing(self) -> set[str]:
        opened = {file.stem for file in (self.root / FOLDER / "open").glob("*.json")}
        return {*map(read_mark, self.names()), *opened}

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """By a lock, which the kernel releases when its holder dies."""
        with (self.root / FOLDER / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def letters(self) -> list[Letter]:
        return list(self._letters())

    def cause(self, cause: str) -> CauseState:
        return CauseState(open=self._find_cause(cause), recovered=self._find_recovery_time(cause))

    def causes(self) -> dict[str, CauseState]:
        """All that are open or have recovered."""
        found = {}
        for folder in ("open", "recovered"):
            for file in (self.root / FOLDER / folder).glob("*.json"):
                with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                    cause = str(json.loads(file.read_bytes())["cause"])
                    found[cause] = self.cause(cause)
        return found

    def record(self, plans: Mapping[str, tuple[Sequence[Letter], LetterPlan]]) -> None:
        """Letters first, so that a process that dies in between loses none."""
        for cause, (before, plan) in plans.items():
            known = {letter.id: letter for letter in before}
            for letter in plan.letters:
                if letter != known[letter.id]:
                    self.write(letter)
            self._record_cause(cause, plan)
            for letter in plan.dropped:
                with _log_errors("letter", letter.id):
                    self._file("outbox", letter.id).unlink(missing_ok=True)

    def write(self, letter: Letter) -> bool:
        with _log_errors("letter", letter.id):
            self.put(self._file("outbox", letter.id), write_letter(letter))
            return True
        return False

    def finish(self, letter: Letter) -> None:
        here, there = self._file("outbox", letter.id), self._file("sent", letter.id)
        try:
            there.parent.mkdir(exist_ok=True)
            here.replace(there)
        except OSError:
            log.exception("letter-misfiled", extra={"letter": letter.id})
            with _log_errors("letter", letter.id):
                here.unlink(missing_ok=True)  # it would be sent again

    def tidy(self) -> None:
        with _log_errors("folder", "sent"):
            sent = self.root / FOLDER / "sent"
            for old in sorted(sent.iterdir())[: -outbox_store.SENT_LETTERS] if sent.exists() else []:
                old.unlink(missing_ok=True)

    def remove(self, *, letter: str = "", cause: str = "") -> None:
        """Removes a letter by its name, or a cause: it is kept elsewhere now."""
        if letter:
            self._file("outbox", letter).unlink(missing_ok=True)
        for folder in ("open", "recovered") if cause else ():
            self._file(folder, digest_cause(cause)).unlink(missing_ok=True)

    def put(self, file: Path, content: bytes) -> None:
        """Writes a file as a whole."""
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
        durable.put(file, [content], draft=draft)

    def _letters(self) -> Iterator[Letter]:
        for name in self.names():
            file = self._file("outbox", name)
            try:
                yield read_letter(name, file.read_bytes())
            except FileNotFoundError:
                continue  # whoever delivers was quicker
            except (OSError, ValueError, TypeError):
                log.exception("letter-unreadable", extra={"file": str(file)})
                with _log_errors("letter", name):
                    file.replace(file.with_suffix(".unreadable"))

    def _record_cause(self, cause: str, plan: LetterPlan) -> None:
        with _log_errors("cause", cause):
            if plan.cause is None:
                self._cause_file(cause).unlink(missing_ok=True)
            elif plan.cause != self._find_cause(cause):
                self.put(self._cause_file(cause), to_json({**asdict(plan.cause), "cause": cause}))
            if plan.recovered is not None and plan.recovered != self._find_recovery_time(cause):
                at = {"at": plan.recovered, "cause": cause}
                self.put(self._file("recovered", digest_cause(cause)), to_json(at))

    def _find_cause(self, cause: str) -> OpenCause | None:
        try:
            return validate(OpenCause, json.loads(self._cause_file(cause).read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            log.exception("cause-unreadable", extra={"cause": cause})
            return None

    def _find_recovery_time(self, cause: str) -> datetime | None:
        try:
            found = json.loads(self._file("recovered", digest_cause(cause)).read_bytes())
            return datetime.fromisoformat(found["at"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError):
            log.exception("cause-unreadable", extra={"cause": cause})
            return None

    def _cause_file(self, cause: str) -> Path:
        return self._file("open", digest_cause(cause))

    def _file(self, folder: str, name: str) -> Path:
        return self.root / FOLDER / folder / f"{name}.json"


@contextlib.contextmanager
def _log_errors(what: str, name: str) -> Iterator[None]:
    """Continues when a file cannot be written: an alert that is sent twice is better than one that is not sent."""
    try:
        yield
    except OSError:
        log.exception("write-failed", extra={what: name})
