"""A transport that guards each request of an httpx client: what is repeated, when, and what is returned."""

import time

import httpx
import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry
from tests.calls.http.server import Act, as_json
from tests.calls.http.webs import each_client, each_fault

FAILURES = [408, 425, 429, 500, 502, 503, 504, 529]


@each_client
@pytest.mark.parametrize("status", FAILURES)
def test_a_failure_is_retried_before_anyone_raises(make_web, server, status):
    web = make_web()
    server.says(status, status, 200)
    answer = web.get(server.url)
    assert answer.status_code == 200
    assert len(server.seen) == 3
    assert web.calm()


@each_client
@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 401, 404, 409, 410, 422])
def test_any_other_answer_is_handed_on(make_web, server, status):
    web = make_web()
    server.says(Act(status, body=b""))
    assert web.get(server.url).status_code == status
    assert len(server.seen) == 1


@each_client
@pytest.mark.parametrize("status", FAILURES)
def test_after_the_last_attempt_the_answer_is_returned_as_it_came(make_web, server, status):
    web = make_web()
    said = as_json({"error": {"message": "on fire"}})
    server.says(Act(status, {"X-Trace": "abc"}, said))
    answer = web.get(server.url)
    assert (answer.status_code, answer.headers["X-Trace"], answer.content) == (status, "abc", said)
    assert len(server.seen) == 3
    with pytest.raises(web.error) as caught:
        answer.raise_for_status()
    assert caught.value.response is answer
    assert web.calm()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"])
@each_fault()
def test_idempotent_methods_are_repeated(make_web, server, method, fault):
    web = make_web()
    server.says(fault, 200)
    assert web.ask(method, server.url).status_code == 200
    assert len(server.seen) == 2


@each_client
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_others_are_repeated_with_a_key_only(make_web, server, method):
    web = make_web()
    server.says(503, 200)
    assert web.ask(method, server.url, json={}).status_code == 503
    assert len(server.seen) == 1
    server.says(503, 200)
    assert web.ask(method, server.url, json={}, headers={"Idempotency-Key": "k"}).status_code == 200
    assert [one.headers["idempotency-key"] for one in server.seen] == ["k", "k"]
    assert [one.body for one in server.seen] == [b"{}", b"{}"]


@each_client
@pytest.mark.parametrize("status", [425, 429])
def test_a_post_that_the_server_refused_is_sent_again(make_web, server, status):
    web = make_web()
    server.says(status, 200)
    assert web.post(server.url, json={}).status_code == 200
    assert server.executed == 1


@each_client
def test_methods_may_be_allowed(make_web, server):
    web = make_web(allowed_methods=["post"])
    server.says(503, 200)
    assert web.post(server.url, json={}).status_code == 200
    server.says(503, 200)
    assert web.get(server.url).status_code == 503, "they are named in place of the others"


@each_client
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_a_connection_that_was_refused_left_nothing(make_web, server, method):
    errors: list[Exception] = []

    def opens(error: Exception) -> None:
        errors.append(error)
        if len(errors) == 3:
            server.open()

    server.shut()
    web = make_web(classify=opens, retry=Retry(attempts=10, backoff=Backoff.none()))
    assert web.ask(method, server.url).status_code == 200
    assert len(server.seen) == 1


@each_client
def test_retry_after_is_waited_for(make_web, server):
    web = make_web()
    server.says(Act(429, {"retry-after-ms": "200"}), 200)
    began = time.monotonic()
    assert web.get(server.url).status_code == 200
    assert 0.2 <= time.monotonic() - began < 1.5


@each_client
def test_a_wait_that_is_too_long_is_not_begun(make_web, server):
    web = make_web(retry=Retry(attempts=3, retry_after_cap=5))
    server.says(Act(429, {"Retry-After": "60"}))
    began = time.monotonic()
    assert web.get(server.url).headers["Retry-After"] == "60"
    assert time.monotonic() - began < 2
    assert len(server.seen) == 1


@each_client
def test_the_error_body_is_classified(make_web, server):
    """An account without money answers 429, and another attempt is useless."""
    web = make_web()
    server.says(Act(429, body=as_json({"error": {"code": "insufficient_quota", "message": "no money"}})))
    assert web.get(server.url).json()["error"]["message"] == "no money"
    assert len(server.seen) == 1


@each_client
def test_an_error_body_that_cannot_be_unpacked_is_still_a_failure(make_web, server):
    web = make_web()
    server.says(Act(503, {"Content-Encoding": "gzip"}, b"no gzip"), 200)
    assert web.get(server.url).status_code == 200


def test_an_error_body_that_was_cut_is_still_what_the_status_says(make_web, server):
    web = make_web()
    server.says(Act(429, {"retry-after-ms": "150"}, b"x" * 100, cut="body"), 200)
    began = time.monotonic()
    assert web.get(server.url).status_code == 200
    assert time.monotonic() - began >= 0.15, "Retry-After was read"
    server.says(Act(503, body=b"x" * 100, cut="body"))
    answer = web.open("GET", server.url)
    assert answer.status_code == 503
    with pytest.raises(httpx.RemoteProtocolError):
        web.read(answer)
    assert web.calm()


def test_the_clients_own_timeouts_are_retried(make_web, server):
    web = make_web(client={"timeout": 0.15})
    server.says(Act(delay=0.5), 200)
    assert web.get(server.url).status_code == 200
    server.says(Act(delay=0.5), 200)
    with pytest.raises(httpx.ReadTimeout):
        web.post(server.url, json={})
    assert len(server.seen) == 1
    assert web.calm()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_attempt_has_a_timeout(make_web, server, method):
    web = make_web(timeout=0.15)
    server.says(Act(delay=0.6), 200)
    if method == "POST":
        with pytest.raises(AttemptTimeout):
            web.post(server.url, json={})
        assert len(server.seen) == 1
    else:
        assert web.get(server.url).status_code == 200
    assert web.calm()


@each_client
def test_redirects_are_requests_of_their_own(make_web, server, other):
    web = make_web(client={"follow_redirects": True})
    server.says(503, Act(307, {"Location": f"{other.url}/there"}))
    other.says(503, 200)
    answer = web.get(f"{server.url}/here")
    assert answer.status_code == 200
    assert [one.status_code for one in answer.history] == [307]
    assert (server.paths, other.paths) == (["/here"] * 2, ["/there"] * 2)
