"""Paths that pickled results name, of modules that have moved since: each still has its public classes.

Prefect keeps results as pickles, and a pickle names a class by its module. This finder comes last on Python's
import path and answers for the paths in MOVED only; the classes are looked up where they are today.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "prefect_resilience"
FACADES = (
    "",
    ".durable",
    ".dead_letters",
    ".graphs.agents",
    ".graphs.routing",
    ".operations.reports",
    ".operations",
    ".testing",
)

MOVED: dict[str, str] = {
    "agents": "alone chain exceptions notices person",
    "blocks": "policy",
    "budgets": "model policy",
    "circuits": "breaker model",
    "conditions": "errors model",
    "dead_letters": "classes codec model report",
    "decomposition": "model",
    "effects": "append claim marks policy recovery rollback_report status strategies",
    "errors": "info stream_ends",
    "fallbacks": "model",
    "faults": "",
    "flows": "",
    "limits": "bulkhead children hedge process rate refusals timeout",
    "listening": "",
    "outputs": "promise",
    "plans": "failures inject mistakes model result",
    "reports": "model",
    "retries": "backoff budget policy",
    "routing": "exceptions gathering progress rounds route voting",
    "totals": "",
}
"""The modules by their package; the package itself has moved, too, where no module of that name is left."""

PATHS = {
    f"{PACKAGE}.{room}{f'.{name}' if name else ''}"
    for room, names in MOVED.items()
    for name in ("", *names.split())
}


class _MovedFinder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in PATHS else None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = _public


def _public(name: str) -> Any:
    for facade in FACADES:
        found = getattr(import_module(f"{PACKAGE}{facade}"), name, None)
        if isinstance(found, type):
            return found
    raise AttributeError(f"{name} is no public class of {PACKAGE}")


def find_moved_modules() -> None:
    """Let pickles be read that name a class by the module it was in."""
    if not any(isinstance(one, _MovedFinder) for one in sys.meta_path):
        sys.meta_path.append(_MovedFinder())
