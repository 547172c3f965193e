"""Replays that are killed at any line and begun again: none is sent twice, and none is lost."""

import os
import signal
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL

from prefect_resilience import dead_letters
from tests.durable.effects.receiver import Receiver
from tests.durable.letters.replay_victim import RECEIVER, Campaign, Toll, child, fail, judge, kill_often

pytestmark = pytest.mark.api


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Receiver()
    monkeypatch.setenv(RECEIVER, made.url)
    yield made
    made.close()


@pytest.fixture
def api() -> str:
    return str(PREFECT_API_URL.value())


@pytest.fixture
def store(server_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", server_url)
    return server_url


def check(toll: Toll, kills: int) -> None:
    assert toll.mistakes == []
    assert toll.kills >= kills
    assert toll.sent > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("server_url", ["sqlite"], indirect=True)
def test_killed_at_any_line_none_is_sent_twice_and_none_is_lost(
    counts: Receiver, store: str, api: str
) -> None:
    check(kill_often(counts, store, api, kills=6, count=3), 6)
    # Nothing that is in doubt is sent by a replay of everything, however often.
    before = dict(counts.taken)
    assert dead_letters.replay().replayed == 0
    assert counts.taken == before


@pytest.mark.timeout(300)
@pytest.mark.parametrize("server_url", ["sqlite"], indirect=True)
def test_killed_when_the_receiver_has_it_and_nobody_else_knows(
    counts: Receiver, store: str, api: str
) -> None:
    """Of a plain call nobody can tell, so it waits, as does an effect without verify; the last is asked."""
    made = Campaign(counts.url, store, api, "taken", 3)
    fail(made, counts)
    victims: list[Any] = []

    def kills(key: str) -> int:
        os.kill(victims[-1].pid, signal.SIGKILL)
        return 200

    counts.says(kills)
    for _ in made.keys:
        victims.append(child({RECEIVER: counts.url, "PREFECT_RESILIENCE_STORE_URL": store}, api)[0])
        victims[-1].join(60)
        assert victims[-1].exitcode == -signal.SIGKILL
    assert counts.taken == dict.fromkeys(made.keys, 1)
    counts.says(200)
    report = dead_letters.replay()
    assert sorted(one.result for one in report.outcomes) == ["failed", "replayed", "skipped"]
    toll = Toll()
    judge(counts, made, toll)
    assert (toll.mistakes, toll.sent, toll.doubts) == ([], 3, 2)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_long_form(counts: Receiver, store: str, api: str) -> None:
    toll = kill_often(counts, store, api, kills=60, count=12, seed=1)
    check(toll, 60)
    print(f"{store}: {toll}")
