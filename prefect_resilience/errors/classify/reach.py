"""The exceptions inside an exception, and the names by which a policy may mean them.

A policy that names a class means that class wherever it is: the error itself, a member of its group, or a
cause. `Retry`, `Fallback`, `on_error` and circuits all match with `names_of`.
"""

from __future__ import annotations

import re
from abc import ABCMeta
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from prefect_resilience.errors.classify import readers
from prefect_resilience.errors.classify.shapes import class_names, is_bare, read
from prefect_resilience.errors.classify.table import places_of
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo, ErrorKind, Opinion

if TYPE_CHECKING:
    from prefect_resilience.errors.context import ErrorContext

MEMBERS = 1_000
_CHAIN = 100


def chain(error: BaseException, explicit: bool = False) -> Iterator[BaseException]:
    """The exception and its causes, each once, at most 100; `explicit`: without what it only handled."""
    visited: set[int] = set()
    link: object = error
    while isinstance(link, BaseException) and id(link) not in visited and len(visited) < _CHAIN:
        visited.add(id(link))
        yield link
        link = _cause(link) or (None if explicit else _context(link))


def _cause(link: BaseException) -> BaseException | None:
    if link.__cause__ is not None:
        return link.__cause__
    for name in () if is_bare(link) else places_of("causes"):
        if hasattr(type(link), name) or name in link.__dict__:
            cause = read(link, name)
            if isinstance(cause, BaseException) and cause is not link:
                return cause
    wrapped = link.args[0] if link.args else None
    return wrapped if isinstance(wrapped, BaseException) and not members_of(link) else None


def _context(link: BaseException) -> object:
    # Raised in an exception handler, a mistake is a bug of the handler, and its context is not its cause.
    is_apart = link.__suppress_context__ or isinstance(link, readers.MISTAKES)
    return None if is_apart else read(link, "__context__")


def members_of(error: BaseException) -> tuple[Any, ...]:
    """The members of an exception group or of a library's own form of it, () for any other exception."""
    members = read(error, "exceptions")
    if not isinstance(members, tuple | list):
        return ()
    return tuple(part for part in cast("list[Any]", members) if isinstance(part, BaseException))


def find(link: BaseException, now: float) -> Opinion | None:
    """The opinion of the default rules on one exception, without its causes."""
    try:
        return readers.find(link, now)
    except Exception:  # noqa: BLE001 - reading a foreign exception may raise anything
        return None


def reach(error: BaseException) -> list[BaseException]:
    """The exception, the members of its groups and the causes of each, at most 1,000.

    An exception that was being handled counts as a cause as it does in classification: only if it was not
    suppressed, and if the one raised after it has no category of its own.
    """
    reached: dict[int, BaseException] = {}
    waiting: list[object] = [error]
    while waiting and len(reached) < MEMBERS:
        link = waiting.pop()
        if not isinstance(link, BaseException) or id(link) in reached:
            continue
        reached[id(link)] = link
        members = members_of(link)
        behind = _cause(link)
        if behind is None and not members and (handled := _context(link)) is not None:
            behind = None if find(link, 0.0) else handled
        waiting += (behind, *members[:MEMBERS])
    return list(reached.values())


def is_interrupted(error: BaseException) -> bool:
    """Whether an exception or a member of its group ends the program or the task: it is never retried."""
    groups = [error]
    for group in groups:
        if not isinstance(group, Exception) and not members_of(group):
            return True
        if len(groups) < MEMBERS and not isinstance(group, Exception):
            groups += (member for member in members_of(group) if member not in groups)
    return False


def names_of(error: ErrorInfo | ErrorContext, exception: BaseException | None = None) -> set[str]:
    """Every name that a policy may use for an error: words, codes, and names of classes."""
    names = {error.category.value, error.kind.value, error.code}
    names.update(error.details.get("categories", ()), error.details.get("codes", ()))
    if error.exception_type:
        names |= {error.exception_type, error.exception_type.rpartition(".")[2]}
    for link in () if exception is None else reach(exception):
        names.update(read(link, NAMES) or (), class_names(link))
        names.update(name for cls in type(link).__mro__ for name in (class_path(cls), cls.__qualname__))
    return names


NAMES = "__prefect_resilience_names__"
"""The attribute with the names of an exception that stayed in a child process."""

WORDS: list[ErrorCategory | ErrorKind] = [*ErrorCategory, *ErrorKind]


def error_name(value: Any) -> str:
    """The text of an entry of `retry_on` or `give_up_on`: a dotted class name, category, kind or code."""
    if isinstance(value, type) and (issubclass(value, BaseException) or isinstance(value, ABCMeta)):
        return class_path(value)
    if isinstance(value, (ErrorCategory, ErrorKind)):
        return value.value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"{value!r} does not name an error: write an exception class, a category such as 'rate_limit', "
            f"or a code such as '503'"
        )
    words = [word.value for word in WORDS]
    if value not in words and re.fullmatch(r"[a-z_]+", value):
        import difflib

        for close in difflib.get_close_matches(value, words, n=1, cutoff=0.8):
            raise ValueError(f"unknown error category {value!r}; did you mean {close!r}?")
    return value


def is_class_name(name: str) -> bool:
    """Whether an entry has the form of a class's name: `shop.Busy`, `ConnectionError`; codes have no small
    letters."""
    return re.fullmatch(r"(?:[\w<>]+\.)*[A-Z]\w*[a-z]\w*", name) is not None


def class_path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def as_names(value: Any) -> tuple[str, ...]:
    """The texts of one entry or several, also in tuples inside of tuples as `except` takes them."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(name for item in cast("Iterable[Any]", value) for name in as_names(item))
    return (error_name(value),)
