"""The SDKs of OpenAI and Anthropic behind a resilient transport, and what their providers answer.

The SDKs' own retries are off: what is retried, the transport retries.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai

from flows.llm_dialects import ERROR_EVENTS, EVENTS, MESSAGES, refusal
from prefect_resilience.http import AsyncResilientTransport, ResilientTransport
from tests.calls.http.server import Act
from tests.calls.http.webs import AT_ONCE

TEXT = "one two three four"
PROMPT: Any = [{"role": "user", "content": "count to four"}]
ANY_TRY = ("GET", "POST")
"""The transport's option for a provider that may be asked twice."""

SDKS = {"openai": openai, "anthropic": anthropic}


def refused(provider: str, word: str, **more: Any) -> Act:
    """An error as the provider sends it; `word` is one of `flows.llm_dialects.ERRORS`, or "quota"."""
    said = refusal(provider, word, "sorry")
    headers = {name: value for name, value in said.headers.items() if name != "content-length"}
    return Act(said.status_code, headers, bytes(said.body), **more)


def unwell(provider: str, status: int) -> Act:
    """An error of a gateway before the provider, which speaks no dialect."""
    return Act(status, {"Content-Type": "text/html"}, b"<h1>sorry</h1>")


def answer(provider: str, **more: Any) -> Act:
    return Act(body=json.dumps(MESSAGES[provider](TEXT)).encode(), **more)


def stream(provider: str, **more: Any) -> Act:
    chunks = tuple(event.encode() for event in EVENTS[provider](TEXT))
    return Act(headers={"Content-Type": "text/event-stream"}, chunks=chunks, **more)


def half_a_stream(provider: str, then: str = "", **more: Any) -> Act:
    chunks = [event.encode() for event in EVENTS[provider](TEXT)]
    said = (*chunks[: len(chunks) // 2], *([then.encode()] if then else []))
    return Act(headers={"Content-Type": "text/event-stream"}, chunks=said, **more)


def error_event(provider: str) -> Act:
    return half_a_stream(provider, ERROR_EVENTS[provider])


@dataclass
class Ask:
    """One SDK, sync or async, in front of a server. `library` is that of its client, else the SDK's own."""

    provider: str
    isasync: bool
    address: str
    timeout: float = 5.0
    library: Any = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    pieces: list[str] = field(default_factory=list[str])
    took: float = 0.0

    def __call__(self, *, streamed: bool = False) -> str:
        """The answer's text. `pieces` has what came of a stream that broke, `took` the seconds."""
        began = time.monotonic()
        try:
            return asyncio.run(self._aasked(streamed)) if self.isasync else self._asked(streamed)
        finally:
            self.took = time.monotonic() - began

    def raises(self, *, streamed: bool = False) -> Exception:
        try:
            text = self(streamed=streamed)
        except Exception as error:
            return error
        raise AssertionError(f"the SDK did not raise, it answered {text!r}")

    def _client(self) -> Any:
        sdk: Any = SDKS[self.provider]
        begin = "Async" if self.isasync else ""
        options = {"retry": AT_ONCE, "circuit": None, "allowed_methods": ANY_TRY, **self.options}
        transport = (AsyncResilientTransport if self.isasync else ResilientTransport)(**options)
        if self.library is None:
            client = getattr(sdk, f"Default{begin}HttpxClient")(transport=transport)
        else:
            client = getattr(self.library, f"{begin}Client")(transport=transport)
        return getattr(sdk, f"{begin}{'OpenAI' if self.provider == 'openai' else 'Anthropic'}")(
            base_url=self.address, api_key="none", max_retries=0, timeout=self.timeout, http_client=client
        )

    def _said(self, client: Any, streamed: bool) -> Any:
        if self.provider == "openai":
            return client.chat.completions.create(model="m", messages=PROMPT, stream=streamed)
        return client.messages.create(model="m", max_tokens=9, messages=PROMPT, stream=streamed)

    def _asked(self, streamed: bool) -> str:
        with self._client() as client:
            said = self._said(client, streamed)
            if not streamed:
                return text_of(said)
            for event in said:
                self.pieces.append(piece_of(event))
        return "".join(self.pieces).strip()

    async def _aasked(self, streamed: bool) -> str:
        async with self._client() as client:
            said = await self._said(client, streamed)
            if not streamed:
                return text_of(said)
            async for event in said:
                self.pieces.append(piece_of(event))
        return "".join(self.pieces).strip()


def text_of(answer: Any) -> str:
    return answer.choices[0].message.content if hasattr(answer, "choices") else answer.content[0].text


def piece_of(event: Any) -> str:
    if hasattr(event, "choices"):
        return "".join(choice.delta.content or "" for choice in event.choices)
    return event.delta.text if event.type == "content_block_delta" else ""
