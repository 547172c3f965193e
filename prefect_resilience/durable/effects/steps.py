"""The steps of one attempt in the ledger: opening the batch, looking an effect up, recording the intent. All
may block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from prefect_resilience.durable.effects.asking import EffectSurroundings, suspected
from prefect_resilience.durable.effects.current import in_progress
from prefect_resilience.durable.effects.keys import effect_key
from prefect_resilience.durable.effects.ledger import Ledger, place_of
from prefect_resilience.durable.effects.model import Asker, Decision, Failed, Replay, Send
from prefect_resilience.durable.effects.names import CodeSource
from prefect_resilience.durable.effects.opening import OpenBatch, lost_records, open_batch
from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.durable.effects.recipes import Continues
from prefect_resilience.durable.sagas.compensations import recorded_compensation
from prefect_resilience.errors.exceptions import ConfigurationError, InDoubt, NotRecorded, StoreUnavailable

_INTENDING = "the intent could not be recorded"


@dataclass(slots=True)
class LedgerSteps:
    """One attempt at one effect, as the ledger sees it."""

    effect: Effect
    fn: Callable[..., Any]
    isasync: bool
    source: CodeSource
    here: EffectSurroundings
    direct: bool = False
    """Whether nothing stands between the question and the call: no circuit, no limit."""
    name: str = field(default_factory=lambda: uuid4().hex)
    key: str = ""
    batch_id: str = ""
    ledger: Ledger | None = None
    clear: bool = False
    """Whether it is known that the effect did not take place so far, here or in an earlier run."""
    generation: int = 1
    """Above 1: the effect was compensated before, and this call is a new one to its receiver."""
    _place: str = ""
    _doing: str = "the ledger cannot be opened"
    """What it is that has failed when the store is unavailable."""
    _claimed: bool = False
    _gone: bool = False
    _undo: dict[str, Any] = field(default_factory=dict[str, Any])
    _asker: Asker = field(default_factory=Asker)
    _opened: OpenBatch | None = None

    def _is_clear(self, clear: bool) -> None:
        self.clear = clear

    @property
    def _ledger(self) -> Ledger:
        assert self.ledger is not None
        return self.ledger

    def _stand(self) -> Decision:
        """How the effect stands; where nothing else has to be asked, it is claimed at once."""
        if self.ledger is None:
            self._open()
        if not self.direct or (self._opened is not None and self._opened.earlier):
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
        decision = self._ledger.look(self._place, self._asker)
        if self._opened is None:
            return decision
        if isinstance(decision, Send) and not decision.known and self.key in self._opened.earlier:
            raise NotRecorded(lost_records(self.batch_id, f"{self.key!r} is gone since this pass began"))
        self._opened.earlier.asked(self.key)
        if isinstance(decision, Send) and not decision.known and self._opened.earlier:
            assert self._asker.recipe is not None
            found = self._opened.compare(self._asker.recipe, self.effect.was, self.source)
            if isinstance(found, Continues):
                self.key, self._place = found.key, place_of(self.batch_id, found.key)
                self._opened.earlier.asked(self.key)
                self._asker = Asker(self._asker.run, self._asker.passed, None, (), self._asker.replays)
                return self._ledger.look(self._place, self._asker)
            if found:
                raise self._doubt(suspected(found, self.batch_id))
        return decision

    def _open(self) -> None:
        self._undo = recorded_compensation(self.effect, self.here.parameters)
        self.batch_id = self.here.batch_id()
        ledger = self.here.ledger()
        made = effect_key(
            self.effect,
            self.source.name,
            self.here.parameters,
            self.batch_id,
            fn=self.fn if self.effect.compensates is None else None,
            hasher=ledger.keyed_hash,
        )
        self.key = made.key
        self._place = place_of(self.batch_id, self.key)
        now = in_progress.get()
        if now is not None and (now.key, now.batch_id) == (self.key, self.batch_id):
            raise ConfigurationError(
                f"the effect {self.key!r} calls itself: give the inner one a key of its own"
            )
        if self.effect.compensates is None:
            passed = self.here.passed()
            names = (self.source.name, *self.effect.was)
            run = self.here.identity["task_run_id"]
            self._asker = Asker(run, passed, made.recipe, names, self.effect.repeat == "replay")
            if self.effect.external:
                self._doing = "it cannot be looked up whether it is done"
                self._opened = open_batch(ledger, self.batch_id, passed, self.here.flow(), self.here.marks)
        self.ledger = ledger

    def _doubt(self, why: str) -> InDoubt:
        self.here.in_doubt(self.key, self.batch_id, why)
        return InDoubt(self.key, self.batch_id, why)

    def _intend(self, in_doubt: bool = True) -> Decision:
        """Claim the effect. `in_doubt`: also one that is not external, and of which nothing is known."""
        self._doing = _INTENDING
        _, name = self.here.flow()
        about = {"key": self.key, "batch": self.batch_id, "task": self.source.name, **self.here.identity}
        about |= {
            "verify": self.effect.verify is not None,
            "recipe": self._asker.recipe,
            "flow": name,
            **self._undo,
        }
        despite_doubt = in_doubt and not self.effect.external
        decision = self._ledger.intend(
            self._place, self.name, self.effect.kind, about, despite_doubt, self._asker
        )
        if self._gone:
            self._withdraw()
        elif isinstance(decision, Send):
            self._claimed, self.clear, self.generation = True, False, decision.generation
            if self._opened is not None and not decision.known:
                self._opened.count.one_more()
        return decision

    def _withdraw(self) -> None:
        error = {"code": "NOT_SENT", "message": "cancelled before it was sent"}
        self._ledger.report_later(self._place, Failed(self.name, error))
