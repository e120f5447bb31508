"""Stamps: what tells that input files have changed since they were looked at."""

import os

from spanwise.components.ingest import fingerprint
from spanwise.orchestrator.storage.copies import LocalCopies


def test_copies_of_one_object_have_one_stamp_wherever_their_machine_keeps_them(tmp_path, monkeypatch):
    """A node may run where the home folder is another one than its controller's, and a copy older: the object may have been
    written again as it was. A copy is named after its revision.
    """
    written = []
    for home, modified in (("here", 7), ("there", 9)):
        copies = LocalCopies(tmp_path / home)
        file = copies.folder / "0123" / "rows.csv"
        file.parent.mkdir(parents=True)
        file.write_text("a\n1\n")
        os.utime(file, ns=(modified, modified))
        monkeypatch.setattr(fingerprint, "machine_copies", lambda copies=copies: copies)
        written.append(fingerprint.stamp({"all": (str(file),)}).split()[0])

    assert written[0] == written[1]
