"""Asking language models through the SDKs of their providers, as the examples and their tests do.

The SDKs retry by themselves (twice, unless they are told not to). Under a retry of a task that would be nine
calls where three were meant, hidden from circuits and from the UI: hence `max_retries=0`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache

import anthropic
import openai

MODEL = "small"


class Incomplete(ConnectionError):
    """A stream ended without its last event; no SDK says so."""


@cache
def openai_client(address: str, timeout: float = 20.0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/openai/v1", api_key="none", max_retries=0, timeout=timeout)


@cache
def anthropic_client(address: str, timeout: float = 20.0) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=f"{address}/anthropic", api_key="none", max_retries=0, timeout=timeout
    )


def ask_openai(prompt: str, address: str) -> str:
    answer = openai_client(address).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": prompt}]
    )
    if not answer.choices:
        raise ValueError("the answer has no choices")
    return answer.choices[0].message.content or ""


def ask_anthropic(prompt: str, address: str) -> str:
    answer = anthropic_client(address).messages.create(
        model=MODEL, max_tokens=100, messages=[{"role": "user", "content": prompt}]
    )
    texts = [block.text for block in answer.content if block.type == "text"]
    if not texts:
        raise ValueError("the answer has no text")
    return "".join(texts)


async def stream_openai(prompt: str, address: str) -> AsyncIterator[str]:
    """The answer's words as they come. Raises Incomplete."""
    async with openai.AsyncOpenAI(base_url=f"{address}/openai/v1", api_key="none", max_retries=0) as client:
        chunks = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt}], stream=True
        )
        finished = None
        async for chunk in chunks:
            for choice in chunk.choices:
                finished = choice.finish_reason or finished
                if choice.delta.content:
                    yield choice.delta.content
    if finished is None:
        raise Incomplete("the stream ended without a finish_reason")


async def stream_anthropic(prompt: str, address: str) -> AsyncIterator[str]:
    """As `stream_openai`."""
    async with anthropic.AsyncAnthropic(
        base_url=f"{address}/anthropic", api_key="none", max_retries=0
    ) as client:
        events = await client.messages.create(
            model=MODEL, max_tokens=100, messages=[{"role": "user", "content": prompt}], stream=True
        )
        finished = False
        async for event in events:
            finished = finished or event.type == "message_stop"
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                yield event.delta.text
    if not finished:
        raise Incomplete("the stream ended without message_stop")
