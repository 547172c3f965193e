"""DeadLetterQueue: the letters of one store.

A letter is two documents: a short entry with its status and claim, which a listing reads, and its contents,
written before the entry and removed after it. By an index, a flow run that is started again finds the letter
of the same call (see `claims.take`).
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID, uuid4

from prefect_resilience.base.durations import moment_of
from prefect_resilience.durable.effects.owner import this_process
from prefect_resilience.durable.letters import claims
from prefect_resilience.durable.letters.claims import ENTRY, contents_key, entry_key
from prefect_resilience.durable.letters.kinds import DeadLetterError
from prefect_resilience.durable.letters.model import (
    Claim,
    Contents,
    DeadLetter,
    Outcome,
    Pass,
    Status,
    as_stored,
    check_statuses,
)
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.stores import Document, Store
from prefect_resilience.stores.base import change, scan_all, write

OPEN: tuple[Status, ...] = ("waiting", "replaying", "in_doubt")
"""The statuses of letters that need a replay or a person."""
REPLAYABLE: tuple[Status, ...] = ("waiting", "in_doubt")
"""The statuses of letters that can be replayed."""
ROUNDING = 1.0
"""Seconds: more than the time in an id is rounded by."""
NAMED = 1_000
"""An unknown id is compared with the ids of this many letters, the newest ones."""


class DeadLetterQueue:
    """The dead letters of a store. Every method may raise StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def now(self) -> datetime:
        """The store's time, in UTC."""
        return datetime.fromtimestamp(self.store.now(), UTC)

    # -- adding letters

    def put(self, letter: DeadLetter, contents: Contents, *, in_replay: bool = False) -> DeadLetter:
        """Store a letter. A letter without an id gets an id and the current time.

        A task run has one letter, also if it is run twice, and so has a call of a batch: if another pass left
        it, that letter is updated instead. `in_replay`: also a letter of another run.
        """
        new = letter if letter.id else with_id(letter, self.now())
        place = claims.place_of(new)
        elsewhere = in_replay or claims.is_elsewhere(place[1], new.batch_id)
        letter_id = claims.take(
            self.store, new.identity, place, self._status, elsewhere=elsewhere, new_id=new.id
        )
        assert letter_id is not None
        if letter_id == new.id:
            self.store.swap(contents_key(letter_id), 0, contents.model_dump(mode="json"))
            if write(self.store, entry_key(letter_id), 0, as_stored(new), True) or letter.id:
                return new.holding(contents)
        return self._add_failure(letter_id, letter, contents)

    def _status(self, letter_id: str) -> Status:
        """The status of a letter. One that another process has begun and not yet written waits."""
        document = self.store.load(entry_key(letter_id))
        return "waiting" if document is None else self._read(document).status

    def _add_failure(self, letter_id: str, letter: DeadLetter, contents: Contents) -> DeadLetter:
        """The letter with this id after its call failed in another pass."""
        # The process that began it may not have written it yet, or have died.
        missing = with_id(letter, self.now()).model_copy(update={"id": letter_id})
        after = self._change(letter_id, lambda old: claims.add_failure(old, letter, self.now()), missing)
        assert after is not None
        change(self.store, contents_key(letter_id), lambda _: contents.model_dump(mode="json"))
        return after.holding(contents)

    def call_succeeded(self, identity: str, success: Pass, batch_id: str | None = None) -> DeadLetter | None:
        """Record that a call succeeded in a later pass. Returns its letter; None if none is open."""
        elsewhere = claims.is_elsewhere(success.starts, batch_id)
        place = success.task_run_id, success.starts
        letter_id = claims.take(self.store, identity, place, self._status, among=OPEN, elsewhere=elsewhere)
        if letter_id is None:
            return None
        dated = success.model_copy(update={"at": self.now()})
        return self._change(letter_id, lambda letter: claims.add_success(letter, dated))

    # -- reading letters

    def letters(
        self,
        status: str | Iterable[str] | None = None,
        task: str | None = None,
        since: datetime | timedelta | None = None,
        *,
        after: str | None = None,
    ) -> Iterator[DeadLetter]:
        """The letters that `dead_letters.list` returns, page by page: any number of them takes little
        memory."""
        wanted, now = check_statuses(status), self.now()
        if after is not None and not is_id(after):
            raise ConfigurationError(f"after={after!r} must be the id of a dead letter")
        start = None if after is None else entry_key(after)
        end = None if since is None else entry_key(first_id_at(moment_of(since, now).timestamp()))
        only_open = wanted is not None and wanted.issubset(OPEN)
        for key, document in scan_all(self.store, ENTRY, start, only_open=only_open):
            if end is not None and key > end:
                return
            letter = self._read(document, now)
            if (wanted is None or letter.status in wanted) and (task is None or is_of(letter, task)):
                yield letter

    def get(self, letter_id: str) -> DeadLetter:
        """One letter with its contents. Raises DeadLetterError for an unknown id."""
        document = self.store.load(entry_key(letter_id)) if is_id(letter_id) else None
        if document is None:
            raise DeadLetterError(f"dead letter {letter_id!r} not found{self._nearest(letter_id)}")
        return self._read(document).holding(self.contents(letter_id))

    def _nearest(self, letter_id: str) -> str:
        ids = [letter.id for letter in islice(self.letters(), NAMED)]
        near = difflib.get_close_matches(letter_id, ids, n=1, cutoff=0.9)
        if near:
            return f"; did you mean {near[0]!r}?"
        return ": see `dead-letters list`" if ids else ": there are no dead letters"

    def _read(self, document: Document, now: datetime | None = None) -> DeadLetter:
        """A stored letter in its current status."""
        contents = partial(self.contents, document.value["id"])
        return claims.standing(DeadLetter.model_validate(document.value).holding(contents), now or self.now())

    def contents(self, letter_id: str) -> Contents:
        """The parameters and the error of a letter; empty when they have been purged."""
        document = self.store.load(contents_key(letter_id))
        return Contents(parameters={}) if document is None else Contents.model_validate(document.value)

    # -- replays

    def claim(
        self, letter_id: str, owner: str, lease: float, *, run_id: str | None, despite_doubt: bool
    ) -> tuple[DeadLetter, str | None]:
        """Claim a letter for a replay. Returns the letter, and the reason if it is not free, else None."""
        token, process = uuid4().hex, this_process()
        why: str | None = None

        def take(letter: DeadLetter) -> DeadLetter | None:
            nonlocal why
            now = self.now()
            why = claims.refusal(letter, now, despite_doubt=despite_doubt)
            until = now + timedelta(seconds=lease)
            claim = Claim(owner=owner, token=token, since=now, until=until, run_id=run_id, process=process)
            return None if why else claims.begin_replay(letter, claim)

        taken = self._change(letter_id, take)
        return (taken, None) if taken is not None else (self.get(letter_id), why)

    def settle(self, letter_id: str, token: str, outcome: Outcome, message: str = "") -> DeadLetter | None:
        """Record the end of a replay; None when the claim is no longer this owner's."""

        def end(letter: DeadLetter) -> DeadLetter | None:
            if letter.claim is None or letter.claim.token != token:
                return None
            return claims.end_replay(letter, outcome, self.now(), message)

        return self._change(letter_id, end)

    def _change(
        self,
        letter_id: str,
        step: Callable[[DeadLetter], DeadLetter | None],
        missing: DeadLetter | None = None,
    ) -> DeadLetter | None:
        """Replace the entry with the result of `step`; None if that is None. `missing`: the letter if there
        is no entry."""

        def change_entry(value: Any) -> Any:
            letter = value and claims.standing(DeadLetter.model_validate(value), self.now())
            after = step(letter) if letter else missing
            return None if after is None else as_stored(after)

        after = change(self.store, entry_key(letter_id), change_entry, is_open=_is_open)
        return None if after is None else DeadLetter.model_validate(after)

    # -- removing letters

    def purge(
        self, older_than: datetime | timedelta, *, include_waiting: bool = False, dry_run: bool = False
    ) -> Iterator[DeadLetter]:
        """Remove letters that were replayed or settled before a time: any number of them takes little memory.
        A letter was removed when the iterator returns it; see `dead_letters.purge`."""
        before = moment_of(older_than, self.now())
        # A letter is at least as old as its end: newer ones need not be read.
        for letter in self.letters(after=first_id_at(before.timestamp() + ROUNDING)):
            is_old = claims.may_go(letter, before, include_waiting)
            if is_old and (dry_run or self._remove(letter, before, include_waiting)):
                yield letter

    def _remove(self, letter: DeadLetter, before: datetime, include_waiting: bool) -> bool:
        document = self.store.load(entry_key(letter.id))
        # The letter may have been claimed since it was chosen.
        is_removed = (
            document is not None
            and claims.may_go(self._read(document), before, include_waiting)
            and self.store.delete(entry_key(letter.id), document.version)
        )
        if is_removed:
            claims.forget(self.store, letter)
        return is_removed


def _is_open(value: Any) -> bool:
    """Whether a stored letter needs a replay or a person. One that waits has no status: the default."""
    return value.get("status", "waiting") in OPEN


def with_id(letter: DeadLetter, now: datetime) -> DeadLetter:
    """The letter with an id and this time."""
    dated = tuple(run_pass.model_copy(update={"at": now}) for run_pass in letter.passes)
    letter_id = new_id(now.timestamp(), random.getrandbits(64))
    return letter.model_copy(update={"id": letter_id, "created_at": now, "passes": dated})


def is_of(letter: DeadLetter, task: str) -> bool:
    """Whether a letter belongs to the task or flow of this name, key or import path."""
    return task in (letter.name, letter.key, str(letter.source))


# -- ids

_RANDOM_BITS = 62


def new_id(now: float, chance: int) -> str:
    """A UUID of version 7 (RFC 9562, method 3): the time in milliseconds and 4096ths of one, then chance.

    `now` is in seconds since the epoch, `chance` any integer; 62 bits of it are used.
    """
    ticks = max(0, int(now * 1000 * 4096))
    milliseconds, fraction = (ticks >> 12) & ((1 << 48) - 1), ticks & 0xFFF
    number = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << _RANDOM_BITS
    return str(UUID(int=number | chance & ((1 << _RANDOM_BITS) - 1)))


def first_id_at(now: float) -> str:
    """The smallest possible id of a letter made at this time."""
    return new_id(now, 0)


def is_id(text: str) -> bool:
    """Whether this is an id as `new_id` writes them."""
    try:
        return str(UUID(text)) == text
    except (ValueError, AttributeError, TypeError):
        return False
