"""One attempt at one effect: look it up, record the intent, call, record the outcome. For both drivers.

    asked ──> (circuit, limits) ──> intended ──> the call ──> ended | broke | overdue
      └── done already: replayed

The intent is recorded after circuit and limits: if the process dies in a queue, the effect is not in doubt.
Without circuit or limits, look-up and intent are one write.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from logging import INFO
from time import monotonic
from typing import Any

from prefect_resilience.base.drive import Blocking, Command, Invoke, Steps, drive, sleep_for
from prefect_resilience.base.outcomes import UnawaitedResult, is_state, result_data
from prefect_resilience.durable.effects.channels import find_unwatched_channel
from prefect_resilience.durable.effects.current import (
    CallOutcome,
    EffectInProgress,
    Replayed,
    RunningCall,
    drop_cancelled_timers,
    in_progress,
    next_turn,
    when_gone,
)
from prefect_resilience.durable.effects.evidence import hint_of, is_request, proves_not_done
from prefect_resilience.durable.effects.grace import running
from prefect_resilience.durable.effects.model import (
    AlreadyDone,
    Ask,
    Doubted,
    FailedCall,
    InProgress,
    LedgerDecision,
    Repeated,
    Reused,
    Send,
    Undoing,
    not_sent,
)
from prefect_resilience.durable.effects.policy import Done, unpack
from prefect_resilience.durable.effects.recipes import clash
from prefect_resilience.durable.effects.sequences import LedgerSequences
from prefect_resilience.durable.effects.witness import Witness, watch_other_traffic
from prefect_resilience.errors.exceptions import (
    EffectBusy,
    EffectKeyReused,
    InDoubt,
    NotSent,
    RepeatedEffect,
    ResultNotKept,
    StoreUnavailable,
)
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import ErrorInfo, bounded
from prefect_resilience.guards.limits.guarding import LimitRefused
from prefect_resilience.telemetry.payloads import CallReport

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
Classify = Callable[[BaseException], ErrorInfo | None]


class Taken(LimitRefused):
    """Another run claimed the effect while this one waited in a queue; no call was made."""


@dataclass(slots=True)
class EffectClaim(LedgerSequences):
    """One attempt at one effect."""

    clear: bool = False
    watchable: bool = True
    """Whether the function runs in this process."""
    ambiguous: bool = False
    """Whether this attempt's call ended with an unknown outcome."""
    overdue: bool = False
    """Whether this attempt is over and its call still runs."""
    why: str = ""
    """What is known about an ambiguous call."""
    _classified: Classify = field(init=False)
    _running: RunningCall = field(default_factory=RunningCall)
    _witness: Witness = field(default_factory=Witness)

    def once(self, attempt: Callable[[], Steps[Any]]) -> Steps[Any]:
        """The recorded outcome as `Replayed` if the effect is done; else the result of the attempt, which
        uses `call`."""
        try:
            while True:
                replayed = yield from self.look_up()
                if replayed is not None:
                    return replayed
                try:
                    return (yield from attempt())
                except Taken:
                    continue
        except BaseException:
            self._give_up()
            raise

    def call(self, call: Callable[[RunningCall], Command], classified: Classify) -> Steps[Any]:
        """Record the intent, make the call, and record its outcome.

        `call` makes the command, which reports to the `RunningCall` when the function begins and ends.
        """
        yield from running.wait_for_turn()
        with running.including(id(self)):
            return (yield from self._call(call, classified))

    def _call(self, call: Callable[[RunningCall], Command], classified: Classify) -> Steps[Any]:
        yield from self.record_intent()
        self._classified = classified
        if self.effect.external:
            watch_other_traffic(in_progress)
            self.here.note_external_begun(self._ledger.store.url)
        if not self.watchable:
            self._running.unwatched()
        # Only the contexts of the call hold this object: when it is gone, the call has ended completely.
        now = EffectInProgress(
            self.key, self.batch_id, self.generation, self.effect.external, self._witness, self.fence
        )
        presence, around = weakref.ref(now), in_progress.get()
        try:
            in_progress.set(now)
            del now
            value = yield call(self._running)
        except BaseException as error:
            in_progress.set(around)
            self.note_changes()
            yield from self.record_failure(error, presence)
            raise
        in_progress.set(around)
        self.note_changes()
        return (yield from self.record_end(value))

    # -- before

    def look_up(self) -> Steps[Replayed | None]:
        """The recorded outcome if the effect is done; None if the call may be made."""
        began, pause = monotonic(), SHORTEST_PAUSE
        while True:
            decision: LedgerDecision = yield from self._stands()
            if isinstance(decision, Ask):
                decision = yield from self._ask_verify(decision)
                if isinstance(decision, Ask):
                    continue  # another call ended in doubt meanwhile
            if isinstance(decision, Send):
                self.clear = not self._claimed
                return None
            if isinstance(decision, AlreadyDone):
                return (yield from self._replay(decision))
            if isinstance(decision, Undoing):
                raise self._doubt(decision.why)
            if isinstance(decision, Repeated):
                if decision.renamed:
                    why = "a call of this pass requested it by the key that its arguments had later"
                    raise EffectKeyReused(self.key, self.batch_id, why)
                raise RepeatedEffect(self.key, self.batch_id)
            if isinstance(decision, Reused):
                self._asker = clash(decision, self._asker, self.source, self.key, self.batch_id)
                continue
            waited = monotonic() - began
            if waited >= self.effect.max_wait:
                if (
                    isinstance(decision, InProgress)
                    and decision.overdue_at is not None
                    and self.effect.external
                ):
                    raise self._doubt(f"its call still runs, {waited:.0f} s after another attempt was due")
                if self.effect.external and isinstance(decision, InProgress):
                    hangs = yield Blocking(self._ledger.hanging, (self._place,))
                    if hangs is not None:
                        raise self._doubt(f"{hangs}; end it, or settle the effect with --force")
                raise EffectBusy(self.key, self.batch_id, waited)
            yield from sleep_for(min(pause, self.effect.max_wait - waited))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def record_intent(self) -> Steps[None]:
        """Record that the call is about to be made. Raises `Taken` if another run was first."""
        if not self.recorded:
            return
        if not self._claimed and not isinstance((yield from self._in_ledger(self._intend)), Send):
            raise Taken(f"another run was first with the effect {self.key!r} of batch {self.batch_id!r}")
        try:
            self.fence()
        except NotSent as error:
            self._give_up()
            self._claimed = False
            raise Taken(str(error)) from error

    def _replay(self, decision: AlreadyDone) -> Steps[Replayed]:
        packed = decision.result
        try:
            if packed["as"] == "stored":
                value = yield Blocking(self.here.kept, (packed["ref"],))
            elif packed["as"] == "lost":
                raise LookupError(packed["why"])
            else:
                value = unpack(packed, self.fn)
        except LookupError as error:
            raise ResultNotKept(self.key, self.batch_id, str(error.args[0])) from error
        if self._aliases is not None:
            self._aliases.called(self.key, self.here.parameters)
        replayed = Replayed(value, self.key, self.batch_id, decision.external_id)
        line = f"Replayed: {replayed.message}"
        events = (self._event("effect.replayed", external_id=decision.external_id),)
        self.here.report(CallReport(INFO, ("replayed",), line, events=events, totals=("calls",)))
        return replayed

    # -- after

    def record_end(self, value: Any) -> Steps[Any]:
        """Record the call's result, then return it."""
        done = _as_done(value)
        result = value if is_state(value) else done.result
        if not self.recorded:
            return result
        try:
            yield from self._succeeded(done)
        except StoreUnavailable as error:
            if self.effect.external:
                self.ambiguous = True
                raise self._doubt(
                    redact(f"it was done, but its outcome could not be recorded: {error}")
                ) from None
            self._warn(f"This effect is not in the ledger: {error}", "unrecorded")
        return result

    def record_failure(self, error: BaseException, presence: weakref.ref[Any]) -> Steps[None]:
        """The attempt failed: record the outcome of its call, now or when the call has ended."""
        if self.recorded and self.effect.external:
            running.in_threads.add(id(self._running))
            if self._running.leave(self._end_late):
                yield from self._leave_running(error)
                return
            running.in_threads.discard(id(self._running))
            if (returned := self._running.returned) is not None:
                # The function returned at the moment when its attempt was interrupted.
                self._warn(drive(self._late(returned)), "late", self.key)
                return
            if self._running.interrupted and not (yield from self._is_over(error, presence)):
                yield from self._leave_running(error)
                return
        event = self._proof_of(error)
        if self.recorded and not isinstance(error, Exception):
            # Cancelled or interrupted: no more steps may be awaited.
            self._reported = True
            self._ledger.report_later(self._place, event)
        elif self.recorded:
            yield from self._record(event)

    def _give_up(self) -> None:
        """The attempt has ended: if nothing else reports its outcome, the owner's thread does."""
        if self._claimed and not self._reported:
            self._reported = True
            cause = {"code": "INTERRUPTED", "message": "its attempt was interrupted at an unknown point"}
            event = Doubted(self.name, cause) if self._running.entered else not_sent(self.name, "interrupted")
            self._ledger.report_later(self._place, event)

    def _proof_of(self, error: BaseException) -> FailedCall | Doubted:
        """The event that the call's error proves."""
        info, witness = self._classified(error), self._witness
        entered = self._running.entered
        # A promise of one request does not say that a request to the framework came before it.
        if is_request(error) or (witness.shows_nothing_taken() and not self.effect.one_request):
            witness.saw_native(find_unwatched_channel(self.fn, *self.here.parameters.values()))
        proven = proves_not_done(error, info, entered=entered, effect=self.effect, witness=witness)
        if isinstance(error, UnawaitedResult):
            proven = not (error.has_begun or witness.requests or witness.others or witness.beside())
        self.clear = proven
        self.ambiguous = not proven
        cause = None if info is None else {"code": info.code, "message": _brief(info.message)}
        if proven:
            return FailedCall(self.name, cause)
        self.why = (
            "it was interrupted" if cause is None else f"it failed with {cause['code']}: {cause['message']}"
        )
        spared = hint_of(error, info, self.effect, witness)
        if spared is not None:
            self.why += f"; {spared}"
            cause = cause and {**cause, "hint": spared}
        return Doubted(self.name, cause)

    # -- overdue calls

    def _leave_running(self, error: BaseException) -> Steps[None]:
        self.overdue = self._reported = True
        self.clear = False
        self.ambiguous = False
        if isinstance(error, Exception):
            yield Blocking(self._ledger.overdue, (self._place, self.name))
        else:
            self._ledger.owner.later(partial(self._ledger.overdue, self._place, self.name))
        line = f"The abandoned call of effect {self.key!r} in batch {self.batch_id!r} is still running"
        self._warn(line, "overdue", self.key)

    def _is_over(self, error: BaseException, presence: weakref.ref[Any]) -> Steps[bool]:
        """Whether all threads and tasks of a finished coroutine have ended."""
        if presence() is None:
            return True
        drop_cancelled_timers()
        if isinstance(error, Exception):
            yield Invoke(next_turn)
        info = self._classified(error)
        cause = {
            "code": "OVERDUE",
            "message": "its attempt was over before its call, and the outcome of the call is unknown",
        }
        if info is not None:
            cause["after"] = info.code
        report = partial(self._ledger.report, self._place, Doubted(self.name, cause))
        return when_gone(presence, partial(self._ledger.owner.later_while_held, report))

    def _end_late(self, outcome: CallOutcome) -> None:
        """Record the outcome of a call that outlived its attempt, in the call's own thread."""
        try:
            self._warn(drive(self._late(outcome)), "late", self.key)
        except Exception as error:  # noqa: BLE001 - no caller waits for this thread
            why = f"the outcome of the effect {self.key!r} could not be recorded: {error!r}"
            self._warn(f"Late: {why}", "late", self.key)
        finally:
            running.in_threads.discard(id(self._running))

    def _late(self, outcome: CallOutcome) -> Steps[str]:
        self.note_changes()
        if outcome.error is None:
            yield from self._succeeded(_as_done(outcome.value))
            return (
                f"Late: the effect {self.key!r} was done after its attempt was over; its result is recorded"
            )
        event = self._proof_of(outcome.error)
        yield Blocking(self._ledger.report_patiently, (self._place, event))
        came = "did not take place" if isinstance(event, FailedCall) else "may have taken place"
        return f"Late: the effect {self.key!r} {came}: its call ended in an error after its attempt was over"

    def retry_refusal(self, error: BaseException) -> str | None:
        """Why the call must not be retried; None if it may be."""
        if isinstance(error, InDoubt):
            return "a person must decide whether it took place"
        if not self.ambiguous or not self.effect.external or self.effect.verify is not None:
            return None
        return "its outcome is unknown, and an external effect without verify is not repeated"

    def settle_doubt(self) -> Steps[Replayed | InDoubt | None]:
        """Ask `verify` about an external call that ended in doubt and is not retried. None: the effect did
        not take place, or its call still runs."""
        if not self.ambiguous or not self.effect.external or not self.recorded:
            return None
        if self.effect.verify is None:
            return self._doubt(f"{self.why}; there is no verify to ask")
        try:
            replayed = yield from self.look_up()
        except InDoubt as doubt:
            return doubt
        except Exception as error:  # noqa: BLE001 - verify's error must not replace the call's own
            return self._doubt(redact(f"{self.why}; verify failed: {error!r}"))
        if replayed is None:
            self.clear = True
            self.ambiguous = False
            if self._claimed:
                event = not_sent(self.name, "the receiver does not have it, and it is not sent again")
                yield from self._record(event)
        return replayed

    @property
    def bars_fallbacks(self) -> bool:
        """Whether a fallback might do the effect a second time."""
        return self.effect.external and not self.clear


def _as_done(value: Any) -> Done:
    value = result_data(value)
    return value if isinstance(value, Done) else Done(value)


def _brief(message: str) -> str:
    """The first line of a message, at most 200 characters."""
    lines = message.strip().splitlines()
    return bounded(lines[0], 200) if lines else ""
