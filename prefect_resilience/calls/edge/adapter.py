"""An adapter that guards the requests of a `requests.Session`. The session's code does not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from prefect_resilience.base.drive import Steps, drive
from prefect_resilience.base.edge.settings import current_settings, enabled
from prefect_resilience.calls.edge.elsewhere import BaseURL, elsewhere
from prefect_resilience.calls.edge.exchange import (
    IDEMPOTENT,
    READ,
    WRITES,
    Exchange,
    HttpRun,
    as_methods,
    attempted,
    exchanged,
    guard_of,
    is_failure,
)
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.effects.current import HEADER, in_progress
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.guards.timeouts.timeout import Timeout

if TYPE_CHECKING:
    from prefect_resilience.calls.edge.options import ClassifyOption, LimitsOption, RetryOption, TimeoutOption
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker


class ResilientAdapter(HTTPAdapter):
    """Guards each request of a `requests.Session`, as `ResilientTransport` does for httpx.

        session.mount("https://", ResilientAdapter())

    retry, circuit, limits, timeout, deadline, fallback, classify, allowed_methods: as in
        `ResilientTransport`. All other options are those of `requests.adapters.HTTPAdapter`, except
        `max_retries`.

    Inside an effect, the requests are not recorded as evidence, as they are with httpx. Raises
    ConfigurationError for a wrong option.
    """

    def __init__(
        self,
        *,
        retry: RetryOption = Retry(),  # noqa: B008 - a policy cannot be changed
        circuit: CircuitBreaker | str | None = "http:{host}",
        limits: LimitsOption = None,
        timeout: TimeoutOption = None,
        deadline: float | None = None,
        fallback: Any = None,
        classify: ClassifyOption = None,
        allowed_methods: Iterable[str] = IDEMPOTENT,
        **options: Any,
    ) -> None:
        if "max_retries" in options:
            raise ConfigurationError("ResilientAdapter does not accept max_retries=: use retry=")
        bound = Timeout.of(timeout, current_settings().operations)
        if bound is not None and bound.idle is not None:
            raise ConfigurationError(
                "ResilientAdapter does not support idle=: use the timeout of requests, as in "
                "session.get(..., timeout=5)"
            )
        ours = {"retry": retry, "circuit": circuit, "limits": limits, "timeout": bound}
        steps = elsewhere(fallback, self._to, isasync=False, asked=lambda sending: sending.request)
        others = {"deadline": deadline, "fallback": steps, "classify": classify}
        self._guard: Guard = guard_of({**ours, **others}, self._once, isasync=False)
        self._deadline = deadline
        self._methods = as_methods(allowed_methods)
        super().__init__(**options)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if not enabled():
            return super().send(request, *args, **kwargs)
        return drive(exchanged(self._run(_Sending(request, args, kwargs))))

    def _run(self, sending: _Sending, until: float | None = None) -> HttpRun:
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
            close=_close,
            until=until,
        )
        return HttpRun(self._guard, exchange, self._deadline)

    def _once(self, exchange: Exchange, host: str = "", method: str = "", prefix: str = "") -> Any:
        sending: _Sending = exchange.request
        effect = in_progress.get()
        if effect is not None and exchange.method in WRITES and HEADER not in sending.request.headers:
            sending.request.headers[HEADER] = effect.sent_key

        def send(_: int) -> requests.Response:
            return super(ResilientAdapter, self).send(sending.request, *sending.args, **sending.kwargs)

        return drive(attempted(exchange, send, _judged, threaded=self._guard.timeout is not None))

    def _to(self, base: BaseURL) -> Any:
        def send(exchange: Exchange, _: Any) -> requests.Response:
            sending: _Sending = exchange.request
            request = sending.request.copy()
            request.url = base.url_for(request.url or "")
            request.headers = type(request.headers)(base.headers_for(_texts(request.headers)))
            there = _Sending(request, sending.args, sending.kwargs)
            return drive(exchanged(self._run(there, exchange.until), raises=True))

        return send


class _Sending:
    """A request, and how the session wants it to be sent."""

    def __init__(
        self, request: requests.PreparedRequest, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.request = request
        self.args = args
        self.kwargs = kwargs


def _judged(response: requests.Response) -> Steps[requests.HTTPError | None]:
    """The error of a response that reports a failure of the service; else None."""
    if not is_failure(response.status_code):
        return None
    size = response.headers.get("Content-Length", "")
    if size.isdigit() and int(size) <= READ:
        try:
            response.content  # noqa: B018 - it is read here, for the classification and for the caller
        except requests.RequestException as error:
            response.raw = _Broken(response.raw, error)
    said = f"{response.status_code} {response.reason} from {urlsplit(response.url).netloc.rpartition('@')[2]}"
    return requests.HTTPError(said, response=response)
    yield  # makes it a generator


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


def _close(response: requests.Response) -> None:
    response.close()
