"""A flow that calls an unreliable service, with retries, a circuit breaker and a fallback.

`make demo` runs it on the configured Prefect API, or on an ephemeral one if none is configured.
The service is real HTTP on loopback. bad_day_service.py says how it answers each call.

What to look for:
- Morning: transient errors are retried: a 503, a 429 (after the delay in its `Retry-After`), a timeout, a
  dropped connection. A 400 is a permanent error: one attempt, no fallback.
- Noon: the service is down. The circuit opens after two requests for each of three pairs. The other six pairs
  send no request. The fallback, a second provider, answers all nine, each in its own task run.
- Afternoon: the service is back. One probe succeeds and closes the circuit.
- Evening: every call succeeds at the first attempt.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx
from prefect import Task, task, unmapped
from prefect.futures import PrefectFuture, wait
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from flows.bad_day_service import BadDay, Pair, read_table
from flows.board import Board
from flows.own_process import apart
from flows.serving import running
from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Fallback,
    Retry,
    get_circuits,
    resilient_flow,
    resilient_task,
)

PAIRS: list[Pair] = [(row["drug_a"], row["drug_b"]) for row in read_table()]
BOARD = Board(PAIRS)

# --- the tasks -------------------------------------------------------------------------------------------


@task(task_run_name="second provider: {drug_a} + {drug_b}")
def ask_second_provider(drug_a: str, drug_b: str, address: str) -> dict[str, str]:
    response = httpx.get(f"{address}/second/interactions", params={"a": drug_a, "b": drug_b})
    response.raise_for_status()
    return response.json()


# One circuit for all calls to the primary. It counts attempts, including retries.
PRIMARY = CircuitBreaker(
    "interactions-primary", failure_threshold=6, failure_rate=0.8, open_for=5, success_threshold=1
)

GUARDED: dict[str, Any] = {
    "retry": Retry(attempts=4, backoff=Backoff.exponential(initial=0.2, maximum=2, jitter=0.2)),
    "circuit": PRIMARY,
    "timeout": 2,
    # Only transient errors (outages, rate limits, timeouts) use the fallback; a 400 stays a failure
    "fallback": [Fallback(ask_second_provider, when="transient")],
    "task_run_name": "{drug_a} + {drug_b}",
    "on_running": [BOARD.attempt],
    "on_completion": [BOARD.answered],
    "on_failure": [BOARD.gave_up],
}


@resilient_task(**GUARDED)
def look_up(drug_a: str, drug_b: str, address: str) -> dict[str, str]:
    response = httpx.get(f"{address}/primary/interactions", params={"a": drug_a, "b": drug_b})
    response.raise_for_status()
    return response.json()


@resilient_task(**GUARDED)
async def look_up_async(drug_a: str, drug_b: str, address: str) -> dict[str, str]:
    async with httpx.AsyncClient(base_url=address) as client:
        response = await client.get("/primary/interactions", params={"a": drug_a, "b": drug_b})
    response.raise_for_status()
    return response.json()


# --- the flow --------------------------------------------------------------------------------------------


@resilient_flow(name="quickstart", task_runner=ThreadPoolTaskRunner(max_workers=3))
def a_bad_day(address: str) -> dict[str, int]:
    """Look up every pair of the table, in four parts."""
    morning, noon, first_after, evening = PAIRS[:9], PAIRS[9:18], PAIRS[18], PAIRS[19:]

    BOARD.title("Morning: transient errors, and one bad request")
    futures = look_up_all(look_up, morning, address)

    BOARD.title("Noon: the primary is down (async tasks)")
    futures += look_up_all(look_up_async, noon, address)
    BOARD.circuit(PRIMARY)

    BOARD.title("Afternoon: the primary is back, and one probe closes the circuit")
    while PRIMARY.state == "open":
        time.sleep(0.1)
    futures += look_up_all(look_up, [first_after], address)
    BOARD.circuit(PRIMARY)

    BOARD.title("Evening: back to normal (async tasks)")
    futures += look_up_all(look_up_async, evening, address)

    BOARD.summary(received=httpx.get(f"{address}/stats").json()["primary"], run_id=flow_run.get_id())
    return dict(Counter(future.state.name for future in futures))


def look_up_all(work: Task[..., Any], pairs: Sequence[Pair], address: str) -> list[PrefectFuture[Any]]:
    """Map a task over the pairs, and wait until every task run has ended."""
    futures = work.map([a for a, _ in pairs], [b for _, b in pairs], unmapped(address))
    wait(list(futures))
    for pair, future in zip(pairs, futures, strict=True):
        if future.state.is_completed():
            BOARD.by(pair, future.result()["provider"])
    return list(futures)


# --- running it ------------------------------------------------------------------------------------------


def run_the_day() -> None:
    began = time.monotonic()
    get_circuits()  # opens the store now, so that the first calls do not wait for it
    with running(BadDay()) as address:
        a_bad_day(address)
    BOARD.console.print(f"[dim]{time.monotonic() - began:.0f} s[/]", highlight=False)


if __name__ == "__main__":
    apart("flows.quickstart", run_the_day)
