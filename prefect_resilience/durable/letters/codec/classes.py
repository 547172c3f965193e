"""Classes by their import path, for reading data back. Nothing but a class that only holds data is found.

Finding one may import its module. It never calls the class: what is read back is put together the way
`copy` does it, without constructors and validators.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Any, cast
from weakref import WeakValueDictionary

from pydantic import BaseModel

from prefect_resilience.errors.classify.shapes import read
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact, redact_data

FindModule = Callable[[str], ModuleType]

# Classes that no import finds, as those in a function or a notebook: good for as long as this process lives.
_local: WeakValueDictionary[str, type[Any]] = WeakValueDictionary()


class DeadLetterError(ResilienceError, ValueError):
    """What was asked of a dead letter cannot be done; the message says what would help."""


def class_path(cls: type[Any]) -> str:
    """`module:qualname` of a class, by which `find_class` finds it."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    if _attribute(sys.modules.get(cls.__module__), cls.__qualname__) is not cls:
        _local[path] = cls
    return path


def find_class(path: str, find_module: FindModule = importlib.import_module) -> type[Any]:
    """The class of this path. Raises DeadLetterError where there is none, or it is not made for data."""
    module, _, qualname = path.partition(":")
    found: Any = _local.get(path)
    if found is None:
        if "<locals>" in qualname:
            raise DeadLetterError(
                f"the class {qualname} of {module} was defined in a function, where only its own process "
                "finds it: define it at the top of its module"
            )
        try:
            found = _attribute(find_module(module), qualname)
        except Exception as error:
            raise DeadLetterError(f"the class {path} cannot be imported here: {error!r}") from error
    if found is None:
        raise DeadLetterError(f"there is no class {qualname} in {module} any more")
    if not holds_data(found):
        raise DeadLetterError(f"{path} is no model, dataclass, enumeration or named tuple, and is not read")
    return found


def holds_data(cls: Any) -> bool:
    """Whether instances of this class are data and nothing else, as far as its kind tells."""
    if not isinstance(cls, type):
        return False
    found = cast("type[Any]", cls)
    return (
        issubclass(found, BaseModel | Enum)
        or dataclasses.is_dataclass(found)
        or hasattr(found, "__attrs_attrs__")
        or is_named_tuple(found)
    )


def is_named_tuple(cls: type[Any]) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cast("Any", cls), "_fields", None), tuple)


def _attribute(module: ModuleType | None, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


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
