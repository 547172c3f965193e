"""How to recover a batch whose run failed or crashed, as a pure function: `recovery_hint(...)`.

    restart_batch               nothing was sent: run everything again
    restart_from_last_external  everything up to some external effect is done: continue after it
    selective                   done and missing effects are mixed: do the missing ones
    manual_only                 only a person can decide
    compensate                  compensate the done effects
    abandon                     give up, and clear the effects that were never done

The first three run the same run again. None of them repeats an effect that is done; the names tell a person
which effects the run will skip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from prefect_resilience.base.policy import Policy
from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.effects.model import EffectState
from prefect_resilience.durable.effects.policy import EffectKind
from prefect_resilience.durable.sagas.compensations import first_names
from prefect_resilience.errors.exceptions import InDoubt
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo, ErrorKind
from prefect_resilience.guards.retries.backoff import Backoff

Strategy = Literal[
    "restart_batch", "restart_from_last_external", "selective", "manual_only", "compensate", "abandon"
]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
RESTARTS: tuple[Strategy, ...] = ("restart_batch", "restart_from_last_external", "selective")

ENDED_BADLY = frozenset({"FAILED", "CRASHED", "CANCELLED"})
MOST_WAITING = 86_400.0
"""The seconds after which recoveries count again, although the service says once more when it is back."""


class RecoveryPolicy(Policy):
    """How far automatic recovery goes.

    attempts: the most recoveries in a row; then a person must act. A recovery does not count if the
        service that failed said when it will be back (`Retry-After`, an open circuit), for up to 24 hours.
    backoff: the delay between two recoveries, in seconds; the first comes at once. If the service said when
        it will be back, no recovery comes before.
    permanent: the action after a permanent error: leave the batch to a person ("manual"), compensate its done
        effects ("compensate", as far as there is a `compensate=`), or "abandon" it.
    """

    attempts: int = Field(default=5, ge=0, le=100_000)
    backoff: Backoff = Backoff.exponential(60.0, maximum=3_600.0)
    permanent: Literal["manual", "compensate", "abandon"] = "manual"


@dataclass(frozen=True, slots=True)
class SeenEffect:
    """The parts of one effect that matter here. `verify` and `compensate`: whether it has one.

    `stuck`: the outcome of its compensation is unknown.
    """

    key: str
    kind: EffectKind
    state: EffectState
    verify: bool = False
    compensate: bool = False
    stuck: bool = False

    @property
    def waits(self) -> bool:
        """Whether only a person can settle its outcome."""
        return self.stuck or (self.state == "unknown" and self.kind == "external" and not self.verify)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The type of the run's state, and the classified error of a failure.

    `back_at`: when the service that failed said it will be back, in seconds since the epoch.
    """

    state: str
    error: ErrorInfo | None = None
    back_at: float | None = None

    @property
    def permanent(self) -> bool:
        """Whether it fails again unless something is changed. An unknown error does not count, nor does an
        effect in doubt: while it is not settled, the effect itself waits for a person."""
        error = self.error
        if self.state != "FAILED" or error is None or error.category is ErrorCategory.UNEXPECTED:
            return False
        if error.code == InDoubt.__name__:
            return False
        return not error.retryable and error.kind in (ErrorKind.PERMANENT, ErrorKind.RESOURCE)


@dataclass(frozen=True, slots=True)
class RecoveryTrail:
    """Automatic recoveries in a row, and when the last one was.

    `abandoned_at`: when the batch was abandoned; None if it was not, or if an effect was begun since.
    `waits`: how many more recoveries waited for a service, and were not counted; `waits_since`: when the
    first of them was.
    """

    recoveries: int = 0
    last_at: float | None = None
    abandoned_at: float | None = None
    waits: int = 0
    waits_since: float | None = None


class RecoveryHint(BaseModel, frozen=True):
    """How to continue a batch, and why.

    `automatic`: whether `auto` does it. `skip`: the keys that are done. `skip_until`: the last external one,
    if all before it are done too. `resume_from`: the first that is not done. `verify`: keys whose receivers
    will be asked. `waiting`: keys that a person must settle. `next_at`: when `auto` may recover, in seconds
    since the epoch. `attempt`: its number, from 1; None if it is not counted.
    """

    strategy: Strategy
    why: str
    automatic: bool = False
    skip: tuple[str, ...] = ()
    skip_until: str | None = None
    resume_from: str | None = None
    verify: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    next_at: float | None = None
    attempt: int | None = None


def recovery_hint(
    effects: Sequence[SeenEffect],
    ended: RunEnd | None,
    trail: RecoveryTrail,
    policy: RecoveryPolicy,
    now: float,
    random: float = 0.5,
) -> RecoveryHint | None:
    """How to recover; None if there is nothing to recover, or a run is still going on.

    `effects` are in the order of their first intents. `ended` is None if no run is known: then only a person
    can run it again. `random` in [0, 1) is for the jitter of the delay.
    """
    waiting = tuple(effect.key for effect in effects if effect.waits)
    if ended is not None and ended.state not in ENDED_BADLY | {"COMPLETED"}:
        return None
    if trail.abandoned_at is not None and (waiting or ended is None or ended.state != "COMPLETED"):
        why = (
            f"it was abandoned at {utc_text(trail.abandoned_at)}: it is recovered only with a named strategy"
        )
        return _with_keys("abandon", f"{why}, such as restart", effects, waiting=waiting)
    if waiting:
        keys = first_names([*map(repr, waiting)])
        why = f"the outcome of {keys} is unknown, and there is no verify to ask: settle it"
        return _with_keys("manual_only", f"{_stands(ended)}{why}", effects, waiting=waiting)
    if any(effect.state == "compensating" for effect in effects):
        why = f"{_stands(ended)}its rollback was interrupted and must be finished"
        return _with_keys("compensate", why, effects, automatic=True)
    undone = any(effect.state == "compensated" for effect in effects)
    if ended is None:
        missing = any(effect.state in ("failed", "unknown") for effect in effects)
        return _restart(effects, "it has no known run") if missing and not undone else None
    if ended.state == "COMPLETED":
        return None
    if undone:
        why = f"{_stands(ended)}it was rolled back, and a restart would repeat the compensated effects"
        return _with_keys("manual_only", why, effects)
    if ended.state == "CANCELLED":
        why = f"{_how_it_ended(ended)}, and a cancelled run is not recovered automatically"
        return _with_keys("abandon", why, effects)
    if ended.permanent:
        return _permanent(effects, ended, policy)
    waits = policy.attempts > 0 and _is_waiting(trail, ended, now)
    if trail.recoveries >= policy.attempts and not waits:
        times = "once" if trail.recoveries == 1 else f"{trail.recoveries} times in a row"
        tried = (
            f"it was recovered {times} and failed again" if trail.recoveries else "automatic recovery is off"
        )
        return _with_keys("manual_only", f"{_stands(ended)}{tried}", effects)
    because, at = _how_it_ended(ended), next_at(trail, policy, now, random, ended.back_at)
    if waits:
        because = (
            f"{because}, and the service will be back at {utc_text(ended.back_at)}, so no attempt is counted"
        )
    attempt = None if waits else trail.recoveries + 1
    return _restart(effects, because, automatic=True, attempt=attempt, next_at=at)


def _is_waiting(trail: RecoveryTrail, ended: RunEnd, now: float) -> bool:
    """Whether the next recovery waits for a service that said when it is back."""
    return ended.back_at is not None and (trail.waits_since is None or now < trail.waits_since + MOST_WAITING)


def next_at(
    trail: RecoveryTrail,
    policy: RecoveryPolicy,
    now: float,
    random: float = 0.5,
    back_at: float | None = None,
) -> float:
    """The earliest time of the next recovery, in seconds since the epoch: now or later.

    `back_at`: when the service that failed will be back. Jitter spreads the runs that wait for it.
    """
    before, at = trail.recoveries + trail.waits, now
    if back_at is not None and back_at > now:
        at = now + policy.backoff.lengthen(back_at - now, before, random=random)
    if not before or trail.last_at is None:
        return at
    return max(at, trail.last_at + policy.backoff.delay(before - 1, random=random))


def restart_strategy(effects: Sequence[SeenEffect]) -> Strategy:
    """Which of the three restarts it is, from the external effects that are done."""
    done = [effect.state == "done" for effect in effects if effect.kind == "external"]
    if not any(done):
        return "restart_batch"
    last = len(done) - done[::-1].index(True)
    return "restart_from_last_external" if all(done[:last]) else "selective"


def _restart(effects: Sequence[SeenEffect], because: str, **more: Any) -> RecoveryHint:
    strategy = restart_strategy(effects)
    external = [effect for effect in effects if effect.kind == "external"]
    done = [effect.key for effect in external if effect.state == "done"]
    if strategy == "restart_batch":
        meets = "no external effect is done"
    elif strategy == "restart_from_last_external":
        meets = f"every external effect up to {done[-1]!r} is done and will not be repeated"
    else:
        meets = f"{len(done)} of {len(external)} external effects are done and will not be repeated"
    verify = tuple(effect.key for effect in effects if effect.state == "unknown" and effect.verify)
    question = f"; verify asks the receiver about {first_names([*map(repr, verify)])}" if verify else ""
    last = done[-1] if strategy == "restart_from_last_external" else None
    why = f"{because}; {meets}{question}"
    return _with_keys(strategy, why, effects, verify=verify, skip_until=last, **more)


def _permanent(effects: Sequence[SeenEffect], ended: RunEnd, policy: RecoveryPolicy) -> RecoveryHint:
    assert ended.error is not None
    why = f"{_how_it_ended(ended)}, which is a permanent error"
    done = [effect for effect in effects if effect.state == "done"]
    undoable = [effect for effect in done if effect.compensate]
    some = f"{len(undoable)} of {len(done)} done effects can be compensated"
    if policy.permanent == "abandon":
        return _with_keys("abandon", why, effects, automatic=True)
    if undoable and policy.permanent == "compensate":
        return _with_keys("compensate", f"{why}; {some}", effects, automatic=True)
    if undoable:
        why = f"{why}; fix the cause and restart, or compensate: {some}"
    return _with_keys("manual_only", why, effects)


def _with_keys(strategy: Strategy, why: str, effects: Sequence[SeenEffect], **more: Any) -> RecoveryHint:
    skip = tuple(effect.key for effect in effects if effect.state == "done")
    missing = (effect.key for effect in effects if effect.state in ("intended", "unknown", "failed"))
    return RecoveryHint(strategy=strategy, why=why, skip=skip, resume_from=next(missing, None), **more)


def _how_it_ended(ended: RunEnd) -> str:
    if ended.state == "FAILED" and ended.error is not None:
        return f"its run failed with {ended.error.code} ({ended.error.category})"
    return f"its run {'was ' if ended.state == 'CANCELLED' else ''}{ended.state.lower()}"


def _stands(ended: RunEnd | None) -> str:
    """The state of the run, as the beginning of a reason; empty if it is not known."""
    return "" if ended is None else f"{_how_it_ended(ended)}; "
