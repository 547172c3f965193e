"""Providers of language models on loopback, in the dialects of OpenAI and Anthropic, that fail on demand.

A real HTTP service, to be asked with the real SDKs. What a provider does next is in its script; when that has
come to its end it works:

    service = LLMService({"openai": ["429", "503"], "anthropic": ["half"]})
    with running(service) as address:
        OpenAI(base_url=f"{address}/openai/v1", api_key="none", max_retries=0)
        Anthropic(base_url=f"{address}/anthropic", api_key="none", max_retries=0)

`BEHAVIOURS` lists the words of a script. Its model is a small function: it repeats what it is asked.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from flows.llm_dialects import ERROR_EVENTS, ERRORS, EVENTS, MESSAGES, refusal

BEHAVIOURS = {
    "ok": "an answer",
    "429": "too many requests, with Retry-After: 1",
    "429-ms": "too many requests, with retry-after-ms: 250",
    "429-reset": "too many requests, with the provider's own headers about when there are more",
    "quota": "the account has no money left",
    "400": "a request that is wrong",
    "401": "a key that is wrong",
    "404": "a model that does not exist",
    "overflow": "more text than the model's context holds",
    "500": "an error of the provider's",
    "503": "not available",
    "529": "overloaded",
    "malformed": "an answer that was to be JSON and is none",
    "empty": "an answer without any text",
    "slow": "an answer that takes its time",
    "stall": "an answer that stops coming in the middle",
    "cut": "a connection that ends in the middle of the answer, or of its stream",
    "half": "a stream that ends early, as if it were complete",
    "event": "an error in the middle of a stream",
}


def repeat(prompt: str) -> str:
    """The whole model."""
    return f"You said: {prompt}"


class Pieces(Response):
    """A response in pieces; unless it is whole, the connection ends before it is complete."""

    def __init__(self, pieces: list[str], whole: bool = True, pause: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.pieces, self.whole, self.pause = pieces, whole, pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        for number, piece in enumerate(self.pieces):
            if number == len(self.pieces) // 2 and self.pause:
                await asyncio.sleep(self.pause)
            await send({"type": "http.response.body", "body": piece.encode(), "more_body": True})
            await asyncio.sleep(0)
        if self.whole:
            await send({"type": "http.response.body", "body": b""})


class LLMService:
    """The providers' memory: their scripts, the model, and how each call was answered."""

    def __init__(
        self,
        script: Mapping[str, list[str]] | None = None,
        model: Callable[[str], str] = repeat,
        slow_seconds: float = 3.0,
    ) -> None:
        self.script = {name: list(words) for name, words in (script or {}).items()}
        self.model = model
        self.slow_seconds = slow_seconds
        self.given: dict[str, list[str]] = defaultdict(list)

    def says(self, provider: str, *words: str) -> None:
        """What a provider does at the next calls. Raises KeyError for a word that is none."""
        for word in words:
            BEHAVIOURS[word]
        self.script[provider] = list(words)

    async def answer(self, request: Request) -> Response:
        provider = request.path_params["provider"]
        words = self.script.get(provider, [])
        word = words.pop(0) if words else "ok"
        self.given[provider].append(word)
        asked = await request.json()
        dialect = "anthropic" if request.url.path.endswith("/messages") else "openai"
        if word in ERRORS or word == "quota":
            return refusal(dialect, word, BEHAVIOURS[word])
        if word == "slow":
            await asyncio.sleep(self.slow_seconds)
        text = self.model(asked["messages"][-1]["content"])
        text = {"malformed": text.rstrip("}") + ', "oops', "empty": ""}.get(word, text)
        if not asked.get("stream"):
            whole = json.dumps(MESSAGES[dialect](text))
            if word == "cut":
                return Pieces([whole[:20]], whole=False, media_type="application/json")
            return Response(whole, media_type="application/json")
        return self.streamed(dialect, word, text)

    def streamed(self, dialect: str, word: str, text: str) -> Response:
        pieces = list(EVENTS[dialect](text))
        middle = len(pieces) // 2
        if word in ("cut", "half"):
            pieces = pieces[:middle]
        if word == "event":
            pieces = [*pieces[:middle], ERROR_EVENTS[dialect]]
        pause = self.slow_seconds if word == "stall" else 0.0
        return Pieces(pieces, whole=word != "cut", pause=pause, media_type="text/event-stream")

    def app(self) -> Starlette:
        paths = ("/{provider}/v1/chat/completions", "/{provider}/v1/messages")
        return Starlette(routes=[Route(path, self.answer, methods=["POST"]) for path in paths])
