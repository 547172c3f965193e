"""Safe reading of unknown objects: no helper here raises, whatever the object does."""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Any, cast

TEXT_LIMIT = 64_000


def read(source: object, name: str) -> Any:
    """`source.name`, or None when there is no such attribute or reading it fails."""
    try:
        return getattr(source, name, None)
    except Exception:  # noqa: BLE001 - a property may raise anything
        return None


def put(error: BaseException, name: str, value: object) -> None:
    """Set an attribute, even if the exception's class forbids it (a frozen class of attrs, for example).

    Raises any error of a property or a slot of that name.
    """
    BaseException.__setattr__(error, name, value)


def read_text(source: object, limit: int = TEXT_LIMIT) -> str:
    """`str(source)`, at most `limit` characters of it, or "" when the object cannot be printed."""
    try:
        return str(source)[:limit]
    except Exception:  # noqa: BLE001 - __str__ may raise anything
        return ""


def call(source: object, name: str) -> Any:
    """The result of the method `source.name()`; None if there is no such method or it fails."""
    method = read(source, name)
    try:
        return method() if callable(method) else None
    except Exception:  # noqa: BLE001 - a foreign method may raise anything
        return None


def value_at(source: object, place: str) -> object:
    """The value at a dotted place: attributes, keys, indices and methods without arguments.

    `args` is the first argument, also out of nested tuples. None for a place that is not there.
    """
    for name in place.split("."):
        if name == "args":
            source = read(source, "args")
            while isinstance(source, tuple):
                source = next(iter(cast("tuple[object, ...]", source)), None)
        elif name.isdigit():
            source = next(iter(as_list(source)[int(name) :]), None)
        else:
            value = value_of(source, name)
            source = call(source, name) if callable(value) and not isinstance(source, dict) else value
    return source


def values_at(source: object, path: str) -> list[Any]:
    """The values at a path of attributes and keys, without None. Lists on it are searched item by item."""
    values: list[Any] = [source]
    for name in path.split("."):
        fields = (value_of(item, name) for value in values for item in as_list(value) or (value,))
        values = [field for field in fields if field is not None]
    return values


def value_of(source: object, name: str) -> Any:
    """The value under a key or of an attribute."""
    if isinstance(source, dict):
        return cast("dict[Any, Any]", source).get(name)
    return None if isinstance(source, str) else read(source, name)


def as_dict(value: object) -> dict[Any, Any]:
    """The value when it is a plain dict, else an empty one."""
    return value if type(value) is dict else {}  # pyright: ignore[reportUnknownVariableType]


def as_number(value: object) -> float | None:
    """A finite float from a number or from ASCII digits in a string, else None; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_status(value: object) -> int | None:
    """An HTTP status between 100 and 599 from a number, an enum or three digits, else None."""
    number = as_number(value.value if isinstance(value, Enum) else value)
    if number is None or not number.is_integer() or not 100 <= number <= 599:
        return None
    return int(number)


def as_code(value: object) -> str | None:
    """A string of 1 to 80 characters, as a code such as "insufficient_quota", else None."""
    return value if isinstance(value, str) and 0 < len(value) <= 80 else None


def class_names(error: object) -> tuple[str, ...]:
    """The names `package.Class` of an object's class and its bases, nearest first.

    Only the outermost package counts, because libraries move classes between their modules.
    """
    return tuple(f"{package(cls)}.{cls.__name__}" for cls in type(error).__mro__)


def is_bare(error: BaseException) -> bool:
    """Whether it is one of Python's own exceptions, with no attribute beside notes."""
    return type(error).__module__ == "builtins" and all(name.startswith("__") for name in error.__dict__)


def package(cls: type) -> str:
    """The outermost package of a class."""
    module = cast("object", cls.__module__)  # a class body may set anything
    return module.partition(".")[0] if isinstance(module, str) else ""


def class_name(value: object) -> str:
    """The bare name of an object's class."""
    return read(type(value), "__name__") or "object"


def full_name(error: object) -> str:
    """The full name of an object's class, as in a traceback: `httpx.ConnectError`, `ValueError`."""
    cls = type(error)
    module = cast("object", cls.__module__)  # a class body may set anything
    if module == "builtins" or not isinstance(module, str):
        return cls.__qualname__
    return f"{module}.{cls.__qualname__}"


def as_list(value: object) -> list[Any]:
    """The first 1,000 items of a plain list or tuple, else none."""
    return list(cast("list[Any]", value))[:1_000] if type(value) in (list, tuple) else []


def parse_json(body: str) -> Any:
    """The JSON object or list in a text; None for any other text."""
    if not body.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


# -- Prefect states

_STATES = "SCHEDULED PENDING RUNNING COMPLETED FAILED CANCELLED CRASHED PAUSED CANCELLING"


def state_type(source: object) -> str | None:
    """The type of a Prefect state ("FAILED", ...), or None if the source is not a state."""
    if isinstance(source, BaseException | str):
        return None
    kind = read(source, "type")
    kind = read(kind, "value") or kind
    if isinstance(kind, str) and kind in _STATES.split() and isinstance(read(source, "name"), str | None):
        return kind
    return None


def state_data(state: object) -> Any:
    """The data of a state, taken out of its ResultRecord if there is one."""
    data = read(state, "data")
    if isinstance(data, BaseException | str | list | tuple | None) or state_type(data):
        return cast("Any", data)
    result = read(data, "result")
    return data if result is None else result


def state_error(state: object) -> BaseException | None:
    """The exception in a state or in its ResultRecord, else None."""
    data = state_data(state)
    return data if isinstance(data, BaseException) else None
