"""The ledger: intents and outcomes of effects. Each step is one compare-and-swap on one document."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from prefect_resilience.base import places
from prefect_resilience.base.naming import digest
from prefect_resilience.durable.effects.model import (
    AlreadyDone,
    Asker,
    Doubted,
    EffectDocument,
    Event,
    FailedCall,
    Intend,
    LedgerDecision,
    LookUp,
    Overdue,
    Send,
    Succeeded,
    Verified,
    decide,
    not_sent,
)
from prefect_resilience.durable.effects.owner import Owner, owner_in
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.stores import open_store
from prefect_resilience.stores.base import MOST_CHANGES, Document, Store, change, lists_open, scan_all

PREFIX = "effects/"
HASH_KEY = "effects-hash-key"
LEDGER_WRITE = "prefect_resilience.ledger"
"""The audit event around each write of an effect: "before" or "after", and its new document."""
RECORD_FOR = 10.0
"""Seconds in which recording a result is retried before the caller gets StoreUnavailable."""


def place_of(batch_id: str, key: str = "", prefix: str = PREFIX) -> str:
    """The store key of an effect; without a key, the prefix of all effects of the batch."""
    quoted = quote(batch_id, safe="", errors="surrogatepass")
    short = quoted if len(quoted) <= 600 else f"{quoted[:580]}~{digest(batch_id)}"
    return f"{prefix}{short}/{key}"


class LastSeen(NamedTuple):
    """An effect's place and its document when last seen; None: there was no document."""

    place: str
    document: Document | None


class Ledger:
    """The effects in one store. Every method may block, and raise StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.owner: Owner = owner_in(store)
        self._last: LastSeen | None = None
        self.before_outcome: list[Callable[[], object]] = []
        """Writes that must be made before the next outcome is recorded."""

    def hash_secret(self, text: str) -> str:
        """A keyed digest of a secret. The key is created once and kept in this store."""
        return hmac.new(self._hash_key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    @cached_property
    def _hash_key(self) -> bytes:
        new = {"key": secrets.token_hex(32)}
        return bytes.fromhex(change(self.store, HASH_KEY, lambda known: known or new)["key"])

    def look(self, place: str, asker: Asker | None = None) -> LedgerDecision:
        """The state of the effect; if it is replayed, the asking run is recorded."""
        return self._step(place, lambda alive: LookUp(alive, asker))

    def intend(
        self,
        place: str,
        claim: str,
        kind: Any,
        about: dict[str, Any],
        despite_doubt: bool = False,
        asker: Asker | None = None,
    ) -> LedgerDecision:
        """Claim the effect; after `Send` the caller makes the call and reports its outcome.

        Without an earlier look, the effect is assumed to be new; the swap confirms or denies this. If the
        store fails, an intent that it may have recorded is withdrawn in the background.
        """
        owner = self.owner.hold(claim)
        try:
            decision = self._step(
                place,
                lambda alive: Intend(owner, claim, alive, kind, about, despite_doubt, asker),
                seen=self._last_seen_of(place) or LastSeen(place, None),
            )
        except BaseException:
            self.report_later(place, not_sent(claim, "it was withdrawn"))
            raise
        if not isinstance(decision, Send):
            self.owner.drop(claim)
        return decision

    def report(self, place: str, event: Succeeded | FailedCall | Doubted) -> None:
        """Record the outcome of a call."""
        self.write_before()
        self._step(place, lambda _: event, seen=self._last_seen_of(place))
        self.owner.drop(event.claim)

    def overdue(self, place: str, claim: str) -> None:
        """Record that the call outlives its attempt; the claim stays held. Never raises StoreUnavailable."""
        try:
            self.write_before()
            self._step(place, lambda _: Overdue(claim), seen=self._last_seen_of(place))
        except StoreUnavailable:
            self.owner.later(lambda: self._step(place, lambda _: Overdue(claim)))

    def write_before(self) -> None:
        while self.before_outcome:
            write = self.before_outcome[0]
            write()
            with suppress(ValueError):  # another thread was first
                self.before_outcome.remove(write)

    def report_patiently(self, place: str, event: Succeeded | FailedCall | Doubted) -> None:
        """`report`, retried for RECORD_FOR seconds. Then it raises StoreUnavailable and continues in the
        background."""
        until = time.monotonic() + RECORD_FOR
        pause = 0.05
        while True:
            try:
                return self.report(place, event)
            except StoreUnavailable:
                if time.monotonic() + pause > until:
                    self.report_later(place, event)
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def report_later(self, place: str, event: Succeeded | FailedCall | Doubted) -> None:
        """`report` in the background, until the store has recorded it. Does not block."""
        self.owner.later(lambda: self.report(place, event))

    def verified(self, place: str, event: Verified) -> LedgerDecision:
        """Record the answer of the receiver or of a person."""
        return self._step(place, lambda _: event)

    def effects(self, batch_id: str) -> list[tuple[EffectDocument, bool]]:
        """Every effect of a batch in the order of their first intents, and whether each is in progress."""
        return sorted(self.each_effect(batch_id), key=lambda one: (one[0]["first_at"], one[0]["key"]))

    def each_effect(self, batch_id: str) -> Iterator[tuple[EffectDocument, bool]]:
        """The same, one after the other, in the order of the store: takes no memory for a large batch."""
        for _, document in scan_all(self.store, place_of(batch_id)):
            yield document.value, self.is_busy(document.value)

    def is_busy(self, document: EffectDocument | None) -> bool:
        """Whether a call or a compensation of the effect is running now."""
        held = None if document is None else _claim_in(document)
        return held is not None and self.owner.lives(held["owner"], held["claim"])

    def hanging(self, place: str) -> str | None:
        """Why the living owner of the effect seems to hang; None if it does not."""
        stored = self.store.load(place)
        held = None if stored is None else _claim_in(stored.value)
        return None if held is None else self.owner.hanging(held["owner"])

    def holds(self, place: str, claim: str) -> bool:
        """Whether the claim is still the last one of the effect, and open."""
        stored = self.store.load(place)
        return stored is not None and (stored.value["state"], stored.value["claim"]) == ("intended", claim)

    def _last_seen_of(self, place: str) -> LastSeen | None:
        """The document that this ledger saw last, if it was this effect's."""
        last = self._last  # a report in the background may change it meanwhile
        return last if last is not None and last.place == place else None

    def _step(
        self, place: str, event: Callable[[bool], Event], seen: LastSeen | None = None
    ) -> LedgerDecision:
        """One step of the effect. It starts from the document seen last; this saves a read at every step of a
        call. The swap fails if the document has changed."""
        self._last = None
        again = seen is not None
        stored = self.store.load(place) if seen is None else seen.document
        for _ in range(MOST_CHANGES):
            before = None if stored is None else stored.value
            step = event(self.is_busy(before))
            after, decision = decide(before, step, self.owner.now())
            if after is not None and after is not before:
                try:
                    number = 0 if stored is None else stored.version
                    opened = {"open": True} if after["state"] in OPEN and lists_open(type(self.store)) else {}
                    sys.audit(LEDGER_WRITE, "before", after)
                    version = self.store.swap(place, number, after, **opened)
                    sys.audit(LEDGER_WRITE, "after", after)
                except StoreUnavailable:
                    # A read-only store still shows what is done.
                    if isinstance(step, LookUp) and isinstance(decision, AlreadyDone):
                        return decision
                    raise
                if version:
                    self._last = LastSeen(place, Document(after, version))
                    return decision
            elif not again:
                self._last = LastSeen(place, stored)
                return decision
            again = False
            stored = self.store.load(place)
        raise StoreUnavailable(f"too many concurrent changes to the effect {place!r}: try again")


YEAR = 365 * 86_400.0
"""So many seconds after the last change a batch's logs and its archive are removed."""


class BatchLog:
    """A document of one batch beside its effects. Every method may block, and raise StoreUnavailable."""

    prefix: ClassVar[str]
    new: ClassVar[dict[str, Any]]
    """The document before the first change."""

    def __init__(self, ledger: Ledger, batch_id: str) -> None:
        self.ledger = ledger
        self.batch_id = batch_id
        self.place: str = place_of(batch_id, prefix=self.prefix)[:-1]

    def document(self) -> dict[str, Any]:
        stored = self.ledger.store.load(self.place)
        return {**self.new, "batch": self.batch_id} if stored is None else stored.value

    def change(self, step: Callable[[dict[str, Any], float], dict[str, Any]]) -> dict[str, Any]:
        """The document after a step, which gets the document and the store's time."""
        store, new = self.ledger.store, {**self.new, "batch": self.batch_id}
        return change(store, self.place, lambda stored: step(stored or new, store.now()), YEAR)


OPEN = frozenset({"intended", "unknown", "failed", "compensating"})
"""The states of an effect that still needs its owner or a person."""


def is_open(document: dict[str, Any]) -> bool:
    """Whether a document of the ledger is an effect that still needs its owner or a person."""
    return document.get("state") in OPEN


def _claim_in(document: EffectDocument) -> dict[str, Any] | None:
    """The part of an effect that names the owner of its call, or of its compensation; None if neither is
    begun."""
    undoing = document["state"] == "compensating"
    held: dict[str, Any] = document["compensation"] if undoing else document
    return held if held["owner"] and (undoing or document["state"] == "intended") else None


# -- a store in trouble

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_URL = "PREFECT_RESILIENCE_STORE_URL"
_WRITABLE = f"give this program write access, or set another store in {_URL}"

# The first match counts, so the order matters: the later patterns also match other errors.
_REMEDIES = (
    ("root flow run|found out", "start the Prefect API, or name the batch: `with batch(...)`"),
    ("oom command|out of memory|maxmemory", "give Redis more memory (maxmemory), or free some"),
    (
        "is full|no space left|could not (extend file|write)|quota|too large|disk i/o error|misconf",
        "its disk is full, over its quota or failing: free some space",
    ),
    ("read[- ]?only|permission denied|insufficient privilege", f"it is read-only: {_WRITABLE}"),
    ("noreplicas", "wait until its replicas have caught up (min-replicas-to-write)"),
    ("is locked|lock timeout", "another program holds its lock: wait until it is released"),
    ("password|noauth|wrongpass|noperm|authentication", f"set the user and the password in {_URL}"),
    ("unable to open|file exists|not a directory|not a database|no such file", _WRITABLE),
    (
        r"\brefused|time(out|d out)|connect|closed|reset|shutting down|starting up|no route|service|resolve",
        f"start it, or correct its address in {_URL}",
    ),
)


def remedy(text: str) -> str:
    """How to repair a store, in a few words. `text` is its error."""
    # URLs and paths may match any of the patterns.
    text = _QUOTED.sub("", text.rpartition("could not answer: ")[2].casefold())
    for signs, words in _REMEDIES:
        if re.search(signs, text):
            return words
    return f"repair it, or set another store in {_URL}"


# -- the configured ledger


def open_ledger(store: Store | str | None = None) -> Ledger:
    """The ledger in an open store, a store's URL, or the configured store. Raises StoreUnavailable."""
    if store is None or isinstance(store, str):
        try:
            store = open_store(store or places.documents())
        except ConfigurationError as error:
            raise StoreUnavailable(str(error)) from None
    return Ledger(store)
