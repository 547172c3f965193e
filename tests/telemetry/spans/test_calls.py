"""The spans of calls and of HTTP requests outside a run: a call with its attempts is a tree."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
import requests
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import SecretStr

from prefect_resilience import CircuitBreaker, Effect, Fallback, Retry, batch
from prefect_resilience.calls.edge.resilient import resilient
from prefect_resilience.http import AsyncResilientTransport, ResilientAdapter, ResilientTransport
from prefect_resilience.testing import ScriptedService
from tests.docs.pages import DOCS, blocks

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
QUICK = Retry(attempts=3, backoff={"kind": "none"})


@pytest.fixture(params=["sync", "async"])
def guarded(request: pytest.FixtureRequest, spans: Any) -> Callable[..., Any]:
    """`work` with these options. It pops its next outcome from a list, in a span of the user's own."""

    def make(**options: Any) -> Callable[..., Any]:
        def work(script: list[Any], *_: Any) -> Any:
            with spans.own("inner"):
                outcome = script.pop(0)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        if request.param == "sync":
            return resilient(name="work", **options)(work)

        async def coroutine(script: list[Any], *more: Any) -> Any:
            await asyncio.sleep(0)
            return work(script, *more)

        call = resilient(name="work", **options)(coroutine)
        return lambda *args: asyncio.run(call(*args))

    return make


def test_each_attempt_is_a_child_of_the_call_and_the_call_of_what_is_around_it(guarded, spans) -> None:
    work = guarded(retry=QUICK, circuit="spans-tree")
    with spans.own("around"):
        assert work([ConnectionError("refused"), TimeoutError(), 7]) == 7
    assert spans.tree() == [
        "around",
        "  work",
        "    attempt work ConnectionError network",
        "      inner",
        "    attempt work TimeoutError timeout",
        "      inner",
        "    attempt work",
        "      inner",
    ]


def test_the_attributes_of_an_attempt(spans) -> None:
    numbered = resilient(retry=Retry(attempts=2, backoff="none"), circuit="spans-{number}", name="numbered")
    script = [ConnectionError("refused"), 1]

    @numbered
    def call(number: int) -> int:
        outcome = script.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    call(3)
    whole, failed, good = spans.take()
    assert dict(whole.attributes) == {"prefect_resilience.function": "numbered"}
    assert dict(failed.attributes) == {
        "prefect_resilience.function": "numbered",
        "prefect_resilience.attempt": 1,
        "prefect_resilience.circuit": "spans-3",
        "prefect_resilience.category": "network",
        "prefect_resilience.code": "NETWORK_ERROR",
        "error.type": "ConnectionError",
    }
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "refused")
    assert dict(good.attributes) == {
        "prefect_resilience.function": "numbered",
        "prefect_resilience.attempt": 2,
        "prefect_resilience.delay": 0.0,
        "prefect_resilience.circuit": "spans-3",
    }
    assert {span.kind for span in (whole, failed, good)} == {SpanKind.INTERNAL}
    assert {span.status.status_code for span in (whole, good)} == {StatusCode.UNSET}


def test_a_rejected_call_is_an_event_of_its_call_and_no_attempt(guarded, spans) -> None:
    circuit = CircuitBreaker("spans-open")
    circuit.force_open("maintenance")
    with pytest.raises(Exception, match="spans-open"):
        guarded(retry=None, circuit=circuit)([1])
    (call,) = spans.take()
    (event,) = call.events
    assert event.name == "rejected"
    assert dict(event.attributes) == {
        "prefect_resilience.rejected_by": "circuit",
        "prefect_resilience.circuit": "spans-open",
        "prefect_resilience.category": "circuit_open",
        "prefect_resilience.code": "CIRCUIT_OPEN",
    }
    assert call.attributes["prefect_resilience.category"] == "circuit_open"
    assert call.status.status_code is StatusCode.ERROR


def test_a_fallback_is_an_event_of_its_call_which_did_not_fail(guarded, spans) -> None:
    def archive(*_: Any) -> str:
        with spans.own("archive"):
            return "old"

    work = guarded(retry=Retry(attempts=2, backoff="none"), fallback=[Fallback(archive, degraded=True)])
    assert work([ConnectionError(), ConnectionError()]) == "old"
    recorded = spans.take()
    (event,) = recorded[0].events
    assert (event.name, dict(event.attributes)) == (
        "fallback",
        {
            "prefect_resilience.fallback": "archive",
            "prefect_resilience.degraded": True,
            "prefect_resilience.category": "network",
            "prefect_resilience.code": "NETWORK_ERROR",
        },
    )
    assert recorded[0].status.status_code is StatusCode.UNSET
    assert [span.name for span in recorded] == ["work", *["attempt work", "inner"] * 2, "archive"]
    assert recorded[-1].parent.span_id == recorded[0].context.span_id


def test_a_replayed_effect_is_an_event_and_the_key_is_an_attribute_without_secrets(guarded, spans) -> None:
    work = guarded(effect=Effect(kind="external", key=f"pay:{SECRET}"))
    for _ in range(2):
        with batch("spans"):
            assert work([7]) == 7
    assert spans.tree() == ["work", "  attempt work", "    inner", "work [replayed]"]
    with batch("spans-again"):
        work([7])
    _, attempt, _ = spans.take()
    key = attempt.attributes["prefect_resilience.effect.key"]
    assert key == "pay:***"


def test_no_secret_is_in_a_span(guarded, spans) -> None:
    work = guarded(retry=Retry(attempts=2, backoff="none"), fallback=[Fallback.value(0)])
    known = SecretStr("correct-horse-battery")
    work(
        [ConnectionError(f"refused for {SECRET}"), ConnectionError(f"sent {known.get_secret_value()}")], known
    )
    recorded = spans.take()
    whole = "".join(span.to_json() for span in recorded)
    assert SECRET not in whole
    assert known.get_secret_value() not in whole
    assert [span.status.description for span in recorded if span.name == "attempt work"] == [
        "refused for ***",
        "sent ***",
    ]
    assert not [event for span in recorded for event in span.events if event.name == "exception"]


# -- generators and blocks


def chunks_of(script: list[Any], spans: Any) -> Iterator[int]:
    with spans.own("first"):
        outcome = script.pop(0)
    if isinstance(outcome, Exception):
        raise outcome
    yield 1
    with spans.own("second"):
        yield 2


@pytest.mark.parametrize("options", [{}, {"timeout": 30}])
@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_generator_runs_in_its_attempt_and_its_reader_does_not(spans, way, options) -> None:
    async def stream(script: list[Any]) -> AsyncIterator[Any]:
        for chunk in chunks_of(script, spans):
            yield chunk

    guard = resilient(retry=QUICK, name="stream", **options)
    read = []
    if way == "sync":
        for chunk in guard(chunks_of)([ConnectionError(), 0], spans):
            with spans.own("reader"):
                read.append(chunk)
    else:
        async for chunk in guard(stream)([ConnectionError(), 0]):
            with spans.own("reader"):
                read.append(chunk)
    assert read == [1, 2]
    attempts = [
        "  attempt stream ConnectionError network",
        "    first",
        "  attempt stream",
        "    first",
        "    second",
    ]
    assert sorted(spans.tree()) == sorted(["stream", *attempts, "reader", "reader"])


# -- without spans


def test_nothing_is_recorded_while_resilience_is_switched_off(spans, monkeypatch) -> None:
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    for attempt in resilient(name="book"):
        with attempt:
            pass

    async def stream() -> AsyncIterator[int]:
        yield 1

    async def read() -> list[int]:
        return [chunk async for chunk in resilient(stream)()]

    assert asyncio.run(read()) == [1]
    assert resilient(len)("four") == 4
    assert spans.take() == []


class Broken(SpanProcessor):
    """An exporter of a user that raises."""

    def __init__(self, where: str) -> None:
        self.where = where

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.where == "start":
            raise RuntimeError("no disk")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("no disk")


@pytest.mark.parametrize("where", ["start", "end"])
def test_an_exporter_that_fails_does_not_fail_the_call(guarded, spans, where, monkeypatch) -> None:
    work = guarded(retry=QUICK)
    spans.provider.add_span_processor(Broken(where))
    monkeypatch.setattr(spans, "own", lambda _: nullcontext())
    assert work([ConnectionError(), 7]) == 7


def test_without_a_provider_there_are_no_spans(guarded, spans, monkeypatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    circuit = CircuitBreaker("spans-none")
    assert guarded(retry=QUICK, circuit=circuit)([ConnectionError(), 7]) == 7
    circuit.force_open("maintenance")
    with pytest.raises(Exception, match="spans-none"):
        guarded(retry=None, circuit=circuit)([1])
    assert [span.name for span in spans.take()] == ["inner", "inner"]


def test_the_page_shows_what_its_program_prints(tmp_path) -> None:
    found = blocks(DOCS / "concepts" / "seeing.md")
    (number,) = [number for number, block in enumerate(found) if block.file == "spans.py"]
    (tmp_path / "spans.py").write_text(found[number].text)
    command = [sys.executable, "spans.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found[number + 1].text.strip()


TWICE = Retry(attempts=2, backoff="none")


@pytest.fixture(params=["httpx", "httpx async", "requests"])
def get(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """GET with a guarded client, which has these options."""

    def by_httpx(url: str, **options: Any) -> Any:
        with httpx.Client(transport=ResilientTransport(**options)) as client:
            return client.get(url)

    async def by_httpx_async(url: str, **options: Any) -> Any:
        async with httpx.AsyncClient(transport=AsyncResilientTransport(**options)) as client:
            return await client.get(url)

    def by_requests(url: str, **options: Any) -> Any:
        with requests.Session() as session:
            session.mount("http://", ResilientAdapter(**options))
            return session.get(url)

    ways: dict[str, Callable[..., Any]] = {
        "httpx": by_httpx,
        "httpx async": lambda url, **options: asyncio.run(by_httpx_async(url, **options)),
        "requests": by_requests,
    }
    return ways[request.param]


def test_each_request_that_is_sent_is_a_span_below_that_of_the_call(get, spans) -> None:
    with ScriptedService(503, 200) as service:
        assert get(service.url, retry=TWICE).status_code == 200
    call, first, second = spans.take()
    host, port = "127.0.0.1", int(service.url.rpartition(":")[2])
    assert call.name == f"GET {host}:{port}"
    assert {first.parent.span_id, second.parent.span_id} == {call.context.span_id}
    about = {
        "prefect_resilience.function": call.name,
        "prefect_resilience.circuit": f"http:{host}:{port}",
        "http.request.method": "GET",
        "server.address": host,
        "server.port": port,
    }
    assert dict(first.attributes) == {
        **about,
        "prefect_resilience.attempt": 1,
        "prefect_resilience.category": "unavailable",
        "prefect_resilience.code": "503",
        "http.response.status_code": 503,
        "error.type": "503",
    }
    assert dict(second.attributes) == {
        **about,
        "prefect_resilience.attempt": 2,
        "prefect_resilience.delay": 0.0,
        "http.request.resend_count": 1,
        "http.response.status_code": 200,
    }
    assert [span.name for span in (first, second)] == ["GET", "GET"]
    assert {span.kind for span in (first, second)} == {SpanKind.CLIENT}


def test_a_response_that_is_returned_as_it_is_has_its_status(get, spans) -> None:
    with ScriptedService(404) as service:
        assert get(service.url, retry=TWICE).status_code == 404
    call, sent = spans.take()
    assert (sent.attributes["http.response.status_code"], sent.attributes["error.type"]) == (404, "404")
    assert sent.status.status_code is StatusCode.ERROR
    assert call.status.status_code is StatusCode.UNSET


def test_a_url_without_a_port_has_that_of_its_scheme(spans) -> None:
    transport = ResilientTransport(transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    with httpx.Client(transport=transport) as client:
        client.get("https://user:secret@a.example/v1?token=secret")
        client.get("http://a.example/")
    sent = [span for span in spans.take() if span.name == "GET"]
    assert [span.attributes["server.port"] for span in sent] == [443, 80]
    assert {span.attributes["server.address"] for span in sent} == {"a.example"}
    assert "secret" not in "".join(span.to_json() for span in sent)
