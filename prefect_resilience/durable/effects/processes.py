"""Which process this is, so exactly that another one of the machine can tell whether it is gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

Process = list[Any]
"""The machine's boot, the namespace of its process ids, the id, and when it started by the kernel's clock."""


def this_process() -> Process | None:
    """This process, or None where the system does not say as much (it needs Linux's /proc)."""
    machine = _machine()
    stat = _stat(os.getpid())
    return None if machine is None or stat is None else [*machine, os.getpid(), stat[1]]


def is_gone(process: Process | None) -> bool:
    """Whether it is certain that this process has ended; False for one of another machine or container."""
    if process is None:
        return False
    *machine, pid, started = process
    if machine != _machine():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # somebody else's, and there
    stat = _stat(pid)
    return stat is not None and (stat[1] != started or stat[0] in "ZX")


def _machine() -> list[str] | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [boot, os.readlink("/proc/self/ns/pid")]
    except OSError:
        return None


def _stat(pid: int) -> tuple[str, str] | None:
    """The state and the start of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in brackets may contain anything, brackets too.
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]
