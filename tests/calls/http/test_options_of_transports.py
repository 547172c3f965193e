"""Options of transports and of the adapter: mistakes are found at once, and everything can be turned off."""

from __future__ import annotations

import re

import pytest

from prefect_resilience import Fallback, Timeout
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.http import AsyncResilientTransport, BaseURL, ResilientAdapter, ResilientTransport
from tests.calls.http.server import Act
from tests.calls.http.webs import each_client

BAD = {
    "retry='often'": {"retry": "often"},
    "retry=True": {"retry": True},
    "circuit": {"circuit": 3},
    "{nosuch}": {"circuit": "http:{nosuch}"},
    "is not a limit": {"limits": 5},
    "child process": {"timeout": Timeout(3, mode="process")},
    "above 0": {"deadline": 0},
    "deadline=True": {"deadline": True},
    "deadline='soon'": {"deadline": "soon"},
    "not a base URL": {"fallback": "b.example/v1"},
    "must be a function": {"fallback": 3},
    "a transport passes only request and error": {"fallback": lambda url: None},
    "stores no responses": {"fallback": Fallback.last_known_good()},
    "allowed_methods='POST'": {"allowed_methods": "POST"},
    "allowed_methods=None": {"allowed_methods": None},
    "allowed_methods=3": {"allowed_methods": 3},
}


@pytest.mark.parametrize("kind", [ResilientTransport, AsyncResilientTransport, ResilientAdapter])
@pytest.mark.parametrize("said", BAD)
def test_a_mistake_is_told_in_one_sentence(kind, said):
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        kind(**BAD[said])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [ResilientTransport, AsyncResilientTransport, ResilientAdapter])
@pytest.mark.parametrize("idle", [Timeout(idle=3), Timeout(3, idle=1)])
def test_the_wait_for_a_chunk_is_the_clients(kind, idle):
    with pytest.raises(ConfigurationError, match=re.escape("httpx.Timeout(30, read=10)")):
        kind(timeout=idle)


def test_the_adapter_has_one_option_for_retries():
    with pytest.raises(ConfigurationError, match="use retry="):
        ResilientAdapter(max_retries=3)


def test_a_password_in_a_url_is_not_shown():
    with pytest.raises(ConfigurationError) as caught:
        BaseURL("ftp://ann:hunter2@b.example")
    assert "hunter2" not in str(caught.value)


@each_client
def test_it_can_be_turned_off(make_web, server, other, way, monkeypatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_ENABLED", "false")
    web = make_web(fallback=other.url, timeout=5)
    server.says(503, Act(chunks=(b"one", b"two"), gap=0.2))
    assert web.get(server.url).status_code == 503
    assert web.get(server.url).content == b"onetwo"
    assert (len(server.seen), len(other.seen)) == (2, 0)
