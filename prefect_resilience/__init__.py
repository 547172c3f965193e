"""Resilience for Prefect 3: retries, circuits, fallbacks, routing, plans, and effects that happen once.

Importing this opens no socket, thread or file but its own code. The names are those of `__init__.pyi`; what
is behind one is imported when it is first asked for.
"""

import lazy_loader

from prefect_resilience.wiring import wire

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

wire()
