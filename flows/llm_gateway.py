"""A gateway to language models: retries, circuits, a second provider, streams, a message when all is down.

`python -m flows.llm_gateway` asks two providers on loopback, through their own SDKs, while they misbehave. In
the table that it prints, watch

- who answered: `claude` as long as it can, `openai` when its attempts are used up, a message when none can;
- the calls: a 429 is asked again when the provider said; a 401 and an overflow are not asked again at all;
- the seventh question: the circuit of `claude` has opened, so it gets no call, `openai` answers at once;
- the streams: an error before the first word is tried again, one in the middle is not: the words that came
  are in the error. A stream that just ends early no SDK reports; `flows/llm_providers.py` finds it out;
- the document that is too long: it is asked about in parts, each a run of its own.

The SDKs' own retries are switched off: two retry policies in one another multiply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from prefect import flow

from flows.llm_board import Board
from flows.llm_providers import ask_anthropic, ask_openai, stream_anthropic
from flows.llm_service import LLMService
from flows.own_process import apart
from flows.serving import at, running
from prefect_resilience import (
    Backoff,
    Bulkhead,
    CircuitBreaker,
    Decompose,
    ProviderChain,
    Retry,
    Timeout,
    error_context,
    provider,
    resilient_task,
    split_text,
)

RETRY = Retry(attempts=3, backoff=Backoff.exponential(initial=0.1, maximum=2, jitter=0.2))
SERVICE = LLMService(slow_seconds=3)
BOARD = Board("what claude does", "what openai does")


@provider(
    "claude",
    retry=RETRY,
    timeout="llm-call",
    circuit=CircuitBreaker("provider:claude", failure_threshold=5, open_for=60),
    limits=Bulkhead(4, name="provider:claude"),
)
def claude(prompt: str, address: str) -> str:
    return ask_anthropic(prompt, address)


@provider("openai", retry=RETRY, timeout="llm-call")
def openai(prompt: str, address: str) -> str:
    return ask_openai(prompt, address)


GATEWAY = ProviderChain(
    "gateway",
    ["claude", "openai"],  # in this order, because it is written here: nothing else switches providers
    degraded="The assistant is not available at the moment. Please try again later.",
)


@resilient_task(retry=RETRY, timeout=Timeout(total=30, idle=1))
async def streamed(prompt: str, address: str) -> AsyncIterator[str]:
    async for word in stream_anthropic(prompt, address):
        yield word


@resilient_task(
    retry=RETRY, decompose=Decompose(split=split_text("document", size=60), merge="join", max_depth=2)
)
def summarise(document: str, address: str) -> str:
    return ask_openai(f"Summarise: {document}", address)


QUESTIONS: list[tuple[str, list[str], list[str]]] = [
    ("a plain question", [], []),
    ("too many questions", ["429-ms", "ok"], []),
    ("a hiccup", ["503", "ok"], []),
    ("an outage of one", ["529", "500", "503"], []),
    ("a wrong key", ["401"], []),
    ("still an outage", ["503", "cut", "503"], []),
    ("an open circuit", [], []),
    ("an outage of both", [], ["503", "503", "503"]),
]


@flow(name="llm-gateway")
def questions(address: str = "") -> list[str]:
    """Ask the gateway; it always has an answer. Without an address the providers are in this process."""
    answered: list[str] = []
    with at(address, SERVICE) as address:
        for question, first, second in QUESTIONS:
            SERVICE.given.clear()
            SERVICE.says("anthropic", *first)
            SERVICE.says("openai", *second)
            result = GATEWAY.call(question, address)
            BOARD.answer(question, SERVICE.given, result.answered_by, result.value)
            answered.append(result.answered_by)
    return answered


@flow(name="llm-streams")
async def streams(address: str) -> list[str]:
    """Read streams to their end, whatever that is."""
    ends: list[str] = []
    for trouble in (["ok"], ["503", "ok"], ["cut"], ["half"], ["event"], ["stall"]):
        SERVICE.given.clear()
        SERVICE.says("anthropic", *trouble)
        words: list[str] = []
        try:
            async for word in streamed("one two three four", address):
                words.append(word)  # noqa: PERF401 - a broken stream leaves the words before it
            end = "whole"
        except Exception as error:  # noqa: BLE001 - the table shows it
            context = error_context(error)
            end = f"broke: {context.code}" if context else repr(error)
            words = [str(context.partial_output.content)] if context and context.partial_output else words
        BOARD.answer("a stream", SERVICE.given, end, "".join(words))
        ends.append(end)
    return ends


@flow(name="llm-long-document")
def long_document(address: str) -> str:
    SERVICE.given.clear()
    SERVICE.says("openai", "overflow")
    summary = summarise("one sentence that is long enough. " * 4, address)
    BOARD.answer("a long document", SERVICE.given, "in parts", f"{len(summary)} characters")
    return summary


def main() -> None:
    with running(SERVICE) as address:
        questions(address)
        asyncio.run(streams(address))
        long_document(address)
    BOARD.show()


if __name__ == "__main__":
    apart("flows.llm_gateway", main)
