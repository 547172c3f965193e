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
def rehearse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., rehearsal.Rehearsal]]:
    """`prefect_resilience.testing.rehearse`, on a Prefect API that is started once for all tests."""
    with rehearsal.prefect_api(tmp_path_factory.mktemp("rehearsal")) as api:
        yield partial(rehearsal.rehearse, api=api)
