"""Expect: checks the output of a task, and with `repair` retries with the violations as input."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any

from prefect_resilience.base.drive import Invoke, Steps
from prefect_resilience.base.outcomes import is_coroutine_function
from prefect_resilience.base.policy import refuse_async
from prefect_resilience.errors.exceptions import ConfigurationError, OutputFormatError
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.guards.outputs.output_shapes import Broken, Predicate, Shape, shape_of
from prefect_resilience.guards.partials import Notes, partial_output
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry

HINTS = ("error", "violations")
"""Parameters of the task that a repair fills with the error of the previous attempt."""


ANY_JSON = {"type": ["object", "array", "number", "boolean", "null"]}


def _by_format(what: Any, type: str | None, schema: Any) -> Any:
    """What `type="json"` and `schema=` expect."""
    if what is not None:
        raise ConfigurationError(f"Expect({what!r}, ...): leave type= and schema= out, they mean the same")
    if type not in (None, "json"):
        raise ConfigurationError(f'Expect(type={type!r}): write type="json", or leave type= out')
    return ANY_JSON if schema is None else schema


@dataclass(frozen=True)
class Expect:
    """The expected output of a task; any other output raises OutputFormatError.

    what: a type of JSON ("array", "object", "string", "number", "integer", "boolean", "null"), a JSON
        Schema, a pydantic model (or another type that pydantic validates), or a function that returns true
        or false. If JSON is expected, a text is parsed, also from a fenced block in it; with a model the
        task returns an instance of it.
    repair: retry at once after a malformed output, with `attempts` attempts in total. The next attempt gets
        the violations: in its parameters `error` (the ErrorContext) and `violations` (a list of
        `{"path": ..., "message": ...}`), if the function declares them with a default, and from
        `last_violations()`.
    attempts: with `repair=True`, the number of attempts at a valid output, the first one included. It does
        not depend on `retry`: with `retry=None` a malformed output still gets this many attempts.
    type: "json" with `schema` in place of `what`: `Expect(type="json", schema="array")` is `Expect("array")`.
        Without a schema any JSON but a plain string is expected.
    schema: the same as `what`.

    Without `repair`, a malformed output is retried only if the task's `retry` has a rule for the category
    "validation". Such a rule takes precedence over `attempts`.

        @resilient_task(expect=Expect(Answer, repair=True))
        def ask(question: str, violations: list | None = None) -> Answer: ...
    """

    what: Any = None
    repair: bool = False
    attempts: int = field(default=3, kw_only=True)
    type: InitVar[str | None] = field(default=None, kw_only=True)
    schema: InitVar[Any] = field(default=None, kw_only=True)

    def __post_init__(self, type: str | None, schema: Any) -> None:
        if type is not None or schema is not None:
            object.__setattr__(self, "what", _by_format(self.what, type, schema))
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"Expect(attempts={self.attempts!r}): write a whole number of at least 2"
            )
        if isinstance(self.what, Expect):
            raise ConfigurationError("Expect(Expect(...)): write Expect only once")
        object.__setattr__(self, "shape", shape_of(self.what))

    shape: Shape = field(init=False, repr=False, compare=False)

    @classmethod
    def of(cls, value: Any) -> Expect:
        """The policy from a value of `expect=`. Raises ConfigurationError."""
        return value if isinstance(value, Expect) else cls(value)

    def check_for(self, fn: Callable[..., Any], *, isasync: bool) -> None:
        """Raise ConfigurationError, at decoration, for a function with outputs that cannot be checked."""
        if isinstance(self.shape, Predicate) and is_coroutine_function(self.shape.asks) and not isasync:
            refuse_async(f"expect={self.shape.name}", fn)

    def check(self, value: Any) -> Steps[Any]:
        """The value to return, as checked. Raises OutputFormatError."""
        try:
            shape = self.shape
            if not isinstance(shape, Predicate):
                return shape.of(value)
            try:
                if (yield Invoke(shape.asks, (value,))):
                    return value
            except Exception as error:  # noqa: BLE001 - a malformed output may break the function
                raise shape.broken(value, error) from None
            raise shape.broken(value)
        except Broken as broken:
            raise OutputFormatError(
                self.shape.name, broken.actual, broken.violations, partial_output(value)
            ) from None

    # -- the attempts of a repair

    @cached_property
    def _rule(self) -> Retry:
        return Retry(attempts=self.attempts, backoff=Backoff.none())

    def with_repair(self, retry: Retry) -> Retry:
        """The task's retry policy, with a rule for the repair of its output."""
        if not self.repair or ErrorCategory.VALIDATION in retry.rules:
            return retry
        return retry.model_copy(update={"by_category": {**retry.rules, ErrorCategory.VALIDATION: self._rule}})

    def with_hints(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], notes: Notes
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, with the error of the previous attempt in the declared HINTS."""
        if not self.repair or notes.previous is None:
            return args, kwargs
        signature = inspect.signature(fn)
        parameters = signature.parameters
        hints = [
            name
            for name in HINTS
            if name in parameters and parameters[name].default is not inspect.Parameter.empty
        ]
        if not hints:
            return args, kwargs
        values = {"error": notes.previous, "violations": list(notes.violations)}
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name in hints:
            if bound.arguments[name] is parameters[name].default:
                bound.arguments[name] = values[name]
        return bound.args, bound.kwargs
