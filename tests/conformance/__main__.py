"""The command: one line per case, then the count; exit 1 when one fails, 2 when a file cannot be read."""

import sys
from collections import Counter
from pathlib import Path

from tests.conformance.apis import APIS
from tests.conformance.judge import DIFFERENCES, NotACase, Outcome, judge, load


def main(files: list[str]) -> int:
    if not files:
        sys.stderr.write("name the files of cases: python -m tests.conformance FILE.json [FILE.json ...]\n")
        return 2
    try:
        cases = [case for file in files for case in load(Path(file))]
    except (OSError, NotACase) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    count: Counter[Outcome] = Counter()
    for case in cases:
        verdict = judge(case, DIFFERENCES, APIS)
        count[verdict.outcome] += 1
        sys.stdout.write(f"{verdict}\n")
    sys.stdout.write(
        f"{count[Outcome.OK]} passed, {count[Outcome.FAILED]} failed, "
        f"{count[Outcome.DIFFERS]} differ intentionally, {count[Outcome.NOT_DONE]} not done\n"
    )
    return 1 if count[Outcome.FAILED] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
