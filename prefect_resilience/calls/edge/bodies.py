"""Requests and responses of httpx: the start of an error's body, and requests that are not sent too late."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, cast

import httpx

from prefect_resilience.base.drive import Invoke, Steps
from prefect_resilience.calls.edge.exchange import READ, is_failure
from prefect_resilience.errors.exceptions import ConfigurationError, NotSent
from prefect_resilience.guards.limits.usage import BodyUsage


def library_of(message: object) -> Any:
    """The module of a request or a response: httpx or httpx2."""
    return _library_of(type(message))


@cache
def _library_of(cls: Any) -> Any:
    is_new = any(base.__module__.partition(".")[0] == "httpx2" for base in cls.__mro__)
    return sys.modules["httpx2"] if is_new else httpx


def is_whole(message: Any) -> bool:
    """Whether the body of a request or a response is in memory."""
    stream = message.stream
    return type(stream) is httpx.ByteStream or isinstance(stream, library_of(message).ByteStream)


@cache
def _stream_class(kind: type[Any], library: Any) -> type[Any]:
    """`_Rest` or `_Metered` as a stream of this library."""
    return type(kind.__name__, (kind, library.SyncByteStream, library.AsyncByteStream), {})


def as_answer(answer: Any, isasync: bool) -> Any:
    """A response, also that of a fallback, in a form that the client can read. Raises ConfigurationError."""
    library = library_of(answer)
    kind = library.AsyncByteStream if isasync else library.SyncByteStream
    if not isinstance(answer, library.Response):
        raise ConfigurationError(f"a fallback of a transport must return a Response, not {answer!r:.100}")
    if not isinstance(answer.stream, kind):
        if not answer.is_closed:
            raise ConfigurationError(
                "a fallback returned an unread Response of the other kind of client (sync or async): read it "
                "first"
            )
        answer.stream = library.ByteStream(answer.content)
    return answer


# The body of an error.


def judge(response: Any) -> Steps[Exception | None]:
    """The error of a response that reports a failure of the service; else None. READ bytes of the body are
    read; the response still has all of it."""
    if not is_failure(response.status_code):
        return None
    if is_whole(response):
        return _unwell(response, None)
    stream = response.stream
    response.stream = rest = _stream_class(_Rest, library_of(response))(response)
    isasync = hasattr(stream, "__aiter__") and not hasattr(stream, "__iter__")
    whole = cast("bool", (yield from rest.read_some(isasync)))
    return _unwell(response, b"".join(rest.read) if whole else None)


def _unwell(response: Any, body: bytes | None) -> Exception:
    """The error of an answer, with its body if all of it was read."""
    shown, library = response, library_of(response)
    if body is not None:
        # A body that cannot be unpacked must not hide the status.
        with suppress(library.DecodingError):
            shown = library.Response(
                response.status_code, headers=response.headers, content=body, request=response.request
            )
            shown.extensions = response.extensions
    status = f"{response.status_code} {response.reason_phrase}".strip()
    message = f"{status} from {response.request.url.host}"
    return library.HTTPStatusError(message, request=response.request, response=shown)


class _Rest:
    """A body whose beginning was read: that, then the rest, or the error in which reading ended."""

    def __init__(self, response: Any) -> None:
        self.read: list[bytes] = []
        self._whole: Any = response.stream
        self._rest: Any = None
        self._error: Exception | None = None

    def read_some(self, isasync: bool) -> Steps[bool]:
        """Read READ bytes, and a chunk more if there is one. Returns whether that was all."""
        self._rest, step = (aiter(self._whole), anext) if isasync else (iter(self._whole), next)
        size = 0
        try:
            while (chunk := (yield Invoke(step, (self._rest, None)))) is not None:
                self.read.append(chunk)
                size += len(chunk)
                if size > READ:
                    return False
        except Exception as error:  # noqa: BLE001 - whoever reads the body gets it
            self._error = error
        return self._error is None

    def __iter__(self) -> Iterator[bytes]:
        yield from self.read
        if self._error is not None:
            raise self._error
        yield from self._rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.read:
            yield chunk
        if self._error is not None:
            raise self._error
        async for chunk in self._rest:
            yield chunk

    def close(self) -> None:
        self._whole.close()

    async def aclose(self) -> None:
        await self._whole.aclose()


# The usage in the answer of a language model.

HAS_USAGE = ("application/json", "text/event-stream")


def meter_body(response: Any) -> Any:
    """The response; limits on what calls use read its body while the client does."""
    kind = response.headers.get("Content-Type", "")
    if response.status_code < 400 and kind.startswith(HAS_USAGE):
        response.stream = _stream_class(_Metered, library_of(response))(response)
    return response


class _Metered(BodyUsage):
    """A body that is kept, as far as it was read, until its end."""

    def __init__(self, response: Any) -> None:
        body = response.content if response.is_closed else None
        super().__init__(response.headers.get("Content-Type", ""), body)
        self._response: Any = response
        self._whole: Any = response.stream
        self._chunks: list[bytes] = []

    def _end(self, is_whole: bool) -> None:
        library, headers, body = library_of(self._response), self._response.headers, b""
        with suppress(library.DecodingError):
            body = library.Response(200, headers=headers, content=b"".join(self._chunks)).content
        self.settle(body, is_whole)

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._whole:
            self._chunks.append(chunk)
            yield chunk
        self._end(True)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._whole:
            self._chunks.append(chunk)
            yield chunk
        self._end(True)

    def close(self) -> None:
        self._whole.close()
        self._end(False)

    async def aclose(self) -> None:
        await self._whole.aclose()
        self._end(False)

    def __del__(self) -> None:  # a client may drop a stream
        self._end(False)


# Requests that are abandoned while they wait for a connection: they are not sent later.


def stoppable(request: Any, is_over: Callable[[], bool]) -> Any:
    """The request, for an attempt in a thread: if the attempt is over before there is a connection, the
    request is not sent, because another attempt may have been made."""
    around = request.extensions.get("trace")

    def trace(name: str, info: dict[str, Any]) -> None:
        if name.endswith(".send_request_headers.started") and is_over():
            raise NotSent("the attempt had ended before its request was sent")
        if around is not None:
            around(name, info)

    return copy_request(request, request.url, request.headers, trace=trace)


def copy_request(request: Any, url: Any, headers: Any, **extensions: Any) -> Any:
    """The same request for another URL, with other headers and more extensions."""
    rest = {"stream": request.stream, "extensions": {**request.extensions, **extensions}}
    return library_of(request).Request(request.method, url, headers=headers, **rest)
