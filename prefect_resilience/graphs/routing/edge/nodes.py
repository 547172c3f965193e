"""A node of a flow's graph that stands behind an upstream: a task run of its own, on the flow's task runner.

The runner starts it in its turn, as any task that was submitted with that upstream as an argument, so a
bounded pool cannot run dry: nothing waits for a place that it holds itself. What Prefect must not look
into (an upstream that failed would block the node) travels in a `Opaque`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRunResult
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Pending
from prefect.tasks import task
from prefect.utilities.collections import visit_collection

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.routing.edge.upstream import (
    FailedUpstream,
    Gave,
    NeverRan,
    futures_in,
    state_after,
)
from prefect_resilience.tasks.edge.answers import ReplacedState
from prefect_resilience.tasks.edge.logs import keep_secrets_out_of_logs

LONGEST_NAME = 80

T = TypeVar("T")


class Opaque:
    """What a node works on. Prefect finds no futures in here, and sends it anywhere.

    Where it is pickled, for a worker process, its futures are waited for and replaced by their states.
    """

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content: Any = content

    def __reduce__(self) -> tuple[Any, ...]:
        states = {id(future): state_after(future) for future in futures_in(self.content)}
        return Opaque, (_replaced(self.content, states),)


def _replaced(content: Any, by_id: dict[int, Any]) -> Any:
    """The content with its futures replaced by what `by_id` has for them."""
    return visit_collection(content, visit_fn=lambda part: by_id.get(id(part), part), return_data=True)


class _Slot:
    """Stands for a future that the runner itself hands over, by its place in that list."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def unwrap(opaque: Opaque, handed: list[Opaque]) -> Any:
    """What is in the opaque, on the side of the node."""
    if not handed:
        return opaque.content

    def fill(part: Any) -> Any:
        return handed[part.number].content if isinstance(part, _Slot) else part

    return visit_collection(opaque.content, visit_fn=fill, return_data=True)


def submit_node(
    what: str, work: Callable[..., Any], content: Any, *, runs: list[Any], name: str
) -> PrefectFuture[Any]:
    """Submit `work(upstream: Opaque, handed)` as a task run called `name`, with arrows from `runs` to it."""
    flow_run = FlowRunContext.get()
    if flow_run is None:
        raise ConfigurationError(f"{what} is a step of a flow: call it while a @flow is running")
    keep_secrets_out_of_logs()
    shown = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
    node = task(
        name=what,
        task_run_name=shown.replace("{", "{{").replace("}", "}}"),
        cache_policy=NO_CACHE,
        retries=0,
    )(work)
    runner: Any = flow_run.task_runner
    sent, handed = _for_dask(content, runner)
    arrows: Any = {cast("Any", TaskRunResult(id=run)) for run in runs}
    parameters = {"upstream": Opaque(sent), "handed": handed}
    return cast("PrefectFuture[Any]", runner.submit(node, parameters, dependencies={"upstream": arrows}))


def _for_dask(content: Any, runner: Any) -> tuple[Any, list[Any]]:
    """Dask hands over results itself: its futures become dependencies that it packs on the worker.

    Only packed they are safe from the engine, which would take a failed state for a reason not to start.
    """
    theirs = [future for future in futures_in(content) if _is_dask(future)]
    if not theirs or not _is_dask(runner):
        return content, []
    slots = {id(future): _Slot(number) for number, future in enumerate(theirs)}
    packed = [runner.client.submit(Opaque, cast("Any", future).wrapped_future) for future in theirs]
    return _replaced(content, slots), packed


def _is_dask(thing: object) -> bool:
    return type(thing).__module__.partition(".")[0] == "prefect_dask"


# How a node ends.


def ended(name: str, why: str, value: Any, *, instead_of: ErrorContext | None = None) -> State[Any]:
    """Green, under a name that says what happened. `instead_of` is the error that was handled."""
    message = redact(why)
    _logger().info("%s: %s", name, message)
    if instead_of is None:
        return Completed(name=name, message=message, data=value)
    state = Completed(cls=ReplacedState, name=name, message=message, data=value)
    cast(ReplacedState, state)._error_context = instead_of  # pyright: ignore[reportPrivateUsage]
    return state


def not_run(ending: NeverRan, why: str) -> State[Any]:
    """The end of a node that had nothing to work on: as its upstream's."""
    message = redact(f"{why}: {ending.why}")
    _logger().warning("%s", message)
    if ending.state.is_cancelled() or ending.state.is_cancelling():
        return Cancelled(message=message)
    return Pending(name="NotReady", message=message)


def passed_on(ending: FailedUpstream, why: str) -> NoReturn:
    """The end of a node that lets its upstream's error through."""
    _logger().warning("%s: %s", redact(why), ending.context.summary())
    raise ending.error


def _logger() -> logging.LoggerAdapter[Any] | logging.Logger:
    return cast("Any", get_run_logger())


def value_of(ending: Gave | FailedUpstream) -> Any:
    """The value, or the error raised."""
    if isinstance(ending, FailedUpstream):
        raise ending.error
    return ending.value
