"""ErrorInfo: what classification says about one failure."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorKind, FailureReason

MESSAGE_LIMIT = 2_000
DEFAULT_RETRIES = 2
DEFAULT_DELAY = 1.0
"""What the default policy does (`Retry()`), in seconds."""


def bounded(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """`text`, cut to `limit` characters, of which the last then is an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


class ErrorInfo(BaseModel):
    """One failure, classified. Whatever it is built from, `message` and `details` come out redacted.

    `code` is the short text a person looks for ("429", "TIMEOUT", "context_length_exceeded", a class's name).
    `retry_after` is in seconds, never negative, None when the other side said nothing. `exception_type` is
    a dotted class name, None when there was no exception.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, defer_build=True)

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
        """How many retries a bare `@resilient_task` gives this error; for other policies ask `Retry.decide`.

        Example:
            >>> ErrorInfo.of(ErrorCategory.TIMEOUT).max_retries, ErrorInfo.of(ErrorCategory.AUTH).max_retries
            (2, 0)
        """
        return DEFAULT_RETRIES if self.retryable else 0

    @property
    def suggested_delay(self) -> float:
        """Seconds before the first of these retries, without jitter; at least what the server asked for.

        0.0 for an error that is not retryable.
        """
        return max(DEFAULT_DELAY, self.retry_after or 0.0) if self.retryable else 0.0

    @field_validator("message", mode="after")
    @classmethod
    def _safe_message(cls, value: str) -> str:
        return bounded(redact(value))

    @field_validator("details", mode="after")
    @classmethod
    def _safe_details(cls, value: dict[str, Any]) -> dict[str, Any]:
        return redact_data(value)

    @classmethod
    def of(cls, category: ErrorCategory, code: str | None = None, **fields: Any) -> ErrorInfo:
        """An ErrorInfo with the defaults of its category, and `fields` over them.

        Example:
            >>> ErrorInfo.of(ErrorCategory.RATE_LIMIT, code="429").retryable
            True
        """
        known: dict[str, Any] = {
            "kind": category.kind,
            "retryable": category.retryable,
            "reason": category.reason,
        }
        return cls(category=category, code=code or category.value, **{**known, **fields})


class Finding(NamedTuple):
    """What one rule found out, before it becomes an ErrorInfo; None leaves the category's default."""

    category: ErrorCategory
    code: str | None = None
    retry_after: float | None = None
    details: dict[str, Any] | None = None
    kind: ErrorKind | None = None
    retryable: bool | None = None
    reason: FailureReason | None = None
