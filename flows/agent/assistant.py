"""An assistant for tickets: a language model writes the reply, a person approves it, and it is sent once."""

from __future__ import annotations

import httpx

from flows.llm_providers import ask_anthropic, ask_openai
from prefect_resilience import (
    Backoff,
    Done,
    Effect,
    NotDone,
    ProviderChain,
    Retry,
    approve,
    resilient_flow,
    resilient_task,
    send_idempotency_key,
)

RETRY = Retry(attempts=3, backoff=Backoff.exponential(initial=0.1, maximum=5, jitter=0.2))

# --- the draft: anthropic, and openai if anthropic fails


@resilient_task(retry=RETRY, timeout="llm-call")
def anthropic(prompt: str, llm: str) -> str:
    return ask_anthropic(prompt, llm)


@resilient_task(retry=RETRY, timeout="llm-call")
def openai(prompt: str, llm: str) -> str:
    return ask_openai(prompt, llm)


WRITER = ProviderChain("writer", {"anthropic": anthropic, "openai": openai})

# --- the reply: a side effect, sent once


def was_it_sent(key: str, outbox: str) -> Done | NotDone:
    """Asks the outbox, after a call with an unknown outcome."""
    found = httpx.get(f"{outbox}/replies", params={"key": key}).raise_for_status().json()
    return Done(found["id"], external_id=found["id"]) if found else NotDone()


@resilient_task(retry=RETRY, effect=Effect(key="reply:{ticket}", verify=was_it_sent), timeout=10)
def send_reply(ticket: int, reply: str, outbox: str) -> str:
    with httpx.Client(event_hooks={"request": [send_idempotency_key]}) as client:
        sent = client.post(f"{outbox}/replies", json={"ticket": ticket, "reply": reply})
    return sent.raise_for_status().json()["id"]


@resilient_flow(name="assistant")
def assistant(
    ticket: int, question: str, llm: str, outbox: str, rounds: int = 3, poll_interval: float = 10
) -> str | None:
    """Write drafts until a person approves one, and send it. Returns the id of the reply, or None."""
    comment = "none"
    for _ in range(rounds):
        draft = WRITER.call(f"Answer: {question} | comment: {comment}", llm)
        decision = approve(
            f"Send this reply to ticket {ticket}?\n\n{draft.value}\n\n(written by {draft.answered_by})",
            name="team lead",
            timeout="1d",
            poll_interval=poll_interval,
        )
        if decision:
            return send_reply(ticket, draft.value, outbox)
        comment = decision.comment or "write it differently"
    return None
