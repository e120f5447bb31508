"""Pages of artifacts: the HTML files that they show, looked for where the files of an artifact are."""

from __future__ import annotations

from pathlib import Path

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import DamagedArtifact, StorageError


class PageFinder:
    """Finds the pages of artifacts. Storage that has failed once is asked no more: it may be waited for a minute."""

    def __init__(self) -> None:
        self.trouble = ""  #: why the pages of some artifacts are not known

    def find(self, artifact: Artifact) -> list[str] | None:
        """The pages in the folder of an artifact; their paths are short where they lie below the current folder.

        Of artifacts in object storage those that have pages are fetched, to be opened, and no others. None where it
        is not known what there is.
        """
        here, archive = Path.cwd(), artifact.archive
        if self.trouble and archive is not None and not artifact.is_here:
            return None
        pages: list[Path] = []
        try:
            if archive is None or artifact.is_here or any(map(is_page, archive.list_files(artifact.uri))):
                pages = sorted(artifact.path.glob("*.html"))
        except DamagedArtifact:
            pass  # `doctor` tells
        except StorageError as error:
            self.trouble = str(error)
            return None
        return [str(page.relative_to(here) if page.is_relative_to(here) else page) for page in pages]


def is_page(name: str) -> bool:
    """Whether a file of an artifact is a page that it shows."""
    return name.endswith(".html") and "/" not in name
