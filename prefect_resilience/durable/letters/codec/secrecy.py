"""What of a parameter is secret, and is therefore left out of a letter."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

from prefect_resilience.errors.classify.shapes import read
from prefect_resilience.errors.secrets.redact import redact, redact_data

_PROBE = "any text"
_WORDS = re.compile(r"[a-z]+(?![a-z])|[A-Z][a-z]+|[A-Z]+", re.ASCII)
_CODES = frozenset({"password", "passwd", "pwd", "passphrase", "passcode", "pin", "cvv", "cvc", "otp"})
"""What a secret number is called."""

_MORE = _CODES | {"jwt", "bearer"}


@lru_cache(maxsize=10_000)
def names_secret(name: str) -> bool:
    """Whether a value of this name is a secret whatever it looks like: "password", "api_keys"."""
    if next(iter(redact_data({name: _PROBE}).values())) != _PROBE or _last_word(name) in _MORE:
        return True
    singular = name.removesuffix("s")
    # Tokens are parts of a text more often than not.
    return singular != name and singular.casefold() != "token" and names_secret(singular)


def is_secret_holder(value: object) -> bool:
    """Whether this is a SecretStr or the like, which is asked for its value."""
    return callable(read(cast("object", type(value)), "get_secret_value"))


def hides(name: str, value: Any) -> bool:
    """Whether a value is to be left out for its name: texts, and containers that may have them anywhere.

    Numbers where the name is that of a secret number, and a pair under "auth". Models and dataclasses are
    looked into: their own fields have names.
    """
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _last_word(name) in _CODES
    if not isinstance(value, str | bytes | bytearray | dict | list | tuple | set | frozenset) or not value:
        return False
    if _last_word(name) == "auth" and isinstance(value, tuple | list):
        return True
    return names_secret(name)


@lru_cache(maxsize=10_000)
def _last_word(name: str) -> str:
    words = _WORDS.findall(name)
    return words[-1].casefold() if words else ""


def masked(text: str) -> str | None:
    """The text with the secrets in it masked; None where there are none."""
    shown = redact(text)
    return None if shown == text else shown


def masked_bytes(value: bytes | bytearray) -> bool:
    """Whether there is a secret in these bytes."""
    return masked(value.decode("latin-1")) is not None
