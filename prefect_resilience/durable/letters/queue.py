"""DeadLetterQueue: the letters of one store.

A letter is two documents: a short entry, which a listing reads and which says who replays it, and its
contents, written before the entry and removed after it. A third, small document lets a flow run that is run
again find the letter of the same call (see `claims.of_call`).
"""

from __future__ import annotations

import difflib
import gc
import json
import os
import random
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from prefect_resilience.base.policy import nearest
from prefect_resilience.durable.effects.owner import is_gone, this_process
from prefect_resilience.durable.letters import claims, report
from prefect_resilience.durable.letters.claims import (
    ENTRY,
    contents_key,
    entry_key,
    first_id_at,
    is_id,
    new_id,
)
from prefect_resilience.durable.letters.kinds import DeadLetterError
from prefect_resilience.durable.letters.model import (
    STATUSES,
    Contents,
    DeadLetter,
    Outcome,
    Pass,
    Starts,
    as_stored,
    from_stored,
)
from prefect_resilience.durable.letters.report import run_again
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.stores import Document, Store

PAGE = 1_000
MOST_SWAPS = 100
SHORTEST_START = 6


class DeadLetterQueue:
    """The dead letters of a store. Every method may raise StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def now(self) -> datetime:
        """The store's time, in UTC."""
        return _utc(self.store.now())

    # -- letters come in

    def put(self, letter: DeadLetter, contents: Contents, *, in_replay: bool = False) -> DeadLetter:
        """Keep a letter. Unless it has an id, it is given one and its time here.

        Where another pass of the same flow run left a letter of the same call, that one is brought up to date
        instead; likewise, `in_replay`, where another run of the batch did.
        """
        if letter.identity and (in_replay or run_again(_starts(letter))):
            again = self._failed_again(letter, contents, in_replay)
            if again is not None:
                return again
        if not letter.id:
            now = self.now()  # in whole microseconds, so that the id and the time say the same
            latest = tuple(one.model_copy(update={"at": now}) for one in letter.passes)
            fresh = {
                "id": new_id(now.timestamp(), random.getrandbits(64)),
                "created_at": now,
                "passes": latest,
            }
            letter = letter.model_copy(update=fresh)
        # A letter with an id may be here already; then these writes change nothing.
        self.store.swap(contents_key(letter.id), 0, contents.model_dump(mode="json"))
        if letter.identity:
            claims.note(self.store, letter)
        self.store.swap(entry_key(letter.id), 0, as_stored(letter))
        return letter.holding(contents)

    def _failed_again(self, letter: DeadLetter, contents: Contents, in_replay: bool) -> DeadLetter | None:
        """The letter of the same call, brought up to date; None where there is none."""
        for known in self._of_call(letter.identity, _starts(letter), STATUSES, in_replay):
            changed = self._change(known, lambda old: report.failed(old, letter, self.now()))
            if changed is not None:
                key = contents_key(known)
                body = self.store.load(key)
                self.store.swap(key, body.version if body else 0, contents.model_dump(mode="json"))
                return changed.holding(contents)
        return None

    def _of_call(
        self, identity: str, starts: Starts, statuses: Collection[str], in_replay: bool = False
    ) -> Iterator[str]:
        """The letters of one call, each taken for its pass. Of equal calls, those that wait come first: they
        are what is made again, since the others had been made."""
        for waiting in (True, False):
            for known, document in claims.of_call(self.store, identity, starts, in_replay=in_replay):
                found = self.store.load(entry_key(known))
                status = None if found is None else self._read(found).status
                fits = status in statuses and (status == "waiting") is waiting
                if fits and claims.take(self.store, identity, known, document, starts):
                    yield known

    def call_succeeded(self, identity: str, one: Pass) -> DeadLetter | None:
        """A call has succeeded in a later pass of its flow run: its letter, if it waited; else None."""
        for known in self._of_call(identity, one.starts, ("waiting", "replaying", "in_doubt")):
            if (changed := self.made_by_run(known, one)) is not None:
                return changed if changed.status == "settled" else None
        return None

    def made_by_run(self, letter_id: str, one: Pass) -> DeadLetter | None:
        """Write down that a letter's call succeeded in a later pass; None when it is done with, or gone."""
        dated = one.model_copy(update={"at": self.now()})
        return self._change(letter_id, lambda letter: report.succeeded(letter, dated))

    # -- looking

    def letters(self, newer_than: datetime | None = None) -> Iterator[DeadLetter]:
        """Every letter, the newest first, as it stands now."""
        now = self.now()
        end = entry_key(first_id_at(newer_than.timestamp())) if newer_than else None
        after: str | None = None
        while True:
            page = self.store.scan(ENTRY, after, PAGE)
            for key, document in page:
                if end is not None and key > end:
                    return
                yield self._read(document, now)
            if len(page) < PAGE:
                return
            after = page[-1][0]

    def list(
        self,
        status: str | Iterable[str] | None = None,
        task: str | None = None,
        since: datetime | timedelta | None = None,
        limit: int | None = None,
    ) -> list[DeadLetter]:
        """The letters, the newest first.

        Args:
            status: "waiting", "replaying", "in_doubt", "replayed" or "settled", or several of them.
            task: Only those of the task or flow of this name, key or import path.
            since: Only those that came in after this time (without an offset: in UTC), or that long ago.
            limit: At most so many.
        """
        wanted = check_statuses(status)
        if limit is not None and limit < 1:
            raise ConfigurationError(f"limit={limit} must be 1 or more; leave it out for all")
        after = self.moment(since)
        with _no_collecting():
            fitting = (
                letter
                for letter in self.letters(after)
                if (wanted is None or letter.status in wanted) and (task is None or is_of(letter, task))
            )
            return [*islice(fitting, limit)]

    def get(self, letter_id: str) -> DeadLetter:
        """One letter with its contents. Raises DeadLetterError when there is none of this id."""
        found = self.store.load(entry_key(letter_id)) if is_id(letter_id) else None
        if found is None:
            raise DeadLetterError(f"there is no dead letter {letter_id!r}{self._nearest(letter_id)}")
        return self._read(found).holding(self.contents(letter_id))

    def _nearest(self, letter_id: str) -> str:
        known = [letter.id for letter in islice(self.letters(), PAGE)]
        begun = [one for one in known if len(letter_id) >= SHORTEST_START and one.startswith(letter_id)]
        # Ids of letters of one day are alike: only a slip of the pen is as near as that.
        for near in (*begun, *difflib.get_close_matches(letter_id, known, n=1, cutoff=0.9)):
            return f"; did you mean {near!r}?"
        return ": `dead-letters list` names those that there are" if known else ", nor any other"

    def _read(self, document: Document, now: datetime | None = None) -> DeadLetter:
        """A stored letter as it stands now."""
        now = now or self.now()
        contents = partial(self.contents, document.value["id"])
        return claims.standing(_known(document, lambda: now, contents), now)

    def contents(self, letter_id: str) -> Contents:
        """The parameters and the error of a letter; empty when they have been purged."""
        found = self.store.load(contents_key(letter_id))
        return Contents(parameters={}) if found is None else Contents.model_validate(found.value)

    def moment(self, given: datetime | timedelta | None) -> datetime | None:
        """A time, or a span before now, as a time in UTC."""
        if isinstance(given, timedelta):
            return self.now() - given
        return given.replace(tzinfo=timezone.utc) if given is not None and given.tzinfo is None else given

    # -- replays

    def claim(
        self, letter_id: str, owner: str, lease: float, *, run_id: str | None, despite_doubt: bool
    ) -> tuple[DeadLetter, str | None]:
        """Take a letter for a replay: the letter with its claim; or as it is, and why it cannot be taken."""
        token, process = uuid4().hex, this_process()
        why: str | None = None

        def take(letter: DeadLetter) -> DeadLetter | None:
            nonlocal why
            now = self.now()
            why = claims.refusal(letter, now, despite_doubt=despite_doubt)
            return None if why else claims.claimed(letter, owner, token, now, lease, run_id, process)

        taken = self._change(letter_id, take)
        return (taken, None) if taken is not None else (self.get(letter_id), why)

    def renew(self, letter_id: str, token: str, lease: float) -> bool:
        """Hold a claim for another `lease` seconds; False when it is somebody else's by now."""
        renewed = self._change(letter_id, lambda letter: claims.renewed(letter, token, self.now(), lease))
        return renewed is not None

    def settle(self, letter_id: str, token: str, outcome: Outcome, message: str = "") -> DeadLetter | None:
        """Write down how a replay ended; None when the claim is somebody else's by now."""
        return self._change(
            letter_id, lambda letter: claims.settled(letter, token, outcome, self.now(), message)
        )

    def release(self, letter_id: str, token: str) -> DeadLetter | None:
        """Give a claim back; the call was not made."""
        return self._change(letter_id, lambda letter: claims.released(letter, token))

    def failed_again(self, letter_id: str, run_id: str, message: str) -> DeadLetter | None:
        """A flow run that replayed a letter has failed: the letter waits again, with the run on record."""

        def reopened(letter: DeadLetter) -> DeadLetter | None:
            if letter.status not in ("replayed", "replaying"):
                return None
            return claims.ended(letter, "failed", self.now(), f"flow run {run_id}: {message}", run_id)

        return self._change(letter_id, reopened)

    def resolve(self, letter_id: str, outcome: Outcome, message: str) -> DeadLetter | None:
        """End the doubt about a replay that was cut off, by what somebody who knows says about it."""

        def known(letter: DeadLetter) -> DeadLetter | None:
            now = self.now()
            in_doubt = claims.standing(letter, now).status == "in_doubt"
            return claims.ended(letter, outcome, now, message) if in_doubt else None

        return self._change(letter_id, known)

    def _change(self, letter_id: str, change: Callable[[DeadLetter], DeadLetter | None]) -> DeadLetter | None:
        """Swap the entry for what `change` makes of it; None when it declines or the letter is gone."""
        key = entry_key(letter_id)
        for _ in range(MOST_SWAPS):
            document = self.store.load(key)
            changed = None if document is None else change(_known(document, self.now))
            if document is None or changed is None:
                return None
            if self.store.swap(key, document.version, as_stored(changed)):
                return changed
        raise StoreUnavailable(f"the dead letter {letter_id} is being changed by too many at once")

    # -- letters go

    def purge(
        self,
        older_than: datetime | timedelta,
        *,
        include_waiting: bool = False,
        archive: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
    ) -> list[DeadLetter]:
        """Remove letters that were replayed or settled before a time, or that long ago; returns those.

        Args:
            older_than: A time, or a span before now.
            include_waiting: Also letters that were never replayed, or are in doubt, if they came in before.
            archive: A file to which each is added, as a line of JSON, before any is removed.
            dry_run: Only say which they are.
        """
        before = self.moment(older_than)
        assert before is not None
        chosen = [letter for letter in self.letters() if _may_go(letter, before, include_waiting)]
        if dry_run or not chosen:
            return chosen
        with ExitStack() as stack:
            if archive is not None:
                file = stack.enter_context(Path(archive).open("a", encoding="utf-8"))
                _archive(file, chosen)
        return [letter for letter in chosen if self._remove(letter, before, include_waiting)]

    def _remove(self, letter: DeadLetter, before: datetime, include_waiting: bool) -> bool:
        document = self.store.load(entry_key(letter.id))
        if document is None:
            return False
        # Somebody may have claimed it since it was chosen.
        if not _may_go(self._read(document), before, include_waiting):
            return False
        if not self.store.delete(entry_key(letter.id), document.version):
            return False
        if (found := self.store.load(contents_key(letter.id))) is not None:
            self.store.delete(contents_key(letter.id), found.version)
        if letter.identity:
            claims.forget(self.store, letter)
        return True


def _known(
    document: Document, now: Callable[[], datetime], contents: Callable[[], Contents] | None = None
) -> DeadLetter:
    """A stored letter. Who died on this machine in the middle of its replay is known to be gone at once."""
    letter = from_stored(document.value, contents)
    gone = letter.claim is not None and is_gone(letter.claim.process)
    return claims.orphaned(letter, now()) if gone else letter


@contextmanager
def _no_collecting() -> Generator[None, None, None]:
    """Thousands of letters at once look like leaks to the garbage collector, which takes half the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _starts(letter: DeadLetter) -> Starts:
    """Where the call stands that a letter is made of."""
    return letter.passes[-1].starts if letter.passes else ()


def _may_go(letter: DeadLetter, before: datetime, include_waiting: bool) -> bool:
    if letter.status in ("replayed", "settled"):
        return (letter.settled_at or letter.created_at) < before
    return include_waiting and letter.status in ("waiting", "in_doubt") and letter.created_at < before


def _archive(file: TextIO, letters: Iterable[DeadLetter]) -> None:
    for letter in letters:
        line = {**letter.model_dump(mode="json"), "contents": letter.contents.model_dump(mode="json")}
        file.write(json.dumps(line) + "\n")
    file.flush()
    os.fsync(file.fileno())


def check_statuses(status: str | Iterable[str] | None) -> set[str] | None:
    """The statuses that are meant; None for all. Raises ConfigurationError for one that does not exist."""
    if status is None:
        return None
    wanted = {status} if isinstance(status, str) else set(status)
    for one in wanted:
        if one not in STATUSES:
            raise ConfigurationError(f"no dead letter is ever {one!r}{nearest(one, STATUSES)}")
    return wanted or None


def is_of(letter: DeadLetter, task: str) -> bool:
    """Whether a letter is of the task or flow of this name, key or import path."""
    return task in (letter.name, letter.key, str(letter.source))


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
