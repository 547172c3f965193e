"""What Prefect keeps for every set of tags, ended when there is too much of it.

Before a task run begins, Prefect asks for the slots of its tags' limits, through a service of its own for
each set of tags: a thread and an HTTP client, kept as long as the process lives. A batch is a tag, so a
process that takes part in many batches, such as one that replays letters, would hold a thread for each.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

from prefect.concurrency import services

KEPT = 16
"""So many services of batches stay for those who come again."""
GRACE_SECONDS = 10.0
"""From when nobody can be given a service any more until it is ended, for those who just were."""

_leaving: list[tuple[float, Any]] = []
_ended: list[Any] = []
_lock = threading.Lock()


def end_old_services(prefix: str) -> None:
    """End the oldest services of tags that begin like this, but for the last few. Raises nothing."""
    kind: Any = getattr(services, "ConcurrencySlotAcquisitionWithLeaseService", None)
    if kind is None:
        return
    with _lock:
        try:
            _let_go(kind, f"tag:{prefix}")
        except Exception:  # noqa: BLE001  # another Prefect may keep them elsewhere: then they stay
            _leaving.clear()
            _ended.clear()


def _let_go(kind: Any, prefix: str) -> None:
    with kind._instance_cache_lock:
        kept = [one for one in kind._instances.values() if isinstance(one, kind)]
    ours = [one for one in kept if any(name.startswith(prefix) for name in one.concurrency_limit_names)]
    now = monotonic()
    for service in ours[:-KEPT]:
        service._remove_instance()
        _leaving.append((now, service))
    while _leaving and _leaving[0][0] <= now - GRACE_SECONDS:
        service = _leaving.pop(0)[1]
        # What it was asked for before is still answered.
        service._stop()
        _ended.append(service)
    for service in [one for one in _ended if one._done_event.is_set()]:
        _ended.remove(service)
        _forgotten(service)


def _forgotten(service: Any) -> None:
    """It is stopped, so there is nothing for it to do when the process ends. Until then it would be kept:
    with its client, and with the context that it began in, and all that was in the run of then. Where those
    calls stand is not told."""
    from prefect._internal.concurrency.threads import get_global_loop

    if hasattr(service, "_client"):
        del service._client
    of_the_loop: list[Any] = vars(get_global_loop())["_on_shutdown"]
    for call in [one for one in of_the_loop if getattr(one.fn, "__self__", None) is service]:
        of_the_loop.remove(call)
    of_the_process: list[Any] = vars(threading)["_threading_atexits"]
    for call in [one for one in of_the_process if getattr(one.func, "__self__", None) is service]:
        of_the_process.remove(call)
