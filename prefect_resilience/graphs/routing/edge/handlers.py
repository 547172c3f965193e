"""`on_error`: an error handler, which runs when its upstream has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from prefect_resilience.errors.classify.reach import as_names, names_of
from prefect_resilience.errors.context import ErrorContext, attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.routing.edge.targets import TargetCall, call, check_target, following, name_of
from prefect_resilience.graphs.routing.edge.upstream import (
    FailedUpstream,
    Gave,
    NeverRan,
    Opaque,
    announce,
    check_upstream,
    context_of,
    ended,
    ending_of,
    not_run,
    passed_on,
    runs_behind,
    submit_node,
)
from prefect_resilience.tasks.edge.logs import expect_failures

MOST_CAUSES = 20

When = Condition | Callable[[ErrorContext], bool] | tuple[str, ...] | None


def on_error(upstream: Any, handler: Any, *args: Any, when: Any = None, **kwargs: Any) -> PrefectFuture[Any]:
    """Call `handler` if `upstream` failed; else pass the upstream's value through.

    upstream: as for `route`. For several handlers, nest the nodes: `on_error(on_error(a, first), second)`.
    handler: a function (which becomes a task run of its own), a task, which keeps its policies, a flow or a
        `quorum`, plain or async. It gets `args` and `kwargs`, and the ErrorContext if it declares `error`.
    when: the errors that it handles: a condition (its paths are followed in the ErrorContext), a function of
        the ErrorContext, or categories, kinds, codes or exception classes. Other errors pass through.

    If the upstream was cancelled, or blocked by its own upstream, the node ends as the upstream did.

    Returns a future at once. The node is a task run that ends `Skipped` (the upstream gave a value) or
    `Handled`, with the reason as its message. An upstream that crashed has failed.

    `result()` raises an error of the handler, with the upstream's error in its notes and in the `cause` of
    its ErrorContext.

    Example:
        >>> from prefect import flow
        >>> @resilient_task(retry=None)
        ... def look_up(drug: str) -> str:
        ...     raise ConnectionError("down")
        >>> def apologise(drug: str, error: ErrorContext) -> str:
        ...     return f"no {drug}: {error.code}"
        >>> @flow
        ... def asking() -> str:
        ...     return on_error(look_up.submit("aspirin"), apologise, "aspirin").result()
        >>> asking()
        'no aspirin: NETWORK_ERROR'
    """
    upstream = check_upstream(upstream, "on_error(...)")
    check_target("on_error(...)", handler, TargetCall(args, kwargs), offers=False)
    runs = runs_behind(upstream)
    expect_failures(runs)
    content = (upstream, handler, args, kwargs, _as_when(when), runs)
    return submit_node("on_error", handle, content, runs=runs, name=f"on_error: {name_of(handler)}")


def _as_when(when: Any) -> When:
    if when is None or isinstance(when, Condition):
        return when
    if callable(when) and not isinstance(when, type):
        return cast("Callable[[ErrorContext], bool]", when)
    try:
        return as_names(when)
    except ValueError as error:
        raise ConfigurationError(f"on_error(when=...): {error}") from None


def handle(upstream: Opaque) -> State[Any]:
    """The function of an error handler's task run."""
    source, target, args, kwargs, when, runs = upstream.content
    name = name_of(target)
    ending = ending_of(source)
    if isinstance(ending, Gave):
        return ended("Skipped", f"The upstream succeeded, so {name} was not called", ending.value)
    if isinstance(ending, NeverRan):
        return not_run(ending, f"{name} was not called, because the upstream never ran")
    context = ending.context
    try:
        against = _against(when, ending)
    except Exception as error:  # noqa: BLE001 - it is raised again with the upstream's error
        raise after_failed_handler(error, f"when= of {name}", context) from error.__cause__
    if against is not None:
        passed_on(ending, f"{name} does not handle this error ({against})")
    announce("on_error", name, chosen=name, why=context.summary(), error=context)
    request = TargetCall(args, kwargs, named={"error": context}, after=following(runs))
    outcome = call(target, request)
    if isinstance(outcome, FailedUpstream):
        raise after_failed_handler(outcome.error, name, context)
    if isinstance(outcome, NeverRan):
        return not_run(outcome, f"{name} was called for {context.summary()}, but it never ran")
    return ended(
        "Handled", f"{name} handled the error: {context.summary()}", outcome.value, instead_of=context
    )


def _against(when: When, ending: FailedUpstream) -> str | None:
    """The reason why the handler is not for this error; None if it is."""
    context = ending.context
    if when is None:
        return None
    if isinstance(when, Condition):
        explanation = when.explain(context.model_dump(mode="json"), error=context)
        return None if explanation.holds else explanation.text
    if callable(when):
        return None if when(context) else f"{name_of(when)} returned false"
    names = names_of(context, ending.error).union(context.categories)
    return None if names.intersection(when) else f"it handles {', '.join(when)}"


def after_failed_handler(error: BaseException, name: str, handled: ErrorContext) -> BaseException:
    """The handler's own error, with the handled error in its notes and as a cause of its context."""
    add_note(error, f"prefect-resilience: {name} failed while it handled the error: {handled.summary()}")
    attach_context(error, with_cause(context_of(error), handled))
    return error


def with_cause(context: ErrorContext, cause: ErrorContext, room: int = MOST_CAUSES) -> ErrorContext:
    """`context` with `cause` at the end of its chain of causes, at most 20 deep."""
    if room <= 0:
        return context
    behind = cause if context.cause is None else with_cause(context.cause, cause, room - 1)
    return context.model_copy(update={"cause": behind})
