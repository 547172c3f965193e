"""The nodes after an upstream: `route` runs the first branch with a condition that holds, and `on_error` a
handler when the upstream has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.runtime import task_run

from prefect_resilience.base.plain import unfold
from prefect_resilience.errors.classify.reach import as_names, names_of
from prefect_resilience.errors.context import ErrorContext, attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.graphs.conditions.compare import ConditionError
from prefect_resilience.graphs.conditions.evaluate import Explanation, parts, shown
from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.conditions.reading import OF_ERRORS
from prefect_resilience.graphs.routing.edge.targets import (
    NOTHING,
    TargetCall,
    call,
    check_target,
    following,
    name_of,
)
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
    value_of,
)
from prefect_resilience.graphs.routing.rounds import NoRoute
from prefect_resilience.tasks.edge.logs import expect_failures


@dataclass(frozen=True)
class Branch:
    """A branch: `when(...)` or `otherwise(...)`. Without a condition it matches every value."""

    condition: Condition | None
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = ""

    @property
    def says(self) -> str:
        return "otherwise" if self.condition is None else self.condition.describe()


def when(condition: Condition, target: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Branch:
    """A branch of `route`: run `target` if `condition` holds.

    target: a function (which becomes a task run of its own, called as the function), a task, a flow, or a
        `quorum`, plain or async. It gets the upstream's value as its first argument if it takes one, then
        `args` and `kwargs`; a parameter named `error` gets the ErrorContext, or None if nothing failed.
    name: the branch's name in messages; by default the target's name.

    A failed upstream has no value: then the target gets `args` and `kwargs` only, and `error`.
    """
    if isinstance(cast("Any", condition), bool):
        raise ConfigurationError(
            f"when({condition}, ...) is a plain bool, decided before the route runs: write a condition, "
            f"such as when(path('confidence') >= 0.9, ...)"
        )
    if not isinstance(condition, Condition):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"when(...) needs a condition, not {condition!r}: write one, such as path('confidence') >= 0.9, "
            f"path('answer').exists() or failed()"
        )
    only_errors = condition.operator in ("error_occurred", "failed")
    check_target("when(...)", target, TargetCall(args, kwargs), offers=not only_errors)
    return Branch(condition, target, args, kwargs, name or name_of(target))


def otherwise(target: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Branch:
    """The last branch of `route`, for values that no other branch matches. Arguments as in `when`.

    It is not for an upstream that failed.
    """
    check_target("otherwise(...)", target, TargetCall(args, kwargs), offers=True)
    return Branch(None, target, args, kwargs, name or name_of(target))


def route(upstream: Any, *branches: Branch, name: str | None = None) -> PrefectFuture[Any]:
    """Run the first branch with a condition that holds, and return its value.

    upstream: a Prefect future (of `.submit`, `.map`, `on_error` or another route), a state, a caught
        exception, or any value.
    branches: `when(condition, target, ...)` in the order of evaluation, and optionally `otherwise(target)`
        last.
    name: the node's name in the UI; by default `route: ` and the names of its branches.

    Returns a future at once. The node is a task run that ends `Routed`, with the reason as its message. The
    chosen branch is a task run inside it, after the upstream. The other branches have no run. In an async
    flow the call is the same, like that of `.submit`.

    For a failed upstream, only branches with a condition about errors (`failed(...)`, `succeeded()`, also
    within `&`, `|`, `~`) are tried; paths are then followed in the ErrorContext. If none holds, the node
    fails with the upstream's own error. If the upstream never ran, the node ends as the upstream did.

    The future's `result()` raises `NoRoute` if no branch matches the value, and `ConditionError` if a
    condition cannot be evaluated, for example if the value does not have its path.

    Example:
        >>> from prefect import flow
        >>> def publish(found: dict) -> str:
        ...     return "published"
        >>> def review(found: dict) -> str:
        ...     return "reviewed"
        >>> @flow
        ... def edit(score: float) -> str:
        ...     good = when(path("score") >= 0.9, publish)
        ...     return route({"score": score}, good, otherwise(review)).result()
        >>> edit(0.95), edit(0.5)
        ('published', 'reviewed')
    """
    upstream = check_upstream(upstream, "route(...)")
    _check_branches(branches)
    shown_as = name or f"route: {' | '.join(branch.name for branch in branches)}"
    runs = runs_behind(upstream)
    content = (upstream, list(branches), runs)
    return submit_node("route", take_route, content, runs=runs, name=shown_as)


def _check_branches(branches: tuple[Any, ...]) -> None:
    if not branches:
        raise ConfigurationError(
            "route(...) has no branch: write route(upstream, when(condition, target), ...)"
        )
    for branch in branches:
        if not isinstance(branch, Branch):
            raise ConfigurationError(f"route(...) takes when(...) and otherwise(...), not {branch!r}")
    for branch in branches[:-1]:
        if branch.condition is None:
            raise ConfigurationError(
                f"otherwise({branch.name}) must be the last branch of route(...): branches after it never run"
            )


def _explained(branch: Branch, ending: Gave | FailedUpstream) -> Explanation:
    condition = branch.condition
    about_errors = condition is not None and any(part.operator in OF_ERRORS for part in parts(condition))
    if isinstance(ending, FailedUpstream) and not about_errors:
        return Explanation(False, "it has no condition about errors")
    if condition is None:
        return Explanation(True, "no other branch matches")
    try:
        if isinstance(ending, FailedUpstream):
            return condition.explain(ending.context.model_dump(mode="json"), error=ending.context)
        return condition.explain(ending.value)
    except ConditionError as error:
        add_note(error, f"prefect-resilience: this is the condition of the branch {branch.name!r}")
        raise


def take_route(upstream: Opaque) -> State[Any]:
    """The function of a route's task run."""
    source, branches, runs = upstream.content
    ending = ending_of(source)
    if isinstance(ending, NeverRan):
        return not_run(ending, "No branch was evaluated, because the upstream never ran")
    passed_over: list[dict[str, str]] = []
    for branch in branches:
        answer = _explained(branch, ending)
        if answer.holds:
            break
        passed_over.append({"branch": branch.name, "why": answer.text})
    else:
        if isinstance(ending, FailedUpstream):
            passed_on(ending, "The upstream failed, and no branch handles the error")
        raise NoRoute(shown(unfold(ending.value)), tuple(branch.says for branch in branches))
    value = NOTHING if isinstance(ending, FailedUpstream) else ending.value
    error = ending.context if isinstance(ending, FailedUpstream) else None
    announce(
        "route",
        str(task_run.get_name() or "route"),
        chosen=branch.name,
        why=answer.text,
        error=error,
        passed_over=passed_over,
        condition=branch.says,
        upstream=[str(run) for run in runs],
    )
    request = TargetCall(branch.args, branch.kwargs, value, {"error": error}, following(runs))
    outcome = call(branch.target, request)
    if isinstance(outcome, NeverRan):
        return not_run(outcome, f"The branch {branch.name} was chosen, but it never ran")
    return ended("Routed", f"{branch.name}, because {answer.text}", value_of(outcome), instead_of=error)


# -- error handlers

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
