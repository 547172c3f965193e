"""scrub_exception: removes the secrets from an exception, and keeps its identity where possible.

Exceptions are changed in place, since the user's `except` should see the exception that their code raised.
The few that cannot be changed are replaced by stand-ins of the same name, also in the chain of causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import repeat
from operator import is_not
from typing import Any, cast

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from prefect_resilience.errors.classify.reach import members_of
from prefect_resilience.errors.classify.shapes import put, read
from prefect_resilience.errors.secrets.patterns import MASK, names_a_secret
from prefect_resilience.errors.secrets.redact import EDGE, is_secret_name, redact, redact_data, redact_within

LONGEST = 100_000
MOST = 500_000
"""The characters of one text, and of all texts of an exception, its causes and members. Much longer ones are
cut: masking 50 million characters would take 20 s."""

_PLAIN = (bool, int, float, str, type(None))


def stand_in(error: BaseException, replaced: Mapping[int, BaseException] | None = None) -> BaseException:
    """An exception that prints like `error` without secrets, with its traceback, cause, context and notes.

    A pydantic ValidationError becomes one that hides its inputs. A group becomes a group of the same members,
    or of their stand-ins in `replaced` (by id). Any other exception becomes an instance of a subclass with
    the same name. Never raises.
    """
    double = _validation_error(error) or _group(error, replaced or {}) or _imitation(error)
    for name in ("__cause__", "__context__", "__suppress_context__"):  # a cause turns the last one on
        put(double, name, read(error, name))
    notes = read(error, "__notes__")
    if isinstance(notes, list):
        put(double, "__notes__", [_text(note) for note in cast("list[Any]", notes)])
    return double.with_traceback(error.__traceback__)


def _text(value: object, form: Callable[[object], str] = str, instead: str = "<{}>") -> str:
    """The `str` or `repr` of a value, redacted."""
    try:
        return redact_data(form(value), LONGEST)
    except Exception:  # noqa: BLE001 - __str__ and __repr__ may raise anything
        return instead.format(type(value).__name__)


def _validation_error(error: BaseException) -> BaseException | None:
    if not isinstance(error, ValidationError):
        return None
    double: BaseException | None = None
    with suppress(Exception):  # a type of error that pydantic cannot make again
        lines = [_line(cast("Any", line)) for line in error.errors(include_url=False)]
        double = ValidationError.from_exception_data(redact_data(error.title), lines, hide_input=True)
    return None if _changes(str(double)) else double


def _line(line: dict[str, Any]) -> InitErrorDetails:
    """One line of the new ValidationError, with the redacted message and context."""
    value, is_secret = line["input"], is_of_a_secret(line)
    is_hidden = is_secret or not isinstance(value, _PLAIN) or redact_data(value, LONGEST) != value
    context = {
        name: part if isinstance(part, (int, float)) else MASK if is_secret else _text(part)
        for name, part in line.get("ctx", {}).items()
    }
    kind = PydanticCustomError(line["type"], redact_data(line["msg"]), context)
    return InitErrorDetails(type=kind, loc=redact_data(line["loc"]), input=MASK if is_hidden else value)


def is_of_a_secret(line: Mapping[str, Any]) -> bool:
    """Whether a line of a ValidationError is about a field such as `password`: its input is a secret."""
    return any(isinstance(part, str) and is_secret_name(part) for part in line["loc"])


def _group(error: BaseException, replaced: Mapping[int, BaseException]) -> BaseException | None:
    """A group of the same class, if the class can be made from a message and members; else None."""
    new = [replaced.get(id(member), member) for member in members_of(error)]
    try:
        return cast("Any", type(error))(_text(read(error, "message")), new) if new else None
    except Exception:  # noqa: BLE001 - a group with a constructor of its own
        return None


def _imitation(error: BaseException) -> BaseException:
    """An instance of a subclass of the error's own class, so that `except` still finds it."""
    attributes = _attributes(error).items()
    plain = {name: redact_data(value, LONGEST) for name, value in attributes if isinstance(value, _PLAIN)}
    return imitate(type(error), _text(error), _text(error, repr, "{}()"), plain)


class _Imitation:
    """The first base of a stand-in's class, before the class of the original exception."""

    _seen_as: tuple[type[BaseException], str, str, dict[str, Any]]

    def __init__(self, *_: object) -> None:
        """Does not run the original class's constructor, which may need any arguments."""

    def __str__(self) -> str:
        return self._seen_as[1]

    def __repr__(self) -> str:
        return self._seen_as[2]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return imitate, self._seen_as


def imitate(cls: type[BaseException], text: str, shown: str, attributes: dict[str, Any]) -> BaseException:
    """An instance of a subclass of `cls` (or, if that fails, of a base) with the given text and repr."""
    for base in cls.__mro__:
        try:
            body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
            double = cast("type[Any]", type(cls.__name__, (_Imitation, base), body))
            error = cast("Any", double).__new__(double)
            put(error, "args", (text,))
            error.__dict__.update(attributes, _seen_as=(cls, text, shown, attributes))
        except Exception:  # noqa: BLE001 - a final class, or one that restricts its subclasses
            continue
        return error
    raise AssertionError("BaseException can be subclassed")  # pragma: no cover


# Built-in exceptions keep their parts outside `__dict__`. These attributes have texts and can be set.
_SLOTS = ("strerror", "filename", "filename2", "msg", "text", "reason", "code", "value", "name", "path")


def scrub_exception(exc: BaseException) -> BaseException:
    """The same exception with the secrets masked in it, in its notes, its causes and its group's members.

    Works in place on `args`, notes and the texts among the attributes. An exception without secrets stays
    unchanged. Where a change in place is impossible (a pydantic ValidationError, a group's message) a
    stand-in with the same class name, traceback, cause and notes is returned. Never raises.
    """
    try:
        nodes = _graph(exc)
        replaced: dict[int, BaseException] = {}
        room = [0, LONGEST, MOST]
        for node in nodes:
            after = _scrub(node, replaced, [0, LONGEST, LONGEST] if node is exc else room)
            if after is not node:
                replaced[id(node)] = after
        for node in nodes if replaced else ():
            _relink(replaced.get(id(node), node), replaced)
        return replaced.get(id(exc), exc)
    except Exception:  # noqa: BLE001 - reading a foreign exception may raise anything
        return stand_in(exc)


def _graph(exc: BaseException) -> list[BaseException]:
    """The exception and all exceptions that it refers to, each once, after those that it may print."""
    nodes: list[BaseException] = []
    visited: set[int] = set()
    waiting = [(exc, False)]
    while waiting:
        node, is_complete = waiting.pop()
        if is_complete:
            nodes.append(node)
        elif id(node) not in visited and len(visited) < 20_000:
            visited.add(id(node))
            waiting += [(node, True), *((part, False) for part in _links_of(node))]
    return nodes


def _links_of(node: BaseException) -> Iterator[BaseException]:
    args = read(node, "args")
    parts: list[Any] = [read(node, "__cause__"), read(node, "__context__")]
    parts += [*(args if isinstance(args, tuple) else ()), *_attributes(node).values()]
    return (part for part in (*parts, *members_of(node)) if isinstance(part, BaseException))


def _attributes(node: BaseException) -> dict[str, Any]:
    attributes = read(node, "__dict__")
    return cast("dict[str, Any]", attributes) if isinstance(attributes, dict) else {}


def _scrub(node: BaseException, replaced: dict[int, BaseException], room: list[int]) -> BaseException:
    """The node itself, cleaned, or its stand-in."""
    if replaced and any(id(member) in replaced for member in members_of(node)):
        return stand_in(node, replaced)
    if replaced:
        _relink(node, replaced)
    args = tuple(map(clean, node.args, repeat(room)))
    if any(map(is_not, args, node.args)):
        _assign(node, "args", args)
    _clean_attributes(node, room)
    return stand_in(node, replaced) if leaks(node) else node


def leaks(node: BaseException) -> bool:
    """Whether an exception's text, or an input that a ValidationError shows in part, has a secret in it."""
    if _changes(str(node)) or _changes(repr(node)):
        return True
    if type(node).__name__ != "ValidationError" or not callable(read(node, "errors")):
        return False
    lines = cast("Any", node).errors(include_url=False, include_context=False)
    return any(
        redact_data(line) != line or _changes(repr(line)) or (line["input"] != MASK and is_of_a_secret(line))
        for line in lines
    )


def _changes(text: str) -> bool:
    return len(text) > LONGEST + EDGE or redact(text) != text


def clean(value: Any, room: list[int]) -> Any:
    """A value without secrets: the same object if it had none. `room`: as in `redact_within`."""
    if isinstance(value, str):
        return redact_within(value, room)
    if isinstance(value, bytes | bytearray):
        text = value.decode("latin-1")
        masked = redact_within(text, room)
        return value if masked == text else masked.encode("latin-1", "replace")
    if isinstance(value, dict | list | tuple):
        masked = redact_within(cast("Any", value), room)
        return cast("Any", value) if masked == value else masked
    if isinstance(value, BaseException | int | float | None):
        return value
    shown = str(value)
    if _changes(shown) or _changes(repr(value)):
        return redact_within(shown, room)
    return value


def _clean_attributes(node: BaseException, room: list[int]) -> None:
    """Clean the attributes that are texts or plain structures. Other objects, such as a request, stay."""
    statement, parameters = read(node, "statement"), read(node, "params")
    if isinstance(statement, str) and parameters and names_a_secret(statement):
        _assign(node, "params", _hidden(parameters))  # SQLAlchemy prints them
    slots: dict[str, Any] = {name: text for name in _SLOTS if isinstance(text := read(node, name), str)}
    for name, value in (slots | _attributes(node)).items():
        document = read(value, "buffer")  # of a YAML parser's mark, which prints a line of the document
        if isinstance(document, str) and _changes(document):
            value.buffer = None
        if isinstance(value, str | bytes | dict | list | tuple):
            masked = clean(cast("Any", value), room)
            if masked is not value:
                _assign(node, name, masked)


def _hidden(parameters: Any) -> Any:
    """The parameters of a statement in the same structure, each value masked."""
    if isinstance(parameters, dict):
        return {name: _hidden(value) for name, value in cast("dict[Any, Any]", parameters).items()}
    if isinstance(parameters, list | tuple):
        return tuple(_hidden(value) for value in cast("list[Any]", parameters))
    return MASK


def _assign(node: BaseException, name: str, value: Any) -> None:
    with suppress(Exception):  # a read-only property; `leaks` checks afterwards whether its text shows
        put(node, name, value)


def _relink(node: BaseException, replaced: dict[int, BaseException]) -> None:
    """Replace the exceptions that the node refers to by their stand-ins."""
    suppress = node.__suppress_context__
    for name in ("__cause__", "__context__"):
        if id(read(node, name)) in replaced:
            put(node, name, replaced[id(read(node, name))])
    put(node, "__suppress_context__", suppress)  # setting a cause turns it on
    if any(id(arg) in replaced for arg in node.args):
        _assign(node, "args", tuple(replaced.get(id(arg), arg) for arg in node.args))
    for name, value in list(_attributes(node).items()):
        if id(value) in replaced:
            _assign(node, name, replaced[id(value)])
