"""The pytest fixture `rehearse`: one Prefect API for all rehearsals of a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefect_resilience.testing import Rehearsal
from prefect_resilience.testing.fixtures import rehearse
from tests.testing import rehearsed_programs as programs

__all__ = ["rehearse"]


@pytest.mark.api
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_flow_is_rehearsed_by_the_fixture(rehearse: Callable[..., Rehearsal]) -> None:
    point = "after request POST /pay"
    result = rehearse(programs.key_of_the_order, "{receiver}", receiver=programs.bank, only=point)
    result.assert_once()
    assert (result.cases, result.kills, len(result.rows)) == (1, 1, 2)
