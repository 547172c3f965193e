"""The demo's service does what its script says, on real connections."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from flows.bad_day_service import THE_DAY, BadDay, Pair, read_table
from flows.serving import running


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with running(BadDay()) as address, httpx.Client(base_url=address, timeout=0.5, trust_env=False) as client:
        yield client


def ask(client: httpx.Client, pair: Pair, provider: str = "primary") -> httpx.Response:
    return client.get(f"/{provider}/interactions", params={"a": pair[0], "b": pair[1]})


def test_the_script_is_about_pairs_of_the_table() -> None:
    pairs = [(row["drug_a"], row["drug_b"]) for row in read_table()]
    assert len(pairs) == len(set(pairs)) == 24
    assert set(THE_DAY) <= set(pairs)


def test_answers_come_from_the_table(client: httpx.Client) -> None:
    answer = ask(client, ("warfarin", "aspirin")).json()
    assert answer["severity"] == "major"
    assert answer["provider"] == "primary"
    assert ask(client, ("warfarin", "water")).status_code == 404


def test_it_works_again_after_its_failures(client: httpx.Client) -> None:
    codes = [ask(client, ("digoxin", "amiodarone")).status_code for _ in range(4)]
    assert codes == [503, 503, 200, 200]


def test_a_429_says_when_to_come_back(client: httpx.Client) -> None:
    first = ask(client, ("lithium", "ibuprofen"))
    assert (first.status_code, first.headers["Retry-After"]) == (429, "1")
    assert ask(client, ("lithium", "ibuprofen")).status_code == 200


def test_a_slow_answer_and_a_dropped_connection(client: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        ask(client, ("clopidogrel", "omeprazole"))
    assert ask(client, ("clopidogrel", "omeprazole")).status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        ask(client, ("spironolactone", "lisinopril"))
    assert ask(client, ("spironolactone", "lisinopril")).status_code == 200
