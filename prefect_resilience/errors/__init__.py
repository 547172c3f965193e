"""What went wrong: categories, classification, contexts, redaction and the exceptions of this package."""

from __future__ import annotations

from .classify import classify
from .context import (
    AttemptRecord,
    ErrorContext,
    PartialOutput,
    attach_context,
    attached_context,
    error_context,
)
from .exceptions import (
    AttemptTimeout,
    CircuitOpenError,
    ConfigurationError,
    ResilienceError,
    StoreUnavailable,
)
from .info import ErrorInfo
from .redact import redact, redact_data
from .registry import Rule, classifier, register_classifier, unregister_classifier
from .scrub import scrub_exception
from .secret_registry import (
    register_secret,
    register_secret_pattern,
    unregister_secret,
    unregister_secret_pattern,
)
from .secrets_in import collect_secrets
from .taxonomy import ErrorCategory, ErrorKind, FailureReason

__all__ = [
    "AttemptRecord",
    "AttemptTimeout",
    "CircuitOpenError",
    "ConfigurationError",
    "ErrorCategory",
    "ErrorContext",
    "ErrorInfo",
    "ErrorKind",
    "FailureReason",
    "PartialOutput",
    "ResilienceError",
    "Rule",
    "StoreUnavailable",
    "attach_context",
    "attached_context",
    "classifier",
    "classify",
    "collect_secrets",
    "error_context",
    "redact",
    "redact_data",
    "register_classifier",
    "register_secret",
    "register_secret_pattern",
    "scrub_exception",
    "unregister_classifier",
    "unregister_secret",
    "unregister_secret_pattern",
]
