"""What a limit is called in Prefect."""

from __future__ import annotations

import re

from prefect_resilience.base.naming import digest

NOT_IN_PREFECT = re.compile(r"[/%&<>]")
"""What Prefect takes in no name."""


def prefect_name(kind: str, name: str) -> str:
    """What Prefect's limit for `name` is called, such as "bulkhead:llm"."""
    clean = NOT_IN_PREFECT.sub("-", name)
    return f"{kind}:{clean}" if clean == name else f"{kind}:{clean}~{digest(name)}"
