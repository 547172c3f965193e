"""A task run inside a child process: the contexts, log and effect that the code finds there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import SettingsContext, TaskRunContext, hydrated_context
from prefect.logging.configuration import ensure_logging_setup
from prefect.logging.handlers import emit_api_log, set_api_log_sink
from prefect.logging.loggers import patch_print
from prefect.plugins import load_prefect_collections

from prefect_resilience.base.process import in_forked_child
from prefect_resilience.durable.effects.channels import find_unwatched_channel
from prefect_resilience.durable.effects.current import EffectInProgress, in_progress
from prefect_resilience.durable.effects.witness import watch_other_traffic
from prefect_resilience.guards.partials import Carried, Notes
from prefect_resilience.guards.timeouts.child import prepare_children_with
from prefect_resilience.guards.timeouts.process_mode import Carriage
from prefect_resilience.tasks.edge.logs import keep_secrets_out_of_logs
from prefect_resilience.tasks.edge.seams import contexts_here

_KEPT, _LOG, _WITNESS = "kept", "log", "witness"

_notes: ContextVar[tuple[UUID, Notes] | None] = ContextVar("prefect_resilience_notes_in_child", default=None)


# A run's result storage is a block, and the first block loads all of Prefect's collections.
prepare_children_with(ensure_logging_setup)
prepare_children_with(load_prefect_collections)


def notes_in_child(task_run_id: UUID) -> Notes | None:
    """The notes of the task run whose call this child process makes; None in other processes."""
    current = _notes.get()
    return None if current is None or current[0] != task_run_id else current[1]


def carriage_of(context: TaskRunContext, notes: Carried) -> Carriage:
    """What a call of this run takes to a child process, and the handler of the child's reports."""
    settings = SettingsContext.get()
    effect = in_progress.get()
    # The address of an ephemeral server is not in the settings. Without it, the child would start its own.
    wrap = InThisRun(
        context.task_run.id,
        contexts_here(),
        pickle.dumps(settings and (settings.profile, settings.settings)),
        str(context.client.api_url).rstrip("/"),
        notes,
        effect,
    )
    return Carriage(wrap, partial(_handle, notes, effect and effect.witness))


def _handle(notes: Carried, witness: Any, message: tuple[str, Any]) -> None:
    """Handle a report of the child, in the parent."""
    kind, body = message
    with suppress(Exception):  # a log line that cannot be sent must not fail the call
        if kind == _KEPT:
            notes.packed = body
        elif kind == _LOG:
            emit_api_log(body)
        else:
            witness.add(*body)


@dataclass(frozen=True)
class InThisRun:
    """Calls a function inside a task run, from a child process."""

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
        _notes.set((self.task_run_id, self.notes.unpack(partial(send, _KEPT))))
        _forward_logs(partial(send, _LOG))
        with settings, hydrated_context(self.contexts, client=client), patch_print():
            if self.effect is None:
                return call()
            watch_other_traffic(in_progress)
            in_progress.set(self.effect)
            try:
                return call()
            except BaseException:
                self.effect.witness.saw_native(find_unwatched_channel(call))
                raise
            finally:
                send(_WITNESS, self.effect.witness.seen())


@lru_cache(maxsize=1)
def _settings_and_client(packed: bytes, api_url: str) -> tuple[SettingsContext, SyncPrefectClient]:
    """Cached: each new client reads the certificates of all authorities."""
    profile, settings = pickle.loads(packed)
    if settings.api.url is None:
        api = settings.api.model_copy(update={"url": api_url})
        settings = settings.model_copy(update={"api": api})
    context = SettingsContext.model_construct(profile=profile, settings=settings)
    with context:
        return context, get_client(sync_client=True)


def _forward_logs(send: Callable[[dict[str, Any]], None]) -> None:
    """Send the log records for the API through the parent. In the child, a kill would lose them."""
    _prepare_once()
    set_api_log_sink(send)


@lru_cache(maxsize=1)
def _prepare_once() -> None:
    keep_secrets_out_of_logs()
    in_forked_child(partial(set_api_log_sink, None))
