"""Who may replay a letter, as pure functions of the letter and the store's time.

    waiting ── claimed ──> replaying ── succeeded ──> replayed
       ^                    │    │
       └── failed, let go ──┘    └── cut off: in_doubt ── resolved, or claimed by force

What later passes of the flow run do to a letter is in `passes`: one that waits is settled when its call
succeeds there, and one that is done with waits again when its call fails there.

A claim that has run out leaves its letter in doubt: its owner died, and how far the call had come is unknown.
One whose process is known to be gone runs out at once.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from prefect_resilience.durable.letters.model import REPLAYS_KEPT, Claim, DeadLetter, Outcome, Replay, Status

MESSAGE = 300
SETTLED = "its call succeeded when its flow run was run again"


def standing(letter: DeadLetter, now: datetime) -> DeadLetter:
    """The letter as it is to be seen now: in doubt, where a claim has run out."""
    claim = letter.claim
    if letter.status == "replaying" and (claim is None or claim.until <= now):
        return letter.model_copy(update={"status": "in_doubt"})
    return letter


def orphaned(letter: DeadLetter, now: datetime) -> DeadLetter:
    """The letter of an owner that is gone: its claim runs out now, whatever was agreed."""
    claim = letter.claim
    if letter.status != "replaying" or claim is None or claim.until <= now:
        return letter
    return letter.model_copy(update={"claim": claim.model_copy(update={"until": now})})


def refusal(letter: DeadLetter, now: datetime, *, despite_doubt: bool) -> str | None:
    """Why nobody may claim the letter now, in words; None when it is free."""
    letter = standing(letter, now)
    if letter.status == "replayed":
        return "it has been replayed already"
    if letter.status == "settled":
        return SETTLED
    if letter.status == "replaying":
        assert letter.claim is not None
        left = (letter.claim.until - now).total_seconds()
        return f"{letter.claim.owner} is replaying it, and has {left:.0f} s before somebody else may"
    if letter.status == "in_doubt" and not despite_doubt:
        return "a replay of it was cut off, and nobody knows how far it had come: look, then use force"
    return None


def claimed(
    letter: DeadLetter,
    owner: str,
    token: str,
    now: datetime,
    lease: float,
    run_id: str | None,
    process: list[Any] | None = None,
) -> DeadLetter:
    """The letter in the hands of `owner` for `lease` seconds. A cut-off replay before goes on record."""
    letter = standing(letter, now)
    if letter.status == "in_doubt" and letter.claim is not None:
        letter = ended(letter, "in_doubt", now, "it was cut off")
    claim = Claim(
        owner=owner,
        token=token,
        since=now,
        until=now + timedelta(seconds=lease),
        run_id=run_id,
        process=process,
    )
    return letter.model_copy(update={"status": "replaying", "claim": claim})


def renewed(letter: DeadLetter, token: str, now: datetime, lease: float) -> DeadLetter | None:
    """The claim, good for another while; None when it is somebody else's by now."""
    claim = letter.claim
    if claim is None or claim.token != token:
        return None
    until = now + timedelta(seconds=lease)
    return letter.model_copy(update={"claim": claim.model_copy(update={"until": until})})


def settled(
    letter: DeadLetter, token: str, outcome: Outcome, now: datetime, message: str = ""
) -> DeadLetter | None:
    """The letter after its replay; None when the claim is somebody else's by now."""
    if letter.claim is None or letter.claim.token != token:
        return None
    return ended(letter, outcome, now, message)


def released(letter: DeadLetter, token: str) -> DeadLetter | None:
    """The letter as if it had not been claimed: nothing was called; None when another has the claim."""
    if letter.claim is None or letter.claim.token != token:
        return None
    return letter.model_copy(update={"status": _after(letter), "claim": None})


def _after(letter: DeadLetter) -> Status:
    """What a letter comes to without a replay: its run may have made the call in the meantime."""
    made = bool(letter.passes) and letter.passes[-1].outcome == "succeeded"
    return "settled" if made else "waiting"


def ended(
    letter: DeadLetter, outcome: Outcome, now: datetime, message: str = "", run_id: str | None = None
) -> DeadLetter:
    """The replay that is going on, or was cut off, put on record with its outcome.

    `run_id` is the run that it was, where the claim could not name it.
    """
    claim = letter.claim
    replay = Replay(
        started_at=claim.since if claim else now,
        finished_at=now,
        outcome=outcome,
        owner=claim.owner if claim else "",
        run_id=run_id or (claim.run_id if claim else None),
        message=message[:MESSAGE],
    )
    status = _after(letter) if outcome == "failed" else outcome
    return letter.model_copy(
        update={
            "status": status,
            "claim": None,
            "settled_at": now if status in ("replayed", "settled") else letter.settled_at,
            "replays": (*letter.replays, replay)[-REPLAYS_KEPT:],
        }
    )
