"""Stand-ins for exceptions whose text cannot be changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from prefect_resilience.errors.classify.shapes import put, read
from prefect_resilience.errors.secrets.pairs import MASK
from prefect_resilience.errors.secrets.redact import is_secret_name, redact, redact_data

_PLAIN = (bool, int, float, str, type(None))


def stand_in(error: BaseException, replaced: Mapping[int, BaseException] | None = None) -> BaseException:
    """Something that prints like `error` without its secrets, with its traceback, cause, context and notes.

    A pydantic ValidationError becomes one that hides its inputs, a group one of the same members (or of what
    `replaced` has for them, by id), anything else an instance of a subclass with the same name. Never raises.
    """
    made = _validation_error(error) or _group(error, replaced or {}) or _imitation(error)
    for name in ("__cause__", "__context__", "__suppress_context__"):  # the last undoes what the first sets
        put(made, name, read(error, name))
    notes = read(error, "__notes__")
    if isinstance(notes, list):
        put(made, "__notes__", [redact(_text(note)) for note in cast("list[Any]", notes)])
    return made.with_traceback(error.__traceback__)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - __str__ may raise anything
        return f"<{type(value).__name__}>"


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - __repr__ may raise anything
        return f"{type(value).__name__}()"


def _validation_error(error: BaseException) -> BaseException | None:
    if not isinstance(error, ValidationError):
        return None
    lines = error.errors(include_url=False)
    for details in (_known_line, _custom_line):
        try:
            made = ValidationError.from_exception_data(
                redact(error.title), [details(cast("Any", line)) for line in lines], hide_input=True
            )
        except Exception:  # noqa: BLE001 - a type of error that pydantic cannot make from its parts
            continue
        if redact(str(made)) == str(made):
            return made
    return None


def _known_line(line: dict[str, Any]) -> InitErrorDetails:
    """A line of one of pydantic's own types, which writes its message itself."""
    return InitErrorDetails(
        type=line["type"], loc=redact_data(line["loc"]), input=_input(line), ctx=line.get("ctx", {})
    )


def _custom_line(line: dict[str, Any]) -> InitErrorDetails:
    """A line with its message fixed, for types that pydantic does not know and messages with a secret."""
    message = redact(line["msg"])
    kind = PydanticCustomError(line["type"], cast("Any", message))
    return InitErrorDetails(type=kind, loc=redact_data(line["loc"]), input=_input(line))


def _input(line: dict[str, Any]) -> Any:
    return MASK if is_of_a_secret(line) else _safe(line["input"])


def is_of_a_secret(line: Mapping[str, Any]) -> bool:
    """Whether a line of a ValidationError is about a field such as `password`, whose input is one."""
    return any(isinstance(part, str) and is_secret_name(part) for part in line["loc"])


def _safe(value: Any) -> Any:
    if not isinstance(value, _PLAIN) or (isinstance(value, str) and redact(value) != value):
        return MASK
    return value


def _group(error: BaseException, replaced: Mapping[int, BaseException]) -> BaseException | None:
    """A group of the same class where that can be made from a message and members."""
    members = read(error, "exceptions")
    if not isinstance(members, tuple) or not members:
        return None
    new = [replaced.get(id(member), member) for member in cast("tuple[Any, ...]", members)]
    try:
        return cast("Any", type(error))(redact(_text(read(error, "message"))), new)
    except Exception:  # noqa: BLE001 - a group with a constructor of its own
        return None


def _imitation(error: BaseException) -> BaseException:
    """An instance of a subclass of the error's own class, so that `except` still finds it."""
    return imitate(type(error), redact(_text(error)), redact(_shown(error)), _plain_attributes(error))


def _plain_attributes(error: BaseException) -> dict[str, Any]:
    attributes = read(error, "__dict__")
    plain = cast("dict[str, Any]", attributes) if isinstance(attributes, dict) else {}
    return {name: redact_data(value) for name, value in plain.items() if isinstance(value, _PLAIN)}


class _Imitation:
    """What a stand-in puts before the class that it stands in for."""

    _seen_as: tuple[type[BaseException], str, str, dict[str, Any]]

    def __init__(self, *_: object) -> None:
        """The class's own constructor may ask for anything, and is not run."""

    def __str__(self) -> str:
        return self._seen_as[1]

    def __repr__(self) -> str:
        return self._seen_as[2]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return imitate, self._seen_as


def imitate(cls: type[BaseException], text: str, shown: str, attributes: dict[str, Any]) -> BaseException:
    """An exception that is a `cls` (or, where that cannot be, of a base) and prints as it is told."""
    for base in cls.__mro__:
        try:
            body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
            made = cast("type[Any]", type(cls.__name__, (_Imitation, base), body))
            error = cast("Any", made).__new__(made)
            put(error, "args", (text,))
            error.__dict__.update(attributes, _seen_as=(cls, text, shown, attributes))
        except Exception:  # noqa: BLE001 - a final class, or one with ideas about its subclasses
            continue
        return error
    raise AssertionError("BaseException can be subclassed")  # pragma: no cover
