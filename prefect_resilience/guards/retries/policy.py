"""Retry: whether a failed attempt is retried, and after which delay."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

from pydantic import BeforeValidator, Field, model_validator

from prefect_resilience.base.durations import Seconds
from prefect_resilience.base.policy import Policy
from prefect_resilience.base.process import in_forked_child
from prefect_resilience.errors.classify.reach import (
    as_names,
    error_name,
    is_class_name,
    is_interrupted,
    names_of,
)
from prefect_resilience.errors.exceptions import DeadlineExceeded
from prefect_resilience.errors.taxonomy import DEADLINE, ErrorCategory, ErrorInfo, ErrorKind
from prefect_resilience.guards.retries.backoff import Backoff


class RetryBudget(Policy):
    """Limits retries to a share of the calls, so that a fleet does not overload a service that recovers.

    ratio: the share of a token that each call earns. A retry costs one token.
    minimum_per_second: the tokens that each second earns, so that a few retries are always granted.
    window: the bucket holds at most the tokens of this many seconds.
    name: policies of one process with the same budget and name share one bucket.

    The algorithm is that of Finagle's RetryBudget.
    """

    by_position: ClassVar[tuple[str, ...]] = ("ratio",)

    ratio: float = Field(default=0.2, ge=0, le=1)
    minimum_per_second: float = Field(default=3.0, ge=0)
    window: Seconds = Field(default=10.0, gt=0)
    name: str = "default"


@dataclass(slots=True)
class Bucket:
    """The tokens of one budget. `now` is in seconds of any clock that only goes forward."""

    budget: RetryBudget
    tokens: float
    at: float
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def full(cls, budget: RetryBudget, now: float) -> Bucket:
        return cls(budget, max(1.0, budget.minimum_per_second), now)

    def earn(self) -> None:
        """Count a first attempt. Lock-free: a lost update only makes the budget stricter."""
        self.calls += 1

    def spend(self, now: float) -> bool:
        """Take the token of one retry; False if there is none."""
        with self.lock:
            budget = self.budget
            passed = max(0.0, now - self.at)
            # Tokens of calls from before the window are lost. The calls are assumed to be evenly spread.
            by_calls = self.calls * budget.ratio * min(1.0, budget.window / max(passed, 1e-9))
            most = max(1.0, self.tokens, budget.minimum_per_second * budget.window)
            saved = min(self.tokens + passed * budget.minimum_per_second, most)
            self.tokens = saved + by_calls
            self.at, self.calls = max(self.at, now), 0
            if self.tokens < 1.0:
                return False
            self.tokens -= 1.0
            return True


_buckets: dict[RetryBudget, Bucket] = {}
in_forked_child(_buckets.clear)  # another thread of the parent may have held a bucket's lock


def bucket_of(budget: RetryBudget, now: float) -> Bucket:
    """The bucket that this process keeps for the budget."""
    return _buckets.get(budget) or _buckets.setdefault(budget, Bucket.full(budget, now))


SPELLINGS = {"max_attempts": "attempts", "retryable_errors": "retry_on"}
"""Other names that JSON may use for an option of `Retry`."""

BACKOFF_SPELLINGS = {
    "initial_delay_ms": ("initial", 0.001),
    "max_delay_ms": ("maximum", 0.001),
    "backoff_multiplier": ("multiplier", 1.0),
    "jitter_fraction": ("jitter", 1.0),
    "jitter_factor": ("jitter", 1.0),
}
"""Backoff options that JSON may write next to the attempts: their name in the backoff, and a unit factor."""

CAMEL_CASE = {
    re.sub("_(.)", lambda found: found[1].upper(), name): name
    for name in ("max_retries", *SPELLINGS, *BACKOFF_SPELLINGS)
}
"""The same names in camel case: `maxAttempts`, `initialDelayMs`."""


_CATEGORIES = frozenset(category.value for category in ErrorCategory)


def _rule_name(value: Any) -> Any:
    """A key of `by_category`: a category, or the dotted name of an exception class."""
    name = error_name(value)
    if name in _CATEGORIES:
        return ErrorCategory(name)
    if not is_class_name(name):
        raise ValueError(f"unknown error category {name!r}; write one of {', '.join(sorted(_CATEGORIES))}")
    return name


if TYPE_CHECKING:
    # Options accept these types; the policy keeps a tuple of texts.
    ErrorName = str | int | ErrorCategory | ErrorKind | type[BaseException]
    ErrorNames = Sequence[ErrorName] | set[ErrorName] | ErrorName
    ByCategory = Mapping[ErrorCategory | str | type[BaseException], "Retry | int | Mapping[str, Any]"]
    BackoffLike = Backoff | str | Mapping[str, Any]
else:
    ErrorNames = Annotated[tuple[str, ...], BeforeValidator(as_names)]
    ByCategory = dict[Annotated[ErrorCategory | str, BeforeValidator(_rule_name)], "Retry"]
    BackoffLike = Backoff


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to retry, the delay in seconds, and the reason in a few words."""

    retry: bool
    delay: float
    why: str
    asked_for: float | None = field(default=None, repr=False)
    """The seconds that the service asked for, if they made the delay longer than the backoff."""


class Retry(Policy):
    """Whether to retry after an error, and when. `Retry(3)` is `Retry(attempts=3)`.

    attempts: the maximum number of attempts, including the first.
    backoff: the delays; also a kind's name, such as "exponential".
    retry_on: exactly these errors are retried, instead of those that classification calls retryable.
        An entry is an exception class, a category ("rate_limit"), a kind ("transient") or a code ("503").
    give_up_on: these errors are never retried, regardless of the other options.
    by_category: attempts and delays of a category or of an exception class, with its own counter. What is
        named here is retried even if it usually is not.
    max_elapsed: the time from the start of the first attempt after which no further attempt may begin.
    budget: a token bucket for the whole process that limits retry storms; None for no limit.
    respect_retry_after: wait at least as long as the server asks; the backoff's jitter only lengthens it.
    retry_after_cap: give up at once if the server asks for more than this many seconds. The jitter's addition
        does not count.
    retry_exhausted: retry also after an error that a guard inside has already retried to the end. By default
        it is not: guards inside guards would multiply their attempts.
    park_after: only for a flow. A wait in it, or in one of its tasks, that is longer parks the flow run: its
        process ends, and a worker runs it again after the wait.
    max_parked: with `park_after`, in place of `retry_after_cap`: the time from the first parking after which
        the run does not park again.

    A duration is in seconds, or text such as "500ms", "1h30m", or a timedelta.
    JSON may also write `max_attempts`, `max_retries` (one less than the attempts), `initial_delay_ms`,
    `max_delay_ms`, `backoff_multiplier`, `jitter_fraction` and `retryable_errors`.
    """

    by_position: ClassVar[tuple[str, ...]] = ("attempts",)

    attempts: int = Field(default=3, ge=1, le=10_000)
    backoff: BackoffLike = Field(default_factory=Backoff.exponential)
    retry_on: ErrorNames | None = None
    give_up_on: ErrorNames | None = None
    by_category: ByCategory = Field(default_factory=dict[Any, Any])
    max_elapsed: Seconds | None = None
    budget: RetryBudget | None = None
    respect_retry_after: bool = True
    retry_after_cap: Seconds = 300.0
    retry_exhausted: bool = False
    park_after: Seconds | None = None
    max_parked: Seconds = 86_400.0

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, data: Any) -> Any:
        if isinstance(data, int) and not isinstance(data, bool):
            return {"attempts": data}
        if not isinstance(data, Mapping):
            return data
        return _in_our_words(dict(data))  # pyright: ignore[reportUnknownArgumentType]

    @model_validator(mode="after")
    def _one_level(self) -> Self:
        for category, rule in self.rules.items():
            if rule.by_category:
                raise ValueError(
                    f"Retry(by_category={{{str(category)!r}: ...}}) has a by_category of its own: "
                    f"write both in the outer by_category"
                )
        return self

    @property
    def most_retries(self) -> int:
        """The maximum number of retries over all counters."""
        return sum(rule.attempts - 1 for rule in (self, *self.rules.values()))

    @property
    def rules(self) -> Mapping[str, Retry]:
        """The policies of the categories and classes that have their own."""
        return cast("Mapping[str, Retry]", self.by_category)

    def delay(self, n: int, *, random: float = 0.5, previous: float | None = None) -> float:
        """Seconds before retry `n`, counted from 0, by this policy's backoff."""
        return cast(Backoff, self.backoff).delay(n, random=random, previous=previous)

    def rule_name(self, error: ErrorInfo, exception: BaseException | None = None) -> str:
        """The key in `by_category` that applies, "" for none. A class goes before a category."""
        if not self.by_category:
            return ""
        names = names_of(error, exception)
        own = [str(rule) for rule in self.rules if str(rule) in names]
        return min(own, key=lambda rule: (rule in _CATEGORIES, rule != error.category), default="")

    def rule_for(self, error: ErrorInfo, exception: BaseException | None = None) -> Retry:
        """The policy that applies to the error: its attempts, delays and counter."""
        return self.rules.get(self.rule_name(error, exception), self) if self.by_category else self

    def decide(
        self,
        error: ErrorInfo,
        attempt: int,
        *,
        elapsed: float = 0.0,
        random: float = 0.5,
        previous_delay: float | None = None,
        exception: BaseException | None = None,
    ) -> Verdict:
        """The verdict after `attempt` failed attempts under the rule of this error.

        `elapsed` is the seconds since the first attempt began; `random` is in [0, 1). With `exception`,
        classes match their subclasses too, and the members of groups and the causes.

        Example:
            >>> Retry(attempts=3).decide(classify(TimeoutError()), attempt=1)
            Verdict(retry=True, delay=1.0, why='TIMEOUT is retryable: attempt 2 of 3')
        """
        refusal = self.refusal(error, exception)
        if refusal:
            return Verdict(False, 0.0, refusal)
        rule = self.rule_for(error, exception)
        if attempt >= rule.attempts:
            return Verdict(
                False, 0.0, f"all {rule.attempts} attempts used" if rule.attempts > 1 else "one attempt only"
            )
        delay = rule.delay(attempt - 1, random=random, previous=previous_delay)
        wait = error.retry_after if rule.respect_retry_after else None
        if wait is not None and (beyond := error.details.get("longest_beyond_backoff")) is not None:
            wait = min(wait, delay + float(beyond))
        if wait is not None and wait > rule.retry_after_cap:
            return Verdict(
                False,
                0.0,
                f"the server asks to wait {wait:g} s, more than retry_after_cap={rule.retry_after_cap:g} s",
            )
        limit = self.max_elapsed if rule.max_elapsed is None else rule.max_elapsed
        remaining = math.inf if limit is None else limit - elapsed
        if wait is not None:
            # The server's delay may lead to giving up, its jitter may not: it is limited to the time left.
            backoff = cast(Backoff, rule.backoff)
            asked_for = backoff.lengthen(wait, attempt - 1, random=random, most=remaining)
            wait, delay = (wait, asked_for) if asked_for > delay else (None, delay)
        if delay > remaining:
            return Verdict(False, 0.0, f"waiting {delay:.3g} s would exceed max_elapsed={limit:g} s")
        why = f"{error.code} is retryable: attempt {attempt + 1} of {rule.attempts}"
        return Verdict(True, delay, why, wait)

    def refusal(self, error: ErrorInfo, exception: BaseException | None = None) -> str | None:
        """Why errors like this are never retried; None if they are."""
        names = names_of(error, exception) if self.give_up_on or self.retry_on is not None else set[str]()
        if self.give_up_on and not names.isdisjoint(cast("tuple[str, ...]", self.give_up_on)):
            return f"give_up_on names {error.code}"
        if exception is not None and is_interrupted(exception):
            return f"{type(exception).__name__} ends the call"
        if DEADLINE in error.details or isinstance(exception, DeadlineExceeded):
            return "the deadline has passed"
        if self.rule_name(error, exception):
            return None
        if self.retry_on is not None:
            is_named = not names.isdisjoint(cast("tuple[str, ...]", self.retry_on))
            return None if is_named else f"retry_on does not name {error.code}"
        return None if error.retryable else f"{error.code} is not retryable ({error.category.value})"


# Not validated, since pydantic takes 20 ms for the validators of a process's first model.
DEFAULT_RETRY = Retry.model_construct(backoff=Backoff.model_construct())
NO_RETRY = Retry.model_construct(attempts=1, backoff=DEFAULT_RETRY.backoff)


class PrefectRetries(Retry):
    """The policy of a task that has only Prefect's own `retries`.

    Nested tasks of this kind multiply their attempts, as plain tasks do: each retries an error that was
    already retried inside, and leaves it to the policies outside.
    """

    retry_exhausted: bool = True


def _in_our_words(data: dict[str, Any]) -> dict[str, Any]:
    """A retry policy from JSON with our names for the options."""
    flat_defaults: Mapping[str, Any] = {"jitter": 0.0} if CAMEL_CASE.keys().isdisjoint(data) else {}
    for theirs, ours in (*CAMEL_CASE.items(), *SPELLINGS.items()):
        if theirs in data:
            _once(data, theirs, ours)
            data[ours] = data.pop(theirs)
    if "max_retries" in data:
        _once(data, "max_retries", "attempts")
        retries = data.pop("max_retries")
        if not isinstance(retries, int) or retries < 0:
            raise ValueError(f"Retry(max_retries={retries!r}): write the number of retries, 0 or more")
        data["attempts"] = retries + 1
    flat = {theirs: data.pop(theirs) for theirs in BACKOFF_SPELLINGS if theirs in data}
    if flat:
        data["backoff"] = _with_flat_options(data.get("backoff", "exponential"), flat, flat_defaults)
    return data


def _once(data: Mapping[str, Any], theirs: str, ours: str) -> None:
    if ours in data:
        raise ValueError(f"Retry has both {ours!r} and {theirs!r}, which mean the same: write one of them")


def _with_flat_options(backoff: Any, flat: dict[str, Any], defaults: Mapping[str, Any]) -> Any:
    """The backoff with the options that JSON wrote next to it.

    In snake case, `initial_delay_ms` is also the shortest delay, and there is no jitter by default. The names
    in camel case keep the usual jitter, and their delays may be shorter than the first one.
    """
    named: Any = {"kind": backoff} if isinstance(backoff, str) else backoff
    if not isinstance(named, Mapping):
        raise ValueError(
            f"Retry has a backoff and {', '.join(flat)} beside it: write them inside the backoff"
        )
    options: dict[str, Any] = dict(named)  # pyright: ignore[reportUnknownArgumentType]
    if options.get("kind") == "none":
        return {"kind": "none", "initial": 0, "jitter": 0}
    flat_options: dict[str, Any] = {}
    for theirs, value in flat.items():
        ours, unit = BACKOFF_SPELLINGS[theirs]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ValueError(f"Retry({theirs}={value!r}): write a number")
        if ours in flat_options:
            raise ValueError("Retry has both 'jitter_fraction' and 'jitter_factor': write one of them")
        flat_options[ours] = value * unit
    if defaults and "initial" in flat_options and flat_options.get("jitter", options.get("jitter")):
        shortest = min(flat_options["initial"], flat_options.get("maximum", Backoff().maximum))
        defaults = {**defaults, "minimum": shortest}
    return {**defaults, **options, **flat_options}
