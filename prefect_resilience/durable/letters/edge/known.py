"""The letters of the configured store, and what Prefect knows of a letter's flow runs and replays.

A flow run that is started again repeats its calls. A replay at the same time would make the same call
twice. So a letter is left to an active flow run, and it is settled if its call has succeeded there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import TaskRunSort
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_HOME, get_current_settings

from prefect_resilience.base.edge.current_settings import current_settings
from prefect_resilience.base.policy import closest
from prefect_resilience.durable.batches.audit import Audit
from prefect_resilience.durable.batches.batch import batch_block
from prefect_resilience.durable.batches.edge.tags import remember, runs_above
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters import claims, report
from prefect_resilience.durable.letters.claims import ENTRY, SETTLED
from prefect_resilience.durable.letters.model import DeadLetter, Pass, Starts, batch_digest
from prefect_resilience.durable.letters.queue import OPEN, DeadLetterQueue, is_of
from prefect_resilience.durable.letters.report import CallSeen, LetterOutcome, Reason, RunSeen, outcome_of
from prefect_resilience.durable.letters.spool import Spool
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores import Store, open_store
from prefect_resilience.stores.base import scan_all
from prefect_resilience.telemetry.edge.events import emit

PAGE = 200
MOST_TASK_RUNS = 2_000


def left_to_its_run(
    queue: DeadLetterQueue, letter: DeadLetter, *, despite_run: bool, dry_run: bool = False
) -> LetterOutcome | None:
    """The outcome of a letter if its flow run makes or made the call; None if it may be replayed.

    `despite_run`: the operator has checked, so only a call that is known to have succeeded is skipped.
    """
    try:
        runs = _runs(letter)
        since = report.completed_since(letter, runs) if letter.status == "waiting" else []
        done = next((run for run in since if _is_made_by(letter, run)), None)
    except Exception as error:  # noqa: BLE001 - any failure of the API
        unknown = "the Prefect API is unavailable, so it is unknown whether its flow run is active"
        return None if despite_run else _skip(letter, f"{unknown}: {error!r}", "api_unavailable")
    if done is not None:
        return _settle(queue, letter, done, dry_run)
    if despite_run:
        return None
    if (why := report.going_on(runs) or _recovery(queue, letter)) is not None:
        return _skip(letter, why, "run_goes_on")
    ended = [*report.completed_since(letter, runs), *report.cut_off_since(letter, runs)]
    return _skip(letter, report.unclear(ended[0]), "unclear") if ended else None


def _skip(letter: DeadLetter, why: str, reason: Reason) -> LetterOutcome:
    return outcome_of(letter, "skipped", redact(why), reason=reason)


def _recovery(queue: DeadLetterQueue, letter: DeadLetter) -> str | None:
    """The reason to skip the letter while its batch is being recovered and its run scheduled; else None."""
    ledger = open_ledger(queue.store)
    roots = {one.starts[0][0] for one in letter.passes if one.starts}
    for batch_id in sorted(roots | ({letter.batch_id} if letter.batch_id else set())):
        claim = Audit(ledger, batch_id).document()["claim"]
        if claim is not None and ledger.owner.lives(claim["owner"], claim["name"]):
            return f"{claim['by']} is recovering its batch: its flow run may make the call itself"
    return None


def _settle(queue: DeadLetterQueue, letter: DeadLetter, run: RunSeen, dry_run: bool) -> LetterOutcome:
    """Settle the letter: the call succeeded without a replay."""
    if not dry_run:
        after = queue.made_by_run(letter.id, report.later_pass(letter, run, queue.now()))
        if after is not None and after.status == "settled":
            tell_settled(after)
    return outcome_of(letter, "skipped", SETTLED, reason="settled")


def tell_settled(letter: DeadLetter) -> None:
    """Send the event that a letter needs no replay."""
    payload = {"id": letter.id, "name": letter.name, "kind": letter.kind, "batch_id": letter.batch_id}
    emit("dead-letter.settled", "dead-letter", letter.id, payload)


# -- flow runs and task runs from the API


def _runs(letter: DeadLetter) -> list[RunSeen]:
    """The flow runs that may make the call of a letter, without those deleted from Prefect."""
    ids = {run_id for one in (*letter.flow_runs, letter.batch_id) if (run_id := _uuid(one)) is not None}
    if not ids:
        return []
    with get_client(sync_client=True) as client:
        return [_as_run(run) for run in _read_runs(client, ids)]


def _read_runs(client: SyncPrefectClient, ids: Iterable[UUID]) -> list[FlowRun]:
    wanted = FlowRunFilter.model_validate({"id": {"any_": sorted(ids)}})
    return client.read_flow_runs(flow_run_filter=wanted, limit=PAGE)


def _as_run(run: FlowRun) -> RunSeen:
    state = run.state
    kind = "PENDING" if state is None else state.type.value
    name = "without a state" if state is None else state.name or kind.title()
    return RunSeen(str(run.id), run.name, kind, name, run.run_count)


def _is_made_by(letter: DeadLetter, run: RunSeen) -> bool:
    """Whether the call was certainly made in the later pass of one of its flow runs, which has completed."""
    own, latest = letter.flow_run_id, report.known_starts(letter)
    with get_client(sync_client=True) as client:
        if letter.kind == "flow":
            itself = run.id == own or run.id in letter.replay_runs
            again = _same_subflow(client, own, latest)
            return itself or any(_as_run(one).type == "COMPLETED" for one in again)
        if own is None:
            return False
        before = _calls(client, [UUID(own)], lambda count: count == letter.run_count)
        if run.id == own:
            after = _calls(client, [UUID(own)], lambda count: count > latest[own])
        else:
            after = _calls(client, [one.id for one in _same_subflow(client, own, latest)])
    return report.made_since(letter.key, before, after)


def _same_subflow(client: SyncPrefectClient, flow_run_id: str | None, known: Iterable[str]) -> list[FlowRun]:
    """The runs of the same subflow call in other passes of its parent."""
    run_id = _uuid(flow_run_id)
    own = _read_runs(client, [run_id]) if run_id is not None else []
    if not own or own[0].parent_task_run_id is None:
        return []
    wanted = {"parent_task_run_id": {"any_": [own[0].parent_task_run_id]}}
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted), limit=PAGE)
    return [run for run in found if str(run.id) not in known]


def _calls(
    client: SyncPrefectClient, flow_runs: list[UUID], of_start: Callable[[int], bool] = bool
) -> list[CallSeen]:
    """The task runs of these flow runs, of some starts; none if there are too many to compare."""
    found: list[CallSeen] = []
    wanted = TaskRunFilter.model_validate({"flow_run_id": {"any_": flow_runs}})
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
    """The outcome of a replay that was cut off, from its task run; None if the letter may be replayed."""
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
    ended = f"the interrupted replay has ended: {state.name}"
    queue.resolve(letter.id, "replayed" if state.is_completed() else "failed", ended)
    return outcome_of(letter, "replayed", ended, run_id) if state.is_completed() else None


StoreReference = Store | str | None
"""A value of `store=`: None for the configured store, a URL, or an open store."""


def queue_of(store: StoreReference = None) -> DeadLetterQueue:
    """The dead letters of a store. Letters kept on this host during an outage are stored first."""
    opened = open_store(store or current_settings().store_url) if not isinstance(store, Store) else store
    queue = DeadLetterQueue(opened)
    with suppress(StoreUnavailable, OSError):
        spool_of(queue).flush(queue)
    return queue


def spool_of(queue: DeadLetterQueue) -> Spool:
    """The folder for letters on this host while the store is unavailable."""
    return Spool(Path(PREFECT_HOME.value()) / "dead-letters", queue.store.url)


LISTED = 5


def check_task(queue: DeadLetterQueue, task: str | None) -> None:
    """Raise ConfigurationError for a task or flow without letters and without known runs.

    A name is right if the store has no letters at all, or if the Prefect API knows runs of it. Without an API
    a name is wrong if a similar one has letters.
    """
    if task is None:
        return
    names: set[str] = set()
    for letter in queue.letters():
        if is_of(letter, task):
            return
        names.add(letter.name)
    if not names:
        return
    near, ran = closest(task, sorted(names)), _has_run(task)
    if ran or (ran is None and near is None):
        return
    known = sorted(names)
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    hint = f"Did you mean {near!r}?" if near else f"There are letters of {', '.join(known[:LISTED])}{more}."
    unseen = "" if ran is None else ", and no run of it"
    raise ConfigurationError(f"there is no dead letter of a task or flow {task!r}{unseen}. {hint}")


def _has_run(task: str) -> bool | None:
    """Whether the Prefect API knows a run of this task or flow; None if the API does not answer."""
    if get_current_settings().api.url is None:
        return None
    name = task.rpartition(":")[2].rpartition(".")[2]
    try:
        with get_client(sync_client=True) as client:
            flows = client.request("POST", "/flows/count", json={"flows": {"name": {"any_": [name]}}})
            # Prefect names a run after its task, followed by a short suffix.
            runs = {"task_runs": {"name": {"like_": f"{name}-"}}}
            return bool(flows.json() or client.request("POST", "/task_runs/count", json=runs).json())
    except Exception:  # noqa: BLE001 - any failure of the API
        return None


def settle_call(
    starts: Starts, batch_id: str | None, identity: Callable[[], str], task_run_id: str | None, twice: bool
) -> DeadLetter | None:
    """Settle the letter that an earlier pass left for a call that has now succeeded.

    `twice`: the same run may have left it. Else the store is read once per pass, and `identity` is called
    only if the batch has letters. May raise StoreUnavailable.
    """
    one = Pass(at=datetime.now(UTC), outcome="succeeded", starts=starts, task_run_id=task_run_id)
    own = claims.of_run(queue_of().store, task_run_id) if twice else None
    if own is not None:
        letter = queue_of().made_by_run(own, one)
    else:
        letters = letters_before(starts, batch_digest(batch_id))
        if not letters or (call := identity()) not in letters:
            return None
        letter = queue_of().call_succeeded(call, one, batch_id)
    if letter is not None and letter.status == "settled":
        tell_settled(letter)
    return letter


@lru_cache(maxsize=500)
def letters_before(starts: Starts, batch: str) -> set[str]:
    """The calls that had letters when this pass of a flow run began; `batch` is the batch's digest.

    A letter made later belongs to a failure in this pass, or to another run.
    """
    return claims.in_batch(queue_of().store, batch)


def starts_here() -> Starts | None:
    """The flow runs around this code, without asking the API.

    None outside of flows, and if the caller of the flow run is in another process.
    """
    runs = [*_contexts()]
    if not runs or runs[-1].parent_task_run_id is not None:
        return None
    return tuple((str(run.id), run.run_count) for run in reversed(runs))


def block_starts() -> Starts:
    """The `with batch(...)` around a call outside of flows: its pass of the batch."""
    block = batch_block()
    return () if block is None else ((block, 1),)


def starts_of(flow_run: FlowRun) -> Starts:
    """The flow runs around a flow run and the run itself; from the API if this process does not know them.

    If the API does not answer, only the flow run itself.
    """
    here = starts_here()
    if here is not None and here[-1][0] == str(flow_run.id):
        return here
    own = (str(flow_run.id), flow_run.run_count)
    if flow_run.parent_task_run_id is None:
        return (own,)
    try:
        return remember(_starts, own, lambda: (*_starts_above(flow_run), own))
    except Exception:  # noqa: BLE001 - any failure of the API; the letter is kept
        return (own,)


def _contexts() -> Iterator[FlowRun]:
    """The current flow run, its caller, and so on.

    Prefect keeps the outer context only in the token that restores it.
    """
    context: Any = FlowRunContext.get()
    last: FlowRun | None = None
    while isinstance(context, FlowRunContext) and context.flow_run is not None:
        if last is None or context.flow_run.id != last.id:  # a thread may have entered a copy of it
            last = context.flow_run
            yield last
        if last.parent_task_run_id is None:
            return
        context = getattr(getattr(context, "_token", None), "old_value", None)


_starts: OrderedDict[tuple[str, int], Starts] = OrderedDict()
"""The flow runs around a start of a subflow run. They do not change during it."""


def _starts_above(flow_run: FlowRun) -> Starts:
    with get_client(sync_client=True) as client:
        above = [(str(run.id), run.run_count) for run in runs_above(client, flow_run)]
    return tuple(reversed(above))


def ended(queue: DeadLetterQueue, most: int) -> tuple[int, bool]:
    """The number of letters among the newest `most` that were replayed or settled, and whether there are
    older ones."""
    documents = scan_all(queue.store, ENTRY)
    first = (document.value.get("status", "waiting") for _, document in islice(documents, most))
    return sum(status not in OPEN for status in first), next(documents, None) is not None
