"""An adapter that guards the requests of a `requests.Session`. The session's code does not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from prefect_resilience.base.drive import Steps, drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.calls.edge.elsewhere import BaseURL, elsewhere
from prefect_resilience.calls.edge.exchange import (
    IDEMPOTENT,
    READ,
    Exchange,
    HttpRun,
    as_methods,
    guard_of,
    is_failure,
    may_be_abandoned,
    send_attempt,
    send_guarded,
)
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.effects.current import HEADER, WRITES, idempotency_key, in_progress
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.limits.usage import BodyUsage
from prefect_resilience.guards.retries.policy import DEFAULT_RETRY

if TYPE_CHECKING:
    from prefect_resilience.base.durations import Duration
    from prefect_resilience.calls.edge.call_options import (
        ClassifyOption,
        LimitsOption,
        RetryOption,
        TimeoutOption,
    )
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker


class ResilientAdapter(HTTPAdapter):
    """Guards each request of a `requests.Session`, as `ResilientTransport` does for httpx.

        session.mount("https://", ResilientAdapter())

    retry, circuit, limits, timeout, deadline, fallback, classify, allowed_methods: as in
        `ResilientTransport`. All other options are those of `requests.adapters.HTTPAdapter`, except
        `max_retries`.

    A body that is a file or a generator is sent once. Inside an effect, the requests are not recorded as
    evidence, as they are with httpx. Raises ConfigurationError for a wrong option.
    """

    def __init__(
        self,
        *,
        retry: RetryOption = DEFAULT_RETRY,
        circuit: CircuitBreaker | str | None = "http:{host}",
        limits: LimitsOption = None,
        timeout: TimeoutOption = None,
        deadline: Duration | None = None,
        fallback: Any = None,
        classify: ClassifyOption = None,
        allowed_methods: Iterable[str] = IDEMPOTENT,
        **options: Any,
    ) -> None:
        if "max_retries" in options:
            raise ConfigurationError("ResilientAdapter does not accept max_retries=: use retry=")
        guards = {"retry": retry, "circuit": circuit, "limits": limits, "timeout": timeout}
        guards |= {"deadline": deadline, "fallback": fallback, "classify": classify}
        self._options: dict[str, Any] = {**guards, "allowed_methods": as_methods(allowed_methods)}
        self._guard_with(**self._options)
        super().__init__(**options)

    __attrs__: list[str] = [*HTTPAdapter.__attrs__, "_options"]  # noqa: RUF012 - requests reads it

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._guard_with(**self._options)

    def _guard_with(self, *, fallback: Any, allowed_methods: Any, **others: Any) -> None:
        steps = elsewhere(fallback, self._to, isasync=False, asked=lambda sending: sending.request)
        self._guard: Guard = guard_of({**others, "fallback": steps}, self._once, isasync=False)
        self._methods: frozenset[str] = allowed_methods

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if not is_enabled():
            return super().send(request, *args, **kwargs)
        return drive(send_guarded(self._run(_Sending(request, args, kwargs))))

    def _run(self, sending: _Sending) -> HttpRun:
        request = sending.request
        url = urlsplit(request.url or "")
        exchange = Exchange(
            sending,
            request.method or "GET",
            url.netloc.rpartition("@")[2],
            url.path or "/",
            repeatable=request.body is None or isinstance(request.body, bytes | str),
            has_key=HEADER in request.headers,
            methods=self._methods,
            close=requests.Response.close,
        )
        return HttpRun(self._guard, exchange)

    def _once(self, exchange: Exchange, host: str = "", method: str = "", prefix: str = "") -> Any:
        sending: _Sending = exchange.request
        # Raises NotSent if the effect was settled elsewhere while this process was suspended.
        key = None if in_progress.get() is None else idempotency_key()
        if key is not None and exchange.method in WRITES:
            sending.request.headers.setdefault(HEADER, key)

        def send(_: int) -> requests.Response:
            response = super(ResilientAdapter, self).send(sending.request, *sending.args, **sending.kwargs)
            is_read = not sending.kwargs.get("stream") and response.status_code < 400
            if is_read and any(limit.metered for limit in self._guard.limits):
                kind = response.headers.get("Content-Type", "")
                vars(response)["stream"] = BodyUsage(kind, _read(response))  # the session reads it next
            return response

        return drive(send_attempt(exchange, send, _judge, threaded=may_be_abandoned(self._guard)))

    def _to(self, base: BaseURL) -> Any:
        def send(exchange: Exchange, _: Any) -> requests.Response:
            sending: _Sending = exchange.request
            request = sending.request.copy()
            request.url = base.url_for(request.url or "")
            request.headers = type(request.headers)(base.headers_for(_texts(request.headers)))
            there = _Sending(request, sending.args, sending.kwargs)
            return drive(send_guarded(self._run(there), raises=True))

        return send


class _Sending(NamedTuple):
    """A request, and how the session wants it to be sent."""

    request: requests.PreparedRequest
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def url(self) -> str | None:
        return self.request.url


def _judge(response: requests.Response) -> Steps[requests.HTTPError | None]:
    """The error of a response that reports a failure of the service; else None."""
    if not is_failure(response.status_code):
        return None
    size = response.headers.get("Content-Length", "")
    if size.isdigit() and int(size) <= READ:
        _read(response)
    text = f"{response.status_code} {response.reason} from {urlsplit(response.url).netloc.rpartition('@')[2]}"
    return requests.HTTPError(text, response=response)
    yield  # makes it a generator


def _read(response: requests.Response) -> bytes:
    """Read the body, for this module and for the caller. An error is raised when the caller reads."""
    try:
        return response.content
    except requests.RequestException as error:
        response.raw = _Broken(response.raw, error)
        return b""


class _Broken:
    """A body that could not be read. Reading it raises the error."""

    def __init__(self, raw: Any, error: Exception) -> None:
        self._raw = raw
        self._error = error

    def stream(self, *_: Any, **__: Any) -> Any:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def _texts(headers: Mapping[str, str | bytes]) -> list[tuple[str, str]]:
    """Headers as text; requests also accepts bytes."""
    return [
        (name, value.decode("latin-1") if isinstance(value, bytes) else value)
        for name, value in headers.items()
    ]
