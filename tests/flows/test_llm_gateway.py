"""The gateway's example on a real API, with the real SDKs: what it promises to show, it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from flows import llm_gateway
from flows.serving import running
from prefect_resilience.graphs.agents.edge.registry import PROVIDERS

pytestmark = [pytest.mark.api, pytest.mark.slow]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    known = dict(PROVIDERS._known)
    with running(llm_gateway.SERVICE) as at:
        yield at
    PROVIDERS._known = known


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What the table gets."""
    got: list[tuple] = []

    def answer(asked, given, by, value):
        got.append((asked, dict(given), by, value))

    monkeypatch.setattr(llm_gateway.BOARD, "answer", answer)
    return got


def test_the_gateway_always_answers(address, rows) -> None:
    answered = llm_gateway.questions(address)
    assert answered == ["claude"] * 3 + ["openai"] * 4 + ["degraded"]
    given = {asked: calls for asked, calls, _, _ in rows}
    assert given["too many questions"] == {"anthropic": ["429-ms", "ok"]}
    assert given["an outage of one"] == {"anthropic": ["529", "500", "503"], "openai": ["ok"]}
    assert given["a wrong key"] == {"anthropic": ["401"], "openai": ["ok"]}
    assert given["an open circuit"] == {"openai": ["ok"]}
    assert given["an outage of both"] == {"openai": ["503"] * 3}
    assert rows[-1][3].startswith("The assistant is not available")


def test_streams_are_retried_before_their_first_word_and_never_after(address, rows) -> None:
    ends = asyncio.run(llm_gateway.streams(address))
    assert ends == [
        "whole",
        "whole",
        "broke: NETWORK_ERROR",
        "broke: NETWORK_ERROR",
        "broke: overloaded_error",
        "broke: TIMEOUT",
    ]
    calls = [given["anthropic"] for _, given, _, _ in rows]
    assert calls == [["ok"], ["503", "ok"], ["cut"], ["half"], ["event"], ["stall"]]
    whole = "You said: one two three four"
    texts = [value.strip() for _, _, _, value in rows]
    assert texts[0] == texts[1] == whole
    assert all(text and whole.startswith(text) and text != whole for text in texts[2:])


def test_a_long_document_is_asked_about_in_parts(address, rows) -> None:
    summary = llm_gateway.long_document(address)
    assert summary.count("You said") == 4
    assert rows[0][1] == {"openai": ["overflow", "ok", "ok", "ok", "ok"]}
