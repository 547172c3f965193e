"""A question that is not answered: waited for, then gone without, then asked again. No server is asked."""

import asyncio
import logging
import time

import httpx
import pytest

from prefect_resilience.base.drive import adrive, drive
from prefect_resilience.guards.limits import line, shared
from prefect_resilience.guards.limits.shared import ApiAway, ApiBusy, SharedLimit, ask_api, may_pass


@pytest.fixture(autouse=True)
def quick(monkeypatch, caplog):
    monkeypatch.setattr(line, "LEAST_SERVER_SECONDS", 0.1)
    monkeypatch.setattr(shared, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(shared._outages, "by_name", {})
    caplog.set_level(logging.INFO, "prefect_resilience.limits")


class Api:
    """Answers when it is not busy, and tells the outages as `SharedLimit` does."""

    def __init__(self, name, busy):
        self.name, self.busy, self.asked = name, busy, 0

    def ask(self):
        self.asked += 1
        if self.asked <= self.busy:
            raise ApiBusy("503 of POST /limits")
        shared.note_answer(self.name)
        return "a place"


def levels(caplog):
    return [record.levelname for record in caplog.records]


@pytest.mark.parametrize("max_wait", [None, 30])
def test_an_answer_is_waited_for(max_wait, caplog):
    for run in (drive, lambda sequence: asyncio.run(adrive(sequence))):
        api = Api("busy", busy=4)
        assert run(ask_api("busy", api.ask, time.monotonic(), max_wait)) == "a place"
        assert api.asked == 5
    assert levels(caplog) == []
    assert "busy" not in shared._outages.by_name


def test_an_api_that_stays_away_is_gone_without_and_asked_again_later(caplog, monkeypatch):
    api = Api("away", busy=10**6)

    def call(max_wait=0):
        return drive(ask_api("away", api.ask, time.monotonic(), max_wait))

    came = time.monotonic()
    with pytest.raises(ApiAway):
        call()
    assert time.monotonic() - came >= 0.1
    assert levels(caplog) == ["WARNING"]
    asked = api.asked
    assert asked > 2
    with pytest.raises(ApiAway):
        call()
    assert api.asked == asked  # somebody has asked just now
    shared._outages.by_name["away"] = came, 0.0
    with pytest.raises(ApiAway):
        call()
    assert api.asked == asked + 1
    assert levels(caplog) == ["WARNING"]  # once
    shared._outages.by_name["away"], api.busy = (came, 0.0), api.asked
    assert call() == "a place"
    assert levels(caplog) == ["WARNING", "INFO"]
    assert "is shared again, after 0 s in this process only" in caplog.text


def test_what_is_not_worth_waiting_for_is_not_waited_for(caplog):
    def refuses():
        raise httpx.HTTPStatusError("no", request=None, response=httpx.Response(401))

    limit = SharedLimit("forbidden", 1, 0.0, refuses)
    came = time.monotonic()
    for _ in range(2):
        with pytest.raises(ApiAway):
            drive(ask_api("forbidden", lambda: limit.ask(int), came, 30))
    assert time.monotonic() - came < 10
    assert levels(caplog) == ["WARNING"]
    assert "is unavailable for the limit 'forbidden'. Until it answers" in caplog.text


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ApiBusy("503"), True),
        (httpx.ConnectError("refused"), True),
        (httpx.ReadTimeout("late"), True),
        (httpx.HTTPStatusError("", request=None, response=httpx.Response(500)), True),
        (httpx.HTTPStatusError("", request=None, response=httpx.Response(429)), True),
        (httpx.HTTPStatusError("", request=None, response=httpx.Response(403)), False),
        (RuntimeError("no server could be started"), False),
    ],
)
def test_what_may_pass(error, passes):
    assert may_pass(error) is passes
