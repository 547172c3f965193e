"""Processes of flow runs, forked from one that has imported everything: a start costs a tenth of another.

As a program, `python -m tests.durable.effects.worker_kills_forks SOCKET` is that parent.
`worker_kills_shim.py` is the command of a deployment: what a Prefect worker starts it for, it has done by a
fork of this one with the same environment, and it ends as that fork ends.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from typing import Any

PRELOADED = (
    "prefect.main",
    "prefect.engine",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.runner.storage",
    "prefect.deployments.steps.core",
    "prefect.deployments.steps.pull",
    "prefect.events.worker",
    "prefect.events.clients",
    "prefect.utilities.visualization",
    "prefect_resilience.stores.sqlite",
    "prefect_resilience.stores.postgres",
    "prefect_resilience.stores.redis",
    "tests.durable.effects.worker_kills_flow",
)


def serve(path: str) -> dict[str, Any]:
    """Fork a child for whoever asks, for ever; returns only in a child, with what it was asked for."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                asking, _ = listener.accept()
                wanted = json.loads(asking.makefile("rb").readline())
                pid = os.fork()
                if pid == 0:
                    for one in [*ready.get_map().values()]:
                        os.close(one.fd)
                    ready.close()
                    asking.close()
                    return wanted
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, asking))
                ready.register(asking, selectors.EVENT_READ, (pid, asking))
            elif isinstance(key.fileobj, int):
                _ended(ready, key)
            else:  # whoever asked is gone, and so is the reason for the child
                ready.unregister(key.fileobj)
                os.kill(key.data[0], signal.SIGKILL)


def _ended(ready: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """A child ended: whoever asked for it is told how."""
    pid, asking = key.data
    _, status = os.waitpid(pid, 0)
    ready.unregister(key.fileobj)
    os.close(key.fd)
    if asking in [one.fileobj for one in ready.get_map().values()]:
        ready.unregister(asking)
        asking.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    asking.close()


def main() -> None:
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()
    wanted = serve(sys.argv[1])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()

    # To tell the API of task runs costs more than all the rest
    sys.modules["prefect.events.utilities"].should_emit_events = lambda: False
    sys.argv = ["prefect.engine"]
    runpy.run_module("prefect.engine", run_name="__main__")


if __name__ == "__main__":
    main()
