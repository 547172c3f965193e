"""Who is let in: a page of this dashboard, and nobody who only pretends to be one."""

import pytest

from prefect_resilience.operations.dashboard import LOOPBACK, Gate

GATE = Gate("right", LOOPBACK | {"fleet.example"})
GOOD = {
    "host": "127.0.0.1:4280",
    "origin": "http://127.0.0.1:4280",
    "x-resilience-token": "right",
    "content-type": "application/json",
    "content-length": "12",
}


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:4280", "localhost", "LocalHost:9000", "[::1]:4280", "fleet.example", "fleet.example:443"],
)
def test_it_is_served_under_its_own_names(host):
    assert GATE.refusal("GET", {"host": host}) is None
    assert GATE.refusal("POST", {**GOOD, "host": host, "origin": f"http://{host}"}) is None


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "evil.example:4280", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("evil@127.0.0.1", "127.0.0.1/evil", "127.0.0.1#evil", "[::1", "10.0.0.1"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
def test_another_host_is_refused(host, method):
    assert "not served as" in (GATE.refusal(method, {**GOOD, "host": host}) or "")


def test_an_order_of_the_page_is_let_in():
    assert GATE.refusal("POST", GOOD) is None
    assert GATE.refusal("POST", {**GOOD, "origin": "https://127.0.0.1:4280"}) is None
    assert GATE.refusal("POST", {**GOOD, "content-type": "application/json; charset=utf-8"}) is None


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("origin", None, "Only the page"),
        ("origin", "null", "Only the page"),
        ("origin", "http://evil.example", "Only the page"),
        ("origin", "http://127.0.0.1", "Only the page"),
        ("x-resilience-token", None, "reload"),
        ("x-resilience-token", "wrong", "reload"),
        ("x-resilience-token", "ü", "reload"),
        ("content-type", None, "JSON"),
        ("content-type", "text/plain", "JSON"),
        ("content-length", None, "bytes"),
        ("content-length", "-1", "bytes"),
        ("content-length", "65537", "bytes"),
    ],
)
def test_a_forged_order_is_refused(name, value, why):
    headers = {key: text for key, text in {**GOOD, name: value}.items() if text is not None}
    assert why in (GATE.refusal("POST", headers) or "")
