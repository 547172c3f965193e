"""The fuzzing targets in their short form."""

from collections.abc import Callable

import pytest

from tests.fuzz.targets import TARGETS


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_nothing_but_their_own_errors_and_in_time(target: Callable[[], None]) -> None:
    target()
