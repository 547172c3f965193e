"""The further SDKs: each verdict has an act and a page; an installed SDK is read like the expert decided.

`python -m tests.errors.sdks --more` shows all of them in an environment of their own.
"""

from __future__ import annotations

import pytest

from tests.errors.more_sdks.cases import ACTS, more_cases, verdicts
from tests.errors.sdks.model import Case, run
from tests.errors.sdks.service import service

HERE = [case for case in more_cases() if case.version is not None]


def test_each_verdict_has_an_act_and_a_page() -> None:
    acts = {(package, situation) for package, situations in ACTS.items() for situation in situations}
    assert acts == set(verdicts())
    assert all(page.startswith("https://") for _verdict, page in verdicts().values())


@pytest.mark.parametrize("case", HERE, ids=lambda case: f"{case.package}: {case.situation}")
def test_an_expert_would_say_the_same(case: Case) -> None:
    with service() as address:
        outcome = run(case, address)
    assert outcome.verdict() == str(case.expected), repr(outcome.error)
