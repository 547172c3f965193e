"""What is left behind at the end of a flow run: its summary and the hint how to go on, as artifacts.

    @flow(on_completion=[run_summary], on_failure=[run_summary], on_crashed=[run_summary])

Prefect calls these hooks by position in the run's process, and by name in the worker when that process has
died. Whatever happens in them is told to the log, and no reason for a run to fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.context import FlowRunContext
from prefect.logging.loggers import flow_run_logger
from prefect.settings import PREFECT_UI_URL
from prefect.task_runners import ThreadPoolTaskRunner

from prefect_resilience.effects.batch_tags import batch_of_flow_run
from prefect_resilience.effects.flow_runs import ERROR_LABEL, label_of_error
from prefect_resilience.effects.strategies import RecoveryPolicy
from prefect_resilience.errors.classify import ErrorInfo, classify
from prefect_resilience.errors.context import attached_context
from prefect_resilience.errors.info import bounded
from prefect_resilience.errors.redact import redact
from prefect_resilience.errors.states import state_error
from prefect_resilience.events import announce_recoverable
from prefect_resilience.settings import enabled
from prefect_resilience.summaries import notes, reading
from prefect_resilience.summaries.advice import advice_for
from prefect_resilience.summaries.markdown import headline, hint_markdown, markdown
from prefect_resilience.summaries.model import Advice, Happening, RunFacts, Seen
from prefect_resilience.summaries.watch import happening_of, watch_task_runs

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

MOST_LINKS = 20

Log = logging.LoggerAdapter[Any]


@dataclass(frozen=True)
class Ending:
    """What a flow wants at its end. `policy`: how far it is recovered by itself, if it is."""

    summary: bool = True
    hint: bool = True
    policy: RecoveryPolicy | None = None
    dead_letter: bool = False

    @property
    def leaves(self) -> bool:
        """Whether it wants anything after a run that ended badly."""
        return self.summary or self.hint or self.dead_letter


def run_summary(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> Any:
    """Leave an artifact `run-summary-<id of the flow run>` that says what happened in the run.

    For `@flow(on_completion=[run_summary], on_failure=[run_summary], on_crashed=[run_summary],
    on_cancellation=[run_summary])`, as many of them as are wanted: what was retried, refused by a circuit,
    replaced by a fallback, replayed or is in doubt, with a picture; after a run that ended badly, how to go
    on. A run in which nothing of this happened leaves none. Never raises.
    """
    return ended(Ending(), flow, flow_run, state)


def recovery_hint(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> Any:
    """Say in the log, and in an artifact `recovery-hint-<id of the flow run>`, how to go on with the run.

    For `@flow(on_failure=[recovery_hint], on_crashed=[recovery_hint])`. A run inside another one leaves none:
    its root is what can be run again. Never raises.
    """
    return ended(Ending(summary=False), flow, flow_run, state)


def ended(ending: Ending, flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> Any:
    """Leave behind what is wanted; an awaitable where an event loop is running, which is not held up."""
    if not enabled():
        return None
    return _beside_a_loop(partial(_leave, ending, flow, flow_run, state))


def _beside_a_loop(work: Callable[[], None]) -> Coroutine[Any, Any, None] | None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        work()
        return None
    return asyncio.to_thread(work)


def _leave(ending: Ending, flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    log = flow_run_logger(flow_run=flow_run, flow=flow)
    try:
        End(ending, flow, flow_run, state, log).leave()
    except Exception as failure:  # noqa: BLE001 - the run is over, and how it ended counts
        log.warning("No summary of this run could be made: %s", redact(repr(failure)))


@dataclass
class End:
    """The end of one flow run."""

    ending: Ending
    flow: Flow[..., Any]
    flow_run: FlowRun
    state: State[Any]
    log: Log

    @property
    def badly(self) -> bool:
        return self.state.type.value in ("FAILED", "CRASHED", "CANCELLED", "CANCELLING")

    @property
    def of_this_process(self) -> bool:
        """Whether the run went on here: else its process has died, and its notes with it."""
        return FlowRunContext.get() is not None or notes.known(str(self.flow_run.id)) is not None

    def leave(self) -> None:
        here = self.of_this_process
        letter = self._letter() if self.ending.dead_letter else None
        if self.ending.summary or self.ending.hint:
            self._tell(letter, here)

    def _letter(self) -> Happening | None:
        """Keep the run as a dead letter, and say so in its summary: outside of a run no event does."""
        # Only now: it is a large part of the package, and imports this.
        from prefect_resilience.hooks import capture_for_flow, dead_letter

        failed, crashed = self.state.is_failed(), self.state.is_crashed()
        written = self.flow.on_failure_hooks if failed else self.flow.on_crashed_hooks
        if not (failed or crashed) or dead_letter in written:
            return None
        letter = capture_for_flow(self.flow, self.flow_run, self.state)
        if letter is None:
            return None
        payload = letter.model_dump(include={"name", "code", "category", "message"})
        at = letter.created_at.timestamp()
        return happening_of(letter.id, at, "dead-letter.created", letter.id, payload)

    def _tell(self, letter: Happening | None, here: bool) -> None:
        inner: list[UUID] = []
        try:
            local = here and self._all_ran_here()
            if local and not self.badly and not notes.seen_in([str(self.flow_run.id)]).remarkable:
                return  # a quiet run, for which the API is not even asked
            with get_client(sync_client=True) as client:
                seen, inner = self._seen(client, here, local) if self.ending.summary else (Seen(), [])
                if letter is not None and all(one.subject != letter.subject for one in seen.happenings):
                    seen.happenings.append(letter)
                    seen.counts[letter.name] += 1
                if self.badly or seen.remarkable:
                    self._write(client, seen, inner)
        finally:
            if self.ending.summary and self.flow_run.parent_task_run_id is None:
                notes.forget(str(one) for one in (self.flow_run.id, *inner))

    def _all_ran_here(self) -> bool:
        threads = isinstance(self.flow.task_runner, ThreadPoolTaskRunner)
        return threads and not self._unknown_tasks() and self.flow_run.run_count <= 1

    def _seen(self, client: SyncPrefectClient, here: bool, local: bool) -> tuple[Seen, list[UUID]]:
        """What this process noted, and what the API knows where something may have run elsewhere."""
        own = self.flow_run.id
        if local:
            return notes.seen_in([str(own)]), []
        wait = not here or not isinstance(self.flow.task_runner, ThreadPoolTaskRunner)
        heard = not wait or reading.settled(client, own, self.state.id)
        inner = reading.inner_runs(client, own)
        seen = notes.seen_in(str(one) for one in (own, *inner))
        seen.inner_runs = len(inner)
        reading.read(client, [own, *inner], seen)
        if not heard:
            seen.missing.append("The Prefect API was slow: what happened last may be missing.")
        return seen, inner

    def _unknown_tasks(self) -> bool:
        """Whether the run started something that did not run as a task here, such as another flow."""
        context = FlowRunContext.get()
        noted = notes.known(str(self.flow_run.id))
        started = set(context.task_run_dynamic_keys) if context is not None else set[str]()
        return bool(started - (noted.task_keys if noted is not None else set()))

    def _write(self, client: SyncPrefectClient, seen: Seen, inner: list[UUID]) -> None:
        if self.badly and self.ending.hint:
            self._label(client)
        run = client.read_flow_run(self.flow_run.id)
        facts = _facts(self.flow, run, self.state)
        advice = self._advice(run) if self.badly and self.ending.hint else None
        if advice is not None:
            self.log.warning("How to go on: %s: %s. %s", advice.strategy, advice.why, _first(advice))
            if self.ending.policy is not None and self.state.is_failed():
                announce_recoverable(run)
        if not self.ending.summary:
            if advice is not None:
                text = hint_markdown(facts, advice)
                _create(client, run, "recovery-hint", text, f"{advice.strategy}: {advice.why}")
            return
        links = _others(client, [run.id, *inner])
        _create(
            client, run, "run-summary", markdown(facts, seen, advice, links), _plain(headline(facts, seen))
        )

    def _label(self, client: SyncPrefectClient) -> None:
        """Write on the run what it failed with, for whoever recovers it later on."""
        error = state_error(self.state)
        if not isinstance(error, Exception):
            return
        known = attached_context(error)
        info = classify(error) if known is None else ErrorInfo.model_validate(known, from_attributes=True)
        info = info.model_copy(update={"message": bounded(info.message, 500)})
        with suppress(Exception):
            client.update_flow_run_labels(
                self.flow_run.id, {ERROR_LABEL: label_of_error(self.state.id, info)}
            )

    def _advice(self, run: FlowRun) -> Advice | None:
        try:
            policy = self.ending.policy
            return advice_for(run, batch_of_flow_run(run), policy, automatic=policy is not None)
        except Exception as failure:  # noqa: BLE001 - whatever the store or the API says
            self.log.warning("How to go on with this run is not known: %s", redact(repr(failure)))
            return None


def _facts(flow: Flow[..., Any], run: FlowRun, state: State[Any]) -> RunFacts:
    ended = run.end_time or state.timestamp
    return RunFacts(
        id=str(run.id),
        name=run.name,
        flow=flow.name,
        state_type=state.type.value,
        state=state.name or state.type.value.title(),
        message=redact(state.message or ""),
        began=run.start_time.timestamp() if run.start_time is not None else None,
        ended=ended.timestamp(),
        times_run=run.run_count,
    )


def _first(advice: Advice) -> str:
    return redact(" ".join(advice.commands[0][1].split())) if advice.commands else ""


def _plain(line: str) -> str:
    return line.replace("**", "").replace("`", "").replace("\\", "")


def _create(client: SyncPrefectClient, run: FlowRun, kind: str, text: str, description: str) -> None:
    client.create_artifact(
        ArtifactCreate(
            key=f"{kind}-{run.id}",
            type="markdown",
            description=redact(bounded(description, 500)),
            data=text,
            flow_run_id=run.id,
        )
    )


def _others(client: SyncPrefectClient, flow_run_ids: list[UUID]) -> list[tuple[str, str | None]]:
    """The run's other artifacts, such as the picture of a plan, with their addresses."""
    body = {"artifacts": {"flow_run_id": {"any_": [str(one) for one in flow_run_ids]}}, "limit": 100}
    response = client.request("POST", "/artifacts/filter", json=body)
    found = cast("list[dict[str, Any]]", response.raise_for_status().json())
    base = PREFECT_UI_URL.value()
    named = {
        one["key"]: f"{base}/artifacts/artifact/{one['id']}" if base else None
        for one in found
        if one["key"] and one["type"] != "progress" and not one["key"].startswith("run-summary-")
    }
    return sorted(named.items())[:MOST_LINKS]


watch_task_runs()
