"""The effect that is going on, for the code inside it and for the HTTP clients it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prefect_resilience.durable.effects.witness import Witness, attend
from prefect_resilience.errors.exceptions import ConfigurationError

if TYPE_CHECKING:
    import httpx

HEADER = "Idempotency-Key"
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True)
class EffectInProgress:
    """One effect while its function runs.

    Nothing holds it but the contexts in which the function, its tasks and its threads run: when it is gone,
    nothing of the call goes on (see `running.py`).
    """

    key: str
    batch_id: str
    generation: int = 1
    witness: Witness = field(default_factory=Witness, compare=False, repr=False)

    @property
    def sent_key(self) -> str:
        """What the receiver gets: an effect that was undone is a new one when it is done again."""
        return sent_key(self.key, self.generation)

    def __reduce__(self) -> tuple[type[EffectInProgress], tuple[str, str, int]]:
        return type(self), (self.key, self.batch_id, self.generation)


def sent_key(key: str, generation: int) -> str:
    """The key of an effect as its receiver sees it: the n-th generation's ends in `~n`."""
    return key if generation == 1 else f"{key}~{generation}"


in_progress: ContextVar[EffectInProgress | None] = ContextVar("prefect_resilience_effect", default=None)


def idempotency_key() -> str:
    """The key of the effect that is going on: the same whenever it is tried again, in whatever process.

    To be called in the function of a task with `effect=`, or in what it calls, also in other threads that
    have its context. Raises ConfigurationError elsewhere.
    """
    now = in_progress.get()
    if now is None:
        raise ConfigurationError(
            'idempotency_key() is for code inside an effect: write @resilient_task(effect="external") and '
            "call it there"
        )
    return now.sent_key


class _SendIdempotencyKey:
    """An httpx event hook, the same one for `Client` and `AsyncClient`."""

    def __call__(self, request: httpx.Request) -> _Awaitable:
        now = in_progress.get()
        if now is None:
            return _nothing
        if request.method in _WRITES and HEADER not in request.headers:
            request.headers[HEADER] = now.sent_key
        return _Awaitable(attend(now.witness, request))

    def __repr__(self) -> str:
        return "send_idempotency_key"


class _Awaitable:
    """What an `AsyncClient` awaits, and a `Client` ignores: so it tells which of them has the request."""

    def __init__(self, awaited: Callable[[], None] | None = None) -> None:
        self._awaited = awaited

    def __await__(self) -> Iterator[Any]:
        if self._awaited is not None:
            self._awaited()
        return iter(())


_nothing = _Awaitable()
send_idempotency_key: _SendIdempotencyKey = _SendIdempotencyKey()
"""Adds `Idempotency-Key` to every POST, PUT, PATCH and DELETE that is made inside an effect, and watches
what leaves and what it is answered, so that an error which proves that nothing was taken counts as proof:
`httpx.Client(event_hooks={"request": [send_idempotency_key]})`, and the same for `httpx.AsyncClient`. A
header that is there already stays."""
