"""Which tasks there are: one of which nobody knows anything is an error that names the nearest one."""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings

from prefect_resilience.base.policy import closest
from prefect_resilience.durable.letters.queue import DeadLetterQueue, is_of
from prefect_resilience.errors.exceptions import ConfigurationError

LISTED = 5


def check_task(queue: DeadLetterQueue, task: str | None) -> None:
    """Raise ConfigurationError for a task or flow of which no letter ever was, and no run is known.

    Where there is no letter at all, or the Prefect API knows runs of it, it is one that went well. Without an
    API a name is wrong if there is one like it.
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
    hint = f"Did you mean {near!r}?" if near else f"Letters are of {', '.join(known[:LISTED])}{more}."
    unseen = "" if ran is None else ", and no run of one is known"
    raise ConfigurationError(f"no dead letter is of a task or flow {task!r}{unseen}. {hint}")


def _has_run(task: str) -> bool | None:
    """Whether the Prefect API knows a run of a task or flow of this name; None where it cannot be asked."""
    if get_current_settings().api.url is None:
        return None
    name = task.rpartition(":")[2].rpartition(".")[2]
    try:
        with get_client(sync_client=True) as client:
            flows = client.request("POST", "/flows/count", json={"flows": {"name": {"any_": [name]}}})
            # Prefect names a run after its task and some letters.
            runs = {"task_runs": {"name": {"like_": f"{name}-"}}}
            return bool(flows.json() or client.request("POST", "/task_runs/count", json=runs).json())
    except Exception:  # noqa: BLE001 - whatever stops it from answering
        return None
