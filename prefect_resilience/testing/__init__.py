"""What users' own tests need: faults on purpose, no waiting, a service that answers by a script.

The contract of `Store`, for stores of your own, is in `prefect_resilience.testing.stores`, which needs pytest
and hypothesis; nothing else here does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.breaker import CircuitBreaker
from prefect_resilience.guards.faults import NOTHING, Injected, InjectedFault, Injection, begin, end
from prefect_resilience.guards.retries import backoff
from prefect_resilience.tasks.edge.task import ResilientTask
from prefect_resilience.testing.services import Reply, ScriptedService

__all__ = ["InjectedFault", "Reply", "ScriptedService", "inject", "no_wait"]


@contextmanager
def inject(
    target: ResilientTask[..., Any] | CircuitBreaker | str | None = None,
    *,
    latency: float | tuple[float, float] | None = None,
    fault: BaseException | type[BaseException] | Callable[[], BaseException] | int | str | None = None,
    outcome: Any = NOTHING,
    rate: float = 1.0,
    times: int | None = None,
    seed: int | None = None,
) -> Generator[Injected, None, None]:
    """Do something to the calls of a task, or of all tasks behind a circuit, while the block goes on.

        with inject(label, fault=503, rate=0.3, seed=7) as injected:
            labels(["aspirin"])
        assert injected.done <= injected.calls

    target: a resilient task, a circuit, or the name of one, in which `*` stands for any text
        ("llm:*"); None for every call of every resilient task and circuit.
    latency: seconds before the call, or (least, most) to draw from. It counts towards the timeout.
    fault: raised in place of the call: an exception, its class, a function that gives one, an HTTP status
        such as 503, or an error category such as "network".
    outcome: returned in place of the call; a function is given the real answer, and gives another one.
    rate: the share of the calls that it is done to. times: the most calls. seed: the same draws again.

    It holds for the threads of this process. Gives the count of calls met (`.calls`) and changed (`.done`).
    Raises ConfigurationError for what cannot be done.
    """
    given: dict[str, Any] = {"latency": latency, "fault": fault, "outcome": outcome, "rate": rate}
    injected = begin(Injection(target=_name_of(target), times=times, seed=seed, **given))
    try:
        yield injected
    finally:
        end(injected)


def _name_of(target: Any) -> str | None:
    if target is None or isinstance(target, str):
        return target
    if isinstance(target, ResilientTask):
        return str(target.name)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if isinstance(target, CircuitBreaker):
        return re.sub(r"\{[^{}]*\}", "*", target.name)  # "llm:{provider}": the circuits of all providers
    raise ConfigurationError(
        f"inject cannot reach {target!r}: hand in a resilient task, a CircuitBreaker, or the name of one"
    )


@contextmanager
def no_wait() -> Generator[None, None, None]:
    """Retry at once while the block goes on: everything is decided and shown as usual, but nobody waits.

        with no_wait():
            assert labels(["aspirin"]) == [...]

    It holds for the threads of this process. In pytest, for all tests:

        @pytest.fixture(autouse=True)
        def at_once():
            with no_wait():
                yield
    """
    with backoff.skipped():
        yield
