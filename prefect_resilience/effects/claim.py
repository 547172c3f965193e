"""One attempt's way through the ledger, as sequences for the two drivers of `drive.py`.

    asked ──> (circuit, limits) ──> intended ──> the call ──> ended | broke
      └── done already: replayed

The intention is written when nothing stands before the call any more, so that whoever dies while it waits
for a place leaves no doubt behind. Where nothing does from the beginning, asking and intending are one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any, Protocol
from uuid import uuid4

from prefect_resilience.drive import Blocking, Command, Invoke, Sequence
from prefect_resilience.effects.compensations import recorded_compensation, with_result
from prefect_resilience.effects.current import EffectInProgress, in_progress, sent_key
from prefect_resilience.effects.evidence import proves_not_done, retry_refusal
from prefect_resilience.effects.keys import effect_key
from prefect_resilience.effects.ledger import Ledger, place_of
from prefect_resilience.effects.model import (
    Ask,
    Decision,
    Doubted,
    Failed,
    Replay,
    Send,
    Succeeded,
    Undoing,
    Verified,
)
from prefect_resilience.effects.policy import Done, Effect, NotDone, Unknown
from prefect_resilience.effects.remedies import remedy
from prefect_resilience.effects.results import Packed, pack, rebuilt, unpack
from prefect_resilience.errors.exceptions import (
    ConfigurationError,
    EffectBusy,
    InDoubt,
    NotRecorded,
    ResultNotKept,
    StoreUnavailable,
)
from prefect_resilience.errors.info import ErrorInfo, bounded
from prefect_resilience.errors.redact import redact
from prefect_resilience.limits.refusals import LimitRefused
from prefect_resilience.limits.waiting import slept

_INTENDING = "the intention could not be recorded"
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


class Taken(LimitRefused):
    """Somebody else claimed the effect while this one waited for a place; nothing was called."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a call that was not made, since the effect is done."""

    value: Any
    key: str
    batch_id: str
    external_id: str | None

    @property
    def message(self) -> str:
        known = "" if self.external_id is None else f" as {self.external_id!r}"
        return f"{self.key} was done before{known} in batch {self.batch_id}"


class EffectSurroundings(Protocol):
    """What a claim needs of the place where its task runs. Only the first three may raise, and block."""

    def batch_id(self) -> str:
        """The batch that the run belongs to. Raises StoreUnavailable while that cannot be found out."""
        ...

    def ledger(self) -> Ledger: ...

    def kept(self, reference: str) -> Any:
        """What `keep` kept; LookupError when it is gone."""
        ...

    def keep(self, reference: str, value: Any) -> str | None:
        """Keep a result that is no JSON; what went wrong, if anything."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def identity(self) -> dict[str, Any]: ...

    def replayed(self, replayed: Replayed) -> None: ...

    def in_doubt(self, key: str, batch_id: str, why: str) -> None: ...

    def unrecorded(self, why: str) -> None:
        """The store is away, and the call is made all the same: it is not external."""
        ...


@dataclass(slots=True)
class Claim:
    """One attempt at one effect."""

    effect: Effect
    fn: Callable[..., Any]
    isasync: bool
    task: str
    here: EffectSurroundings
    direct: bool = False
    """Whether nothing stands between the question and the call: no circuit, no limit."""
    name: str = field(default_factory=lambda: uuid4().hex)
    key: str = ""
    batch_id: str = ""
    ledger: Ledger | None = None
    recorded: bool = True
    """False while the store is away and the effect is one that may be done all the same."""
    clear: bool = False
    """Whether it is known that the effect did not take place so far, here or in an earlier run."""
    ambiguous: bool = False
    """Whether this attempt's own call ended without anybody knowing what became of it."""
    generation: int = 1
    """Above 1: the effect was compensated before, and this call is a new one to its receiver."""
    _place: str = ""
    _doing: str = "the ledger cannot be opened"
    """What it is that has failed when the store is away."""
    _claimed: bool = False
    _gone: bool = False
    _undo: dict[str, Any] = field(default_factory=dict[str, Any])

    def once(self, attempt: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """What was recorded if the effect is done, as `Replayed`, else the attempt, which uses `called`."""
        while True:
            replayed = yield from self.asked()
            if replayed is not None:
                return replayed
            try:
                return (yield from attempt())
            except Taken:
                continue

    def called(
        self, call: Callable[[], Command], classified: Callable[[BaseException], ErrorInfo | None]
    ) -> Sequence[Any]:
        """Make the call; before it, write down what is intended, and after it, what came of it."""
        yield from self.intended()
        reset = in_progress.set(EffectInProgress(self.key, self.batch_id, self.generation))
        try:
            value = yield call()
        except BaseException as error:
            yield from self.broke(error, classified(error))
            raise
        finally:
            in_progress.reset(reset)
        return (yield from self.ended(value))

    # -- before

    def asked(self) -> Sequence[Replayed | None]:
        """What was recorded if the effect is done; None when the call may be made."""
        began, pause = monotonic(), SHORTEST_PAUSE
        while True:
            decision: Decision = yield from self._stands()
            if isinstance(decision, Ask):
                decision = yield from self._resolved(decision)
                if isinstance(decision, Ask):
                    continue  # another call went wrong meanwhile
            if isinstance(decision, Send):
                self.clear = not self._claimed
                return None
            if isinstance(decision, Replay):
                return (yield from self._replayed(decision))
            if isinstance(decision, Undoing):
                raise self._doubt(decision.why)
            waited = monotonic() - began
            if waited >= self.effect.max_wait:
                raise EffectBusy(self.key, self.batch_id, waited)
            yield from slept(min(pause, self.effect.max_wait - waited))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def intended(self) -> Sequence[None]:
        """Write down that the call is about to be made. Raises `Taken` when somebody else was first."""
        if not self.recorded or self._claimed:
            return
        if not isinstance((yield from self._in_ledger(self._intend)), Send):
            raise Taken(f"another run was first with the effect {self.key!r} of batch {self.batch_id!r}")

    # -- after

    def ended(self, value: Any) -> Sequence[Any]:
        """Record what the call returned, and only then hand it on."""
        done = value if isinstance(value, Done) else Done(value)
        if not self.recorded:
            return done.result
        packed = yield from self._packed(done.result)
        event = Succeeded(self.name, packed, done.external_id)
        try:
            yield Blocking(self._ledger.report_patiently, (self._place, event))
        except StoreUnavailable as error:
            if self.effect.external:
                self.ambiguous = True
                raise self._doubt(redact(f"it was done, but this could not be recorded: {error}")) from None
            self.here.unrecorded(str(error))
        return done.result

    def broke(self, error: BaseException, info: ErrorInfo | None) -> Sequence[None]:
        """The call raised: record what this proves."""
        proven = info is not None and proves_not_done(error, info)
        self.clear, self.ambiguous = proven, not proven
        said = None if info is None else {"code": info.code, "message": _brief(info.message)}
        event = Failed(self.name, said) if proven else Doubted(self.name, said)
        if self.recorded and not isinstance(error, Exception):
            # Cancelled or interrupted: nothing may be awaited any more.
            self._ledger.report_later(self._place, event)
        elif self.recorded:
            try:
                yield Blocking(self._ledger.report, (self._place, event))
            except StoreUnavailable:
                self._ledger.report_later(self._place, event)
        if self.ambiguous and self.effect.external and self.effect.verify is None:
            why = "it was interrupted" if said is None else f"it ended in {said['code']}: {said['message']}"
            self.here.in_doubt(self.key, self.batch_id, why)

    def retry_refusal(self, error: BaseException) -> str | None:
        """Why there is no other attempt although the retry policy would make one; None: no objection."""
        if isinstance(error, InDoubt):
            return "only a person can say whether it took place"
        return retry_refusal(self.effect, doubt=self.ambiguous)

    @property
    def bars_fallbacks(self) -> bool:
        """Whether another answer might do the same thing a second time."""
        return self.effect.external and not self.clear

    # -- the steps

    @property
    def _ledger(self) -> Ledger:
        assert self.ledger is not None
        return self.ledger

    def _stands(self) -> Sequence[Decision]:
        if not self.recorded:
            return Send()
        return (yield from self._in_ledger(self._stand))

    def _in_ledger(self, step: Callable[[], Decision]) -> Sequence[Decision]:
        """A step of this claim; `Send` where the effect is one that goes on without the store."""
        try:
            return (yield Blocking(step))
        except StoreUnavailable as error:
            self._do_without(error, self._doing)
            return Send()
        except Exception:
            raise
        except BaseException:
            # Cancelled beside a thread that may still be writing: it withdraws what it wrote.
            self._gone = True
            if self.ledger is not None:
                self._withdraw()
            raise

    def _stand(self) -> Decision:
        """How the effect stands; where nothing else has to be asked, it is claimed at once."""
        if self.ledger is None:
            self._open()
        if not self.direct:
            return self._look()
        try:
            return self._intend(in_doubt=False)
        except StoreUnavailable:
            # A store that may only be read still tells what is done.
            decision = self._look()
            if not isinstance(decision, Replay):
                self._doing = _INTENDING
                raise
            return decision

    def _look(self) -> Decision:
        self._doing = "it cannot be looked up whether it is done"
        return self._ledger.look(self._place)

    def _open(self) -> None:
        self._undo = recorded_compensation(self.effect, self.here.parameters)
        self.batch_id = self.here.batch_id()
        self.key = effect_key(self.effect, self.task, self.here.parameters, self.batch_id)
        self._place = place_of(self.batch_id, self.key)
        now = in_progress.get()
        if now is not None and (now.key, now.batch_id) == (self.key, self.batch_id):
            raise ConfigurationError(
                f"the effect {self.key!r} calls itself: give the inner one a key of its own"
            )
        self.ledger = self.here.ledger()

    def _do_without(self, error: StoreUnavailable, what: str) -> None:
        """The store is away: an external effect is not made, any other goes on unrecorded."""
        if self.effect.external:
            said = redact(f"nothing was sent: {what}: {error}")
            raise NotRecorded(f"{said}; {remedy(str(error))}") from error
        self.recorded = False
        self.here.unrecorded(f"{what}: {error}")

    def _resolved(self, asked: Ask) -> Sequence[Decision]:
        """Ask the receiver what became of an earlier call. Raises InDoubt when nothing can tell."""
        said = asked.error or {"code": "INTERRUPTED", "message": "nothing is known of the call"}
        why = f"{said['code']}: {said['message']}"
        if self.effect.verify is None:
            return self._undecided(f"{why}; there is no verify to ask")
        arguments = self.effect.verify_arguments(self.here.parameters)
        # A plain function under an async task would hold up the loop.
        kind = Blocking if self.isasync and not iscoroutinefunction(self.effect.verify) else Invoke
        key = sent_key(self.key, asked.generation)
        answer: Any = yield kind(self.effect.verify, (key,), arguments)
        if isinstance(answer, Done):
            packed = yield from self._packed(rebuilt(answer.result, self.fn))
            answer = Done(packed, answer.external_id)
        elif isinstance(answer, Unknown):
            return self._undecided(f"{why}; verify cannot tell")
        elif not isinstance(answer, NotDone):
            raise ConfigurationError(
                f"verify of the effect {self.key!r} returned {answer!r:.80}: "
                "write Done(result), NotDone() or Unknown()"
            )
        try:
            return (yield Blocking(self._ledger.verified, (self._place, Verified(asked.claim, answer))))
        except StoreUnavailable as error:
            self._do_without(error, "what verify says could not be recorded")
            return Send()

    def _undecided(self, why: str) -> Send:
        if self.effect.external:
            raise self._doubt(why)
        return Send()

    def _doubt(self, why: str) -> InDoubt:
        self.here.in_doubt(self.key, self.batch_id, why)
        return InDoubt(self.key, self.batch_id, why)

    def _intend(self, in_doubt: bool = True) -> Decision:
        """Claim the effect. `in_doubt`: also one that is not external, and of which nothing is known."""
        self._doing = _INTENDING
        about = {"key": self.key, "batch": self.batch_id, "task": self.task, **self.here.identity}
        about |= {"verify": self.effect.verify is not None, **self._undo}
        despite_doubt = in_doubt and not self.effect.external
        decision = self._ledger.intend(self._place, self.name, self.effect.kind, about, despite_doubt)
        if self._gone:
            self._withdraw()
        elif isinstance(decision, Send):
            self._claimed, self.clear, self.generation = True, False, decision.generation
        return decision

    def _withdraw(self) -> None:
        error = {"code": "NOT_SENT", "message": "cancelled before it was sent"}
        self._ledger.report_later(self._place, Failed(self.name, error))

    # -- results

    def _packed(self, value: Any) -> Sequence[Packed]:
        packed = pack(value, self.fn)
        if packed is None:
            reference = f"effect-{self.name}"
            failure = yield Blocking(self.here.keep, (reference, value))
            packed = {"as": "stored", "ref": reference} if failure is None else {"as": "lost", "why": failure}
        return with_result(packed, value) if self.effect.compensate is not None else packed

    def _replayed(self, decision: Replay) -> Sequence[Replayed]:
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
        replayed = Replayed(value, self.key, self.batch_id, decision.external_id)
        self.here.replayed(replayed)
        return replayed


def _brief(message: str) -> str:
    """The first line of a message, of a bearable length."""
    lines = message.strip().splitlines()
    return bounded(lines[0], 200) if lines else ""
