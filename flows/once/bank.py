"""The bank of the examples: a transfer, and the question whether one arrived."""

from __future__ import annotations

import os
from urllib.parse import quote

import httpx

from prefect_resilience import Done, NotDone, idempotency_key

PROMPT = "Send 50 to Bob."


def send(to: str, amount: int) -> str:
    """Transfer money; the receipt."""
    order = {"to": to, "amount": amount, "key": idempotency_key()}
    answer = httpx.post(f"{os.environ['BANK_URL']}/transfers", json=order, timeout=60)
    return answer.raise_for_status().json()["receipt"]


def was_it_sent(key: str) -> Done | NotDone:
    """What the bank knows about an earlier call."""
    answer = httpx.get(f"{os.environ['BANK_URL']}/transfers/{quote(key, safe='')}", timeout=60)
    return NotDone() if answer.status_code == 404 else Done(answer.raise_for_status().json()["receipt"])
