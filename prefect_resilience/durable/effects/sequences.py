"""The steps of a claim without its call: the state of the effect, its `verify`, its result."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import iscoroutinefunction
from logging import ERROR, WARNING
from typing import Any
from uuid import uuid4

from prefect_resilience.base.drive import Blocking, Invoke, Steps, drive
from prefect_resilience.base.plain import SCALARS, is_fixed, snapshot
from prefect_resilience.durable.effects.aliases import KnownAliases, aliases_of, follow, record_alias
from prefect_resilience.durable.effects.current import CallStart, EffectSurroundings, in_progress, sent_key
from prefect_resilience.durable.effects.keys import MadeKey, effect_key, short_digest
from prefect_resilience.durable.effects.ledger import Ledger, place_of, remedy
from prefect_resilience.durable.effects.model import (
    AlreadyDone,
    Ask,
    Asker,
    Doubted,
    FailedCall,
    LedgerDecision,
    Send,
    Succeeded,
    Verified,
    not_sent,
)
from prefect_resilience.durable.effects.opening import OpenBatch, loss_report, open_batch
from prefect_resilience.durable.effects.owner import LONG_PAUSE, ticking
from prefect_resilience.durable.effects.policy import Done, Effect, NotDone, Packed, Unknown, pack, rebuilt
from prefect_resilience.durable.effects.recipes import CodeSource, Continues, describe_suspects
from prefect_resilience.durable.sagas.compensations import record_compensation, with_result
from prefect_resilience.errors.exceptions import (
    ConfigurationError,
    InDoubt,
    NotRecorded,
    NotSent,
    StoreUnavailable,
)
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.telemetry.payloads import CallEvent, CallReport

_INTENDING = "the intent could not be recorded"


@dataclass(slots=True)
class LedgerSequences:
    """One attempt at one effect, without its call."""

    effect: Effect
    fn: Callable[..., Any]
    isasync: bool
    source: CodeSource
    here: EffectSurroundings
    direct: bool = False
    """Whether the call directly follows the look-up: there is no circuit and no limit."""
    name: str = field(default_factory=lambda: uuid4().hex)
    key: str = ""
    batch_id: str = ""
    ledger: Ledger | None = None
    clear: bool = False
    """Whether it is known that the effect did not take place so far, here or in an earlier run."""
    recorded: bool = True
    """False while the store is unavailable and the effect may be done without a record."""
    generation: int = 1
    """Above 1: the effect was compensated before, and this call is a new one for its receiver."""
    _place: str = ""
    _doing: str = "the ledger could not be opened"
    """The step that failed, for messages when the store is unavailable."""
    _claimed: bool = False
    _reported: bool = False
    """Whether the outcome of the claim is recorded, or will be by a thread."""
    _checked_at: float = 0.0
    _gone: bool = False
    _start: CallStart = field(default_factory=CallStart)
    _aliases: KnownAliases | None = None
    _asker: Asker = field(default_factory=Asker)
    _opened: OpenBatch | None = None
    _flow: tuple[str | None, str | None] = (None, None)

    @property
    def _ledger(self) -> Ledger:
        assert self.ledger is not None
        return self.ledger

    def _stand(self) -> LedgerDecision:
        """The state of the effect; without circuit and limits, the effect is claimed at once."""
        if self.ledger is None:
            self._open()
        if not self.direct or (self._opened is not None and self._opened.earlier):
            return self._look()
        try:
            return self._intend(in_doubt=False)
        except StoreUnavailable:
            # A read-only store still shows what is done.
            decision = self._look()
            if not isinstance(decision, AlreadyDone):
                self._doing = _INTENDING
                raise
            return decision

    def _look(self) -> LedgerDecision:
        self._doing = "the ledger could not be read"
        decision = self._ledger.look(self._place, self._asker)
        if self._opened is None:
            return decision
        if isinstance(decision, Send) and not decision.known and self.key in self._opened.earlier:
            raise NotRecorded(loss_report(self.batch_id, f"{self.key!r} was removed after this pass began"))
        self._opened.earlier.asked(self.key)
        if isinstance(decision, Send) and not decision.known and self._opened.earlier:
            assert self._asker.recipe is not None
            assert self._aliases is not None
            recipe = self._aliases.blur(self._asker.recipe, self.here.parameters)
            comparison = self._opened.compare(recipe, self.effect.was, self.source)
            if isinstance(comparison, Continues):
                self.key, self._place = comparison.key, place_of(self.batch_id, comparison.key)
                self._opened.earlier.asked(self.key)
                self._asker = replace(self._asker, recipe=None, names=())
                return self._ledger.look(self._place, self._asker)
            if comparison:
                raise self._doubt(describe_suspects(comparison, self.batch_id))
        return decision

    def _open(self) -> None:
        self.batch_id, self._flow = self.here.batch_id(), self.here.flow()
        ledger = self.here.ledger()
        new = self._take(ledger)
        self.key = new.key
        self._place = place_of(self.batch_id, self.key)
        now = in_progress.get()
        if now is not None and (now.key, now.batch_id) == (self.key, self.batch_id):
            raise ConfigurationError(
                f"the effect {self.key!r} calls itself: give the inner effect a key of its own"
            )
        if self.effect.compensates is None:
            passed = self.here.passed()
            names = (self.source.name, *self.effect.was)
            replays, conversation = self.effect.repeat == "replay", self._start.conversation
            self._asker = Asker(self._start.asker, passed, new.recipe, names, replays, None, conversation)
            self._doing = "the ledger could not be read"
            self._follow(ledger)
            if self.effect.external:
                self._opened = open_batch(ledger, self.batch_id, passed, self._flow, self.here.marks)
        self.ledger = ledger

    def _take(self, ledger: Ledger) -> MadeKey:
        """The key, taken before the function first runs, with all that is needed of the arguments later."""
        start = self._start = self.here.start()
        if start.key is None:
            values = self.here.parameters
            if self.effect.compensate or self.effect.compensates:
                start.undo = record_compensation(self.effect, values)
            start.fixed = SCALARS.issuperset(map(type, values.values())) or all(
                map(is_fixed, values.values())
            )
            if self.effect.verify is not None:
                questions = self.effect.verify_arguments(values)
                start.asked = {name: snapshot(value) for name, value in questions.items()}
            key = self._live_key(ledger)
            if self.effect.key and not start.fixed and key.key != self._live_key(ledger, digests=False).key:
                raise ConfigurationError(
                    f"the effect of {self.source.name!r} has a new key each time that its arguments are "
                    f"read, such as {key.key!r}: write a key over fields that stay the same"
                )
            start.key = key
        return start.key

    def _live_key(self, ledger: Ledger, digests: bool = True) -> MadeKey:
        """The key of the arguments as they are now."""
        fn = self.fn if self.effect.compensates is None else None
        values = self.here.parameters
        more: Any = {"fn": fn, "hasher": ledger.hash_secret, "digests": digests}
        return effect_key(self.effect, self.source.name, values, self.batch_id, **more)

    def _follow(self, ledger: Ledger) -> None:
        """If the key is only an alias of an effect, continue with that effect."""
        aliases = self._aliases = aliases_of(ledger.store, self.batch_id, self._asker.passed)
        keys = aliases.keys.get(self.key)
        if keys is None or ledger.store.load(self._place) is not None:
            return
        key, recipe = follow(ledger, self.batch_id, self.key, keys, self._asker)
        self._asker = replace(self._asker, recipe=recipe or self._asker.recipe, alias=self.key)
        self.key, self._place = key, place_of(self.batch_id, key)

    def note_changes(self) -> None:
        """After the call, and after other code of the user: record if its arguments have changed, and their
        key now. Does not block.

        It is written to the ledger before the outcome of the call.
        """
        taken, aliases = self._start.key, self._aliases
        if self._start.fixed or taken is None or not self.recorded or aliases is None or self.ledger is None:
            return
        values, before, hasher = self.here.parameters, taken.recipe["args"], self.ledger.hash_secret
        try:
            key = self._live_key(self._ledger, digests=False).key
            alias = self.key if key == taken.key else key
            if self.effect.key is None and alias == self.key:
                return
            now = {name: short_digest(value, hasher) for name, value in values.items() if not is_fixed(value)}
        except Exception:  # noqa: BLE001 - without a key, a later pass cannot send them either
            return
        names = [name for name, value in now.items() if value != before[name]["typed"]]
        if not names and alias == self.key:
            return
        aliases.add(alias, [self.key], names)
        aliases.called(self.key, values)
        write = partial(record_alias, self._ledger.store, self.batch_id, alias, self.key, names, self._asker)
        self._ledger.before_outcome.append(write)
        if self._reported or not self._claimed:
            self._ledger.owner.later(self._ledger.write_before)

    def _doubt(self, why: str) -> InDoubt:
        line = f"In doubt: the outcome of effect {self.key!r} in batch {self.batch_id!r} is unknown: {why}"
        events = (self._event("effect.in-doubt", why=why),)
        self.here.report(CallReport(ERROR, ("in doubt", self.key), line, events=events))
        return InDoubt(self.key, self.batch_id, why)

    def _event(self, happening: str, **more: Any) -> CallEvent:
        about = {"key": self.key, "batch_id": self.batch_id, **self.here.identity, **more}
        return CallEvent(happening, "effect", self.key, about)

    def _warn(self, line: str, *kind: str) -> None:
        self.here.report(CallReport(WARNING, kind, line))

    def _intend(self, in_doubt: bool = True) -> LedgerDecision:
        """Claim the effect. `in_doubt`: also if its outcome is unknown, unless it is external."""
        self._doing = _INTENDING
        about = {"key": self.key, "batch": self.batch_id, "task": self.source.name, **self.here.identity}
        about |= {
            "verify": self.effect.verify is not None,
            "recipe": self._asker.recipe,
            "flow": self._flow[1],
            **self._start.undo,
        }
        despite_doubt = in_doubt and not self.effect.external
        if self._reported:
            self.name = uuid4().hex  # each intent has a claim of its own
        began = ticking()
        decision = self._ledger.intend(
            self._place, self.name, self.effect.kind, about, despite_doubt, self._asker
        )
        if self._gone:
            self._withdraw()
        elif isinstance(decision, Send):
            self._claimed, self._reported, self.clear = True, False, False
            self.generation, self._checked_at = decision.generation, began
            if self._opened is not None and not decision.known:
                self._opened.count.one_more()
        return decision

    def fence(self) -> None:
        """Raise NotSent if another process may have settled the effect while this one was suspended. Blocks
        only after a long pause."""
        now = ticking()
        if not self._claimed or not self.effect.external or now - self._checked_at <= LONG_PAUSE:
            return
        try:
            if self._ledger.holds(self._place, self.name):
                self._checked_at = now
                return
        except StoreUnavailable as error:
            raise NotSent(redact(f"its claim could not be checked after a long pause: {error}")) from error
        raise NotSent(f"the effect {self.key!r} was settled elsewhere while this process was suspended")

    def _withdraw(self) -> None:
        self._ledger.report_later(self._place, not_sent(self.name, "cancelled before it was sent"))

    # -- around the steps

    def _stands(self) -> Steps[LedgerDecision]:
        if not self.recorded:
            return Send()
        return (yield from self._in_ledger(self._stand))

    def _in_ledger(self, step: Callable[[], LedgerDecision]) -> Steps[LedgerDecision]:
        """A step of this claim; `Send` if the store is unavailable and the effect may be done without it."""
        try:
            return (yield Blocking(step))
        except NotRecorded:
            raise
        except StoreUnavailable as error:
            self._do_without(error, self._doing)
            return Send()
        except Exception:
            raise
        except BaseException:
            # Cancelled while a thread may still write the intent: that thread then withdraws it.
            self._gone = True
            if self.ledger is not None and not self._reported:
                self._withdraw()
            raise

    def _do_without(self, error: StoreUnavailable, what: str) -> None:
        """The store is unavailable: an external effect is not sent, any other is done without a record."""
        if self.effect.external:
            refusal = redact(f"nothing was sent: {what}: {error}")
            raise NotRecorded(f"{refusal}; {remedy(str(error))}") from error
        self.recorded = False
        self._warn(f"This effect is not in the ledger: {what}: {error}", "unrecorded")

    def _ask_verify(self, asked: Ask) -> Steps[LedgerDecision]:
        """Ask the receiver about an earlier call. Raises InDoubt if the outcome stays unknown."""
        cause = asked.error or {"code": "INTERRUPTED", "message": "nothing is known about the call"}
        why = f"{cause['code']}: {cause.get('message', '')}" + (
            f"; {cause['hint']}" if cause.get("hint") else ""
        )
        if self.effect.verify is None:
            return self._stop_undecided(f"{why}; there is no verify to ask")
        # A plain function of an async task would block the loop.
        kind = Blocking if self.isasync and not iscoroutinefunction(self.effect.verify) else Invoke
        key = sent_key(self.key, asked.generation)
        answer: Any = yield kind(self.effect.verify, (key,), {**self._start.asked})
        self.note_changes()
        if isinstance(answer, Done):
            packed = yield from self._packed(rebuilt(answer.result, self.fn))
            answer = Done(packed, answer.external_id)
        elif isinstance(answer, Unknown):
            return self._stop_undecided(f"{why}; verify cannot tell")
        elif not isinstance(answer, NotDone):
            raise ConfigurationError(
                f"verify of the effect {self.key!r} returned {answer!r:.80}: "
                "write Done(result), NotDone() or Unknown()"
            )
        verified = Verified(asked.claim, answer, asker=self._asker)
        try:
            return (yield Blocking(self._ledger.verified, (self._place, verified)))
        except StoreUnavailable as error:
            self._do_without(error, "the answer of verify could not be recorded")
            return Send()

    def _stop_undecided(self, why: str) -> Send:
        if self.effect.external:
            raise self._doubt(why)
        return Send()

    # -- results

    def _succeeded(self, done: Done) -> Steps[None]:
        """Record the result. If this is interrupted, the owner's thread records it."""
        self._reported = True
        try:
            try:
                packed = yield from self._packed(done.result)
            except Exception as error:  # noqa: BLE001 - the effect is done, even if its result is lost
                packed = {"as": "lost", "why": redact(repr(error))}
            event = Succeeded(self.name, packed, done.external_id)
            yield Blocking(self._ledger.report_patiently, (self._place, event))
        except StoreUnavailable:
            raise
        except BaseException:
            context = copy_context()
            self._ledger.owner.later(lambda: context.copy().run(drive, self._succeeded(done)))
            raise

    def _record(self, event: FailedCall | Doubted) -> Steps[None]:
        """Report another outcome; in the background if the store is unavailable, or this is interrupted."""
        self._reported = True
        try:
            yield Blocking(self._ledger.report, (self._place, event))
        except StoreUnavailable:
            self._ledger.report_later(self._place, event)
        except BaseException:
            self._ledger.report_later(self._place, event)
            raise

    def _packed(self, value: Any) -> Steps[Packed]:
        packed = pack(value, self.fn)
        if packed is None:
            reference = f"effect-{self.name}"
            failure = yield Blocking(self.here.keep, (reference, value))
            packed = {"as": "stored", "ref": reference} if failure is None else {"as": "lost", "why": failure}
        return with_result(packed, value) if self.effect.compensate is not None else packed
