"""One compensation: it is found by its path and called once, as an effect of its own.

A `ResilientTask` records the call itself: it gets the compensation's key, and keeps its own retries, kind and
`verify`. Any other function is called here once, within a claim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from prefect_resilience.base.drive import Blocking, Command, Invoke, Steps
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.durable.effects.claim import EffectClaim
from prefect_resilience.durable.effects.current import OutsideRuns, Replayed
from prefect_resilience.durable.effects.keys import effect_key
from prefect_resilience.durable.effects.ledger import Ledger
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.durable.effects.recipes import CodeSource
from prefect_resilience.durable.sagas import undo
from prefect_resilience.durable.sagas.compensations import compensation_arguments
from prefect_resilience.durable.sagas.undo import SagaLog
from prefect_resilience.errors.classify.classify import ErrorInfo, classify
from prefect_resilience.errors.exceptions import InDoubt, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded

if TYPE_CHECKING:
    from prefect_resilience.durable.letters.kinds import Finder


Outcome = tuple[str, str]
"""The outcome of one compensation: the name of a field of the RollbackReport, and a reason or a note."""


@dataclass(slots=True)
class Compensating:
    """Calls the compensations of one rollback. `asynchronous`: an event loop drives it."""

    log: SagaLog
    asynchronous: bool
    finder: Finder = field(default_factory=lambda: _finder())

    def undone(self, effect: EffectDocument) -> Steps[Outcome]:
        """Compensate one fenced effect, and record the outcome."""
        key = key_of_undoing(effect, self.log.batch_id)
        own: EffectDocument | None = yield Blocking(self.log.effect, (key,))
        if own is not None and own["state"] == "done":
            yield self._end(effect, "compensated")
            return "already", "by an interrupted rollback"
        try:
            yield from self._call(effect)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the other effects must still be undone
            return (yield from self._record_failure(effect, key, error))
        yield self._end(effect, "compensated")
        return "compensated", ""

    def _end(self, effect: EffectDocument, state: str, error: dict[str, Any] | None = None) -> Command:
        """The command that records the end of a compensation."""
        step = partial(undo.end_compensation, state=state, error=error)
        return Blocking(self.log.change_effect, (effect, step))

    # -- the call

    def _call(self, effect: EffectDocument) -> Steps[Any]:
        from prefect_resilience.durable.letters.codec import Reader
        from prefect_resilience.durable.letters.kinds import Source

        source = Source(**effect["compensation"]["call"])
        function: Callable[..., Any] = self.finder.subject(source, "")
        reader = Reader(find_module=self.finder.modules_of(source))
        arguments = compensation_arguments(effect, function, reader)
        guard = getattr(function, "guard", None)
        if guard is not None and is_enabled():
            recorded: Any = function
            task = recorded.with_options(effect=_effect_for(effect, guard.effect), cache_policy=_no_cache())
            return (yield self._command(task, arguments))
        if hasattr(function, "task_key") and hasattr(function, "with_options"):
            # A plain Prefect task: its retries would repeat the call even if its outcome is unknown.
            plain: Any = function
            function = plain.with_options(retries=0, cache_policy=_no_cache())
        name = str(source)
        surroundings = _Here(self.log.ledger, self.log.batch_id, {"node_id": name})
        own = _effect_for(effect, None)
        claim = EffectClaim(own, function, self.asynchronous, CodeSource(name), surroundings, watchable=False)
        make = partial(self._command, function, arguments)
        outcome = yield from claim.once(lambda: claim.call(lambda _: make(), _classify))
        return outcome.value if isinstance(outcome, Replayed) else outcome

    def _command(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Command:
        """The command of a call: it does not block an event loop, and runs coroutines also without a loop."""
        if not _is_async(function):
            return (Blocking if self.asynchronous else Invoke)(function, (), arguments)
        if self.asynchronous:
            return Invoke(function, (), arguments)
        return Invoke(_run_to_its_end, (function, arguments))

    def _record_failure(self, effect: EffectDocument, key: str, error: Exception) -> Steps[Outcome]:
        own: EffectDocument | None = yield Blocking(self.log.effect, (key,))
        state, brief = "failed" if own is None else own["state"], _brief(error)
        if state == "done":
            yield self._end(effect, "compensated")
            return "compensated", f"but then: {brief}"
        cause = {"code": classify(error).code, "message": brief}
        yield self._end(effect, "done" if state == "failed" else "compensating", cause)
        if state == "failed":
            return "failed", f"{brief}; the effect is not compensated"
        if isinstance(error, InDoubt):
            return "in_doubt", error.why
        return "failed", f"{brief}; whether the effect is compensated is unknown"


def key_of_undoing(effect: EffectDocument, batch_id: str) -> str:
    """The ledger's key for the compensation of an effect, which is an effect of its own."""
    return effect_key(_effect_for(effect, None), "", {}, batch_id, hasher=str).key


def _effect_for(effect: EffectDocument, own: Effect | None) -> Effect:
    """The compensation as an effect: with its own kind and `verify`, and a key for this call."""
    key = undo.compensation_key(effect).replace("{", "{{").replace("}", "}}")
    return (own or Effect()).model_copy(
        update={"key": key, "compensates": effect["key"], "compensate": None, "scope": ""}
    )


def _classify(error: BaseException) -> ErrorInfo | None:
    return classify(error) if isinstance(error, Exception) else None


def _brief(error: BaseException) -> str:
    lines = redact(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {bounded(lines[0], 200)}" if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class _Here(OutsideRuns):
    """A compensation's surroundings (see `EffectSurroundings`): the rollback reports its outcome."""

    opened: Ledger
    batch: str
    identity: dict[str, Any]

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {}

    def batch_id(self) -> str:
        return self.batch

    def ledger(self) -> Ledger:
        return self.opened


# -- Prefect, for compensations and parameters that need it


def _is_async(function: Callable[..., Any]) -> bool:
    mark = getattr(function, "isasync", None)  # Prefect tasks have it
    return inspect.iscoroutinefunction(function) if mark is None else bool(mark)


def _run_to_its_end(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    from prefect.utilities.asyncutils import run_coro_as_sync

    return run_coro_as_sync(function(**arguments))


def _no_cache() -> Any:
    from prefect.cache_policies import NO_CACHE

    return NO_CACHE


def _finder() -> Finder:
    from prefect.utilities.importtools import load_script_as_module

    from prefect_resilience.durable.letters.kinds import Finder

    return Finder(load_script_as_module)
