"""The places of a journal, for tests that hold of each: how it is opened, begun and filled, and its dispatcher killed."""

import os
import subprocess
import uuid

from spanwise.orchestrator.storage import parse_url
from spanwise.pipelines.input.service.dispatcher import decisions
from spanwise.pipelines.input.service.dispatcher.folder_journal import FolderJournal
from spanwise.pipelines.input.service.dispatcher.records import ProduceSplits
from spanwise.pipelines.input.service.dispatcher.stored_journal import StoredJournal
from tests.pipelines.input.service.dispatcher.test_state import dataset, do, job, worker


def begin(journal, splits):
    """Writes a dataset, a worker and a job that reads it; returns the journal."""
    records = do(journal.state, [dataset(splits=(splits,))])
    records += do(journal.state, decisions.arrive(journal.state, worker("w")))
    records += do(journal.state, decisions.join(journal.state, job()))
    journal.sync(journal.write(records))
    return journal


def dealt(number, *, repetition=0):
    return ProduceSplits(task=3, number=number, source=0, repetition=repetition, first=number, count=1)


class FolderPlace:
    keeps_unsynced = True  # the kernel has what was written

    def __init__(self, folder):
        self.folder = folder

    def open(self):
        return FolderJournal(self.folder)

    def kill(self, journal):
        """What the end of its process does."""
        os.close(journal._lock)
        journal._file.close()


class StoredPlace:
    keeps_unsynced = False

    def __init__(self, home):
        self.home = parse_url(f"{home}/{uuid.uuid4().hex}")

    def open(self):
        return StoredJournal(self.home, 600.0, self._refuse_standby)

    @staticmethod
    def _refuse_standby(reason):
        raise AssertionError(reason)

    def kill(self, journal):
        """Whoever comes next sees that the process is gone; this object is what a paused one would be."""
        gone = subprocess.Popen(["true"])
        gone.wait()
        journal._lead._ended.set()
        journal._lead.amend(pid=gone.pid)
