"""Fallbacks of a transport: other servers, functions of the request, and chains of providers."""

import threading

import httpx
import pytest

from prefect_resilience import CircuitBreaker, Fallback, ProviderChain
from prefect_resilience.errors.exceptions import AttemptTimeout, ConfigurationError
from prefect_resilience.http import BaseURL
from tests.calls.http.server import Act
from tests.calls.http.webs import each_client, each_fault, until

CREDENTIALS = {
    "Authorization": "Bearer secret",
    "Cookie": "a=b",
    "X-API-Key": "secret",
    "X-Auth-Token": "secret",
    "Accept": "text/x",
}


def test_the_next_server_answers(make_web, server, other):
    web = make_web(fallback=other.url)
    server.says(503)
    other.says(Act(body=b"from there"))
    answer = web.get(f"{server.url}/v1/users?name=ann", headers={"Accept": "text/x"})
    assert answer.content == b"from there"
    assert len(server.seen) == 3
    (seen,) = other.seen
    assert (seen.path, seen.headers["host"], seen.headers["accept"]) == (
        "/v1/users?name=ann",
        other.host,
        "text/x",
    )
    assert web.calm()


def test_if_none_answers_the_first_answer_is_returned(make_web, server, other):
    web = make_web(fallback=other.url, retry=None)
    server.says(Act(503, body=b"first"))
    other.says(Act(500, body=b"second"))
    answer = web.get(server.url)
    assert (answer.status_code, answer.content) == (503, b"first")
    assert web.calm()


@each_client
def test_credentials_stay_where_they_belong(make_web, server, other):
    second = BaseURL(f"{other.url}/v2", headers={"X-API-Key": "other"})
    web = make_web(fallback=second, retry=None, allowed_methods=["PUT"])
    server.says(503)
    web.ask("PUT", f"{server.url}/v2/x", headers={**CREDENTIALS, "Idempotency-Key": "k"}, json={})
    (seen,) = other.seen
    assert seen.path == "/v2/x"
    assert {name: seen.headers.get(name.lower()) for name in CREDENTIALS} == {
        "Authorization": None,
        "Cookie": None,
        "X-API-Key": "other",
        "X-Auth-Token": None,
        "Accept": "text/x",
    }
    assert (seen.headers["idempotency-key"], seen.body) == ("k", b"{}")


def test_credentials_may_be_the_same(make_web, server, other):
    web = make_web(fallback=BaseURL(other.url, same_credentials=True), retry=None)
    server.says(503)
    web.get(server.url, headers=CREDENTIALS)
    (seen,) = other.seen
    assert {name: seen.headers.get(name.lower()) for name in CREDENTIALS} == CREDENTIALS


def test_a_key_that_the_next_server_may_not_know_does_not_lead_there(make_web, server, other):
    web = make_web(fallback=other.url, retry=None)
    for method in ("POST", "PUT"):
        server.says(503)
        assert web.ask(method, server.url, headers={"Idempotency-Key": "k"}, json={}).status_code == 503
    assert other.seen == []


@each_fault(Act(cut="request"))
def test_what_may_have_been_taken_is_not_sent_elsewhere(make_web, server, other, fault):
    web = make_web(fallback=other.url)
    server.says(fault)
    with pytest.raises(web.error):
        web.post(server.url, json={}).raise_for_status()
    assert (len(server.seen), len(other.seen)) == (1, 0)


@pytest.mark.parametrize("in_thread", [False, True])
def test_what_was_interrupted_is_not_sent_elsewhere(make_web, server, other, in_thread):
    held = threading.Event()
    web = make_web(fallback=other.url, timeout=0.15)
    server.says(Act(hold=held))
    errors: list[Exception] = []

    def post() -> None:
        try:
            web.post(server.url, json={})
        except AttemptTimeout as error:
            errors.append(error)

    if in_thread and not web.isasync:
        asking = threading.Thread(target=post)
        asking.start()
        asking.join()
    else:
        post()
    held.set()
    assert len(errors) == 1
    assert "not sent to the fallback" in "\n".join(errors[0].__notes__)
    assert other.seen == []
    assert until(lambda: server.executed == 1)


@pytest.mark.parametrize("status", [425, 429])
def test_what_was_refused_is_sent_elsewhere(make_web, server, other, status):
    web = make_web(fallback=other.url)
    server.says(status)
    assert web.post(server.url, json={}).status_code == 200
    assert (len(server.seen), len(other.seen)) == (3, 1)


def test_an_open_circuit_leads_there_at_once(make_web, server, other):
    circuit = CircuitBreaker("http:{host}", failure_threshold=2, open_for=60)
    web = make_web(fallback=other.url, circuit=circuit, retry=None)
    server.says(503)
    for _ in range(4):
        assert web.get(server.url).status_code == 200
    assert web.post(server.url, json={}).status_code == 200, "nothing of it was sent to the first server"
    assert (len(server.seen), len(other.seen)) == (2, 5)


def test_a_function_of_the_request_answers(make_web, server):
    def cached(request: httpx.Request, error: object) -> httpx.Response:
        return httpx.Response(200, json={"path": request.url.path, "why": error.code})  # type: ignore[attr-defined]

    web = make_web(fallback=Fallback(cached, when="unavailable"))
    server.says(503)
    assert web.get(f"{server.url}/a").json() == {"path": "/a", "why": "503"}
    server.says(500)
    assert web.get(server.url).status_code == 500
    assert web.calm()


def test_a_function_that_returns_no_answer_is_told(make_web, server):
    web = make_web(fallback=Fallback.value({"a": 1}))
    server.says(503)
    with pytest.raises(ConfigurationError, match="must return a Response, not"):
        web.get(server.url)


def test_an_async_function_of_the_request_answers(make_web, server, way):
    async def cached(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=request.method)

    if way == "sync":
        with pytest.raises(ConfigurationError, match="async"):
            make_web(fallback=cached)
    else:
        server.says(503)
        assert make_web(fallback=cached).get(server.url).text == "GET"


def test_a_chain_of_providers_answers(make_web, server, other, way):
    def far(request: httpx.Request) -> httpx.Response:
        raise ValueError("not here")

    def near(request: httpx.Request) -> httpx.Response:
        with httpx.Client() as client:
            return client.get(f"{other.url}{request.url.path}")

    chain = ProviderChain("near", {"far": far, "close": near})
    web = make_web(fallback=chain)
    server.says(503)
    other.says(Act(body=b"near"))
    assert web.get(f"{server.url}/a").content == b"near"
    assert other.paths == ["/a"]


@pytest.mark.parametrize(
    ("base", "asked", "wanted"),
    [
        ("https://b.example", "https://a.example/v1/x?y=1", "https://b.example/v1/x?y=1"),
        ("https://b.example/v1", "https://a.example/v1/x", "https://b.example/v1/x"),
        ("https://b.example/v1/", "https://a.example/v1", "https://b.example/v1"),
        ("https://b.example/v2", "https://a.example/v1/x", "https://b.example/v2/v1/x"),
        ("https://b.example/v1", "https://a.example/v10/x", "https://b.example/v1/v10/x"),
        ("http://b.example:81", "https://a.example", "http://b.example:81/"),
    ],
)
def test_the_url_at_another_server(base, asked, wanted):
    assert BaseURL(base).url_for(asked) == wanted
