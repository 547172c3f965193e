"""Delay schedules and jitter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from prefect_resilience.configuration import Policy

LONGEST = 10 * 365 * 86_400.0
"""No delay is longer than ten years, in seconds: beyond that dates overflow."""


def as_seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


if TYPE_CHECKING:
    # What may be written; what is kept is a number.
    Seconds = Any
else:
    Seconds = Annotated[float, BeforeValidator(as_seconds), Field(ge=0, le=LONGEST)]

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
"""What an option is by default, where that depends on the kind."""


class Backoff(Policy):
    """How long to wait before each retry, in seconds.

    `initial` is the first delay, `multiplier` the factor from one to the next, `maximum` and `minimum`
    the bounds of every delay. `jitter` is a fraction: with `jitter_kind="proportional"` the delay moves
    by up to that fraction to either side. `full` draws from 0 to the delay and `equal` from half of it
    to all of it (both after "Exponential Backoff And Jitter", AWS Architecture Blog, 2015); they take
    no fraction, and `jitter=0` turns them off.
    """

    kind: BackoffKind = "exponential"
    initial: Seconds = 1.0
    multiplier: float = Field(default=2.0, ge=1, le=1000)
    maximum: Seconds = 30.0
    minimum: Seconds = 0.0
    jitter: float = Field(default=0.2, ge=0, le=1)
    jitter_kind: JitterKind = "proportional"
    delays: tuple[Seconds, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _by_kind(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"kind": data}
        if not isinstance(data, Mapping):
            return data
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
        """Try again at once."""
        return cls(kind="none")

    @classmethod
    def constant(cls, initial: float | timedelta = 1.0, **options: Any) -> Backoff:
        """The same delay every time."""
        return cls(kind="constant", initial=initial, **options)

    @classmethod
    def linear(cls, initial: float | timedelta = 1.0, **options: Any) -> Backoff:
        """1, 2, 3, ... times `initial`."""
        return cls(kind="linear", initial=initial, **options)

    @classmethod
    def exponential(cls, initial: float | timedelta = 1.0, **options: Any) -> Backoff:
        """`initial * multiplier**n`; the defaults are those of most clients: 1 s doubling to 30 s, +-20 %."""
        return cls(kind="exponential", initial=initial, **options)

    @classmethod
    def decorrelated(cls, initial: float | timedelta = 1.0, **options: Any) -> Backoff:
        """Between `initial` and `multiplier` (3) times the previous delay (AWS, as above)."""
        return cls(kind="decorrelated", initial=initial, **options)

    @classmethod
    def schedule(cls, delays: Sequence[float | timedelta], **options: Any) -> Backoff:
        """Exactly these delays; the last one repeats."""
        return cls(kind="schedule", delays=tuple(delays), **options)

    def delay(self, n: int, *, random: float = 0.5, previous: float | None = None) -> float:
        """Seconds before retry `n`, counted from 0.

        `random` is in [0, 1), and 0.5 is the middle of a proportional jitter. `previous` is the delay
        before, which only `decorrelated` looks at.

        Example:
            >>> [Backoff.exponential(initial=1, maximum=5).delay(n) for n in range(4)]
            [1.0, 2.0, 4.0, 5.0]
        """
        if self.kind == "decorrelated":
            ceiling = max(self.initial, (self.initial if previous is None else previous) * self.multiplier)
            drawn = self.initial + (ceiling - self.initial) * (random if self.jitter else 1.0)
            return self._clamp(min(drawn, self.maximum))
        return self._clamp(self._jittered(min(self._base(n), self.maximum), random))

    def _base(self, n: int) -> float:
        if self.kind == "exponential":
            return self._power(n)
        if self.kind == "linear":
            return self.initial * (n + 1)
        if self.kind == "schedule":
            return self.delays[min(n, len(self.delays) - 1)]
        return self.initial

    def _power(self, n: int) -> float:
        """`initial * multiplier**n`, without ever computing a power too large for a float."""
        if self.initial == 0:
            return 0.0
        past_maximum = n * math.log(self.multiplier) > math.log(LONGEST) - math.log(self.initial)
        return LONGEST if past_maximum else self.initial * self.multiplier**n

    def _jittered(self, base: float, random: float) -> float:
        if not self.jitter:
            return base
        if self.jitter_kind == "full":
            return base * random
        if self.jitter_kind == "equal":
            return base / 2 + base / 2 * random
        return base + base * self.jitter * (2 * random - 1)

    def _clamp(self, delay: float) -> float:
        return max(self.minimum, min(delay, self.maximum))
