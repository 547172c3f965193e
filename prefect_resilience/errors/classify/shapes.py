"""Reading objects whose manners are unknown: every helper here answers, whatever the object does."""

from __future__ import annotations

import math
from typing import Any, cast

TEXT_LIMIT = 64_000


def read(source: object, name: str) -> Any:
    """`source.name`, or None when there is no such attribute or reading it fails."""
    try:
        return getattr(source, name, None)
    except Exception:  # noqa: BLE001 - a property may raise anything
        return None


def put(error: BaseException, name: str, value: object) -> None:
    """Set an attribute, also on an exception whose class forbids it (a frozen one of attrs, say).

    Raises what a property or a slot of that name raises.
    """
    BaseException.__setattr__(error, name, value)


def read_text(source: object, limit: int = TEXT_LIMIT) -> str:
    """`str(source)`, at most `limit` characters of it, or "" when the object cannot be printed."""
    try:
        return str(source)[:limit]
    except Exception:  # noqa: BLE001 - __str__ may raise anything
        return ""


def as_dict(value: object) -> dict[Any, Any]:
    """The value when it is a plain dict, else an empty one."""
    return value if type(value) is dict else {}  # pyright: ignore[reportUnknownVariableType]


def as_number(value: object) -> float | None:
    """A finite float of a number or of digits in a string, else None; a bool is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_status(value: object) -> int | None:
    """An HTTP status between 100 and 599 of an int, an enum of ints or three digits, else None."""
    number = as_number(value)
    if number is None or number != int(number) or not 100 <= number <= 599:
        return None
    return int(number)


def as_code(value: object) -> str | None:
    """A short code such as "insufficient_quota" of a string, else None."""
    if isinstance(value, str) and 0 < len(value) <= 80:
        return value
    return None


def class_names(error: object) -> list[str]:
    """The names `package.Class` of an object's class and its bases, nearest first.

    Only the outermost package counts, because libraries move classes between their modules.
    """
    return [f"{package(cls)}.{cls.__name__}" for cls in type(error).__mro__]


def package(cls: type) -> str:
    """The outermost package in which a class says that it lives."""
    module = cast("object", cls.__module__)  # a class body may set anything
    return module.partition(".")[0] if isinstance(module, str) else ""


def class_name(value: object) -> str:
    """The bare name of an object's class."""
    try:
        return type(value).__name__
    except Exception:  # noqa: BLE001 - a metaclass may do anything
        return "object"


def dotted_name(error: object) -> str:
    """The full name of an object's class, as in a traceback: `httpx.ConnectError`, `ValueError`."""
    cls = type(error)
    module = cast("object", cls.__module__)  # a class body may set anything
    if module == "builtins" or not isinstance(module, str):
        return cls.__qualname__
    return f"{module}.{cls.__qualname__}"
