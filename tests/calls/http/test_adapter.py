"""What is different behind a requests session; what is the same is tried there for each client."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import requests

from prefect_resilience import Bulkhead, CircuitBreaker
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.http import ResilientAdapter
from tests.calls.http.webs import AT_ONCE


@pytest.fixture
def session() -> Iterator[Callable[..., requests.Session]]:
    made: list[requests.Session] = []

    def make(**options: Any) -> requests.Session:
        made.append(requests.Session())
        made[-1].mount("http://", ResilientAdapter(**{"retry": AT_ONCE, "circuit": None, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def at_home(request: Any) -> requests.Response:
    answer = requests.Response()
    answer.status_code = 203
    answer.url = request.url
    return answer


COPIES: list[Callable[[Any], Any]] = [
    lambda one: pickle.loads(pickle.dumps(one)),
    lambda one: pickle.loads(cloudpickle.dumps(one)),
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize("again", COPIES, ids=["pickle", "cloudpickle", "copy", "deepcopy"])
@pytest.mark.parametrize(
    ("options", "answers", "status"),
    [
        ({}, [503, 503, 200], 200),
        ({"retry": None}, [503, 200], 503),
        ({"allowed_methods": ["get"]}, [503, 200], 503),
        ({"fallback": at_home, "retry": None}, [429], 203),
        ({"timeout": 30, "deadline": 60, "limits": Bulkhead(3)}, [503, 200], 200),
    ],
)
def test_a_copied_session_has_the_same_guards(session, server, again, options, answers, status):
    server.says(*answers)
    with again(session(**options)) as copied:
        adapter = copied.get_adapter("http://")
        assert adapter._pool_maxsize == ResilientAdapter()._pool_maxsize
        assert copied.put(server.url, data=b"x").status_code == status


def test_a_copied_session_shares_the_circuit(session, server):
    own = session(circuit=CircuitBreaker("copied-{host}", failure_threshold=2), retry=None)
    copied = pickle.loads(pickle.dumps(own))
    server.says(503, 503)
    assert [one.get(server.url).status_code for one in (own, copied)] == [503, 503]
    for one in (own, copied):
        with pytest.raises(CircuitOpenError):
            one.get(server.url)
