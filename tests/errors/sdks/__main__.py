"""Raise the errors of the SDKs that are installed and say what `classify` makes of them.

python -m tests.errors.sdks                 the table
python -m tests.errors.sdks openai boto3    of these SDKs
python -m tests.errors.sdks --write         and docs/errors_sdks.md
python -m tests.errors.sdks --more          further SDKs, with the verdicts of tests/errors/more_sdks

The further SDKs want an environment of their own (they bring versions that others do not bear):

python3 -m venv ENV && ENV/bin/pip install -e . -r tests/errors/more_sdks/requirements.txt
ENV/bin/python -m tests.errors.sdks --more
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.errors.more_sdks.cases import more_cases
from tests.errors.sdks.cases import cases
from tests.errors.sdks.model import Case, Outcome, run
from tests.errors.sdks.page import Row, page
from tests.errors.sdks.service import service

PAGE = Path(__file__).parents[3] / "docs" / "errors_sdks.md"


def rows(known: Iterable[Case], wanted: Sequence[str]) -> list[Row]:
    """Every case of the wanted SDKs (all, if none is named) with what came of it; None: not installed."""
    found: list[Row] = []
    for case in known:
        if not wanted or case.package in wanted:
            found.append((case, _outcome(case) if case.version is not None else None))
    return found


def _outcome(case: Case) -> Outcome | None:
    with service() as made:
        return run(case, made)


def _line(case: Case, outcome: Outcome | None) -> str:
    if outcome is None:
        return f"{case.package:<28} not installed"
    verdict, expert = outcome.verdict(), str(case.expected)
    mark = " " if verdict == expert else "!"
    return f"{mark} {case.package:<26} {case.version:<10} {case.situation:<52} {verdict:<38} {expert}"


def _shares(rows: Sequence[Row]) -> str:
    """How often the decision to retry differs from the expert's, and how often only the category or wait."""
    tried = [(case.expected, outcome) for case, outcome in rows if outcome is not None]
    wrong = [(verdict, outcome) for verdict, outcome in tried if not outcome.agrees(verdict)]
    decisions = sum(verdict.again != outcome.info.retryable for verdict, outcome in wrong)
    rest, of = len(wrong) - decisions, max(1, len(tried))
    return (
        f"another decision to retry: {decisions} ({decisions / of:.1%}); "
        f"another category or wait: {rest} ({rest / of:.1%})"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.errors.sdks")
    parser.add_argument("sdk", nargs="*", help="names of distributions; all when left out")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--more", action="store_true", help="the further SDKs of tests/errors/more_sdks")
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")
    found = rows(more_cases() if given.more else cases(), given.sdk)
    for line in dict.fromkeys(_line(case, outcome) for case, outcome in found):
        print(line)
    wrong = [case for case, outcome in found if outcome is not None and not outcome.agrees(case.expected)]
    print(f"{len(found) - len(wrong)} of {len(found)} as an expert would say")
    print(_shares(found))
    if given.write and not given.more:
        PAGE.write_text(page(found))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
