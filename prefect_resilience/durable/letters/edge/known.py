"""What Prefect knows of a letter: whether its flow run goes on, or has made the call, and how a replay ended.

A flow run that is run again makes its calls again. A replay beside it would make the same call twice, so it
leaves the letter to a run that goes on, and settles one whose call has succeeded in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentTaskRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import TaskRunSort
from prefect.exceptions import ObjectNotFound

from prefect_resilience.durable.batches.audit import Audit
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters import report
from prefect_resilience.durable.letters.claims import SETTLED
from prefect_resilience.durable.letters.model import DeadLetter
from prefect_resilience.durable.letters.queue import DeadLetterQueue
from prefect_resilience.durable.letters.report import (
    CallSeen,
    LetterOutcome,
    Made,
    Reason,
    RunSeen,
    outcome_of,
)
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.telemetry.edge.events import emit

PAGE = 200
MOST_TASK_RUNS = 2_000


def left_to_its_run(
    queue: DeadLetterQueue, letter: DeadLetter, *, despite_run: bool, dry_run: bool = False
) -> LetterOutcome | None:
    """What becomes of a letter that is left to its flow run, or was settled by it; None when it may go.

    `despite_run`: a person has looked, and only what is known to be done is left alone.
    """
    try:
        runs = _runs(letter)
        since = report.completed_since(letter, runs)
        made = [(run, _made(letter, run)) for run in since] if letter.status == "waiting" else []
    except Exception as error:  # noqa: BLE001 - whatever stops the API from answering
        return None if despite_run else _skipped(letter, _unasked(error), "api_unavailable")
    done = next((run for run, known in made if known == "yes"), None)
    if done is not None:
        return _settled(queue, letter, done, dry_run)
    if despite_run:
        return None
    if (left := _goes_on(queue, letter, runs)) is not None:
        return left
    return _unclear(letter, runs)


def not_now(queue: DeadLetterQueue, letter: DeadLetter, *, despite_run: bool) -> LetterOutcome | None:
    """The same right before the call, once the letter is claimed: None while its runs are at their end."""
    if despite_run:
        return None
    try:
        runs = _runs(letter)
    except Exception as error:  # noqa: BLE001 - whatever stops the API from answering
        return _skipped(letter, _unasked(error), "api_unavailable")
    return _goes_on(queue, letter, runs) or _unclear(letter, runs)


def _unclear(letter: DeadLetter, runs: list[RunSeen]) -> LetterOutcome | None:
    ended = [*report.completed_since(letter, runs), *report.cut_off_since(letter, runs)]
    return _skipped(letter, report.unclear(ended[0]), "unclear") if ended else None


def _goes_on(queue: DeadLetterQueue, letter: DeadLetter, runs: list[RunSeen]) -> LetterOutcome | None:
    why = report.going_on(runs) or _recovery(queue, letter)
    return None if why is None else _skipped(letter, why, "run_goes_on")


def _skipped(letter: DeadLetter, why: str, reason: Reason) -> LetterOutcome:
    return outcome_of(letter, "skipped", redact(why), reason=reason)


def _unasked(error: Exception) -> str:
    return f"the Prefect API could not be asked whether its flow run goes on, so it was left alone: {error!r}"


def _recovery(queue: DeadLetterQueue, letter: DeadLetter) -> str | None:
    """That somebody recovers the batch at this moment: its run is about to be scheduled."""
    ledger = open_ledger(queue.store)
    roots = {one.starts[0][0] for one in letter.passes if one.starts}
    for batch_id in sorted(roots | ({letter.batch_id} if letter.batch_id else set())):
        claim = Audit(ledger, batch_id).document()["claim"]
        if claim is not None and ledger.owner.lives(claim["owner"], claim["name"]):
            return f"{claim['by']} is recovering its batch: its flow run may make the call itself"
    return None


def _settled(queue: DeadLetterQueue, letter: DeadLetter, run: RunSeen, dry_run: bool) -> LetterOutcome:
    """The letter is done with: the call succeeded without a replay."""
    if not dry_run:
        after = queue.made_by_run(letter.id, report.later_pass(letter, run, queue.now()))
        if after is not None and after.status == "settled":
            tell_settled(after)
    return outcome_of(letter, "skipped", SETTLED, reason="settled")


def tell_settled(letter: DeadLetter) -> None:
    """Send the event of a letter that needs no replay any more."""
    payload = {"id": letter.id, "name": letter.name, "kind": letter.kind, "batch_id": letter.batch_id}
    emit("dead-letter.settled", "dead-letter", letter.id, payload)


# -- what the API says


def _runs(letter: DeadLetter) -> list[RunSeen]:
    """The flow runs that may make the call of a letter. Those that Prefect has forgotten make none."""
    ids = {run_id for one in (*letter.flow_runs, letter.batch_id) if (run_id := _uuid(one)) is not None}
    if not ids:
        return []
    with get_client(sync_client=True) as client:
        return [_seen(run) for run in _read_runs(client, ids)]


def _read_runs(client: SyncPrefectClient, ids: Iterable[UUID]) -> list[FlowRun]:
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=sorted(ids)))
    return client.read_flow_runs(flow_run_filter=wanted, limit=PAGE)


def _seen(run: FlowRun) -> RunSeen:
    state = run.state
    kind = "PENDING" if state is None else state.type.value
    name = "without a state" if state is None else state.name or kind.title()
    return RunSeen(str(run.id), run.name, kind, name, run.run_count)


def _made(letter: DeadLetter, run: RunSeen) -> Made:
    """Whether the call was made in the later pass of one of its flow runs, which has completed."""
    with get_client(sync_client=True) as client:
        own, latest = letter.flow_run_id, report.known_starts(letter)
        if letter.kind == "flow":
            again = [_seen(one) for one in _same_subflow(client, own, latest)]
            itself = run.id == own or run.id in letter.replay_runs
            done = itself or any(one.type == "COMPLETED" for one in again)
            return "yes" if done else "unknown"
        if own is None:
            return "unknown"
        before = _calls(client, [UUID(own)], lambda count: count == letter.run_count)
        if run.id == own:
            after = _calls(client, [UUID(own)], lambda count: count > latest[own])
        else:
            after = _calls(client, [one.id for one in _same_subflow(client, own, latest)])
    return report.made_since(letter.key, before, after)


def _same_subflow(client: SyncPrefectClient, flow_run_id: str | None, known: Iterable[str]) -> list[FlowRun]:
    """The runs that Prefect made for the same call of a subflow in other passes of its parent."""
    run_id = _uuid(flow_run_id)
    own = _read_runs(client, [run_id]) if run_id is not None else []
    if not own or own[0].parent_task_run_id is None:
        return []
    parent = FlowRunFilterParentTaskRunId(any_=[own[0].parent_task_run_id])
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_task_run_id=parent), limit=PAGE)
    return [run for run in found if str(run.id) not in known]


def _calls(
    client: SyncPrefectClient, flow_runs: list[UUID], of_start: Callable[[int], bool] = bool
) -> list[CallSeen]:
    """The task runs of these flow runs, of some starts; none where there are too many to tell."""
    found: list[CallSeen] = []
    wanted = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=flow_runs))
    for offset in range(0, MOST_TASK_RUNS, PAGE) if flow_runs else ():
        page = client.read_task_runs(
            task_run_filter=wanted, sort=TaskRunSort.END_TIME_DESC, limit=PAGE, offset=offset
        )
        found += [
            CallSeen(run.task_key, run.state is not None and run.state.is_completed())
            for run in page
            if of_start(run.flow_run_run_count)
        ]
        if len(page) < PAGE:
            return found
    return []


def _uuid(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None


# -- how a replay ended


def known_end(queue: DeadLetterQueue, letter: DeadLetter) -> LetterOutcome | None:
    """How a replay that was cut off ended after all, as far as Prefect knows; None when it may go again."""
    run_id = letter.claim.run_id if letter.claim else next((r.run_id for r in letter.replays[::-1]), None)
    if run_id is None or letter.kind != "task":
        return None
    with get_client(sync_client=True) as client:
        try:
            state = client.read_task_run(UUID(run_id)).state
        except (ObjectNotFound, ValueError):
            return None
    if state is None or not (state.is_completed() or state.is_failed()):
        return None
    ended = f"the replay that was cut off had ended: {state.name}"
    queue.resolve(letter.id, "replayed" if state.is_completed() else "failed", ended)
    return outcome_of(letter, "replayed", ended, run_id) if state.is_completed() else None
