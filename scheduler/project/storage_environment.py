"""The variables of `[storage.environment]`: set where the environment does not set them, until they are read anew.

Which ones were set is noted in the environment itself: child processes inherit both, and replace what the file no
longer says, but never what a person has set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from spanwise.orchestrator.storage import forget_buckets

_NOTE = "_SPANWISE_STORAGE_ENVIRONMENT"


def replace_variables(written: Mapping[str, str]) -> None:
    """Sets these variables, and removes those of a file that was read before."""
    noted = json.loads(os.environ.get(_NOTE, "{}"))
    ours = {name: value for name, value in noted.items() if os.environ.get(name) == value}
    wanted = {name: value for name, value in written.items() if name in ours or name not in os.environ}
    if wanted == ours:
        return
    for name in ours.keys() - wanted.keys():
        os.environ.pop(name, None)
    os.environ.update(wanted)
    os.environ[_NOTE] = json.dumps(wanted)
    forget_buckets()
