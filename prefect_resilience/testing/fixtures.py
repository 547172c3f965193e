"""A pytest fixture: `pytest_plugins = ["prefect_resilience.testing.fixtures"]` in the project's conftest.py.

def test_bill_is_made_once(rehearse):
    with ScriptedService() as bank:
        rehearse(bill, 7, bank.url, receiver=bank).assert_once()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from prefect_resilience.testing import rehearsal


@pytest.fixture(scope="session")
def rehearsal_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Prefect API of all rehearsals of the session."""
    with rehearsal.prefect_api(tmp_path_factory.mktemp("rehearsal")) as url:
        yield url


@pytest.fixture
def rehearse(rehearsal_api: str) -> Callable[..., rehearsal.Rehearsal]:
    """`prefect_resilience.testing.rehearse`, on an API that is started once."""
    return partial(rehearsal.rehearse, api=rehearsal_api)
