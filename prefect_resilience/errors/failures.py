"""Failures that users raise to say exactly what went wrong, and the broken promise of an output.

Each can be pickled, with whatever was put on it, and its message stands in `args` once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.taxonomy import FailureReason

if TYPE_CHECKING:
    from prefect_resilience.errors.context import PartialOutput

MOST_IN_MESSAGE = 3
"""Violations that the message of an OutputFormatError tells of."""


class _Travels(ResilienceError):
    """Is made again from its parts wherever it is sent, whatever its constructor asks for."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.args, dict(self.__dict__))


def _made_again(cls: type[_Travels], args: tuple[Any, ...], state: dict[str, Any]) -> _Travels:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ResourceExhausted(_Travels):
    """A resource is used up, so the work is too big as it stands: it is not tried again, but decomposed.

    `resource` says which: "turns", "context", "output" or any other word; `usage` and `limit` are in its
    own unit, None where that is not known. `partial_output` is what had come of the work.

        raise ResourceExhausted("turns", usage=20, limit=20)

    Example:
        >>> str(classify(ResourceExhausted("turns", usage=20, limit=20)).kind)
        'resource'
    """

    def __init__(
        self,
        resource: str,
        usage: float | None = None,
        limit: float | None = None,
        message: str | None = None,
        *,
        partial_output: Any = None,
    ) -> None:
        self.resource = resource
        self.usage = usage
        self.limit = limit
        self.partial_output = partial_output
        super().__init__(message or _used_up(resource, usage, limit))


def _used_up(resource: str, usage: float | None, limit: float | None) -> str:
    if usage is not None and limit is not None:
        return f"{resource} exhausted: {usage:,} used of {limit:,}"
    if usage is None and limit is None:
        return f"{resource} exhausted"
    known = f"{usage:,} used" if limit is None else f"the limit is {limit:,}"
    return f"{resource} exhausted: {known}"


class TaskFailure(_Travels):
    """A failure with one of the standard reasons, such as "context_matching_failure".

    `details` are what handlers should know, such as `partial_context`, `context_metrics`, `violations` or
    `success_score`; `partial_output` is what had come of the work. A matching failure is tried again.
    Raises ConfigurationError for a reason that there is not.

        raise TaskFailure("context_retrieval_failure", "the index cannot be read", error="corrupt")

    Example:
        >>> str(classify(TaskFailure("output_format_failure", "no table")).reason)
        'output_format_failure'
    """

    def __init__(
        self, reason: FailureReason | str, message: str = "", *, partial_output: Any = None, **details: Any
    ) -> None:
        try:
            self.reason: FailureReason = FailureReason(str(reason))
        except ValueError:
            known = ", ".join(each.value for each in FailureReason)
            raise ConfigurationError(f"there is no reason {str(reason)!r}: write one of {known}") from None
        self.details = details
        self.partial_output = partial_output
        super().__init__(message or self.reason.value.replace("_", " "))


class SubtaskError(_Travels):
    """A sub-step failed that is no task or flow of its own; raise it `from` what went wrong.

    It is tried again as its cause would be. `inputs` are what the sub-step was asked to work on,
    `partial_output` what had come of it, and `failed_step` its place in a sequence.

        raise SubtaskError("parse the answer", inputs={"text": text}) from error
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        partial_output: Any = None,
        failed_step: int | str | None = None,
    ) -> None:
        self.name = name
        self.inputs: dict[str, Any] = dict(inputs or {})
        self.partial_output = partial_output
        self.failed_step = failed_step
        super().__init__(f"sub-step {name!r} failed")


class OutputFormatError(_Travels):
    """The output of a task is not what `expect=` promised.

    `expected_type` and `actual_type` are in the words of JSON ("array", "object", ...) or names of classes;
    `violations` say what is wrong where: `{"path": "/items/0/score", "message": "..."}`, the path a JSON
    pointer, "" for the whole. `partial_output` is the output itself as far as it may be kept, which
    `original_output` gives.
    """

    def __init__(
        self,
        expected_type: str,
        actual_type: str,
        violations: Sequence[Mapping[str, Any]] = (),
        partial_output: PartialOutput | None = None,
    ) -> None:
        self.expected_type = expected_type
        self.actual_type = actual_type
        self.violations: list[dict[str, Any]] = [dict(violation) for violation in violations]
        self.partial_output = partial_output
        super().__init__(_broken_promise(expected_type, actual_type, self.violations))

    @property
    def original_output(self) -> Any:
        """The output as far as it was kept."""
        return None if self.partial_output is None else self.partial_output.content


def _broken_promise(expected: str, actual: str, violations: Sequence[Mapping[str, Any]]) -> str:
    head = f"the output was promised to be of type {expected!r}, and is of type {actual!r}"
    told = [
        f"at {each['path']}: {each['message']}" if each["path"] else str(each["message"])
        for each in violations
    ]
    if not told:
        return head
    head = head if expected != actual else f"the {actual} that came out is not as promised"
    more = len(told) - MOST_IN_MESSAGE
    rest = f"; and {more} more" if more > 0 else ""
    return f"{head}: {'; '.join(told[:MOST_IN_MESSAGE])}{rest}"
