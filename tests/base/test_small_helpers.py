"""Helpers that every room uses: texts, options that were not given, blocks, sentences about mistakes."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone

import pytest
from pydantic import Field

from prefect_resilience import Bulkhead
from prefect_resilience.base.naming import UNSET
from prefect_resilience.base.policy import Policy
from prefect_resilience.base.text import code_cell, utc_text
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.retries import backoff


class Crew(Policy):
    names: tuple[str, ...] = Field(min_length=1)


def test_an_option_that_was_not_given_is_the_same_one_after_a_journey() -> None:
    assert pickle.loads(pickle.dumps(UNSET)) is UNSET
    assert repr(UNSET) == "unset"


def test_a_mistake_without_words_of_ours_is_told_in_pydantics() -> None:
    with pytest.raises(ConfigurationError, match=r"Crew\(names=\(\)\): tuple should have at least 1 item"):
        Crew(names=())


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (None, ""),
        (0, "1970-01-01 00:00:00 UTC"),
        (datetime(2026, 11, 20, 19, tzinfo=timezone(timedelta(hours=1))), "2026-11-20 18:00:00 UTC"),
    ],
)
def test_a_time_in_utc(moment: datetime | float | None, text: str) -> None:
    assert utc_text(moment) == text


def test_code_in_a_cell_does_not_end_the_cell() -> None:
    assert code_cell("a | `b`\n c") == "`a ¦ 'b' c`"


def test_blocks_may_end_in_another_order_than_they_began() -> None:
    first, second = Bulkhead(1), Bulkhead(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    with first, second:  # both are free again
        pass
    with pytest.raises(RuntimeError, match="ended in a different context"):
        first.__exit__(None, None, None)


def test_delays_are_skipped_within_a_block() -> None:
    with backoff.skipped():
        assert backoff.pause(5) == 0
    assert backoff.pause(5) == 5
