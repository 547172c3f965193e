"""One guarded HTTP request, from any client: whether it may be repeated, and what its effect records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from prefect_resilience.base.deadlines import current_deadline
from prefect_resilience.base.drive import Invoke, Steps
from prefect_resilience.base.edge.current_settings import current_settings
from prefect_resilience.calls.edge.call_options import as_policy, make_guard
from prefect_resilience.calls.edge.local import LocalRun, call_guarded
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.effects.current import WRITES, EffectInProgress, in_progress
from prefect_resilience.durable.effects.evidence import never_left
from prefect_resilience.durable.effects.witness import attest_unsent
from prefect_resilience.errors.classify.http import status_of
from prefect_resilience.errors.context import ATTRIBUTE
from prefect_resilience.errors.exceptions import (
    AttemptTimeout,
    CircuitOpenError,
    ConfigurationError,
    NotBegun,
)
from prefect_resilience.guards.limits.guarding import LimitRefused
from prefect_resilience.guards.timeouts.timeout import Timeout
from prefect_resilience.telemetry.payloads import CallReport

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""The methods that may be repeated (RFC 9110, section 9.2.2); others need an `Idempotency-Key`."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""The methods that change nothing (RFC 9110, section 9.2.1)."""

MOST_REPLAYED = 8_000_000
"""The most bytes of a request's body that are kept in memory, so that it can be sent again."""

READ = 100_000
"""The most bytes of an error's body that are read to classify it."""

NOT_TAKEN = frozenset({425, 429})
"""The failures by which a service says that it did nothing."""

UNWELL = frozenset({408, 425, 429})
"""The statuses below 500 that are failures of the service or ask the client to wait."""


UNFINISHED = AttemptTimeout(0.0)
"""Stands for the error of an attempt that has none: its request may have been taken."""


def as_methods(methods: Any) -> frozenset[str]:
    """`allowed_methods=` checked. Raises ConfigurationError."""
    if methods is IDEMPOTENT:
        return IDEMPOTENT
    is_list = isinstance(methods, Iterable) and not isinstance(methods, str)
    listed: list[Any] = [*methods] if is_list else []
    if not is_list or not all(isinstance(name, str) for name in listed):
        raise ConfigurationError(
            f"allowed_methods={methods!r} is not a list of HTTP methods: write ['GET', 'POST']"
        )
    return frozenset(name.upper() for name in listed)


def is_failure(status: int) -> bool:
    """Whether a status is a failure of the service. All other responses are returned unchanged."""
    return status >= 500 or status in UNWELL


def may_be_abandoned(guard: Guard) -> bool:
    """Whether an attempt of a plain function may go on in its thread after its time is up."""
    return guard.timeout is not None or current_deadline.get() is not None


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and the responses to its attempts. `request` is the client's own object."""

    request: Any
    method: str
    host: str
    path: str
    repeatable: bool
    """Whether its body can be sent again."""
    has_key: bool
    """Whether it has an Idempotency-Key, its own or that of the effect around it."""
    close: Callable[[Any], Any]
    """Closes a response that will not be read."""
    methods: frozenset[str]
    """The methods that may be repeated without an Idempotency-Key."""
    effect: EffectInProgress | None = field(default_factory=in_progress.get)
    last: Any = None
    """The response to the latest attempt, if it was a failure of the service."""
    good: Any = None
    """The response to the latest attempt, if it is the one to return."""
    error: BaseException | None = None
    """The error of the latest attempt; `UNFINISHED` if it is still running or was interrupted."""
    _over: int = 0
    _arrived: Any = None
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.has_key = self.has_key or (self.effect is not None and self.method in WRITES)

    def refusal(self, error: BaseException) -> str | None:
        """Why the request may not be sent again after this error; None if it may be."""
        if never_left(error):
            return None
        if status_of(error) not in NOT_TAKEN:
            if self.effect is not None and self.effect.external and self.method not in SAFE:
                return f"the {self.method} may have taken effect, and an external effect is not repeated"
            if self.method not in self.methods and not self.has_key:
                return f"a {self.method} without an Idempotency-Key is not retried (see allowed_methods=)"
        return None if self.repeatable else "the request body can be sent only once"

    def refusal_elsewhere(self, error: BaseException) -> str | None:
        """Why the request may not be sent to another server; None if it may be. The other server may know
        neither its `Idempotency-Key` nor what the first server did."""
        taken = not never_left(error) and status_of(error) not in NOT_TAKEN
        if (
            taken
            and self.method not in SAFE
            and (self.methods == IDEMPOTENT or self.method not in self.methods)
        ):
            return f"the first server may have processed the {self.method} (see allowed_methods=)"
        return self.refusal(error)

    @property
    def prefix(self) -> str:
        """The first segment of the path: "/v1" of "/v1/users"."""
        return "/" + self.path.lstrip("/").partition("/")[0]

    def read_json(self) -> Any:
        """The JSON of the request; None if it has none."""
        sent = getattr(self.request, "request", self.request)  # with `requests`, an adapter's
        with suppress(Exception):
            return json.loads(sent.body if hasattr(sent, "body") else sent.content)
        return None

    def began(self) -> int:
        """The number of the attempt that begins. The response to the previous one is no longer read."""
        self.error = UNFINISHED
        return self._over

    def is_over(self, attempt: int) -> bool:
        return self._over > attempt

    def over(self) -> None:
        """The attempt has failed. If its call still runs in a thread, its response will be closed."""
        with self._lock:
            self._over += 1
            arrived, self._arrived = self._arrived, None
        if arrived is not None:  # in the moment in which its time was up
            arrived.close()

    def arrives(self, attempt: int, answer: Any) -> bool:
        """Whether the response to this attempt is still awaited; if not, it must be closed."""
        with self._lock:
            if self._over > attempt:
                return False
            self._arrived = answer if hasattr(answer, "close") else None
            return True

    def fails(self, attempt: int, error: BaseException, answer: Any = None) -> None:
        """This attempt failed. Its error and its response, if there is one, are kept if still awaited."""
        with self._lock:
            if self._over == attempt:
                self.error, self.last, self._arrived = error, answer, None

    def drop_response(self) -> Steps[None]:
        """Close the response to the latest attempt."""
        last, self.last = self.last, None
        if last is not None:
            yield Invoke(self.close, (last,))

    def give_up(self) -> Steps[None]:
        """Close the responses that have arrived, because the call was cancelled."""
        self.over()
        yield from self.drop_response()
        if self.good is not None:
            yield Invoke(self.close, (self.good,))


class HttpRun(LocalRun):
    """The surroundings of one request."""

    guard: Guard

    def __init__(self, guard: Guard, exchange: Exchange) -> None:
        super().__init__(f"{exchange.method} {exchange.host}", guard, (exchange,), {})
        self.exchange = exchange

    @property
    def parameters(self) -> Mapping[str, Any]:
        sent = self.exchange
        of_name = {"exchange": sent, "host": sent.host, "method": sent.method, "prefix": sent.prefix}
        if any(limit.metered for limit in self.guard.limits):
            return {**of_name, "body": sent.read_json()}
        return of_name

    def request_attributes(self) -> dict[str, Any]:
        sent = self.exchange
        url = urlsplit(str(sent.request.url))
        port = url.port or (80 if url.scheme == "http" else 443)
        return {"http.request.method": sent.method, "server.address": url.hostname, "server.port": port}

    def response_status(self) -> int | None:
        sent = self.exchange
        return getattr(sent.last if sent.good is None else sent.good, "status_code", None)

    def retry_refusal(self, error: Exception) -> Steps[str | None]:
        return self.exchange.refusal(error)
        yield  # makes it a generator

    def report(self, report: CallReport) -> None:
        if report.failure is not None:
            self.exchange.over()
            extensions = getattr(self.exchange.last, "extensions", None)
            if isinstance(extensions, dict):
                extensions[ATTRIBUTE] = report.failure  # so that a guard around the client finds it
        super().report(report)


def guard_of(options: Mapping[str, Any], send: Callable[..., Any], isasync: bool) -> Guard:
    """The guard of a transport, with its options checked.

    `send(exchange, host, method, prefix)` makes one attempt; names of circuits and limits may use the last
    three.
    """
    timeout = Timeout.of(options["timeout"], current_settings().operations)
    if timeout is not None and timeout.mode == "process":
        raise ConfigurationError("a transport cannot send in a child process: leave mode= out of its timeout")
    if timeout is not None and timeout.idle is not None:
        raise ConfigurationError(
            "a transport has no idle=: use the read timeout of the client, as in httpx.Timeout(30, read=10)"
        )
    return make_guard(send, isasync, as_policy(options["retry"]), {**options, "timeout": timeout})


def send_guarded(run: HttpRun, first: Steps[Any] | None = None, *, raises: bool = False) -> Steps[Any]:
    """Send with all guards. Returns the response, even if it is a failure of the service; with `raises`, its
    error is raised. `first`: the end of a first attempt that failed."""
    exchange = run.exchange
    try:
        answer = yield from call_guarded(run, first)
    except Exception as error:
        refused = isinstance(error, CircuitOpenError | LimitRefused | NotBegun)
        if refused and exchange.effect is not None:
            attest_unsent(exchange.effect.witness, exchange.request)
        if not raises and not refused and exchange.last is not None:
            return exchange.last
        yield from exchange.drop_response()
        raise
    except GeneratorExit:  # after which nothing may be awaited
        exchange.over()
        raise
    except BaseException:
        yield from exchange.give_up()
        raise
    finally:
        exchange.error = None  # its traceback has these frames, which hold the exchange
    yield from exchange.drop_response()
    return answer


def send_attempt(
    exchange: Exchange,
    send: Callable[[int], Any],
    judge: Callable[[Any], Steps[Exception | None]],
    *,
    threaded: bool,
) -> Steps[Any]:
    """One attempt: the response, or an error if it is a failure of the service. `judge` makes the error;
    `send` gets the attempt's number.

    `threaded`: the attempt may be abandoned in its thread.
    """
    yield from exchange.drop_response()
    attempt = exchange.began()
    try:
        answer = yield Invoke(send, (attempt,))
    except Exception as failure:
        exchange.fails(attempt, failure)
        raise
    if threaded and not exchange.arrives(attempt, answer):
        yield Invoke(exchange.close, (answer,))
        return answer
    yield from check_response(exchange, answer, judge, attempt)
    exchange.good = answer
    return answer


def check_response(
    exchange: Exchange, answer: Any, judge: Callable[[Any], Steps[Exception | None]], attempt: int = 0
) -> Steps[None]:
    """Raise the error of a response that is a failure of the service; the response is kept."""
    try:
        error = yield from judge(answer)
    except BaseException as failure:
        if not isinstance(failure, GeneratorExit):  # after which nothing may be awaited
            yield Invoke(exchange.close, (answer,))
        raise
    if error is not None:
        exchange.fails(attempt, error, answer)
        raise error
