"""Delay schedules and jitter."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from prefect_resilience.base.durations import LONGEST, Duration, Seconds, seconds_of
from prefect_resilience.base.policy import Policy
from prefect_resilience.errors.exceptions import ConfigurationError

BackoffKind = Literal["none", "constant", "linear", "exponential", "decorrelated", "schedule"]
JitterKind = Literal["proportional", "full", "equal"]


BY_KIND: dict[str, dict[str, Any]] = {
    "none": {"initial": 0.0, "jitter": 0.0},
    "constant": {"jitter": 0.0, "maximum": LONGEST},
    "linear": {"jitter": 0.0},
    "exponential": {},
    "decorrelated": {"multiplier": 3.0},
    "schedule": {"jitter": 0.0, "maximum": LONGEST},
}
"""The defaults of options that depend on the kind."""


class Backoff(Policy):
    """How long to wait before each retry, in seconds (or a timedelta, or text such as "500ms").

    kind: how the delays grow: "none", "constant", "linear", "exponential", "decorrelated" or "schedule".
    initial: the first delay.
    multiplier: the factor from one delay to the next.
    maximum: the longest delay.
    minimum: the shortest delay.
    jitter: the fraction by which a delay may be shorter or longer; 0 turns every jitter off.
    jitter_kind: the interval from which a delay is drawn: "proportional", "full" or "equal".
    delays: with the kind "schedule", the delays one by one.

    With `b = min(max(initial * multiplier**n, minimum), maximum)`, a delay is drawn uniformly from

        proportional   b * (1 - jitter) to b * (1 + jitter)
        full           0 to b
        equal          b / 2 to b
        decorrelated   (the kind) initial to multiplier (3) times the previous delay

    (`full`, `equal` and `decorrelated` after "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.)
    This interval is cut to [minimum, maximum] *before* the draw, so that no delays pile up at a bound. If
    less than `jitter * b` is left, the interval is widened to that length, within the bounds. Otherwise the
    value of `jitter` has no effect on `full`, `equal` and `decorrelated`. `jitter=0` turns every jitter off:
    the delay is then `b`, or the upper end of `decorrelated`.
    """

    kind: BackoffKind = "exponential"
    initial: Seconds = 1.0
    multiplier: float = Field(default=2.0, ge=1, le=1000)
    maximum: Seconds = 30.0
    minimum: Seconds = 0.0
    jitter: float = Field(default=0.2, ge=0, le=1)
    jitter_kind: JitterKind = "proportional"
    delays: tuple[Seconds, ...] = ()

    @classmethod
    def _name_arguments(cls, args: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
        if args:
            raise ConfigurationError(f"Backoff({args[0]!r}): {_no_backoff(args[0])}")
        return values

    @model_validator(mode="before")
    @classmethod
    def _by_kind(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"kind": data}
        if not isinstance(data, Mapping):
            raise ValueError(_no_backoff(data))
        written: dict[str, Any] = dict(data)  # pyright: ignore[reportUnknownArgumentType]
        return BY_KIND.get(written.get("kind", "exponential"), {}) | written

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(
                f"Backoff(minimum={self.minimum:g}) is longer than maximum={self.maximum:g}: "
                f"write a minimum below it"
            )
        if (self.kind == "schedule") != bool(self.delays):
            raise ValueError(
                "Backoff.schedule needs its delays in seconds: write Backoff.schedule([1, 5, 30])"
            )
        return self

    @classmethod
    def none(cls) -> Backoff:
        """Retry without a delay."""
        return cls(kind="none")

    @classmethod
    def constant(cls, initial: Duration = 1.0, **options: Any) -> Backoff:
        """The same delay every time."""
        return cls(kind="constant", initial=initial, **options)

    @classmethod
    def linear(cls, initial: Duration = 1.0, **options: Any) -> Backoff:
        """1, 2, 3, ... times `initial`."""
        return cls(kind="linear", initial=initial, **options)

    @classmethod
    def exponential(cls, initial: Duration = 1.0, **options: Any) -> Backoff:
        """`initial * multiplier**n`; the defaults are those of most clients: 1 s doubling to 30 s, +-20 %."""
        return cls(kind="exponential", initial=initial, **options)

    @classmethod
    def decorrelated(cls, initial: Duration = 1.0, **options: Any) -> Backoff:
        """Between `initial` and `multiplier` (3) times the previous delay (AWS, as above)."""
        return cls(kind="decorrelated", initial=initial, **options)

    @classmethod
    def schedule(cls, delays: Sequence[Duration], **options: Any) -> Backoff:
        """Exactly these delays; the last one repeats."""
        return cls(kind="schedule", delays=tuple(delays), **options)

    def delay(self, n: int, *, random: float = 0.5, previous: float | None = None) -> float:
        """Seconds before retry `n`, counted from 0.

        `random` is in [0, 1): the position of the delay between its lower and upper bound. `previous` is the
        delay before it, which only `decorrelated` uses.

        Example:
            >>> [Backoff.exponential(initial=1, maximum=5, jitter=0).delay(n) for n in range(4)]
            [1.0, 2.0, 4.0, 5.0]
        """
        lowest, highest = self._interval(n, previous)
        return min(lowest + (highest - lowest) * random, highest)

    def lengthen(self, asked: float, n: int, *, random: float = 0.5, most: float = math.inf) -> float:
        """`asked`, the delay that a server asks for, plus up to `jitter` times the longer of it and retry
        `n`'s own delay.

        The result is at least `asked`, and more than `most` only if `asked` is. The addition spreads the
        retries of callers that got the same `Retry-After`; `jitter=0` adds nothing.

        Example:
            >>> Backoff.exponential(jitter=0.2).lengthen(10, 0, random=0.5)
            11.0
        """
        longest = asked + max(asked, self._clamp(self._base(n))) * self.jitter
        return asked + (min(longest, max(asked, most)) - asked) * random

    def _interval(self, n: int, previous: float | None) -> tuple[float, float]:
        """The shortest and the longest delay before retry `n`."""
        if self.kind == "decorrelated":
            longest = (self.initial if previous is None else previous) * self.multiplier
            top = self._clamp(max(self.initial, longest))
            lowest, highest = self.initial, top
        else:
            top = self._clamp(self._base(n))
            lowest, highest = self._jitter_range(top)
        if not self.jitter:
            return top, top
        lowest, highest = self._clamp(lowest), self._clamp(highest)
        least = self.jitter * top
        if highest - lowest < least:
            highest = min(lowest + least, self.maximum)
            lowest = max(highest - least, self.minimum)
        return lowest, highest

    def _base(self, n: int) -> float:
        if self.kind == "exponential":
            return self._power(n)
        if self.kind == "linear":
            return self.initial * (n + 1)
        if self.kind == "schedule":
            return self.delays[min(n, len(self.delays) - 1)]
        return self.initial

    def _power(self, n: int) -> float:
        """`initial * multiplier**n`, without computing a power that is too large for a float."""
        if self.initial == 0:
            return 0.0
        past_maximum = n * math.log(self.multiplier) > math.log(LONGEST) - math.log(self.initial)
        return LONGEST if past_maximum else self.initial * self.multiplier**n

    def _jitter_range(self, base: float) -> tuple[float, float]:
        if self.jitter_kind == "full":
            return 0.0, base
        if self.jitter_kind == "equal":
            return base / 2, base
        return base * (1 - self.jitter), base * (1 + self.jitter)

    def _clamp(self, delay: float) -> float:
        return max(self.minimum, min(delay, self.maximum))


def _no_backoff(value: Any) -> str:
    """The correction for a bare value, for a message."""
    if isinstance(value, list | tuple):
        return f"write Backoff.schedule({value!r}) for exactly these delays"
    first = f"{value!r}" if seconds_of(value) is not None else "1"
    return f"write Backoff.constant({first}) for the same delay each time, or Backoff.exponential({first})"


_skipping: list[None] = []
"""One item for each `skipped` block that is open in this process."""


@contextmanager
def skip_delays() -> Generator[None, None, None]:
    """Skip every delay of this process within the block."""
    _skipping.append(None)
    try:
        yield
    finally:
        _skipping.pop()


def pause(delay: float) -> float:
    """The seconds to wait for `delay`: 0 within a `skipped` block."""
    return 0.0 if _skipping else delay
