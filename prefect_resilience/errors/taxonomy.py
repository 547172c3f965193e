"""The vocabulary of failures: 20 categories, 4 kinds, 10 reasons.

Policies are written against categories. A kind says how to react. A reason is the older vocabulary of agent
systems, for handlers written for those. Below them: tables of codes and of words that give categories.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, field_validator

from prefect_resilience.errors.classify.shapes import as_number
from prefect_resilience.errors.secrets.redact import EDGE, redact_beginning, redact_data


class ErrorKind(StrEnum):
    """Whether and how a retry helps.

    `transient` goes away by itself; `permanent` fails again until something is changed; `resource` means that
    the work is too big; `infrastructure` means that the infrastructure failed, not the work.

    Example:
        >>> ErrorKind("transient") is ErrorCategory.TIMEOUT.kind
        True
    """

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    RESOURCE = "resource"
    INFRASTRUCTURE = "infrastructure"


class FailureReason(StrEnum):
    """The standard reasons of a failed task, by the names that agent task systems use.

    Example:
        >>> str(ErrorCategory.TIMEOUT.reason)
        'execution_timeout'
    """

    CONTEXT_RETRIEVAL_FAILURE = "context_retrieval_failure"
    CONTEXT_MATCHING_FAILURE = "context_matching_failure"
    CONTEXT_PARSING_FAILURE = "context_parsing_failure"
    XML_VALIDATION_FAILURE = "xml_validation_failure"
    OUTPUT_FORMAT_FAILURE = "output_format_failure"
    EXECUTION_TIMEOUT = "execution_timeout"
    EXECUTION_HALTED = "execution_halted"
    SUBTASK_FAILURE = "subtask_failure"
    INPUT_VALIDATION_FAILURE = "input_validation_failure"
    UNEXPECTED_ERROR = "unexpected_error"


class ErrorCategory(StrEnum):
    """The category of a failure, for policies; `.kind`, `.retryable` and `.reason` are its defaults.

    Example:
        >>> ErrorCategory("rate_limit").retryable, str(ErrorCategory.OVERFLOW.kind)
        (True, 'resource')
    """

    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    NETWORK = "network"
    UNAVAILABLE = "unavailable"
    SERVER_ERROR = "server_error"
    AUTH = "auth"
    INVALID = "invalid"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    OVERFLOW = "overflow"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    VALIDATION = "validation"
    TOOL_ERROR = "tool_error"
    AGENT_CRASH = "agent_crash"
    NO_PROGRESS = "no_progress"
    CIRCUIT_OPEN = "circuit_open"
    SUBTASK = "subtask"
    CANCELLED = "cancelled"
    INFRASTRUCTURE = "infrastructure"
    UNEXPECTED = "unexpected"

    @property
    def kind(self) -> ErrorKind:
        """The kind of this category. `subtask` is permanent, until it gets its cause's kind."""
        return _DEFAULTS[self][0]

    @property
    def retryable(self) -> bool:
        """Whether a bare retry policy retries it.

        `validation` depends on the configuration and `subtask` on its cause; both are False here.
        """
        return _DEFAULTS[self][1]

    @property
    def reason(self) -> FailureReason:
        """The reason for this category if nothing more exact is known."""
        return _DEFAULTS[self][2]


_DEFAULTS: dict[ErrorCategory, tuple[ErrorKind, bool, FailureReason]] = {
    ErrorCategory(category): (ErrorKind(kind), again == "again", FailureReason(reason))
    for category, kind, again, reason in (
        # A service that does not answer stopped the work. Only the user's code knows that it was retrieving
        # context, so no category has `context_retrieval_failure`.
        ("rate_limit", "transient", "again", "execution_halted"),
        ("timeout", "transient", "again", "execution_timeout"),
        ("network", "transient", "again", "execution_halted"),
        ("unavailable", "transient", "again", "execution_halted"),
        ("server_error", "transient", "again", "execution_halted"),
        ("auth", "permanent", "", "input_validation_failure"),
        ("invalid", "permanent", "", "input_validation_failure"),
        ("not_found", "permanent", "", "input_validation_failure"),
        ("conflict", "permanent", "", "input_validation_failure"),
        ("overflow", "resource", "", "execution_halted"),
        ("resource_exhausted", "resource", "", "execution_halted"),
        ("validation", "permanent", "", "output_format_failure"),
        ("tool_error", "permanent", "", "subtask_failure"),
        ("agent_crash", "infrastructure", "again", "execution_halted"),
        ("no_progress", "permanent", "", "execution_halted"),
        ("circuit_open", "transient", "", "execution_halted"),
        ("subtask", "permanent", "", "subtask_failure"),
        ("cancelled", "permanent", "", "execution_halted"),
        ("infrastructure", "infrastructure", "again", "execution_halted"),
        ("unexpected", "permanent", "", "unexpected_error"),
    )
}


DEADLINE = "deadline_set_at"
"""The detail of an error that a deadline caused: it is never retried."""
MESSAGE_LIMIT = 2_000
DEFAULT_RETRIES = 2
DEFAULT_DELAY = 1.0
"""The delay of the default policy (`Retry()`), in seconds."""


def bounded(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """`text`, cut to `limit` characters with an ellipsis at the end."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


class ErrorInfo(BaseModel, frozen=True, defer_build=True):
    """One failure, classified. `message` and `details` are always redacted.

    `code` is a short text to search for ("429", "TIMEOUT", "context_length_exceeded", a class's name).
    `retry_after` is in seconds, never negative; None if the service did not ask for a wait. `exception_type`
    is a dotted class name, None if there was no exception.
    """

    category: ErrorCategory
    kind: ErrorKind
    code: str
    retryable: bool
    retry_after: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    reason: FailureReason
    message: str = ""
    exception_type: str | None = None
    details: dict[str, Any] = Field(default_factory=dict)

    @property
    def max_retries(self) -> int:
        """How many retries a bare `@resilient_task` gives this error; for other policies use `Retry.decide`.

        Example:
            >>> ErrorInfo.of(ErrorCategory.TIMEOUT).max_retries, ErrorInfo.of(ErrorCategory.AUTH).max_retries
            (2, 0)
        """
        return DEFAULT_RETRIES if self.retryable else 0

    @property
    def suggested_delay(self) -> float:
        """Seconds before the first of these retries, without jitter; at least the server's `retry_after`.

        0.0 for an error that is not retryable.
        """
        return max(DEFAULT_DELAY, self.retry_after or 0.0) if self.retryable else 0.0

    @field_validator("message", mode="after")
    @classmethod
    def _safe_message(cls, value: str) -> str:
        return bounded(redact_beginning(value, MESSAGE_LIMIT, EDGE // 4))

    @field_validator("details", mode="after")
    @classmethod
    def _safe_details(cls, value: dict[str, Any]) -> dict[str, Any]:
        return redact_data(value, EDGE) if value else value

    @classmethod
    def of(cls, category: ErrorCategory, code: str | None = None, **fields: Any) -> ErrorInfo:
        """An ErrorInfo with the defaults of its category, and `fields` over them.

        Example:
            >>> ErrorInfo.of(ErrorCategory.RATE_LIMIT, code="429").retryable
            True
        """
        kind, retryable, reason = _DEFAULTS[category]
        defaults: dict[str, Any] = {"kind": kind, "retryable": retryable, "reason": reason}
        return cls(category=category, code=code or category.value, **(defaults | fields))


class Opinion(NamedTuple):
    """The result of one rule, before it becomes an ErrorInfo; None means the category's default."""

    category: ErrorCategory
    code: str | None = None
    retry_after: float | None = None
    details: dict[str, Any] | None = None
    kind: ErrorKind | None = None
    retryable: bool | None = None
    reason: FailureReason | None = None


TIMEOUT = "TIMEOUT"
NETWORK_ERROR = "NETWORK_ERROR"
CATEGORY_CODES: dict[ErrorCategory, str] = {
    ErrorCategory.TIMEOUT: TIMEOUT,
    ErrorCategory.NETWORK: NETWORK_ERROR,
    ErrorCategory.CANCELLED: "CANCELLED",
}
"""Categories with one code for all their errors."""

Look = Callable[[object, float], "Opinion | None"]
"""Classifies an exception at a time in seconds since the epoch; None is no opinion."""

Words = tuple[str, ErrorCategory, str | None]
"""A regular expression, its category, and its code."""


def category_of(table: Mapping[str, ErrorCategory], code: object) -> ErrorCategory | None:
    """The category of a code: by the whole code, else by its longest prefix, a key that ends in `*`."""
    number = as_number(code)
    text = code[:80] if isinstance(code, str) else "" if number is None else f"{number:.0f}"
    prefixes = (table[text[:end] + "*"] for end in range(len(text), 0, -1) if text[:end] + "*" in table)
    return table.get(text) or next(prefixes, None) if text else None


def match_code(table: Mapping[str, ErrorCategory], *codes: object, own: bool = False) -> Opinion | None:
    """An opinion from the first known code; `own` keeps that code even if `CATEGORY_CODES` has another."""
    for code in codes:
        category = category_of(table, code)
        if category is not None:
            shown = code if isinstance(code, str) else f"{as_number(code):.0f}"
            return Opinion(category, shown if own else CATEGORY_CODES.get(category, shown))
    return None


def match_words(table: Iterable[Words], text: str) -> Opinion | None:
    """The opinion of the first rule that matches the text."""
    for words, category, code in table:
        if re.search(words, text, re.IGNORECASE):
            return Opinion(category, code)
    return None
