"""A flow that asks a service with a bad day, and what its retries, circuit and fallback make of it.

`make demo` runs this on the Prefect API that is configured, and on an ephemeral one where none is.
The service is real HTTP on loopback: see bad_day_service.py for what it does to whom.

Watch for:
- what is tried again: a 503, a 429 (after the second that the service asked for), a call that is too slow, a
  connection that is cut. A 400 is our own mistake: one attempt, and nobody else is asked.
- the outage at noon: three pairs have had two calls each when the circuit opens; six more cost the primary no
  call at all. The second provider answers, as a task run of its own.
- the afternoon: one call is let through to see. It closes the circuit, and the evening is as if nothing was.
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


# One circuit for everything that calls the primary. It counts attempts, retries among them.
PRIMARY = CircuitBreaker(
    "interactions-primary", failure_threshold=6, failure_rate=0.8, open_for=5, success_threshold=1
)

GUARDED: dict[str, Any] = {
    "retry": Retry(attempts=4, backoff=Backoff.exponential(initial=0.2, maximum=2, jitter=0.2)),
    "circuit": PRIMARY,
    "timeout": 2,
    # For what may pass (outages, limits, timeouts), not for our own mistakes: a 400 stays a failure
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
    """Ask about every pair of the table, in the four parts of the day."""
    morning, noon, first_after, evening = PAIRS[:9], PAIRS[9:18], PAIRS[18], PAIRS[19:]

    BOARD.title("Morning: small troubles, and one mistake of our own")
    futures = ask_about(look_up, morning, address)

    BOARD.title("Noon: the primary is down (async tasks)")
    futures += ask_about(look_up_async, noon, address)
    BOARD.circuit(PRIMARY)

    BOARD.title("Afternoon: the primary is back, and one call may try it")
    while PRIMARY.state == "open":
        time.sleep(0.1)
    futures += ask_about(look_up, [first_after], address)
    BOARD.circuit(PRIMARY)

    BOARD.title("Evening: as if nothing had been (async tasks)")
    futures += ask_about(look_up_async, evening, address)

    BOARD.summary(asked=httpx.get(f"{address}/stats").json()["primary"], run_id=flow_run.get_id())
    return dict(Counter(future.state.name for future in futures))


def ask_about(work: Task[..., Any], pairs: Sequence[Pair], address: str) -> list[PrefectFuture[Any]]:
    """Map a task over the pairs, and wait until all have ended, well or not."""
    futures = work.map([a for a, _ in pairs], [b for _, b in pairs], unmapped(address))
    wait(list(futures))
    for pair, future in zip(pairs, futures, strict=True):
        if future.state.is_completed():
            BOARD.by(pair, future.result()["provider"])
    return list(futures)


# --- running it ------------------------------------------------------------------------------------------


def run_the_day() -> None:
    began = time.monotonic()
    get_circuits()  # opens their store now, and not within the first calls
    with running(BadDay()) as address:
        a_bad_day(address)
    BOARD.console.print(f"[dim]{time.monotonic() - began:.0f} s[/]", highlight=False)


if __name__ == "__main__":
    apart("flows.quickstart", run_the_day)
