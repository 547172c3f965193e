"""The exceptions of this package.

    ResilienceError
    ├── ConfigurationError (also ValueError)    an invalid option or argument
    │   └── PlanError                           a plan is invalid; it has every mistake with its place (plans)
    ├── ConditionError (also ValueError)        a condition cannot be evaluated (conditions)
    ├── NoRoute, NoQuorum, TooManyFailures, NoProgress, RoundsExhausted     routing failed (routing)
    ├── PlanFailed                              a node failed and was not handled (plans)
    ├── PersonNeeded                            every agent of a chain failed; a person must act (agents)
    ├── NotAnswered, Rejected                   a person did not answer in time, or rejected (agents)
    ├── LimitRefused                            a bulkhead or a rate limit rejected the call (limits)
    ├── CircuitOpenError                        a circuit rejected the call; it was not made
    ├── AttemptTimeout (also TimeoutError)      an attempt took longer than its timeout
    │   └── DeadlineExceeded                    a deadline passed; never retried
    │       └── NotBegun                        a call was not begun, because a deadline had passed
    ├── StoreUnavailable                        the store is unavailable
    ├── NotSent                                 an effect's own code reports that it sent nothing
    │   └── NotRecorded (also StoreUnavailable) an external effect could not be recorded, and was not sent
    ├── InDoubt                                 the outcome of an external effect is unknown
    ├── EffectBusy                              another run is doing the same effect
    ├── RepeatedEffect                          one pass of the code requested the same effect twice
    ├── EffectKeyReused                         two different effects of a batch have the same key
    ├── ResultNotKept                           an effect is done, but its result cannot be restored
    └── ResourceExhausted, TaskFailure, SubtaskError, OutputFormatError     exact failures, raised by users

All can be pickled; `args` holds only the message, and that of a CircuitOpenError its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from prefect_resilience.errors.context import PartialOutput
    from prefect_resilience.errors.taxonomy import FailureReason


class ResilienceError(Exception):
    """Base class: `except ResilienceError` catches all exceptions that this package defines."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts: unpickling does not call the constructor, which may need other arguments."""
        return _made_again, (type(self), self.args, dict(self.__dict__))


def _made_again(cls: type[ResilienceError], args: tuple[Any, ...], state: dict[str, Any]) -> ResilienceError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigurationError(ResilienceError, ValueError):
    """A policy or a decorator got an invalid option or argument; the message says what to write.

    Example:
        >>> try:
        ...     Retry(atempts=3)
        ... except ConfigurationError as error:
        ...     print(error)
        Retry has no option 'atempts'; did you mean 'attempts'?
    """


class CircuitOpenError(ResilienceError):
    """A circuit rejected the call; the call was not made.

    `name` is the circuit's name, `retry_in` the seconds until it accepts a probe (None when only a person
    can close it), `last_error` the redacted text of the failure that opened it.

    Example:
        >>> print(CircuitOpenError("labels", retry_in=12.5, last_error="503"))
        circuit 'labels' rejects calls for 12.5 s; last error: 503
    """

    def __init__(self, name: str, retry_in: float | None = None, last_error: str | None = None) -> None:
        self.name = name
        self.retry_in = retry_in
        self.last_error = last_error

    def __str__(self) -> str:
        when = "until it is closed manually" if self.retry_in is None else f"for {self.retry_in:.1f} s"
        because = f"; last error: {self.last_error}" if self.last_error else ""
        return f"circuit {self.name!r} rejects calls {when}{because}"


class AttemptTimeout(ResilienceError, TimeoutError):
    """An attempt took longer than its timeout of `seconds`; Prefect calls the run `TimedOut`.

    Example:
        >>> print(AttemptTimeout(30))
        the attempt took longer than 30 s
    """

    def __init__(self, seconds: float, what: str = "the attempt") -> None:
        self.seconds = seconds
        self.what = what
        super().__init__(f"{what} took longer than {seconds:g} s")


class DeadlineExceeded(AttemptTimeout):
    """A deadline of `seconds`, set at `set_at`, passed during the call. No policy retries it.

    Example:
        >>> print(DeadlineExceeded(60, "billing.py:12", "'charge'"))
        'charge' passed the deadline of 60 s set at billing.py:12
    """

    is_reported: bool = False
    """Whether the event of this error was sent."""

    def __init__(self, seconds: float, set_at: str, what: str = "the call") -> None:
        super().__init__(seconds, what)
        self.set_at = set_at
        self.args: tuple[str, ...] = (f"{what} passed the deadline of {seconds:g} s set at {set_at}",)


class NotBegun(DeadlineExceeded):
    """A call was not begun, because the deadline had passed."""

    def __init__(self, seconds: float, set_at: str) -> None:
        super().__init__(seconds, set_at)
        self.args: tuple[str, ...] = (f"not begun: the deadline of {seconds:g} s set at {set_at} has passed",)


class StoreUnavailable(ResilienceError):
    """The store could not answer; the caller continues with the state of this process."""


class NotSent(ResilienceError):
    """Raised by an effect's own code: it failed before it sent anything, so it can be retried."""


class NotRecorded(NotSent, StoreUnavailable):
    """An external effect was not sent, because the store could not be read or written to record it first.

    The message gives the reason and the remedy. A new run does not repeat effects that are done.
    """


class _EffectError(ResilienceError):
    """An error about one effect of a batch; `why` says what is known."""

    _sentence: ClassVar[str]

    def __init__(self, key: str, batch_id: str, why: str = "") -> None:
        self.key = key
        self.batch_id = batch_id
        self.why = why
        super().__init__(self._sentence.format(key=key, batch=batch_id, why=why))


class InDoubt(_EffectError):
    """The outcome of an external effect is unknown, so it was not repeated: a person must decide.

    `key` and `batch_id` identify the effect; `why` says what is known.
    """

    error_category: ClassVar[str] = "unexpected"
    _sentence: ClassVar[str] = (
        "the outcome of the effect {key!r} of batch {batch!r} is unknown, and it was not repeated: {why}"
    )


class EffectBusy(ResilienceError):
    """Another run of the batch was still doing the same effect after `waited` seconds; nothing was sent.

    Example:
        >>> print(EffectBusy("invoice:7", "invoices", waited=300))
        another run is still doing the effect 'invoice:7' of batch 'invoices' after 300.0 s
    """

    error_category: ClassVar[str] = "unavailable"

    def __init__(self, key: str, batch_id: str, waited: float) -> None:
        self.key = key
        self.batch_id = batch_id
        self.waited = waited
        super().__init__(
            f"another run is still doing the effect {key!r} of batch {batch_id!r} after {waited:.1f} s"
        )


class RepeatedEffect(_EffectError):
    """One pass of the code requested the same effect twice; nothing was sent the second time.

    Two equal payments need two keys. If the second call is to return the first one's result, write
    `Effect(repeat="replay")`.

    Example:
        >>> str(RepeatedEffect("pay:7", "invoices"))[:70]
        "the effect 'pay:7' of batch 'invoices' was requested twice in one pass"
    """

    error_category: ClassVar[str] = "conflict"
    _sentence: ClassVar[str] = (
        "the effect {key!r} of batch {batch!r} was requested twice in one pass, and was sent only once: "
        'write a key that distinguishes the two, such as Effect(key="...:{{number}}"), or '
        'Effect(repeat="replay") to get the result of the first call'
    )


class EffectKeyReused(_EffectError):
    """Two different effects of a batch have the same key; the second was not sent and got no result.

    Example:
        >>> str(EffectKeyReused("order:7", "invoices", "the task 'shop.charge' uses it"))[:62]
        "the effect key 'order:7' of batch 'invoices' is already in use"
    """

    error_category: ClassVar[str] = "conflict"
    _sentence: ClassVar[str] = (
        "the effect key {key!r} of batch {batch!r} is already in use: {why}; nothing was sent: write a key "
        'that names the side effect, such as Effect(key="charge:{{order}}")'
    )


class ResultNotKept(_EffectError):
    """An effect is done and will not be repeated, but its result cannot be restored.

    Return JSON, or write a return type that pydantic can rebuild.

    Example:
        >>> print(ResultNotKept("invoice:7", "day", "its file is gone"))
        the effect 'invoice:7' of batch 'day' is done, but its result cannot be restored: its file is gone
    """

    _sentence: ClassVar[str] = (
        "the effect {key!r} of batch {batch!r} is done, but its result cannot be restored: {why}"
    )


# -- exact failures, raised by users, and the error of an output that is not as `expect=` promised

MOST_IN_MESSAGE = 3
"""The most violations in the message of an OutputFormatError."""


class ResourceExhausted(ResilienceError):
    """A resource is used up, so the work is too big: it is not retried, but decomposed.

    `resource` is "turns", "context", "output" or any other word; `usage` and `limit` are in its own unit,
    None if unknown. `partial_output` is the output that was produced before the failure.

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
    figure = f"{usage:,} used" if limit is None else f"the limit is {limit:,}"
    return f"{resource} exhausted: {figure}"


class TaskFailure(ResilienceError):
    """A failure with one of the standard reasons, such as "context_matching_failure".

    `details` are data for handlers, such as `partial_context`, `context_metrics`, `violations` or
    `success_score`; `partial_output` is the output that was produced before the failure. A
    "context_matching_failure" is retried. Raises ConfigurationError for an unknown reason.

        raise TaskFailure("context_retrieval_failure", "the index cannot be read", error="corrupt")

    Example:
        >>> str(classify(TaskFailure("output_format_failure", "no table")).reason)
        'output_format_failure'
    """

    def __init__(
        self, reason: FailureReason | str, message: str = "", *, partial_output: Any = None, **details: Any
    ) -> None:
        # Imported late: the taxonomy needs `redact`, which needs the exceptions above.
        from prefect_resilience.errors.taxonomy import FailureReason

        try:
            self.reason: FailureReason = FailureReason(str(reason))
        except ValueError:
            words = ", ".join(FailureReason)
            raise ConfigurationError(f"unknown reason {str(reason)!r}: write one of {words}") from None
        self.details = details
        self.partial_output = partial_output
        super().__init__(message or self.reason.value.replace("_", " "))


class SubtaskError(ResilienceError):
    """A sub-step that is not a task or flow failed; raise it `from` the cause.

    It is retried if its cause would be. `inputs` are the arguments of the sub-step, `partial_output` its
    output before the failure, and `failed_step` its place in a sequence.

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

    @property
    def subtask_request(self) -> dict[str, Any]:
        """The call that failed, as it is in the details of its context."""
        return {"type": "step", "name": self.name, "inputs": self.inputs}


class OutputFormatError(ResilienceError):
    """The output of a task is not what `expect=` promised.

    `expected_type` and `actual_type` are types of JSON ("array", "object", ...) or names of classes.
    `violations` are `{"path": "/items/0/score", "message": "..."}`; the path is a JSON pointer, "" for the
    whole output. `partial_output` holds the output as far as it was kept; `original_output` returns it.
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
    head = f"expected an output of type {expected!r}, got {actual!r}"
    sentences = [
        f"at {violation['path']}: {violation['message']}" if violation["path"] else str(violation["message"])
        for violation in violations
    ]
    if not sentences:
        return head
    head = head if expected != actual else f"the {actual} does not match expect="
    more = len(sentences) - MOST_IN_MESSAGE
    rest = f"; and {more} more" if more > 0 else ""
    return f"{head}: {'; '.join(sentences[:MOST_IN_MESSAGE])}{rest}"
