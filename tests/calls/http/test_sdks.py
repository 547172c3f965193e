"""The SDKs of OpenAI and Anthropic, their own retries off: the transport alone makes them resilient.

The rows are those of `docs/errors_sdks.md`, and the faults of a connection before there are headers.
"""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from prefect_resilience import CircuitOpenError, Retry, classify, error_context, resilient
from prefect_resilience import ErrorCategory as C
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.http import ResilientTransport
from tests.calls.http.sdks import SDKS, TEXT, Ask, answer, error_event, half_a_stream, refused, stream, unwell
from tests.calls.http.server import Act

pytestmark = pytest.mark.slow

FAULTS: dict[str, Any] = {
    "429-ms": lambda provider: refused(provider, "429-ms"),
    "408": lambda provider: unwell(provider, 408),
    "500": lambda provider: refused(provider, "500"),
    "502": lambda provider: unwell(provider, 502),
    "503": lambda provider: refused(provider, "503"),
    "504": lambda provider: unwell(provider, 504),
    "529": lambda provider: refused(provider, "529"),
    "cut before it was read": lambda _: Act(cut="accept"),
    "cut within the request": lambda _: Act(cut="request"),
    "cut after the request": lambda _: Act(cut="before"),
    "cut within the headers": lambda _: Act(cut="headers"),
}
PERMANENT = ("400", "401", "404", "overflow", "quota")


@pytest.fixture(params=["openai", "anthropic"])
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(provider, way, server) -> Ask:
    return Ask(provider, way == "async", server.url)


# -- what is retried


@pytest.mark.parametrize("streamed", [False, True], ids=["at once", "streamed"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_before_the_headers_is_retried(ask, server, provider, fault, streamed) -> None:
    bad = FAULTS[fault](provider)
    server.says(bad, bad, stream(provider) if streamed else answer(provider))
    assert ask(streamed=streamed) == TEXT
    assert len(server.seen) == 3
    assert len({one.body for one in server.seen if one.whole}) == 1, "each time the same body"


def test_the_provider_says_when(ask, server, provider) -> None:
    server.says(refused(provider, "429"), answer(provider))
    assert ask() == TEXT
    assert ask.took >= 1  # Retry-After: 1
    server.says(refused(provider, "429-ms"), answer(provider))
    assert ask() == TEXT
    assert 0.25 <= ask.took < 9  # retry-after-ms: 250, beside Retry-After: 9


# -- what is not


@pytest.mark.parametrize("word", PERMANENT)
def test_an_error_that_stays_is_the_sdks_own_at_once(ask, server, provider, word) -> None:
    server.says(refused(provider, word), answer(provider))
    error = ask.raises()
    assert isinstance(error, SDKS[provider].APIStatusError)
    assert error.status_code == refused(provider, word).status
    assert not classify(error).retryable
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "fault", [name for name in FAULTS if name not in ("429-ms", "cut before it was read")]
)
def test_by_default_a_request_that_may_have_been_taken_is_not_repeated(ask, server, provider, fault) -> None:
    """Each call of these SDKs is a POST without an Idempotency-Key."""
    ask.options = {"allowed_methods": ["GET"]}
    server.says(FAULTS[fault](provider), answer(provider))
    assert isinstance(ask.raises(), SDKS[provider].APIError)
    assert len(server.seen) == 1
    assert "idempotency-key" not in server.seen[0].headers


# -- when all attempts are used


@pytest.mark.parametrize(
    ("word", "category"), [("429-ms", C.RATE_LIMIT), ("503", C.UNAVAILABLE), ("500", C.SERVER_ERROR)]
)
def test_the_last_answer_is_the_sdks_own_error(ask, server, provider, word, category) -> None:
    server.says(refused(provider, word))
    error = ask.raises()
    assert isinstance(error, SDKS[provider].APIStatusError)
    assert error.status_code == refused(provider, word).status
    assert "sorry" in str(error)
    assert classify(error).category == category
    context = error_context(error)
    assert context is not None
    assert (context.attempt, len(context.history)) == (3, 3)
    assert len(server.seen) == 3


def test_a_provider_that_is_down_is_not_asked_any_more(ask, server, provider) -> None:
    server.says(refused(provider, "503"))
    ask.options = {"circuit": "http:{host}"}
    errors = [ask.raises() for _ in range(4)]
    assert 5 <= len(server.seen) <= 6, "the circuit opens at the fifth failure in a row"
    last = errors[-1]
    # OpenAI's SDK hands on what is no error of its client, Anthropic's makes a connection error of it
    circuit = last if provider == "openai" else last.__cause__
    assert isinstance(circuit, CircuitOpenError)
    assert circuit.name == f"http:{server.host}"
    assert classify(last).category is C.CIRCUIT_OPEN


@pytest.mark.smoke
def test_a_guard_around_the_call_does_not_multiply_its_attempts(ask, server, provider) -> None:
    server.says(refused(provider, "503"))
    guarded = resilient(retry=Retry(attempts=3, backoff=Backoff.none()))(ask)
    with pytest.raises(SDKS[provider].APIStatusError) as caught:
        guarded()
    assert len(server.seen) == 3
    assert "has already made 3 attempts" in "\n".join(caught.value.__notes__)
    server.says(Act(cut="before"))
    with pytest.raises(SDKS[provider].APIConnectionError):
        guarded()
    assert len(server.seen) == 3


# -- streams, from their headers on


def test_a_stream_that_was_cut_is_not_repeated(ask, server, provider) -> None:
    server.says(half_a_stream(provider, cut="body"), stream(provider))
    error = ask.raises(streamed=True)
    assert any(ask.pieces)
    # Anthropic's SDK hands on its client's error of a stream
    assert isinstance(error, SDKS[provider].APIError | httpx2.RemoteProtocolError)
    assert classify(error).category is C.NETWORK
    assert len(server.seen) == 1


def test_an_error_within_a_stream_is_the_sdks_own(ask, server, provider) -> None:
    server.says(error_event(provider), stream(provider))
    error = ask.raises(streamed=True)
    assert isinstance(error, SDKS[provider].APIError)
    assert classify(error).retryable
    assert len(server.seen) == 1


# -- clients


@pytest.mark.parametrize(
    ("provider", "library"),
    [("openai", httpx), ("openai", httpx2), ("anthropic", httpx2)],
    indirect=["provider"],
)
def test_clients_of_both_libraries_are_served(ask, server, provider, library) -> None:
    ask.library = library
    for streamed in (False, True):
        bad = refused(provider, "503")
        server.says(bad, Act(cut="before"), stream(provider) if streamed else answer(provider))
        assert ask(streamed=streamed) == TEXT
        assert len(server.seen) == 3


@pytest.mark.smoke
def test_one_line_for_each_sdk(server) -> None:
    """As the documentation has it."""
    options: Any = {"max_retries": 0, "base_url": server.url, "api_key": "none"}
    ours = ResilientTransport(allowed_methods=["GET", "POST"], retry=Retry(backoff=Backoff.none()))
    with openai.OpenAI(http_client=openai.DefaultHttpxClient(transport=ours), **options) as client:
        server.says(503, answer("openai"))
        said = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "count"}])
        assert said.choices[0].message.content == TEXT
        assert client.timeout == openai.DEFAULT_TIMEOUT, "the client keeps the SDK's own timeouts"
    ours = ResilientTransport(allowed_methods=["GET", "POST"], retry=Retry(backoff=Backoff.none()))
    with anthropic.Anthropic(http_client=anthropic.DefaultHttpxClient(transport=ours), **options) as client:
        server.says(529, answer("anthropic"))
        said = client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "count"}]
        )
        assert said.content[0].type == "text"
        assert client.timeout == anthropic.DEFAULT_TIMEOUT
