"""What the SDKs that are installed here raise, against the expert's verdict (see tests/errors/sdks and
more_sdks)."""

from collections.abc import Iterator

import pytest

from tests.errors.more_sdks.cases import ACTS, more_cases, verdicts
from tests.errors.sdks.cases import cases
from tests.errors.sdks.model import Case, run
from tests.errors.sdks.own_verdicts import differences
from tests.errors.sdks.service import Service, service

HERE = [case for case in (*cases(), *more_cases()) if case.version is not None]


@pytest.fixture(scope="module")
def address() -> Iterator[Service]:
    with service() as address:
        yield address


@pytest.mark.parametrize("case", HERE, ids=lambda case: f"{case.package}: {case.situation}")
def test_an_expert_would_say_the_same(case: Case, address: Service) -> None:
    address.says(200)
    outcome = run(case, address)
    assert outcome.verdict() == str(case.expected), repr(outcome.error)


def test_every_difference_to_an_sdk_s_own_retries_has_a_reason() -> None:
    assert [difference for difference in differences() if not difference.why] == []


def test_each_verdict_has_an_act_and_a_page() -> None:
    acts = {(package, situation) for package, situations in ACTS.items() for situation in situations}
    assert acts == set(verdicts())
    assert all(page.startswith("https://") for _verdict, page in verdicts().values())
