"""Fallbacks of a transport: other servers for the same requests, and functions of the request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from prefect_resilience.calls.edge.exchange import Exchange
from prefect_resilience.durable.effects.current import HEADER
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.fallbacks import Fallback, arguments_by_name, as_fallbacks


def elsewhere(
    fallbacks: Any,
    sender: Callable[[BaseURL], Callable[..., Any]],
    isasync: bool,
    asked: Callable[[Any], Any] = lambda request: request,
) -> Any:
    """The fallbacks of a transport: base URLs become `sender(url)`; functions get the client's request, which
    is `asked(exchange.request)`."""
    listed: list[Any] = [*fallbacks] if isinstance(fallbacks, list | tuple) else [fallbacks]
    steps: list[Fallback] = []
    for item in [] if fallbacks is None else listed:
        if isinstance(item, str | BaseURL):
            base = BaseURL(item) if isinstance(item, str) else item
            steps.append(Fallback(_Elsewhere(sender(base), isasync), name=base.url))
            continue
        (step,) = as_fallbacks(item)
        steps.append(replace(step, to=_Elsewhere(_with_request(step, asked), step.isasync)))
    return steps


class BaseURL:
    """Another server for the same requests: `fallback=[BaseURL("https://b.example/v1", headers={...})]`.

    The path of a request is appended to the URL's own path; a prefix that both share is not repeated.
    `headers` replace those of the request. Credentials of the request (`Authorization`, `Cookie`, and headers
    with "key" or "token" in their names) are left out unless `same_credentials=True`. Raises
    ConfigurationError.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, same_credentials: bool = False
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigurationError(f"{redact(url)!r} is not a base URL: write 'https://b.example/v1'")
        self.url: str = url
        self.headers: Mapping[str, str] = dict(headers or {})
        self.same_credentials: bool = same_credentials

    def url_for(self, url: str) -> str:
        """The URL of a request at this server."""
        base, requested = urlsplit(self.url), urlsplit(url)
        path, own = requested.path or "/", base.path.rstrip("/")
        if own and (path == own or path.startswith(own + "/")):
            path = path[len(own) :]
        return urlunsplit((base.scheme, base.netloc, own + path, requested.query, ""))

    def headers_for(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The headers of a request at this server."""
        own = {name.casefold() for name in self.headers} | {"host"}
        pairs = [(name, value) for name, value in headers if name.casefold() not in own]
        if not self.same_credentials:
            pairs = [(name, value) for name, value in pairs if not _is_credential(name.casefold())]
        return [*pairs, *self.headers.items()]


def _is_credential(name: str) -> bool:
    if name == HEADER.casefold():
        return False
    return name in ("authorization", "proxy-authorization", "cookie") or "key" in name or "token" in name


class _Elsewhere:
    """A fallback that is used only if the request may be sent again."""

    def __init__(self, send: Callable[..., Any], isasync: bool) -> None:
        self.isasync = isasync
        self._send = send

    def __call__(self, exchange: Exchange, error: ErrorContext) -> Any:
        refusal = None if exchange.error is None else exchange.refusal_elsewhere(exchange.error)
        if refusal is not None:
            raise NotRepeated(f"not sent to the fallback: {refusal}")
        return self._send(exchange, error)


class NotRepeated(ResilienceError):
    """A request was not sent to a fallback, because the first server may have processed it."""


def _with_request(step: Fallback, asked: Callable[[Any], Any]) -> Callable[..., Any]:
    """A user's fallback, called with those of `request` and `error` that it names."""
    if step.recalls:
        raise ConfigurationError(
            "a transport stores no responses, so it cannot use Fallback.last_known_good()"
        )
    target = step.to
    wanted = inspect.signature(target).parameters
    for name, parameter in wanted.items():
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_one and parameter.default is parameter.empty and name not in ("request", "error"):
            raise ConfigurationError(
                f"fallback {step.name!r} requires the parameter {name!r}: a transport passes only request "
                "and error"
            )

    def call(exchange: Exchange, error: ErrorContext) -> Any:
        args, kwargs = arguments_by_name(wanted, {"request": asked(exchange.request), "error": error}, {})
        return target(*args, **kwargs)

    return call
