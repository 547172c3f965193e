"""Helpers for users' tests: injected faults, retries without delays, prepared answers, a scripted service.

`rehearse` kills a flow at every point where a side effect can be made twice or lost.

The contract of `Store`, for stores of your own, is in `prefect_resilience.testing.stores`. Only that module
needs pytest and hypothesis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.agents.edge.asking import prepared
from prefect_resilience.guards.circuits.breaker import CircuitBreaker
from prefect_resilience.guards.faults import NOTHING, Injected, InjectedFault, Injection, active
from prefect_resilience.guards.retries import backoff
from prefect_resilience.testing.rehearsal import Rehearsal, rehearse
from prefect_resilience.testing.services import Reply, ScriptedService

if TYPE_CHECKING:
    from prefect_resilience.tasks.edge.task import ResilientTask

__all__ = [
    "InjectedFault",
    "Rehearsal",
    "Reply",
    "ScriptedService",
    "answers",
    "inject",
    "no_wait",
    "rehearse",
]


@contextmanager
def inject(
    target: ResilientTask[..., Any] | CircuitBreaker | str | None = None,
    *,
    latency: float | None = None,
    fault: BaseException | type[BaseException] | Callable[[], BaseException] | int | None = None,
    outcome: Any = NOTHING,
    rate: float = 1.0,
    times: int | None = None,
    seed: int | None = None,
) -> Generator[Injected, None, None]:
    """Change the calls of a task, or of all tasks behind a circuit, during the block.

        with inject(label, fault=503, rate=0.3, seed=7) as injected:
            labels(["aspirin"])
        assert injected.done <= injected.calls

    target: a resilient task, a circuit, or the name of one, in which `*` matches any text
        ("llm:*"); None for every call of every resilient task and circuit.
    latency: seconds before the call. They count towards the timeout.
    fault: raised in place of the call: an exception, its class, a function that returns one, or an HTTP
        status such as 503.
    outcome: returned in place of the call, which is not made.
    rate: the share of the calls to change, 0 to 1. times: the most calls to change. seed: makes the random
        choices repeatable.

    It applies to all threads of this process. Yields the counts of matching calls (`.calls`) and changed
    calls (`.done`). Raises ConfigurationError for invalid arguments.
    """
    options: dict[str, Any] = {"latency": latency, "fault": fault, "outcome": outcome, "rate": rate}
    injected = Injected(Injection(target=_name_of(target), times=times, seed=seed, **options))
    active.append(injected)
    try:
        yield injected
    finally:
        active.remove(injected)


def _name_of(target: Any) -> str | None:
    if target is None or isinstance(target, str):
        return target
    if hasattr(target, "guard"):  # a resilient task
        return str(target.name)
    if isinstance(target, CircuitBreaker):
        return re.sub(r"\{[^{}]*\}", "*", target.name)  # "llm:{provider}": the circuits of all providers
    raise ConfigurationError(
        f"inject cannot target {target!r}: pass a resilient task, a CircuitBreaker, or the name of one"
    )


@contextmanager
def no_wait() -> Generator[None, None, None]:
    """Retry at once during the block: all decisions, states and logs are as usual, without the delays.

        with no_wait():
            assert labels(["aspirin"]) == [...]

    It applies to all threads of this process. In pytest, for all tests:

        @pytest.fixture(autouse=True)
        def at_once():
            with no_wait():
                yield
    """
    with backoff.skip_delays():
        yield


def answers(*given: Any) -> AbstractContextManager[None]:
    """Answer the questions of `approve` and `Person` during the block, in order, without a pause.

        with answers(True, {"approved": False, "comment": "the wrong month"}):
            send_reports()

    given: True or False for `approve`, the fields of the form as a mapping, None for no answer in time, or
        any other value for a `Person` with a plain type.

    It applies to all threads of this process. Raises ConfigurationError in the flow if there are too few.
    """
    return prepared([*given])
