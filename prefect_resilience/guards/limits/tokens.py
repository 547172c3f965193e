"""`TokenLimit`: a limit on the tokens that the whole fleet uses in a minute."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, cast
from urllib.parse import quote

from pydantic import Field, field_serializer

from prefect_resilience.base.drive import Blocking, Steps, sleep_for
from prefect_resilience.base.durations import Duration, Seconds
from prefect_resilience.base.process import in_forked_child, start_thread
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits import listeners, registry
from prefect_resilience.guards.circuits.link import StoreLink
from prefect_resilience.guards.limits.guarding import RateLimitedError, Ticket
from prefect_resilience.guards.limits.line import for_place, for_server, in_line, stand_in_line
from prefect_resilience.guards.limits.shared import logger
from prefect_resilience.guards.limits.usage import Meter, MeteredLimit, Usage, call_with, read_usage
from prefect_resilience.stores.base import Store, change, scan_all

# The bucket of the fleet: the generic cell rate algorithm of `line.py` in tokens, as pure functions.
#
# A document has the time until which all granted tokens take at the pace of the limit. A call starts when the
# tokens granted before it are covered: a large call in a quiet time does not wait, the next one waits for it.
# Grants reach into the future, so that no process asks again while it waits.

PREFIX = "tokens/"
# The part of the limit at which the bucket fills. Estimates miss, and answers are counted when they end:
# with all of it, a provider that counts exactly would reject calls.
SHARE = 0.94
# How much of a quiet time is made up for.
BURST_SECONDS = 0.5
# The number of calls of the fleet whose 95th percentile is reserved for the next one.
SAMPLES = 100
# Before FEW calls are measured, each reserves this part of a minute's tokens.
FEW, FIRST_PART = 5, 0.01
KEPT_FOR = 7 * 86_400.0


class TokenBucket(TypedDict):
    """The document of a limit. Times are of the store's clock."""

    name: str
    per_minute: int
    until: float
    samples: list[int]  # what the latest calls used
    minute: int  # the number of the current minute
    used: list[int]  # the tokens that were settled in this minute and in the one before


def new_bucket(name: str, per_minute: int) -> TokenBucket:
    return TokenBucket(name=name, per_minute=per_minute, until=0.0, samples=[], minute=0, used=[0, 0])


def wait_of(bucket: TokenBucket, now: float) -> float:
    """Seconds until a call may start that asks now."""
    return max(bucket["until"] - now, 0.0)


def grant(bucket: TokenBucket, tokens: float, now: float) -> TokenBucket:
    """The bucket after a grant; with a negative number, after that many tokens were given back."""
    start = max(bucket["until"], now - BURST_SECONDS)
    return {**bucket, "until": start + tokens / pace_of(bucket["per_minute"])}


def count_used(bucket: TokenBucket, samples: list[int], tokens: int, now: float) -> TokenBucket:
    """The bucket after calls that used so many tokens."""
    minute = int(now // 60)
    past, (current, before) = minute - bucket["minute"], bucket["used"]
    used = [current, before] if past <= 0 else [0, current if past == 1 else 0]
    used[0] += tokens
    samples = (bucket["samples"] + samples)[-SAMPLES:]
    return {**bucket, "minute": max(minute, bucket["minute"]), "used": used, "samples": samples}


def pace_of(per_minute: int) -> float:
    """Tokens a second."""
    return per_minute * SHARE / 60


def usual(samples: list[int], per_minute: int) -> float:
    """What such calls usually use: the 95th percentile, at most what the limit allows at all.

    Example:
        >>> usual(list(range(1, 101)), 60_000), usual([], 60_000)
        (95, 600.0)
    """
    if len(samples) < FEW:
        return max(per_minute * FIRST_PART, *samples, 0)
    return min(sorted(samples)[math.ceil(len(samples) * 0.95) - 1], per_minute)


# -- the tokens that this process holds

# How long tokens may be held without a use; the bucket fills meanwhile, also in place of a dead process.
LEASE_SECONDS = 10.0
# The shortest time between two exchanges of a process with the store.
ASK_SECONDS = 0.3
# A process asks for so many seconds of the fleet's pace beyond its next call, at most.
MOST_AHEAD = 0.1
# How often the first caller in line looks for tokens that other calls gave back, and how often a process
# reads the store's clock.
LOOK_SECONDS, CLOCK_SECONDS = 0.05, 30.0


class Account:
    """The tokens of one limit that this process holds."""

    def __init__(self, name: str, per_minute: int) -> None:
        self.name = name
        self.per_minute = per_minute
        self._lock = threading.RLock()  # re-entrant: the garbage collector may end a stream at any time
        # Below 0 if calls used more than they had reserved.
        self.held: float = 0.0
        # Tokens that are granted from `_ready_at` on, by `monotonic()`.
        self._coming = 0.0
        self._ready_at = self._asked_at = self._clock_at = -math.inf
        # Tokens that calls took since the last exchange, those in a lease of the time before it.
        self._taken = 0.0
        self._bucket = new_bucket(name, per_minute)
        self._samples: list[int] = []
        self._used: int = 0
        self._returning = False
        self.is_alone: bool = False
        """Whether the store was unavailable for so long that the limit holds in this process alone."""

    def usual(self) -> float:
        with self._lock:
            return usual((self._bucket["samples"] + self._samples)[-SAMPLES:], self.per_minute)

    def take(self, tokens: float) -> bool:
        """Take the tokens if the process holds them."""
        with self._lock:
            self._ripen()
            if self.held < tokens:
                return False
            self.held -= tokens
            self._taken += tokens
            return True

    def wait(self) -> float:
        """Seconds until the granted tokens may be used; 0: nothing is granted."""
        with self._lock:
            return max(self._ready_at - monotonic(), 0.0) if self._coming else 0.0

    def rest(self) -> float:
        """Seconds until the process may ask the store again."""
        return max(self._asked_at + ASK_SECONDS - monotonic(), 0.0)

    def ask(self, tokens: float, behind: float, patience: float) -> float:
        """Ask for what a call needs, and for a part of what the calls `behind` it do: the seconds until it is
        ready. If they are more than `patience`, nothing is granted. May block. Raises StoreUnavailable."""
        with self._lock:
            self._ripen()
            flow = self._taken / max(monotonic() - self._asked_at, ASK_SECONDS)
            more = min(max(flow, behind), MOST_AHEAD * pace_of(self.per_minute))
            wanted = tokens - self.held + more
        wait = self._exchange(wanted, patience)
        if wait <= patience:
            with self._lock:
                self._coming += wanted
                self._ready_at = monotonic() + wait
        return wait

    def settle(self, reserved: float, used: float) -> None:
        """A call used so many of its reserved tokens. Does not block."""
        with self._lock:
            self.held += reserved - used
            self._used += math.ceil(used)
            if used > 0:
                self._samples = [*self._samples, math.ceil(used)][-SAMPLES:]
            is_much = self.held > MOST_AHEAD * pace_of(self.per_minute)
            if self._returning or self.rest() > 0 or not is_much or in_line(line_of(self.name)):
                return
            self._returning = True
        with suppress(RuntimeError):  # the interpreter ends
            start_thread("tokens", self._give_back, daemon=False)

    def _give_back(self) -> None:
        with self._lock:
            surplus, self.held = max(self.held, 0.0), min(self.held, 0.0)
        with suppress(StoreUnavailable):
            self._exchange(-surplus, math.inf)
        self._returning = False

    def _ripen(self) -> None:
        """Take in the tokens that are ready, and drop those of a lease that has ended."""
        now = monotonic()
        if self._coming and now >= self._ready_at:
            self.held, self._coming = self.held + self._coming, 0.0
        elif not self._coming and now > max(self._ready_at, self._asked_at) + LEASE_SECONDS:
            self.held = min(self.held, 0.0)

    def _exchange(self, wanted: float, patience: float) -> float:
        """Ask the bucket in the store, or that of this process. Returns the seconds until the grant."""
        with self._lock:
            samples, self._samples = self._samples, []
            used, self._used, self._taken = self._used, 0, 0.0
            self._asked_at = monotonic()
        wait = 0.0
        link = registry.link_to(None)

        def step(value: Any) -> TokenBucket:
            nonlocal wait
            bucket = cast("TokenBucket", value or new_bucket(self.name, self.per_minute))
            wait, now = wait_of(bucket, link.now()), link.now()
            bucket = count_used({**bucket, "per_minute": self.per_minute}, samples, used, now)
            return grant(bucket, wanted, now) if wait <= patience else bucket

        try:
            if self.is_alone and not link.is_ready:
                raise StoreUnavailable("it rests")
            self._bucket = link.exchange(lambda store: self._write(store, link, step))
            self.is_alone = False
        except StoreUnavailable:
            if not self.is_alone:
                with self._lock:
                    self._samples, self._used = samples + self._samples, used + self._used
                raise
            self._bucket = step(self._bucket)
        finally:
            listeners.tell(link.notices)
        return wait

    def _write(self, store: Store, link: StoreLink, step: Callable[[Any], TokenBucket]) -> TokenBucket:
        if monotonic() - self._clock_at > CLOCK_SECONDS:
            link.note_clock(store.now())
            self._clock_at = monotonic()
        return change(store, place_of(self.name), step, lasts=KEPT_FOR, now=link.now())


def line_of(name: str) -> str:
    return f"tokens:{name}"


def place_of(name: str) -> str:
    """The key of a limit's bucket in the store."""
    return PREFIX + quote(name, safe="", errors="surrogatepass")


_accounts: dict[str, Account] = {}
in_forked_child(_accounts.clear)


def account_of(name: str, per_minute: int) -> Account:
    """The account of this process."""
    account = _accounts.get(name) or _accounts.setdefault(name, Account(name, per_minute))
    account.per_minute = per_minute
    return account


def read_buckets(store: registry.StoreReference = None) -> list[tuple[TokenBucket, float]]:
    """Each bucket in the store, and the seconds until a call may start. Raises StoreUnavailable."""

    def read(opened: Store) -> list[tuple[TokenBucket, float]]:
        now = opened.now()
        buckets = [cast("TokenBucket", document.value) for _, document in scan_all(opened, PREFIX)]
        return [(count_used(bucket, [], 0, now), wait_of(bucket, now)) for bucket in buckets]

    return registry.link_to(store).exchange(read)


class TokenLimitedError(RateLimitedError):
    """The call would have to wait longer than `max_wait`: there will be room for its `tokens` after
    `retry_after` seconds. Classified as `rate_limit`."""

    def __init__(self, name: str, per_minute: int, tokens: float, retry_after: float) -> None:
        self.per_minute = per_minute
        self.tokens: int = math.ceil(tokens)
        super().__init__(name, per_minute, 60.0, retry_after)
        self.args: tuple[str, ...] = (
            f"token limit {name!r} allows {per_minute} tokens a minute: there will be room for the "
            f"{self.tokens} tokens of this call in {retry_after:.1f} s",
        )


class TokenLimit(MeteredLimit):
    """At most so many tokens a minute, in the whole fleet.

        TokenLimit("openai:{model}", per_minute=200_000)

    A call reserves what 95 % of such calls were measured to use; with `estimate`, that number, or what a
    function of the call's arguments returns. When it ends, it is settled by the usage in its answer, or in
    the chunks of its stream, in the forms of OpenAI, Anthropic and Gemini; `usage` is a function that
    returns it as a number or in one of these forms. A call that failed or was cancelled has used nothing. An
    answer without a usage counts as what was reserved.

    Limits of the same name share one bucket in the store of circuits, in and out of runs. It fills at 94 %
    of `per_minute`, evenly. A process holds the tokens of a moment, so that the store is not asked for each
    call; a dead process loses them. A store that does not answer is retried for `max_wait`, at least for
    2 s, without a `max_wait` for 60 s; then each process has the full rate.

    Callers of a process wait in order of arrival. `max_wait` is in seconds (also "500ms" or a timedelta);
    None waits for ever. A call that would have to wait longer raises `TokenLimitedError`, which says when
    there will be room. Raises `ConfigurationError` for invalid options, and for a call that needs more than
    `per_minute`.
    """

    by_position: ClassVar[tuple[str, ...]] = ("name",)

    name: str = Field(description="The name under which the fleet shares the limit.")  # pyright: ignore
    per_minute: int = Field(strict=True, ge=1, description="The tokens that may be used in a minute.")
    estimate: int | Callable[..., float] | None = Field(
        default=None,
        description="The tokens that a call reserves, or a function of its arguments; null: the usual.",
    )
    usage: Callable[[Any], Any] | None = Field(
        default=None, description="A function that returns the usage in an answer; null: it is read."
    )
    max_wait: Seconds | None = Field(
        default=None, description="The longest wait, in seconds; null: no limit."
    )

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            *,
            per_minute: int,
            estimate: int | Callable[..., float] | None = None,
            usage: Callable[[Any], Any] | None = None,
            max_wait: Duration | None = None,
        ) -> None: ...

    @field_serializer("estimate", "usage", when_used="json-unless-none")
    def _name_function(self, value: Any) -> Any:
        return getattr(value, "__qualname__", repr(value)) if callable(value) else value

    def acquire(self) -> Steps[Ticket]:
        """Wait for the tokens. Raises TokenLimitedError, at once if the wait is known."""
        name, came = cast("str", self.final_name()), monotonic()
        account = account_of(name, self.per_minute)
        tokens = self._reserve(account)
        if in_line(line_of(name)) or not account.take(tokens):
            turn = yield from stand_in_line(line_of(name), 1, self.max_wait)
            if turn is None:
                before = in_line(line_of(name)) * tokens / pace_of(self.per_minute)
                raise TokenLimitedError(name, self.per_minute, tokens, account.wait() + before)
            try:
                yield from self._wait(account, tokens, came)
            finally:
                turn.leave()
        return Meter(self, tokens, account.settle)

    def read(self, answer: Any) -> Usage | None:
        """The usage in an answer."""
        if self.usage is None:
            return read_usage(answer)
        try:
            used = self.usage(answer)
        except Exception as error:  # noqa: BLE001 - the call has succeeded
            logger.warning("usage= of the limit %r failed: %s", self.name, redact(repr(error)))
            return None
        return Usage(math.ceil(used)) if isinstance(used, int | float) else read_usage({"usage": used})

    def amount(self, usage: Usage) -> float | None:
        """The tokens of the call."""
        return usage.total

    def _reserve(self, account: Account) -> float:
        tokens: Any = self.estimate
        if callable(tokens):
            tokens = call_with(tokens, self._arguments or {})
        if tokens is None:
            return account.usual()
        if isinstance(tokens, int | float) and 0 <= tokens <= self.per_minute:
            return tokens
        raise ConfigurationError(
            f"token limit {self.name!r} allows {self.per_minute} tokens a minute, and this call needs "
            f"{tokens!r}: there will never be room for it"
        )

    def _wait(self, account: Account, tokens: float, came: float) -> Steps[None]:
        """The first in line waits for its tokens, which other calls may give back sooner."""
        failed: float | None = None
        while not account.take(tokens):
            waited = monotonic() - came
            patience = max(for_place(self.max_wait, waited, None), 0.0)
            wait, rest = account.wait(), account.rest()
            if wait == 0 and rest == 0:
                behind = (in_line(line_of(account.name)) - 1) * tokens
                try:
                    wait = yield Blocking(partial(account.ask, tokens, behind, patience))
                except StoreUnavailable:
                    failed = monotonic() if failed is None else failed
                    account.is_alone = for_server(self.max_wait, waited, monotonic() - failed) <= 0
            if wait > patience:
                raise TokenLimitedError(account.name, self.per_minute, tokens, wait)
            yield from sleep_for(min(wait or rest, LOOK_SECONDS))
