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

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from prefect_resilience.durable.letters.model import (
    PASSES_KEPT,
    REPLAYS_KEPT,
    Claim,
    DeadLetter,
    Outcome,
    Replay,
    Starts,
    Status,
)
from prefect_resilience.durable.letters.report import may_be_same
from prefect_resilience.stores import Document, Store

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


ENTRY = "dead-letter:"
CONTENTS = "dead-letter-contents:"
SAME_WORK = "dead-letter-same:"

_ALL = (1 << 128) - 1
_RANDOM_BITS = 62


def new_id(now: float, chance: int) -> str:
    """A UUID of version 7 (RFC 9562, method 3): the time in milliseconds and 4096ths of one, then chance.

    `now` is in seconds since the epoch, `chance` any integer, of which 62 bits are used.
    """
    ticks = max(0, int(now * 1000 * 4096))
    milliseconds, fraction = (ticks >> 12) & ((1 << 48) - 1), ticks & 0xFFF
    number = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << _RANDOM_BITS
    return str(UUID(int=number | chance & ((1 << _RANDOM_BITS) - 1)))


def first_id_at(now: float) -> str:
    """The smallest id that a letter of this moment may have."""
    return new_id(now, 0)


def is_id(text: str) -> bool:
    """Whether this is an id as `new_id` writes them."""
    try:
        return str(UUID(text)) == text
    except (ValueError, AttributeError, TypeError):
        return False


def entry_key(letter_id: str) -> str:
    """Where the letter's entry is. Stores scan upwards: the id is turned round, so new ones come first."""
    return f"{ENTRY}{_ALL ^ UUID(letter_id).int:032x}"


def contents_key(letter_id: str) -> str:
    """Where its parameters and its error are kept, which a listing does not read."""
    return f"{CONTENTS}{letter_id}"


def same_work_prefix(identity: str) -> str:
    """Below this stand the letters that failed over one and the same piece of work."""
    return f"{SAME_WORK}{identity}:"


def batch_prefix(batch: str) -> str:
    """Below this stand those of every call of a batch: identities begin with its digest and a dot."""
    return f"{SAME_WORK}{batch}."


def identity_in(key: str) -> str:
    """The identity that a key below `batch_prefix` names."""
    return key.removeprefix(SAME_WORK).rpartition(":")[0]


# Which letter is of which call: a small document beside each letter, found by what the call is.
#
# It holds the places in runs that the letter is known from. Whoever adds one has the letter for its pass,
# so that of two equal calls that fail at the same moment each finds a letter of its own.

PAGE = 1_000


def note(store: Store, letter: DeadLetter) -> None:
    """Write down what call a new letter is of."""
    store.swap(_key(letter.identity, letter.id), 0, _value(one.starts for one in letter.passes))


def forget(store: Store, letter: DeadLetter) -> None:
    """The letter is gone."""
    key = _key(letter.identity, letter.id)
    if (found := store.load(key)) is not None:
        store.delete(key, found.version)


def of_call(
    store: Store, identity: str, starts: Starts, *, in_replay: bool = False
) -> Iterator[tuple[str, Document]]:
    """The letters that may be of the call in this place, the oldest first: ids, and what `take` needs."""
    for key, document in _below(store, same_work_prefix(identity)):
        if may_be_same(_places(document.value), starts, in_replay=in_replay):
            yield key.rpartition(":")[2], document


def take(store: Store, identity: str, letter_id: str, document: Document, starts: Starts) -> bool:
    """Have the letter for the pass of this place; False when somebody else was faster."""
    known = [*_places(document.value), starts][-PASSES_KEPT:]
    return bool(store.swap(_key(identity, letter_id), document.version, _value(known)))


def in_batch(store: Store, batch: str) -> set[str]:
    """What calls of a batch, named by its digest, there are letters of."""
    return {identity_in(key) for key, _ in _below(store, batch_prefix(batch))}


def _value(places: Iterable[Starts]) -> dict[str, Any]:
    return {"passes": [[[run, count] for run, count in place] for place in places]}


def _key(identity: str, letter_id: str) -> str:
    return f"{same_work_prefix(identity)}{letter_id}"


def _below(store: Store, prefix: str) -> Iterator[tuple[str, Document]]:
    after: str | None = None
    while page := store.scan(prefix, after, PAGE):
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1][0]


def _places(value: Any) -> list[Starts]:
    return [tuple((str(run), int(count)) for run, count in place) for place in value["passes"]]
