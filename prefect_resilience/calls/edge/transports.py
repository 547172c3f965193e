"""Transports that guard the requests of an httpx client. The client's code does not change.

Newer SDKs are built on httpx2, which has the same classes under another name. Each transport serves clients
of both libraries: the class of the request says which one it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from operator import methodcaller
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import anyio
import httpx

from prefect_resilience.base.drive import adrive, drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.process import setting
from prefect_resilience.calls.edge import bodies
from prefect_resilience.calls.edge.elsewhere import BaseURL, elsewhere
from prefect_resilience.calls.edge.exchange import (
    IDEMPOTENT,
    MOST_REPLAYED,
    Exchange,
    HttpRun,
    as_methods,
    check_response,
    guard_of,
    is_failure,
    may_be_abandoned,
    send_attempt,
    send_guarded,
)
from prefect_resilience.calls.edge.local import current_call
from prefect_resilience.calls.first import FirstAttempt
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.effects.current import HEADER, in_progress, send_idempotency_key
from prefect_resilience.guards.retries.policy import DEFAULT_RETRY

Inner = TypeVar("Inner")

if TYPE_CHECKING:
    import httpx2

    from prefect_resilience.base.durations import Duration
    from prefect_resilience.calls.edge.call_options import (
        ClassifyOption,
        LimitsOption,
        RetryOption,
        TimeoutOption,
    )
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker

    class _Transport(httpx.BaseTransport, httpx2.BaseTransport):
        def handle_request(self, request: Any) -> Any: ...

    class _AsyncTransport(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any: ...
else:  # a client only calls these methods; and SDKs on httpx2 reject what is derived from a class of httpx

    class _Transport:
        def __enter__(self):
            if self._inner is not None:
                self._inner.__enter__()
            return self

        def __exit__(self, *error):
            if self._inner is not None:
                self._inner.__exit__(*error)

    class _AsyncTransport:
        async def __aenter__(self):
            if self._inner is not None:
                await self._inner.__aenter__()
            return self

        async def __aexit__(self, *error):
            if self._inner is not None:
                await self._inner.__aexit__(*error)


class _HttpxGuards(Generic[Inner]):
    """What both transports have in common. `Inner`: a transport of httpx or httpx2."""

    _isasync: ClassVar[bool]
    _driver: ClassVar[staticmethod[..., Any]]

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
        transport: Inner | None = None,
    ) -> None:
        self._inner: Any = transport  # sends; None until the first request, if the user gave none
        self._methods = as_methods(allowed_methods)
        self._making = Lock()
        options = {"retry": retry, "circuit": circuit, "limits": limits, "classify": classify}
        options |= {"timeout": timeout, "deadline": deadline}
        options["fallback"] = elsewhere(fallback, self._to, self._isasync)
        self._guard: Guard = guard_of(options, self._request, self._isasync)
        self._first = FirstAttempt(self._guard, self._begin)
        self._metered = any(limit.metered for limit in self._guard.limits)
        self._by_prefix = any("prefix" in guarding.fields for guarding in self._guard.entered_in_order)

    _once: Callable[..., Any]
    """Sends a request once, unless its second argument says that its attempt is over."""
    _begin: Callable[..., Any]
    """The first attempt, if it needs no generators."""

    def _inner_transport(self, request: Any) -> Any:
        """The transport that sends, of the client's own library."""
        with self._making:
            if self._inner is None:
                library = bodies.library_of(request)
                self._inner = library.AsyncHTTPTransport() if self._isasync else library.HTTPTransport()
            return self._inner

    def _run(self, request: httpx.Request) -> HttpRun:
        url = request.url
        exchange = Exchange(
            request,
            request.method,
            url.netloc.decode("ascii"),
            url.path if self._by_prefix else "",
            repeatable=bodies.is_whole(request),
            has_key=request.method not in self._methods and HEADER in request.headers,
            methods=self._methods,
            close=_aclose if self._isasync else methodcaller("close"),
        )
        return HttpRun(self._guard, exchange)

    def _request(self, exchange: Exchange, host: str = "", method: str = "", prefix: str = "") -> Any:
        """Send once. The names of circuits and limits may use these parameters."""
        threaded = not self._isasync and may_be_abandoned(self._guard)

        def send(attempt: int) -> Any:
            over = partial(exchange.is_over, attempt) if threaded else None
            return self._once(exchange.request, over)

        return self._driver(send_attempt(exchange, send, bodies.judge, threaded=threaded))

    def _to(self, base: BaseURL) -> Callable[[Exchange, Any], Any]:
        """A fallback that sends to another server."""

        def send(exchange: Exchange, _: Any) -> Any:
            original: httpx.Request = exchange.request
            url = type(original.url)(base.url_for(str(original.url)))
            headers = base.headers_for(original.headers.multi_items())
            host = ("Host", url.netloc.decode("ascii"))
            again = self._run(bodies.copy_request(original, url, [host, *headers]))
            return self._driver(send_guarded(again, raises=True))

        return send


def _buffers(request: httpx.Request, guard: Guard, methods: frozenset[str]) -> bool:
    """Whether the body of a request is kept in memory, so that it can be sent again."""
    if bodies.is_whole(request) or (guard.retry.most_retries == 0 and not guard.fallbacks):
        return False
    if request.method not in methods and HEADER not in request.headers and in_progress.get() is None:
        return False
    size = request.headers.get("Content-Length", "")
    return size.isdigit() and int(size) <= MOST_REPLAYED


class ResilientTransport(_HttpxGuards["httpx.BaseTransport | httpx2.BaseTransport"], _Transport):
    """Guards each request of an `httpx.Client`, and of each SDK that is built on httpx or httpx2.

        client = httpx.Client(transport=ResilientTransport())

    retry, classify: as in `resilient_task`.
    circuit, limits: as in `resilient_task`. Their names may contain `{host}`, `{method}` and `{prefix}`, the
        first segment of the path. By default there is one circuit for each host and port. A `TokenLimit`
        reads the body of a response as the client does; its `estimate` gets the request's JSON as `body`.
    timeout: seconds that one attempt may take until the headers of its response arrive. The wait for each
        chunk of a body is the read timeout of the client, as in `httpx.Timeout(30, read=10)`.
    deadline: seconds for all attempts and delays together, including those at the URLs of `fallback`.
    fallback: base URLs such as "https://b.example/v1" or `BaseURL`, or functions of the `request`.
    allowed_methods: the methods that may be retried. Default: GET, HEAD, OPTIONS, TRACE, PUT and DELETE. Add
        "POST" if a POST may be made twice, as with a language model.
    transport: sends the requests; by default the `HTTPTransport()` of the client's library.

    A response is classified before any code raises: 408, 425, 429 and 5xx are failures. A request is retried
    if its method is allowed, if it has an `Idempotency-Key`, if the status was 425 or 429, or if it never
    left; its body must be one that can be sent a second time. When all attempts are used, the last response
    is returned unchanged, or the last error is raised. The body of a response is not guarded. Inside
    an effect, requests get its `Idempotency-Key`, and each one that leaves is recorded as
    evidence.

    Raises CircuitOpenError, LimitRefused, AttemptTimeout, the errors of the transport, and ConfigurationError
    for a wrong option.
    """

    _isasync, _driver = False, staticmethod(drive)

    def handle_request(self, request: Any) -> Any:
        inner = self._inner or self._inner_transport(request)
        if not is_enabled():
            return inner.handle_request(request)
        if _buffers(request, self._guard, self._methods):
            request.read()
        run = self._run(request)
        with setting(current_call, run):
            answer = self._first.call(run, run.args, {}, send_guarded)
        return bodies.as_answer(answer, isasync=False)

    def _begin(self, exchange: Exchange) -> httpx.Response:
        try:
            answer = self._once(exchange.request)
            if is_failure(answer.status_code):
                drive(check_response(exchange, answer, bodies.judge))
        except Exception as error:
            exchange.error = error
            raise
        return answer

    def _once(self, request: httpx.Request, is_over: Callable[[], bool] | None = None) -> httpx.Response:
        send_idempotency_key(request)
        sent = request if is_over is None else bodies.stoppable(request, is_over)
        response = self._inner.handle_request(sent)
        response.request = request
        return bodies.meter_body(response) if self._metered else response

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


class AsyncResilientTransport(
    _HttpxGuards["httpx.AsyncBaseTransport | httpx2.AsyncBaseTransport"], _AsyncTransport
):
    """The transport of an `httpx.AsyncClient`: see `ResilientTransport`."""

    _isasync, _driver = True, staticmethod(adrive)

    async def handle_async_request(self, request: Any) -> Any:
        inner = self._inner or self._inner_transport(request)
        if not is_enabled():
            return await inner.handle_async_request(request)
        if _buffers(request, self._guard, self._methods):
            await request.aread()
        run = self._run(request)
        try:
            with setting(current_call, run):
                answer = await self._first.acall(run, run.args, {}, send_guarded)
        except asyncio.CancelledError:
            if run.exchange.good is not None:  # its outcome was not yet merged into the store
                await _aclose(run.exchange.good)
            raise
        return bodies.as_answer(answer, isasync=True)

    async def _begin(self, exchange: Exchange) -> httpx.Response:
        try:
            answer = await self._once(exchange.request)
            if is_failure(answer.status_code):
                await adrive(check_response(exchange, answer, bodies.judge))
        except Exception as error:
            exchange.error = error
            raise
        exchange.good = answer
        return answer

    async def _once(self, request: httpx.Request, _: object = None) -> httpx.Response:
        await send_idempotency_key(request)
        response = await self._inner.handle_async_request(request)
        response.request = request
        return bodies.meter_body(response) if self._metered else response

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()


async def _aclose(response: httpx.Response) -> None:
    with anyio.CancelScope(shield=True):  # also when the attempt is cancelled
        await response.aclose()
