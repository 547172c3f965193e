"""A task run inside a child process: its contexts, its log and its effect, as the code there finds them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import SettingsContext, TaskRunContext, hydrated_context
from prefect.logging.configuration import ensure_logging_setup
from prefect.logging.handlers import emit_api_log, set_api_log_sink
from prefect.logging.loggers import patch_print
from prefect.plugins import load_prefect_collections

from prefect_resilience.base.process import in_forked_child
from prefect_resilience.durable.effects.current import EffectInProgress, in_progress
from prefect_resilience.durable.effects.evidence import watch_other_traffic
from prefect_resilience.guards.partials import Carried, Notes
from prefect_resilience.guards.timeouts.child import prepare_children_with
from prefect_resilience.guards.timeouts.process import Carriage
from prefect_resilience.tasks.edge.logs import keep_secrets_out_of_logs
from prefect_resilience.tasks.edge.seams import contexts_here

if TYPE_CHECKING:
    from prefect_resilience.guards.timeouts.process import Carriage

_KEPT, _LOG, _WITNESS = "kept", "log", "witness"

_notes: ContextVar[tuple[UUID, Notes] | None] = ContextVar("prefect_resilience_notes_in_child", default=None)


# A run's result storage is a block, and the first block loads all of Prefect's collections.
prepare_children_with(ensure_logging_setup)
prepare_children_with(load_prefect_collections)


def notes_in_child(task_run_id: UUID) -> Notes | None:
    """The notes of a run that this process serves as a child; None in other processes."""
    here = _notes.get()
    return None if here is None or here[0] != task_run_id else here[1]


def carriage_of(context: TaskRunContext, notes: Carried) -> Carriage:
    """What a call of this run takes along to a child process, and where its reports from there go."""
    settings = SettingsContext.get()
    effect = in_progress.get()
    # An ephemeral server's address is in no setting: without it, the child would start a server of its own.
    wrap = InThisRun(
        context.task_run.id,
        contexts_here(),
        pickle.dumps(settings and (settings.profile, settings.settings)),
        str(context.client.api_url).rstrip("/"),
        notes,
        effect,
    )
    return Carriage(wrap, partial(_heard, notes, effect and effect.witness))


def _heard(notes: Carried, witness: Any, message: tuple[str, Any]) -> None:
    """A report of the child, on the side of the parent."""
    kind, body = message
    with suppress(Exception):  # a log that cannot be sent is no reason to lose the call
        if kind == _KEPT:
            notes.left = body
        elif kind == _LOG:
            emit_api_log(body)
        else:
            witness.add(*body)


@dataclass(frozen=True)
class InThisRun:
    """Calls something inside a task run, from a child process."""

    task_run_id: UUID
    contexts: dict[str, Any]
    settings: bytes
    api_url: str
    notes: Carried
    effect: EffectInProgress | None

    def __call__(self, call: Callable[[], Any], tell: Callable[[Any], None]) -> Any:
        def send(kind: str, body: Any) -> None:
            tell((kind, body))

        settings, client = _settings_and_client(self.settings, self.api_url)
        _notes.set((self.task_run_id, self.notes.unpacked(partial(send, _KEPT))))
        _forward_logs(partial(send, _LOG))
        with settings, hydrated_context(self.contexts, client=client), patch_print():
            if self.effect is None:
                return call()
            watch_other_traffic(in_progress)
            in_progress.set(self.effect)
            try:
                return call()
            finally:
                send(_WITNESS, self.effect.witness.seen())


@lru_cache(maxsize=1)
def _settings_and_client(packed: bytes, api_url: str) -> tuple[SettingsContext, SyncPrefectClient]:
    """Kept from call to call: a client reads the certificates of all authorities."""
    profile, settings = pickle.loads(packed)
    if settings.api.url is None:
        api = settings.api.model_copy(update={"url": api_url})
        settings = settings.model_copy(update={"api": api})
    context = SettingsContext.model_construct(profile=profile, settings=settings)
    with context:
        return context, get_client(sync_client=True)


def _forward_logs(send: Callable[[dict[str, Any]], None]) -> None:
    """Send what is logged for the API to the parent, which sends it on; else a kill would lose it."""
    _prepare_once()
    set_api_log_sink(send)


@lru_cache(maxsize=1)
def _prepare_once() -> None:
    keep_secrets_out_of_logs()
    in_forked_child(partial(set_api_log_sink, None))
