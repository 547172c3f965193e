"""Safe reading of unknown objects: no helper here raises, whatever the object does."""

from __future__ import annotations

import json
import math
from contextlib import suppress
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


def add_note(error: BaseException, note: str) -> None:
    """Add a note that tracebacks show below the error. Never raises: not every exception accepts one."""
    with suppress(Exception):  # a class may have its own __setattr__
        error.add_note(note)


def read_text(source: object, limit: int = TEXT_LIMIT) -> str:
    """`str(source)`, at most `limit` characters of it, or "" when the object cannot be printed."""
    try:
        return str(source)[:limit]
    except Exception:  # noqa: BLE001 - __str__ may raise anything
        return ""


def called(source: object, name: str) -> Any:
    """The result of the method `source.name()`; None if there is no such method or it fails."""
    method = read(source, name)
    try:
        return method() if callable(method) else None
    except Exception:  # noqa: BLE001 - a foreign method may raise anything
        return None


def first_of(value: object) -> object:
    """The first item of a tuple, also of nested tuples; None for an empty tuple, else the value itself."""
    while isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        value = items[0] if items else None
    return value


def first_argument(error: object) -> object:
    """The first of an exception's `args`; pymssql nests number and text in a tuple."""
    return first_of(read(error, "args"))


def as_dict(value: object) -> dict[Any, Any]:
    """The value when it is a plain dict, else an empty one."""
    return value if type(value) is dict else {}  # pyright: ignore[reportUnknownVariableType]


def as_number(value: object) -> float | None:
    """A finite float from a number or from ASCII digits in a string, else None; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_status(value: object) -> int | None:
    """An HTTP status between 100 and 599 from an int, an enum of ints or three digits, else None."""
    number = as_number(value)
    if number is None or number != int(number) or not 100 <= number <= 599:
        return None
    return int(number)


def as_code(value: object) -> str | None:
    """A string of 1 to 80 characters, as a code such as "insufficient_quota", else None."""
    if isinstance(value, str) and 0 < len(value) <= 80:
        return value
    return None


def class_names(error: object) -> list[str]:
    """The names `package.Class` of an object's class and its bases, nearest first.

    Only the outermost package counts, because libraries move classes between their modules.
    """
    return [f"{package(cls)}.{cls.__name__}" for cls in type(error).__mro__]


def is_bare(error: BaseException) -> bool:
    """Whether it is one of Python's own exceptions, with no attribute beside notes."""
    return type(error).__module__ == "builtins" and all(name.startswith("__") for name in error.__dict__)


def is_ours(error: object) -> bool:
    """Whether an exception is of a class of this package."""
    return any(name.startswith("prefect_resilience.") for name in class_names(error))


def package(cls: type) -> str:
    """The outermost package of a class."""
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


_BODY_LIMIT = 64_000
_BODIES = ("data", "content", "json_body", "details", "info")
"""Attributes other than `body` that hold the body: of GitHub, Salesforce, Stripe, Google, Elastic."""


def body_text(error: object) -> str:
    """The part of a response's body that is already in memory; reading more would be I/O."""
    for source in (read(error, "response"), error):
        for name in ("_content", "_body"):
            content = as_dict(read(source, "__dict__")).get(name)
            if isinstance(content, bytes) and len(content) <= _BODY_LIMIT:
                return content.decode("utf-8", "replace")
    kept = read(error, "body")
    if isinstance(kept, bytes) and len(kept) <= _BODY_LIMIT:
        return kept.decode("utf-8", "replace")
    return kept[:_BODY_LIMIT] if isinstance(kept, str) else ""


def error_objects(error: object, text: str, answered: bool) -> list[dict[Any, Any]]:
    """The objects that describe the error, from the SDK's attributes and from the body's text.

    Without an HTTP status (`answered`), `data` and `details` may be business data, and are not read.
    """
    kept = [read(error, "body")]
    if answered:
        kept += [read(error, name) for name in _BODIES]
        kept.append(read(read(error, "response"), "data"))  # Slack
    found = [_error_object(body) for body in (*kept, parsed(text))]
    return [inner for inner in found if inner]


def provider_codes(error: object, objects: list[dict[Any, Any]]) -> list[str]:
    """Codes that a provider put on its exception or into the body, the most exact first."""
    own = (read(error, "error_code"), read(error, "code"), read(error, "type"))
    found = [as_code(code) for code in own]
    for inner in objects:
        found.append(as_code(as_dict(inner.get("details")).get("error_code")))
        found += [as_code(inner.get(name)) for name in ("code", "type", "status", "errorCode")]
        found.append(as_code(inner.get("error")))  # Slack: {"ok": false, "error": "ratelimited"}
    listed = [
        *_list(read(error, "errors")),
        *(each for inner in objects for each in _list(inner.get("errors"))),
    ]
    found += [as_code(as_dict(each).get("reason")) for each in listed]
    found += [as_code(as_dict(as_dict(each).get("extensions")).get("code")) for each in listed]  # GraphQL
    found += [as_code(as_dict(each).get("type")) for each in listed]
    found.append(as_code(read(read(error, "error"), "code")))  # Azure's ODataV4 error
    return [code for code in dict.fromkeys(found) if code is not None and as_status(code) is None]


def retry_infos(error: object, objects: list[dict[Any, Any]]) -> list[Any]:
    """Details of an error in Google's form: protobuf messages, or the JSON of them."""
    listed = [_list(read(error, "details"))] + [_list(inner.get("details")) for inner in objects]
    return [detail for details in listed for detail in details]


def _list(value: object) -> list[Any]:
    return list(cast("list[Any]", value))[:100] if isinstance(value, list | tuple) else []


def _error_object(body: Any) -> dict[Any, Any]:
    """The object that describes the error: the body's `error`, the first of a list, or the body itself."""
    listed = _list(body)
    plain = as_dict(listed[0] if listed else body)
    return as_dict(plain.get("error")) or plain


def parsed(body: str) -> Any:
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
