"""The words for what can go wrong: 20 categories, 4 kinds, 10 reasons.

A category is what a policy is written against, a kind is what one does about it, a reason is the older
vocabulary of agent systems that handlers written for those still ask for.
"""

from __future__ import annotations

from enum import Enum


class _Word(str, Enum):
    """A string enum that prints as its value on every Python version."""

    def __str__(self) -> str:
        return str(self.value)


class ErrorKind(_Word):
    """What the failure says about trying again.

    `transient` passes by itself; `permanent` comes back until somebody changes something; `resource` means
    that the work is too big as it stands; `infrastructure` means that the machinery failed, not the work.

    Example:
        >>> ErrorKind("transient") is ErrorCategory.TIMEOUT.kind
        True
    """

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    RESOURCE = "resource"
    INFRASTRUCTURE = "infrastructure"


class FailureReason(_Word):
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


class ErrorCategory(_Word):
    """What went wrong, as a policy sees it; `.kind`, `.retryable` and `.reason` are its defaults.

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
        """The kind of this category; `subtask` says permanent here, and takes its cause's when classified."""
        return _KINDS.get(self, ErrorKind.PERMANENT)

    @property
    def retryable(self) -> bool:
        """Whether a bare retry policy tries again.

        `validation` is a matter of configuration and `subtask` follows its cause; both say False here.
        """
        return self in _RETRYABLE

    @property
    def reason(self) -> FailureReason:
        """The reason that this category stands for when nothing more exact is known."""
        return _REASONS.get(self, FailureReason.UNEXPECTED_ERROR)


_KINDS: dict[ErrorCategory, ErrorKind] = {
    ErrorCategory.RATE_LIMIT: ErrorKind.TRANSIENT,
    ErrorCategory.TIMEOUT: ErrorKind.TRANSIENT,
    ErrorCategory.NETWORK: ErrorKind.TRANSIENT,
    ErrorCategory.UNAVAILABLE: ErrorKind.TRANSIENT,
    ErrorCategory.SERVER_ERROR: ErrorKind.TRANSIENT,
    ErrorCategory.CIRCUIT_OPEN: ErrorKind.TRANSIENT,
    ErrorCategory.OVERFLOW: ErrorKind.RESOURCE,
    ErrorCategory.RESOURCE_EXHAUSTED: ErrorKind.RESOURCE,
    ErrorCategory.AGENT_CRASH: ErrorKind.INFRASTRUCTURE,
    ErrorCategory.INFRASTRUCTURE: ErrorKind.INFRASTRUCTURE,
}

_RETRYABLE = frozenset(
    {
        ErrorCategory.RATE_LIMIT,
        ErrorCategory.TIMEOUT,
        ErrorCategory.NETWORK,
        ErrorCategory.UNAVAILABLE,
        ErrorCategory.SERVER_ERROR,
        ErrorCategory.AGENT_CRASH,
        ErrorCategory.INFRASTRUCTURE,
    }
)

_REASONS: dict[ErrorCategory, FailureReason] = {
    # An unreachable service did not give what it was asked for; one that throttles stopped the work.
    ErrorCategory.NETWORK: FailureReason.CONTEXT_RETRIEVAL_FAILURE,
    ErrorCategory.UNAVAILABLE: FailureReason.CONTEXT_RETRIEVAL_FAILURE,
    ErrorCategory.SERVER_ERROR: FailureReason.CONTEXT_RETRIEVAL_FAILURE,
    ErrorCategory.RATE_LIMIT: FailureReason.EXECUTION_HALTED,
    ErrorCategory.AUTH: FailureReason.INPUT_VALIDATION_FAILURE,
    ErrorCategory.CONFLICT: FailureReason.INPUT_VALIDATION_FAILURE,
    ErrorCategory.AGENT_CRASH: FailureReason.EXECUTION_HALTED,
    ErrorCategory.INFRASTRUCTURE: FailureReason.EXECUTION_HALTED,
    ErrorCategory.TIMEOUT: FailureReason.EXECUTION_TIMEOUT,
    ErrorCategory.INVALID: FailureReason.INPUT_VALIDATION_FAILURE,
    ErrorCategory.VALIDATION: FailureReason.OUTPUT_FORMAT_FAILURE,
    ErrorCategory.NOT_FOUND: FailureReason.CONTEXT_RETRIEVAL_FAILURE,
    ErrorCategory.TOOL_ERROR: FailureReason.SUBTASK_FAILURE,
    ErrorCategory.SUBTASK: FailureReason.SUBTASK_FAILURE,
    ErrorCategory.OVERFLOW: FailureReason.EXECUTION_HALTED,
    ErrorCategory.RESOURCE_EXHAUSTED: FailureReason.EXECUTION_HALTED,
    ErrorCategory.NO_PROGRESS: FailureReason.EXECUTION_HALTED,
    ErrorCategory.CIRCUIT_OPEN: FailureReason.EXECUTION_HALTED,
    ErrorCategory.CANCELLED: FailureReason.EXECUTION_HALTED,
}
