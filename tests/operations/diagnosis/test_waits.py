"""The tasks that fail at once while their circuit is open are named."""

from typing import Any

import pytest

from prefect_resilience import Fallback, Retry, resilient_task
from prefect_resilience.operations.diagnosis import project

WAITING = Retry(attempts=3, by_category={"circuit_open": Retry(attempts=100)})


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({"circuit": "svc"}, True),
        ({"circuit": "svc-{page}", "retry": 9}, True),
        ({"circuit": "svc", "retry": Retry(attempts=1)}, True),
        ({"circuit": "svc", "retry": Retry(attempts=1, retry_on=["circuit_open"])}, True),
        ({"circuit": "svc", "retry": WAITING.model_copy(update={"give_up_on": ("circuit_open",)})}, True),
        ({"circuit": "svc", "retry": WAITING}, False),
        ({"circuit": "svc", "retry": Retry(attempts=50, retry_on=["circuit_open", "network"])}, False),
        ({"circuit": "svc", "fallback": Fallback(lambda page: 0)}, False),
        ({"circuit": "svc", "fallback": Fallback.value(1)}, False),
        ({"retry": 3}, False),
    ],
)
def test_a_task_with_neither_a_fallback_nor_a_wait(options: dict[str, Any], noted: bool) -> None:
    @resilient_task(**options)
    def fetch(page: str) -> int:
        return len(page)

    found = list(project.circuits([fetch]))
    assert [one.level for one in found] == ["note"] * noted
    for one in found:
        assert one.says == f"'fetch' fails at once while its circuit {options['circuit']!r} is open"
        assert "test_waits.py" in one.where
