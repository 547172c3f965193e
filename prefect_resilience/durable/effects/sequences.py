"""What a claim asks of the ledger and of the receiver, as sequences: how an effect stands, what `verify`
says, and its recorded result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

from prefect_resilience.base.drive import Blocking, Invoke, Sequence
from prefect_resilience.durable.effects.asking import Replayed
from prefect_resilience.durable.effects.current import sent_key
from prefect_resilience.durable.effects.model import Ask, Decision, Replay, Send, Succeeded, Verified
from prefect_resilience.durable.effects.policy import Done, NotDone, Unknown
from prefect_resilience.durable.effects.remedies import remedy
from prefect_resilience.durable.effects.results import Packed, pack, rebuilt, unpack
from prefect_resilience.durable.effects.steps import LedgerSteps
from prefect_resilience.durable.sagas.compensations import with_result
from prefect_resilience.errors.exceptions import (
    ConfigurationError,
    NotRecorded,
    ResultNotKept,
    StoreUnavailable,
)
from prefect_resilience.errors.secrets.redact import redact


@dataclass(slots=True)
class LedgerSequences(LedgerSteps):
    """One attempt at one effect, without its call."""

    recorded: bool = True
    """False while the store is unavailable and the effect is one that may be done all the same."""

    def _stands(self) -> Sequence[Decision]:
        if not self.recorded:
            return Send()
        return (yield from self._in_ledger(self._stand))

    def _in_ledger(self, step: Callable[[], Decision]) -> Sequence[Decision]:
        """A step of this claim; `Send` where the effect is one that goes on without the store."""
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
            # Cancelled beside a thread that may still be writing: it withdraws what it wrote.
            self._gone = True
            if self.ledger is not None:
                self._withdraw()
            raise

    def _do_without(self, error: StoreUnavailable, what: str) -> None:
        """The store is unavailable: an external effect is not made, any other goes on unrecorded."""
        if self.effect.external:
            said = redact(f"nothing was sent: {what}: {error}")
            raise NotRecorded(f"{said}; {remedy(str(error))}") from error
        self.recorded = False
        self.here.unrecorded(f"{what}: {error}")

    def _resolved(self, asked: Ask) -> Sequence[Decision]:
        """Ask the receiver what became of an earlier call. Raises InDoubt when nothing can tell."""
        said = asked.error or {"code": "INTERRUPTED", "message": "nothing is known of the call"}
        why = f"{said['code']}: {said.get('message', '')}" + (f"; {said['hint']}" if said.get("hint") else "")
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
        verified = Verified(asked.claim, answer, asker=self._asker)
        try:
            return (yield Blocking(self._ledger.verified, (self._place, verified)))
        except StoreUnavailable as error:
            self._do_without(error, "what verify says could not be recorded")
            return Send()

    def _undecided(self, why: str) -> Send:
        if self.effect.external:
            raise self._doubt(why)
        return Send()

    # -- results

    def _succeeded(self, done: Done) -> Sequence[None]:
        packed = yield from self._packed(done.result)
        event = Succeeded(self.name, packed, done.external_id)
        yield Blocking(self._ledger.report_patiently, (self._place, event))

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
