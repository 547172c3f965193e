"""One way to send: who sends, what the function does, what goes wrong; and what the contract says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.durable.effects.ways.steps import Step

Proof = Literal["always", "one request", "either", "never", "fine", "late", "late or doubt", "refused"]
"""What can prove that the first attempt did nothing.

always: nothing was sent, and we know it without looking: a guard refused, or the function raised `NotSent`.
one request: a witness, or the author's promise of one request: it was refused, or answered "not taken".
either: a careful witness may see that nothing was taken, and may say that it cannot tell.
never: nothing can.
fine: nothing to prove, the call succeeds.
late: the call goes on in a thread, and its result is waited for.
late or doubt: the call goes on where nobody can wait for it, or somebody can.
refused: the function, or its policy, is refused with a `ConfigurationError` before anything is sent.
"""
Promise = Literal["kept", "refuted", "none"]
"""Whether `one_request=True` is true of the function; "refuted": it is not, and the error says so."""

SUCCEEDED = "succeeded"
RETRIED = "retried, succeeded"
VERIFIED = "verify asked"
IN_DOUBT = "InDoubt"
LATE = "replayed late result"
NOT_SENT = "failed: proven not sent"
REFUSED = "rejected"


@dataclass(frozen=True)
class Way:
    client: str
    shape: str
    fault: str
    steps: tuple[Step, ...]
    proof: Proof
    why: str
    promise: Promise = "none"
    verify_can_tell: bool = True
    """Whether `verify` says Done or NotDone, and not Unknown."""
    timeout: float | None = None
    mode: Literal["auto", "thread"] = "auto"
    cancelled: bool = False
    """Whether the task is cancelled from outside while its first call is held."""
    read_seconds: float = 60.0
    """The client's own timeout. By default longer than any answer takes, also on a slow machine."""
    staged: Literal["", "cached", "lease lapses"] = ""
    """What is not one function in one process: see `staged.py`."""
    has_loop: bool | None = None
    """Whether there is an event loop; None: as the client needs."""
    refusal: str = ""
    """What the error says where it is refused."""
    forks: bool = False
    """Whether a child inherits the sockets of this process for a moment: nothing may run beside it."""

    @property
    def interrupts(self) -> bool:
        """Whether its deadline interrupts the thread of the call, which can only be the main thread."""
        return self.timeout is not None and self.mode == "auto" and "async" not in self.client

    @property
    def runs_alone(self) -> bool:
        return self.interrupts or self.forks

    @property
    def name(self) -> str:
        return f"{self.client}, {self.shape}, {self.fault}"


@dataclass(frozen=True)
class Combination:
    """What the author gave: somebody to ask, and proof: the witness, or the promise of one request."""

    verify: bool
    proof: bool

    @property
    def name(self) -> str:
        words = [word for word, given in (("proof", self.proof), ("verify", self.verify)) if given]
        return " and ".join(words) or "neither"


COMBINATIONS: Sequence[Combination] = tuple(
    Combination(verify, proof) for proof in (False, True) for verify in (False, True)
)


def expected(way: Way, given: Combination) -> set[str]:
    """The ends that the contract allows."""
    doubt = {VERIFIED if given.verify and way.verify_can_tell else IN_DOUBT}
    match way.proof:
        case "always":
            return {RETRIED}
        case "fine":
            return {SUCCEEDED}
        case "late":
            return {LATE}
        case "refused":
            return {REFUSED}
        case "late or doubt":
            return {LATE, IN_DOUBT, VERIFIED}
        case "one request":
            return {RETRIED} if given.proof and way.promise != "refuted" else doubt
        case "either":
            return {RETRIED, *doubt} if given.proof else doubt
        case "never":
            return doubt


def applies(way: Way, given: Combination, *, witnessed: bool) -> bool:
    """Whether there is such a combination: a witness for the client, or a promise about the function."""
    return not given.proof or witnessed or way.promise != "none"


def effect_options(given: Combination, *, witnessed: bool) -> dict[str, Any]:
    return {"one_request": True} if given.proof and not witnessed else {}
