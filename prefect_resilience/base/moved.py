"""Finds classes of old pickles in the modules to which they have moved.

Prefect keeps results as pickles, and a pickle names a class by its module. This finder is the last one in
`sys.meta_path`, so Python asks it only for modules that no other finder knows. It finds only those in MOVED.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

PACKAGE = "prefect_resilience"

MOVED: dict[str, tuple[str, ...]] = {
    "agents": ("graphs.agents",),
    "blocks": ("tasks.edge.blocks",),
    "budgets": ("guards.budgets",),
    "circuits": ("guards.circuits",),
    "conditions": ("graphs.conditions", "base"),
    "dead_letters": ("durable.letters",),
    "decomposition": ("guards.decomposition", "calls"),
    "effects": ("durable",),
    "errors.failures": ("errors.exceptions",),
    "errors.info": ("errors.taxonomy",),
    "errors.stream_ends": ("errors.classify",),
    "fallbacks": ("guards.fallbacks",),
    "faults": ("guards.faults",),
    "flows": ("tasks.edge.flow",),
    "limits": ("guards.limits", "guards.timeouts"),
    "listening": ("telemetry",),
    "outputs": ("guards.outputs",),
    "plans": ("graphs.plans",),
    "reports": ("operations.reports",),
    "retries": ("guards.retries",),
    "routing": ("graphs.routing",),
    "totals": ("telemetry",),
}
"""The current places of an old module and the modules below it."""

RENAMED = {"plans.model.Transition": "PlanTransition"}
"""The current names of renamed classes, by the path in old pickles."""


class _MovedFinder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if _places(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        def found(name: str) -> Any:
            today = RENAMED.get(f"{module.__name__}.{name}".removeprefix(f"{PACKAGE}."), name)
            for place in _modules(module.__name__):
                if today in vars(place):
                    return vars(place)[today]
            raise AttributeError(f"{module.__name__} has moved, and {name} no longer exists")

        module.__dict__["__getattr__"] = found


def _places(fullname: str) -> tuple[str, ...]:
    path = fullname.removeprefix(f"{PACKAGE}.")
    room, _, module = path.partition(".")
    # `from package import Name` also looks for a module of that name; class names are not lower case.
    return MOVED.get(path) or (MOVED.get(room, ()) if module.islower() and "." not in module else ())


def _modules(fullname: str) -> Iterator[ModuleType]:
    """The current modules that may have a class of the old module."""
    for place in _places(fullname):
        module = import_module(f"{PACKAGE}.{place}")
        yield module
        for _, name, _ in walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
            yield import_module(name)


def find_moved_modules() -> None:
    """Install the finder, so that old pickles can be read."""
    if not any(isinstance(one, _MovedFinder) for one in sys.meta_path):
        sys.meta_path.append(_MovedFinder())
