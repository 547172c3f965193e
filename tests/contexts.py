"""The context of an error that there is, for tests that look at its parts."""

from typing import Any

from prefect_resilience import error_context


def context_of(failed: object) -> Any:
    found = error_context(failed)
    assert found is not None
    return found
