"""What of a parameter is secret, and is therefore left out of a letter."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from prefect_resilience.errors.redact import redact, redact_data
from prefect_resilience.errors.shapes import read

_PROBE = "any text"


@lru_cache(maxsize=10_000)
def names_secret(name: str) -> bool:
    """Whether a value of this name is a secret whatever it looks like: "password", "api_key"."""
    return next(iter(redact_data({name: _PROBE}).values())) != _PROBE


def is_secret_holder(value: object) -> bool:
    """Whether this is a SecretStr or the like, which is asked for its value."""
    return callable(read(cast("object", type(value)), "get_secret_value"))


def hides(name: str, value: Any) -> bool:
    """Whether a value is to be left out for its name: texts, and containers that may have them anywhere.

    Models and dataclasses are looked into: their own fields have names.
    """
    if not isinstance(value, str | bytes | bytearray | dict | list | tuple | set | frozenset) or not value:
        return False
    return names_secret(name)


def masked(text: str) -> str | None:
    """The text with the secrets in it masked; None where there are none."""
    shown = redact(text)
    return None if shown == text else shown


def masked_bytes(value: bytes | bytearray) -> bool:
    """Whether there is a secret in these bytes."""
    return masked(value.decode("latin-1")) is not None
