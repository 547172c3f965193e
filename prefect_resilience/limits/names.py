"""Names of limits that are templates over a task's parameters: "llm:{provider}"."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping
from typing import Any

from prefect_resilience.errors.exceptions import ConfigurationError

LONGEST = 200
NOT_IN_PREFECT = re.compile(r"[/%&<>]")
"""What Prefect takes in no name."""


def template_fields(name: str) -> tuple[str, ...]:
    """The parameters that `name` needs, each once, in their order; "{config.host}" needs `config`.

    Raises ConfigurationError for an empty name, a field without a name, and braces that do not match.
    """
    if not name.strip():
        raise ConfigurationError(f"a limit's name cannot be {name!r}: write a word, or None for no name")
    try:
        parts = list(string.Formatter().parse(name))
    except ValueError:
        raise ConfigurationError(
            f"the braces in the limit's name {name!r} do not match: write {{parameter}} for a parameter "
            "and {{ }} for braces"
        ) from None
    found: dict[str, None] = {}
    for _, written, _, _ in parts:
        if written is None:
            continue
        first = re.split(r"[.\[]", written, maxsplit=1)[0]
        if not first.isidentifier():
            raise ConfigurationError(
                f"{{{written}}} in the limit's name {name!r} names no parameter: write {{parameter}}"
            )
        found[first] = None
    return tuple(found)


def fill(name: str, parameters: Mapping[str, Any]) -> str:
    """`name` with its fields filled in. Raises ConfigurationError when a parameter is missing."""
    try:
        return shorten(string.Formatter().vformat(name, (), parameters))
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything
        missing = [field for field in template_fields(name) if field not in parameters]
        why = f"there is no parameter {missing[0]!r}" if missing else f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"the limit's name {name!r} cannot be filled in: {why}") from None


def shorten(name: str) -> str:
    """`name`, or its beginning and a digest of the whole when it is too long."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 17]}~{_digest(name)}"


def prefect_name(kind: str, name: str) -> str:
    """What Prefect's limit for `name` is called, such as "bulkhead:llm"."""
    clean = NOT_IN_PREFECT.sub("-", name)
    return f"{kind}:{clean}" if clean == name else f"{kind}:{clean}~{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]
