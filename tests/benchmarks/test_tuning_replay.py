"""The replay of ten days against what they would have been."""

from __future__ import annotations

import pytest

from benchmarks.tuning_replay import pair, summary_of, table_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [9, 101], ids=["a circuit that goes", "a circuit and attempts"])
def test_ten_days_under_another_policy_are_predicted(number: int) -> None:
    """The circuits of these records hide the ends of most outages."""
    one = pair(number, days=10, runs=10_000, lucks=0)
    assert "circuit" in one.ran
    assert one.is_within, (one.share_off, one.waits_off)
    assert summary_of([one])["within"] == 1
    assert table_of([one]).row_count == 1
