"""Spans through OpenTelemetry's API: one for each call, and below it one for each attempt.

In a task run, Prefect's span of the task run is that of the call. Without an SDK nothing of this file is
called: its callers look for the module `SDK` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from sys import modules
from typing import TYPE_CHECKING, Any, ClassVar

from prefect_resilience.base.drive import Steps
from prefect_resilience.base.outcomes import UnawaitedResult
from prefect_resilience.errors.classify.shapes import full_name
from prefect_resilience.errors.context import attached_context, count_rejected
from prefect_resilience.errors.secrets.redact import learn_secrets
from prefect_resilience.telemetry.payloads import fit_text

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from prefect_resilience.calls.model import Guard, RunContext
    from prefect_resilience.errors.context import ErrorContext
    from prefect_resilience.errors.taxonomy import ErrorInfo

SDK = "opentelemetry.sdk.trace"
"""The module of OpenTelemetry's tracer. A program that records spans has imported it."""

NAME = "prefect_resilience"
LONGEST = 300
"""The most characters of a name, an attribute or a message."""

EVENTS = {"attempt.refused": "rejected", "fallback.used": "fallback", "effect.replayed": "replayed"}
"""The events of this package that the span of a call has, and their names there."""
FIELDS = {
    **{name: name for name in ("category", "circuit", "code", "degraded")},
    **{"by": "rejected_by", "key": "effect.key", "to": "fallback"},
}
"""The fields of their payloads that are attributes, and the names of these attributes."""


def find_tracer() -> Tracer | None:
    """This package's tracer; None while the program has set no provider of an SDK."""
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    is_missing = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    return None if is_missing else _tracer_of(provider)


@cache
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer(NAME)


def _attributes(about: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of this package, without secrets; a value None is left out."""
    return {
        f"{NAME}.{name}": fit_text(value, LONGEST) if isinstance(value, str) else value
        for name, value in about.items()
        if value is not None
    }


class OpenSpan:
    """A span from its start to its end: of an attempt, which ends it as it releases a guard, or of a call.

    It is the current span within a `with` block.
    """

    metered: ClassVar[bool] = False

    def __init__(self, run: RunContext, span: Span) -> None:
        self.span = span
        self._run = run
        self._token: Any = None

    def __enter__(self) -> None:
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self.span))

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            from opentelemetry import context

            context.detach(self._token)
            self._token = None

    def finish(
        self, _: None, error: BaseException | None, *, info: ErrorInfo | None, took: Any
    ) -> Steps[None]:
        self.end(error, info, self._run.response_status())
        return
        yield  # makes it a generator

    def end(
        self, error: BaseException | None, info: ErrorInfo | ErrorContext | None, status: Any = None
    ) -> None:
        """End the span. Of an error it shows the class, the category, and the message without secrets."""
        self.__exit__()
        with suppress(Exception):  # any error of an SDK or its exporter
            if status is not None:
                self.span.set_attribute("http.response.status_code", status)
            if status is not None and status >= 400:
                self._fail(str(status), info)
            elif error is not None and not isinstance(error, GeneratorExit | UnawaitedResult):
                self._fail(full_name(error), info)
        with suppress(Exception):
            self.span.end()

    def _fail(self, kind: str, info: ErrorInfo | ErrorContext | None) -> None:
        from opentelemetry.trace import StatusCode

        message = None
        if info is not None:
            learn_secrets(self._run.parameters)
            message = fit_text(info.message, LONGEST)
            self.span.set_attributes(_attributes({"category": info.category.value, "code": info.code}))
        self.span.set_attribute("error.type", kind)
        self.span.set_status(StatusCode.ERROR, message)


def begin_attempt(
    guard: Guard, run: RunContext, held: list[tuple[Any, Any]], key: str, is_current: bool
) -> OpenSpan | None:
    """Start the span of an attempt, which ends with the guards in `held`. Never raises."""
    with suppress(Exception):
        if (tracer := find_tracer()) is None:
            return None
        from opentelemetry.trace import SpanKind, set_span_in_context

        record, request = run.record_so_far(), run.request_attributes()
        failures = [] if record is None else record.history
        number = len(failures) - count_rejected(failures) + 1
        if request and number > 1:
            request["http.request.resend_count"] = number - 1
        function = str(run.identity["node_id"])
        about = {"function": function, "attempt": number, "delay": record and record.previous_delay}
        about |= {"circuit": guard.circuit and held[0][0].name, "effect.key": key or None}
        span = tracer.start_span(
            request.get("http.request.method") or f"attempt {fit_text(function, LONGEST)}",
            None if run.span is None else set_span_in_context(run.span),
            SpanKind.CLIENT if request else SpanKind.INTERNAL,
            {**request, **_attributes(about)},
        )
        held.append((attempt := OpenSpan(run, span), None))
        if is_current:
            attempt.__enter__()
        return attempt
    return None


class _CallSpan:
    """Records the span of a call in a `with` block; with `is_current` it is the current span there."""

    def __init__(self, run: RunContext, *, is_current: bool) -> None:
        self._run = run
        self._is_current = is_current
        self._open: OpenSpan | None = None

    def __enter__(self) -> None:
        with suppress(Exception):
            if (tracer := find_tracer()) is not None:
                name = str(self._run.identity["node_id"])
                span = tracer.start_span(fit_text(name, LONGEST), attributes=_attributes({"function": name}))
                self._open, self._run.span = OpenSpan(self._run, span), span
                if self._is_current:
                    self._open.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._open is not None:
            self._open.end(error, attached_context(error))


def call_span(run: RunContext, *, is_current: bool = True) -> AbstractContextManager[None]:
    """The span of a call without a task run, for a `with` block; nothing without an SDK."""
    return _CallSpan(run, is_current=is_current) if SDK in modules else nullcontext()


def add_event(run: RunContext, happening: str, payload: Mapping[str, Any]) -> None:
    """Add an event of this package to the span of its call, if the span has such events. Never raises."""
    if happening in EVENTS:
        from opentelemetry import trace

        with suppress(Exception):
            span = trace.get_current_span() if run.span is None else run.span
            fields = {name: payload.get(field) for field, name in FIELDS.items()}
            span.add_event(EVENTS[happening], _attributes(fields))
