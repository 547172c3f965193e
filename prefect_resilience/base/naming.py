"""Names that are templates over a task's parameters: "llm:{provider}", "http:{config.host}"."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping
from typing import Any

from prefect_resilience.errors.exceptions import ConfigurationError

LONGEST = 200


def template_fields(name: str, what: str) -> tuple[str, ...]:
    """The parameters that `name` needs, each once, in their order; "{config.host}" needs `config`.

    `what` the name is of, such as "circuit", stands in the message of the ConfigurationError that is raised
    for an empty name, a field without a name, and braces that do not match.
    """
    if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f'a {what} needs a name, such as "payments", not {name!r}')
    fields: dict[str, None] = {}
    try:
        parts = list(string.Formatter().parse(name))
    except ValueError:
        raise ConfigurationError(
            f"the braces in the {what} name {name!r} do not match: write {{parameter}} for a parameter "
            "and {{ }} for braces"
        ) from None
    for _, field, _, _ in parts:
        if field is None:
            continue
        first = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not first.isidentifier():
            raise ConfigurationError(
                f"{{{field}}} in the {what} name {name!r} names no parameter: write {{parameter}}"
            )
        fields[first] = None
    return tuple(fields)


def fill(name: str, parameters: Mapping[str, Any], what: str) -> str:
    """`name` with its fields filled in, at most LONGEST characters (a longer one ends in a digest).

    Raises ConfigurationError when a parameter is missing or has no such attribute or item.
    """
    return shorten(filled_with(string.Formatter(), name, parameters, what))


def filled_with(formatter: string.Formatter, name: str, parameters: Mapping[str, Any], what: str) -> str:
    """`name` with its fields filled in by `formatter`, of any length. Raises ConfigurationError as `fill`
    does."""
    try:
        return formatter.vformat(name, (), parameters)
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything
        missing = [field for field in template_fields(name, what) if field not in parameters]
        why = f"there is no parameter {missing[0]!r}" if missing else f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"the {what} name {name!r} cannot be filled in: {why}") from None


def shorten(name: str) -> str:
    """`name` when it is short enough to be a key everywhere, else its beginning and a digest of the whole."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 17]}~{digest(name)}"


def digest(name: str) -> str:
    """16 hexadecimal digits that stand for a whole name."""
    return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]
