"""`TokenLimit`: a limit on the tokens that the whole fleet uses in a minute."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, cast

from pydantic import Field, field_serializer

from prefect_resilience.base.drive import Blocking, Steps
from prefect_resilience.base.durations import Duration
from prefect_resilience.base.policy import arguments_of
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.limits.guarding import RateLimitedError
from prefect_resilience.guards.limits.line import in_line
from prefect_resilience.guards.limits.shared import logger
from prefect_resilience.guards.limits.usage import Meter, MeteredLimit, Share, Usage, key_of, read_usage

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


class TokenBucket(TypedDict):
    """The document of a limit. Times are of the store's clock."""

    name: str
    per_minute: int
    until: float
    samples: list[int]  # what the latest calls used
    used: int  # the tokens of all calls


def new_bucket(name: str, per_minute: int) -> TokenBucket:
    return TokenBucket(name=name, per_minute=per_minute, until=0.0, samples=[], used=0)


def wait_of(bucket: TokenBucket, now: float) -> float:
    """Seconds until a call may start that asks now."""
    return max(bucket["until"] - now, 0.0)


def grant(bucket: TokenBucket, tokens: float, now: float) -> TokenBucket:
    """The bucket after a grant; with a negative number, after that many tokens were given back."""
    start = max(bucket["until"], now - BURST_SECONDS)
    return {**bucket, "until": start + tokens / pace_of(bucket["per_minute"])}


def pace_of(per_minute: int) -> float:
    """Tokens a second."""
    return per_minute * SHARE / 60


# -- the tokens that this process holds

# How long tokens may be held without a use; the bucket fills meanwhile, also in place of a dead process.
LEASE_SECONDS = 10.0
# The shortest time between two exchanges of a process with the store. It asks for the tokens of that time
# beyond its next call, at most.
ASK_SECONDS = 0.3
# How often the first caller in line looks for tokens that other calls gave back.
LOOK_SECONDS = 0.05


class Account(Share):
    """The tokens of one limit that this process holds."""

    keeps: ClassVar[float] = 7 * 86_400.0
    pause: ClassVar[float] = ASK_SECONDS
    document: TokenBucket

    def __init__(self, key: str, fresh: TokenBucket) -> None:
        super().__init__(key, fresh)
        self.per_minute: int = fresh["per_minute"]
        # Below 0 if calls used more than they had reserved.
        self.held: float = 0.0
        # Tokens that are granted from `_ready_at` on, by `monotonic()`.
        self._coming = 0.0
        self._ready_at = self._asked_at = -math.inf
        # Tokens that calls took, and what ended calls used, since the last exchange.
        self._taken = 0.0
        self._samples: list[int] = []

    def usual(self) -> float:
        """What such calls usually use: the 95th percentile, at most what the limit allows at all."""
        sizes = sorted([*self.document["samples"], *self._samples][-SAMPLES:])
        few = max(self.per_minute * FIRST_PART, *sizes, 0)
        most = few if len(sizes) < FEW else sizes[math.ceil(len(sizes) * 0.95) - 1]
        return min(most, self.per_minute)

    def take(self, meter: Meter, patience: float) -> Steps[float | None]:
        tokens = meter.reserved
        with self.lock:
            if meter.place and self.holds(tokens):
                self.held -= tokens
                self._taken += tokens
                self.running[meter.call] = tokens
                return None
            wait = max(self._ready_at - monotonic(), 0.0) if self._coming else 0.0
        rest = max(self._asked_at + ASK_SECONDS - monotonic(), 0.0)
        if meter.place is None:
            wait += in_line(self.key) * tokens / pace_of(self.per_minute)
        elif wait == rest == 0:
            behind = (in_line(self.key) - 1) * tokens
            wait = yield Blocking(self.ask, (tokens, behind, patience))
        if wait > patience or meter.place is None:
            raise TokenLimitedError(self.document["name"], self.per_minute, tokens, wait)
        return min(wait or rest, LOOK_SECONDS)  # other calls may give some back

    def ask(self, tokens: float, behind: float, patience: float) -> float:
        """Ask for what a call needs, and for a part of what the calls `behind` it do: the seconds until it is
        ready. If they are more than `patience`, nothing is granted. May block."""
        with self.lock:
            self.holds(tokens)
            flow = self._taken / max(monotonic() - self._asked_at, ASK_SECONDS)
            more = min(max(flow, behind), ASK_SECONDS * pace_of(self.per_minute))
            wanted = tokens - self.held + more
        wait = self.exchange(wanted, patience)
        if wait <= patience:
            with self.lock:
                self._coming += wanted
                self._ready_at = monotonic() + wait
        return wait

    def end(self, call: str, reserved: float, used: float) -> None:
        self.held += reserved - used
        if used > 0:
            self._samples.append(math.ceil(used))

    def is_settled(self) -> bool:
        return not (self._samples or self.held or self._coming)

    def settle_all(self) -> None:
        with self.lock:
            if in_line(self.key):  # who is in line asks the store
                return
            surplus, self.held, self._coming = self.held + self._coming, 0.0, 0.0
        self.exchange(-surplus, math.inf)

    def holds(self, tokens: float) -> bool:
        """Whether so many tokens are there, with those that are ready now. Those of a lease that has ended
        are dropped."""
        now = monotonic()
        if self._coming and now >= self._ready_at:
            self.held, self._coming = self.held + self._coming, 0.0
        elif not self._coming and now > max(self._ready_at, self._asked_at) + LEASE_SECONDS:
            self.held = min(self.held, 0.0)
        return self.held >= tokens

    def exchange(self, wanted: float, patience: float) -> float:
        """Ask the bucket for tokens, or give some back. Returns the seconds until the grant."""
        with self.lock:
            samples, self._samples, self._taken = self._samples, [], 0.0
            self._asked_at = monotonic()
        wait = 0.0

        def step(before: TokenBucket, now: float) -> TokenBucket:
            nonlocal wait
            bucket: TokenBucket = {**before, "per_minute": self.per_minute}
            bucket["samples"] = (bucket["samples"] + samples)[-SAMPLES:]
            bucket["used"] += sum(samples)
            wait = wait_of(bucket, now)
            return grant(bucket, wanted, now) if wait <= patience else bucket

        after, is_stored = self.change(step)
        if not is_stored:
            with self.lock:
                self._samples = samples + self._samples
            self.document = {**self.document, "until": after["until"]}
        return wait


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
    answer without a usage, and a call that timed out, count as what was reserved.

    Limits of the same name share one bucket in the store of circuits, in and out of runs. It fills at 94 %
    of `per_minute`, evenly. A process holds the tokens of a moment, so that the store is not asked for each
    call; a dead process loses them. While the store is unavailable, each process has the full rate.

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

    def _open(self) -> Steps[Meter]:
        yield from ()  # no thread, in which calls could overtake each other
        name, tokens = cast("str", self.final_name()), cast("Any", self.estimate)
        account = Account.of(key_of(PREFIX, name), new_bucket(name, self.per_minute))
        account.per_minute = self.per_minute
        if callable(tokens):
            tokens = tokens(**arguments_of(tokens, self._arguments))
        if tokens is None:
            tokens = account.usual()
        if isinstance(tokens, int | float) and 0 <= tokens <= self.per_minute:
            return Meter(self, account, tokens)
        raise ConfigurationError(
            f"token limit {self.name!r} allows {self.per_minute} tokens a minute, and this call needs "
            f"{tokens!r}: there will never be room for it"
        )

    def read(self, answer: Any) -> Usage | None:
        """The usage in an answer."""
        if self.usage is None:
            return read_usage(answer)
        try:
            used = self.usage(answer)
            counts = {"input_tokens": math.ceil(used)} if isinstance(used, int | float) else used
        except Exception as error:  # noqa: BLE001 - the call has succeeded
            logger.warning("usage= of the limit %r failed: %s", self.name, redact(repr(error)))
            return None
        return read_usage({"usage": counts})

    def amount(self, usage: Usage) -> float | None:
        """The tokens of the call."""
        return usage.input_tokens + usage.output_tokens
