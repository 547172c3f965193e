"""The states of a letter and its claims, as functions of the letter and the store's time.

    waiting ── claimed ──> replaying ── succeeded ──> replayed
       ^                    │    │
       └── failed ──────────┘    └── cut off: in_doubt ── claimed again

Later passes of the flow run have an effect, too: a waiting letter is settled when its call succeeds
there, and a replayed or settled letter waits again when its call fails there.

An expired claim leaves its letter in doubt: the owner died, and it is unknown how far the call got. So does
the claim of a process that is known to be dead. The functions expect a letter in its current status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import TypeAdapter

from prefect_resilience.durable.effects.model import same_pass
from prefect_resilience.durable.effects.owner import is_gone
from prefect_resilience.durable.letters.model import (
    MESSAGE,
    PASSES_KEPT,
    REPLAYS_KEPT,
    STATUSES,
    Claim,
    DeadLetter,
    Outcome,
    Pass,
    Reason,
    Replay,
    Starts,
    Status,
)
from prefect_resilience.stores import Store
from prefect_resilience.stores.base import change
from prefect_resilience.telemetry.model import FINAL

if TYPE_CHECKING:
    from prefect_resilience.durable.batches.decisions import BatchRun

Place = tuple[str | None, Starts]
"""The run of a call, and the flow runs around it."""

SETTLED = "its call succeeded when its flow run was run again"


def standing(letter: DeadLetter, now: datetime) -> DeadLetter:
    """The letter in its current status: in doubt if its claim has expired, or its owner here is dead."""
    claim = letter.claim
    if letter.status != "replaying" or (claim and claim.until > now and not is_gone(claim.process)):
        return letter
    return letter.model_copy(update={"status": "in_doubt"})


def refusal(letter: DeadLetter, now: datetime, *, despite_doubt: bool) -> str | None:
    """The reason why the letter cannot be claimed now; None when it is free."""
    if letter.status in ("replayed", "settled"):
        return SETTLED if letter.status == "settled" else "it was already replayed"
    if letter.status == "replaying":
        assert letter.claim is not None
        seconds = (letter.claim.until - now).total_seconds()
        return f"{letter.claim.owner} is replaying it; its lease ends in {seconds:.0f} s"
    if letter.status == "in_doubt" and not despite_doubt:
        return "its last replay was interrupted at an unknown point: check its outcome, then use force"
    return None


def begin_replay(letter: DeadLetter, claim: Claim) -> DeadLetter:
    """The letter with this claim. An earlier replay that was cut off is recorded."""
    if letter.status == "in_doubt" and letter.claim is not None:
        letter = end_replay(letter, "in_doubt", claim.since, "it was interrupted")
    return letter.model_copy(update={"status": "replaying", "claim": claim})


def end_replay(letter: DeadLetter, outcome: Outcome, now: datetime, message: str = "") -> DeadLetter:
    """The letter with its current or cut-off replay recorded with this outcome."""
    claim = letter.claim
    replay = Replay(
        started_at=claim.since if claim else now,
        finished_at=now,
        outcome=outcome,
        owner=claim.owner if claim else "",
        run_id=claim.run_id if claim else None,
        message=message[:MESSAGE],
    )
    status: Status | Outcome = outcome
    if outcome == "failed":
        # Its run may have made the call in the meantime.
        has_succeeded = bool(letter.passes) and letter.passes[-1].outcome == "succeeded"
        status = "settled" if has_succeeded else "waiting"
    return letter.model_copy(
        update={
            "status": status,
            "claim": None,
            "settled_at": now if status in ("replayed", "settled") else letter.settled_at,
            "replays": (*letter.replays, replay)[-REPLAYS_KEPT:],
        }
    )


def may_go(letter: DeadLetter, before: datetime, include_waiting: bool) -> bool:
    """Whether a purge of what is older than `before` removes the letter."""
    if letter.status in ("replayed", "settled"):
        return (letter.settled_at or letter.created_at) < before
    return include_waiting and letter.status in ("waiting", "in_doubt") and letter.created_at < before


# The passes of a flow run, and their effect on the letter of a call in it. Pure functions.
#
# A flow run that is retried (by policy, by the Retry button, or by recovery) is the same run, started again.
# A subflow in it may be a new run. So the place of a call is the list of all flow runs around it with the
# number of their start: [(root, 2), (sub, 1)] comes later than [(root, 1), (an earlier sub, 1)].

_FRESH = {"task_run_id", "flow_run_id", "run_count", "attempts", "category", "code", "message"}
"""The fields that a later failure of the same call updates."""


def place_of(letter: DeadLetter) -> Place:
    """The place of the call in its latest pass."""
    return letter.task_run_id, letter.passes[-1].starts if letter.passes else ()


def run_again(starts: Starts) -> bool:
    """Whether a flow run around the call was started before. If not, there is no earlier failure."""
    return any(count > 1 for _, count in starts)


def is_elsewhere(starts: Starts, batch_id: str | None) -> bool:
    """Whether the batch of a call is not its root flow run: other flow runs may make the same call of it."""
    return bool(starts) and starts[0][0] != batch_id


def may_be_same(known: Iterable[Place], place: Place, *, elsewhere: bool = False) -> bool:
    """Whether a letter that is known from these places may belong to an equal call in this place.

    Equal calls in one pass are different calls, so a letter belongs to one call per pass. Dask runs a run
    again if its worker died: that is the same call. `elsewhere`: a letter that is known only from other runs
    fits, too: a replay, or another pass of a batch with a name, has a run of its own.
    """
    run, starts = place
    if run is not None and any(known_run == run for known_run, _ in known):
        return True
    near = [other for _, other in known if other and starts and other[0][0] == starts[0][0]]
    if not near:
        return elsewhere
    return not any(same_pass(other, starts) for other in near)


def add_failure(letter: DeadLetter, anew: DeadLetter, now: datetime) -> DeadLetter:
    """The letter after its call failed in another pass; `anew` is the letter of that failure.

    A replayed or settled letter waits again: its run repeated the call, and the call failed.
    """
    changes: dict[str, Any] = anew.model_dump(include=_FRESH)
    if letter.status in ("replayed", "settled"):
        changes |= {"status": "waiting", "settled_at": None}
    latest = tuple(run_pass.model_copy(update={"at": now}) for run_pass in anew.passes)
    changes |= {"failures": letter.failures + 1, "passes": (*letter.passes, *latest)[-PASSES_KEPT:]}
    return letter.model_copy(update=changes)


def add_success(letter: DeadLetter, one: Pass) -> DeadLetter | None:
    """The letter after its call has succeeded in another pass; None if it was replayed or settled before.

    A letter that is being replayed or in doubt keeps its status: the call may have been made twice.
    """
    if letter.status in ("replayed", "settled"):
        return None
    changes: dict[str, Any] = {"passes": (*letter.passes, one)[-PASSES_KEPT:]}
    if letter.status == "waiting":
        changes |= {"status": "settled", "settled_at": one.at}
    return letter.model_copy(update=changes)


def why_left_to_runs(letter: DeadLetter, runs: Iterable[BatchRun]) -> tuple[str, Reason] | None:
    """Why a replay leaves the call to the flow runs around it; None if it does not.

    An active run may make the call itself. One that was started again after the letter, and completed or was
    cut off, may have made it without a record.
    """
    latest: dict[str | None, int] = {letter.flow_run_id: letter.run_count}
    for run_pass in letter.passes:
        for run_id, count in run_pass.starts:
            latest[run_id] = max(latest.get(run_id, 0), count)
    ended: BatchRun | None = None
    for run in runs:
        if run.type not in FINAL:
            return f"its flow run {run.name!r} is {run.state}: it may make the call itself", "run_goes_on"
        has_end = run.type in ("COMPLETED", "CRASHED", "CANCELLED") or run.state == "TimedOut"
        if ended is None and has_end and run.run_count > latest.get(str(run.id), 0):
            ended = run
    return ended and (
        f"its flow run {ended.name!r} was run again and is {ended.state}; it is unknown whether it made this "
        "call: check, then replay this letter by its id, with force",
        "unclear",
    )


ENTRY = "dead-letter:"
CONTENTS = "dead-letter-contents:"
CALLS = "dead-letter-call:"

_ALL = (1 << 128) - 1
_PLACES = TypeAdapter(dict[str, list[Place]])


def entry_key(letter_id: str) -> str:
    """The key of the letter's entry. The id is inverted: stores scan upwards, so new letters come first."""
    return f"{ENTRY}{_ALL ^ UUID(letter_id).int:032x}"


def contents_key(letter_id: str) -> str:
    """The key of its parameters and its error, which a listing does not read."""
    return f"{CONTENTS}{letter_id}"


# An index from calls to letters: one document for each call, with the places where each letter's call failed.
#
# A pass takes a letter by adding its place with a swap, so two equal calls that fail at the same moment get a
# letter each.


def take(
    store: Store,
    identity: str,
    place: Place,
    status_of: Callable[[str], Status],
    *,
    among: Iterable[Status] = STATUSES,
    elsewhere: bool = False,
    new_id: str | None = None,
) -> str | None:
    """The letter of a call in this place: its id, or `new_id` if none fits.

    `among`: the statuses that fit, in the order of preference. Of several equal calls, those whose letters
    wait have not succeeded yet.
    """
    taken: str | None = None

    def add_place(letters: dict[str, Any] | None) -> dict[str, Any] | None:
        nonlocal taken
        letters_places = _PLACES.validate_python(letters or {})
        same = [
            key for key, places in letters_places.items() if may_be_same(places, place, elsewhere=elsewhere)
        ]
        statuses = {letter_id: status_of(letter_id) for letter_id in same}
        taken = next((key for status in among for key in same if statuses[key] == status), new_id)
        if taken is None:
            return None
        places = [*letters_places.get(taken, ()), place][-PASSES_KEPT:]
        return _PLACES.dump_python({**letters_places, taken: places}, mode="json")

    change(store, CALLS + identity, add_place)
    return taken


def forget(store: Store, letter: DeadLetter) -> None:
    """Remove what is stored beside the entry of a letter that is gone."""

    def remove_letter(letters: dict[str, Any] | None) -> dict[str, Any] | None:
        return letters and {key: places for key, places in letters.items() if key != letter.id}

    call = CALLS + letter.identity
    change(store, call, remove_letter)
    for key in (contents_key(letter.id), call):
        document = store.load(key)
        if document is not None and (key != call or not document.value):
            store.delete(key, document.version)
