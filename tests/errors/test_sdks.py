"""What the SDKs that are installed here raise, against the expert's verdict (see tests/errors/sdks)."""

from __future__ import annotations

import pytest

from tests.errors.sdks.cases import cases
from tests.errors.sdks.model import Case, run
from tests.errors.sdks.own_verdicts import differences
from tests.errors.sdks.service import service

HERE = [case for case in cases() if case.version is not None]


@pytest.mark.parametrize("case", HERE, ids=lambda case: f"{case.package}: {case.situation}")
def test_an_expert_would_say_the_same(case: Case) -> None:
    with service() as address:
        outcome = run(case, address)
    assert outcome.verdict() == str(case.expected), repr(outcome.error)


def test_every_difference_to_an_sdk_s_own_retries_has_a_reason() -> None:
    assert [difference for difference in differences() if not difference.why] == []
