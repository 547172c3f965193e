"""The current effect: its surroundings, its key for the code inside it, and the life of its call."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from prefect_resilience.base.outcomes import is_cancellation
from prefect_resilience.durable.effects.witness import Witness, attend
from prefect_resilience.errors.exceptions import ConfigurationError, NotSent

if TYPE_CHECKING:
    import httpx

    from prefect_resilience.durable.effects.keys import MadeKey
    from prefect_resilience.durable.effects.ledger import Ledger
    from prefect_resilience.durable.effects.model import Pass
    from prefect_resilience.durable.effects.opening import BatchMarks
    from prefect_resilience.telemetry.payloads import CallReport

# The interface of a claim to the run of its task.


@dataclass(frozen=True, slots=True)
class Replayed:
    """The recorded outcome of an effect that is done: no call was made."""

    value: Any
    key: str
    batch_id: str
    external_id: str | None

    @property
    def message(self) -> str:
        id_text = "" if self.external_id is None else f" as {self.external_id!r}"
        return f"{self.key} was done before{id_text} in batch {self.batch_id}"


@dataclass(slots=True)
class CallStart:
    """What a call takes from its arguments before its function first runs and may change them.

    All attempts of the call share it. `asker`: the id of the call that requests an effect. `conversation`:
    the ids of the earlier calls whose outcome its caller knows.
    """

    asker: str | None = None
    conversation: frozenset[str] = frozenset()
    key: MadeKey | None = None
    undo: dict[str, Any] = field(default_factory=dict[str, Any])
    """The record of its compensation."""
    asked: dict[str, Any] = field(default_factory=dict[str, Any])
    """The arguments of `verify`."""
    fixed: bool = True
    """Whether no argument can change."""


class OutsideRuns(Protocol):
    """The part of `EffectSurroundings` with defaults: outside of a run nothing is kept or reported.

    The first three may raise, and block.
    """

    def passed(self) -> Pass:
        """The pass of the code that the run belongs to. Raises StoreUnavailable like `batch_id`."""
        return ()

    def start(self) -> CallStart:
        """The start of the call; the same object for all its attempts."""
        return CallStart()

    def marks(self) -> BatchMarks | None:
        """The marks of the batch outside of the ledger; None if there cannot be any."""
        return None

    def keep(self, reference: str, value: Any) -> str | None:
        """Keep a result that is not JSON. Returns the reason if that failed, else None."""
        return "it is not JSON, and only a task run has a result storage"

    def kept(self, reference: str) -> Any:
        """The value that `keep` kept. Raises LookupError when it is gone."""
        raise LookupError(reference)

    def flow(self) -> tuple[str | None, str | None]:
        """The id of the flow run and the name of the flow."""
        return None, None

    def note_external_begun(self, store_url: str) -> None:
        """An external effect is recorded as intended, and its call is about to be made."""

    def report(self, report: CallReport) -> None:
        """Tell what happened to the effect: it was replayed, is in doubt, or could not be recorded."""


class EffectSurroundings(OutsideRuns, Protocol):
    """The interface of a claim to the run of its task. The first two may raise, and block."""

    def batch_id(self) -> str:
        """The batch that the run belongs to. Raises StoreUnavailable while the batch cannot be determined."""
        ...

    def ledger(self) -> Ledger: ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The call's arguments by name; those of a `**kwargs` are on the same level."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """`node_id`, `task_run_id` and `flow_run_id`, as texts or None."""
        ...


# The current effect, for the code inside it and for its HTTP clients.

HEADER = "Idempotency-Key"
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True)
class EffectInProgress:
    """One effect while its function runs.

    Only the contexts of the function, its tasks and its threads hold it: when it is garbage-collected, all of
    these have ended.
    """

    key: str
    batch_id: str
    generation: int = 1
    external: bool = True
    """Whether it is never sent twice."""
    witness: Witness = field(default_factory=Witness, compare=False, repr=False)
    fence: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Raises NotSent if the effect was settled elsewhere while this process was suspended."""

    @property
    def sent_key(self) -> str:
        """The key for the receiver: after a compensation, the effect is a new one with a new key."""
        return sent_key(self.key, self.generation)

    def __reduce__(self) -> tuple[type[EffectInProgress], tuple[str, str, int]]:
        return type(self), (self.key, self.batch_id, self.generation)


def sent_key(key: str, generation: int) -> str:
    """The key of an effect for its receiver: from the second generation on it ends in `~n`."""
    return key if generation == 1 else f"{key}~{generation}"


in_progress: ContextVar[EffectInProgress | None] = ContextVar("prefect_resilience_effect", default=None)


def idempotency_key() -> str:
    """The key of the current effect: the same for every attempt, in every process.

    Call it in the function of a task with `effect=`, or in functions that it calls, also in other threads
    that have its context. Raises ConfigurationError elsewhere.
    """
    now = in_progress.get()
    if now is None:
        raise ConfigurationError(
            'idempotency_key() is for code inside an effect: write @resilient_task(effect="external") and '
            "call it there"
        )
    now.fence()
    return now.sent_key


class _SendIdempotencyKey:
    """An httpx event hook for both `Client` and `AsyncClient`."""

    def __call__(self, request: httpx.Request) -> _Awaitable:
        now = in_progress.get()
        if now is None:
            return _nothing
        if request.method in WRITES and HEADER not in request.headers:
            request.headers[HEADER] = now.sent_key
        now.fence()
        return _Awaitable(attend(now.witness, request))

    def __repr__(self) -> str:
        return "send_idempotency_key"


class _Awaitable:
    """An `AsyncClient` awaits it and a `Client` ignores it. This shows which of them makes the request."""

    def __init__(self, awaited: Callable[[], None] | None = None) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        if self._awaited is not None:
            self._awaited()
        yield from ()


# The life of one call of an effect's function: whether it was entered, and whether it still runs.
#
# A call may outlive its attempt: in a thread that was abandoned at its deadline, or in a thread that
# `asyncio.to_thread` started for a cancelled coroutine. Such a call is overdue. It owns its effect until it
# ends; its outcome is recorded then.

_nothing = _Awaitable()
send_idempotency_key: _SendIdempotencyKey = _SendIdempotencyKey()
"""Adds `Idempotency-Key` to every POST, PUT, PATCH and DELETE inside an effect; an existing header stays. It
also watches requests and answers, so that an error can prove that the effect did not take place. Use it as
`httpx.Client(event_hooks={"request": [send_idempotency_key]})`, and the same for `httpx.AsyncClient`."""


TIMERS = 1_000


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call: the value that it returned, or its error."""

    returned: bool
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class RunningCall:
    """One call of the function. `watched` wraps it, in the thread or task in which it runs."""

    entered: bool = False
    interrupted: bool = False
    """Whether a coroutine was cancelled: threads that it started may still run."""
    _thread: int | None = None  # of a plain function
    _outcome: CallOutcome | None = None
    _late: Callable[[CallOutcome], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watched(self, fn: Callable[..., Any], *, isasync: bool) -> Callable[..., Any]:
        """The function, wrapped to report here when it begins and ends."""
        if isasync:

            @functools.wraps(fn)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                self._begin()
                try:
                    value = await fn(*args, **kwargs)
                except BaseException as error:
                    if is_cancellation(error):
                        # Its frames hold timers, and the timers hold the contexts of the call.
                        error.__traceback__ = None
                        self.interrupted = True
                    self._end(CallOutcome(False, error=error))
                    raise
                self._end(CallOutcome(True, value))
                return value

            return run_async

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._thread = threading.get_ident()
            self._begin()
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:
                self._end(CallOutcome(False, error=error))
                raise
            self._end(CallOutcome(True, value))
            return value

        return run

    def unwatched(self) -> None:
        """Record that the function cannot be watched and ends with its attempt."""
        self.entered, self._outcome = True, CallOutcome(False)

    def in_child(self) -> Callable[[], None]:
        """Record that the function runs in a child process and ends with its attempt. Call the returned
        function right before it begins."""
        self._outcome = CallOutcome(False)
        return partial(setattr, self, "entered", True)

    @property
    def returned(self) -> CallOutcome | None:
        """The outcome if the function has returned, even if its attempt failed; else None."""
        outcome = self._outcome
        return outcome if outcome is not None and outcome.returned else None

    def leave(self, late: Callable[[CallOutcome], None]) -> bool:
        """End the attempt. Returns whether its call still runs; its thread then passes its outcome to `late`.

        A call that has not begun by now never begins.
        """
        with self._lock:
            self._late = late
            # In this thread it has ended: Ctrl-C struck before or after the function.
            return self.entered and self._outcome is None and self._thread != threading.get_ident()

    def _begin(self) -> None:
        with self._lock:
            if self._late is not None:
                raise NotSent("the attempt was over before the call began")
            self.entered = True

    def _end(self, outcome: CallOutcome) -> None:
        with self._lock:
            # Its traceback would hold this frame, which holds this object.
            self._outcome = outcome if outcome.returned else CallOutcome(False)
            late = self._late
        if late is not None:
            late(outcome)


def when_gone(presence: weakref.ref[Any], then: Callable[[], None]) -> bool:
    """Whether the object is gone; if not, `then` is called once when it goes."""
    there = presence()
    if there is None:
        return True
    del there
    gc.collect()
    there = presence()
    if there is None:
        return True
    reference: list[weakref.ref[Any]] = []

    def gone(_: weakref.ref[Any]) -> None:
        _waiting.discard(reference[0])
        then()

    reference.append(weakref.ref(there, gone))
    _waiting.add(reference[0])
    return False


_waiting: set[weakref.ref[Any]] = set()


def drop_cancelled_timers() -> None:
    """Make the event loop drop its cancelled timers: each holds the context in which it was made.

    A loop drops them in its next turn if most of its timers are cancelled, so this adds 1,000 cancelled ones.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    for _ in range(TIMERS):
        loop.call_later(3600.0, int).cancel()


async def next_turn() -> None:
    """Wait for the next turn of the event loop."""
    import asyncio

    await asyncio.sleep(0)
    await asyncio.sleep(0)
