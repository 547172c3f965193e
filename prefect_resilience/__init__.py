"""Resilience for Prefect 3: retries, circuits, fallbacks, routing, plans, and effects that happen once.

The import opens no socket and no thread, and no file except its own code. `__init__.pyi` lists the names.
The module behind a name is imported when the name is first used.
"""

import lazy_loader

from prefect_resilience.wiring import wire

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

wire()
