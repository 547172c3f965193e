"""Signatures that show every option where the code takes `**options`, for `help()`, notebooks and IDEs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Unset:
    """Stands for an option that was not written."""

    def __repr__(self) -> str:
        return "unset"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


def shows(options: type, defaults: Mapping[str, Any], *likes: Callable[..., Any]) -> Callable[[F], F]:
    """Decorate a function that takes `**options` so that its signature has them by name.

    `options` is the TypedDict of ours, which come first, with their `defaults`. Prefect's are those that the
    `likes` take after one argument; the first of these that has an option says its default.
    """

    def decorate(fn: F) -> F:
        signature = inspect.signature(fn)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        keyword = inspect.Parameter.KEYWORD_ONLY
        shown = {
            name: inspect.Parameter(name, keyword, default=default, annotation=_shown(options, name))
            for name, default in defaults.items()
        }
        for like in likes:
            for parameter in [*inspect.signature(like).parameters.values()][1:]:
                shown.setdefault(parameter.name, parameter.replace(kind=keyword))
        setattr(fn, "__signature__", signature.replace(parameters=[*own, *shown.values()]))  # noqa: B010
        return fn

    return decorate


def _shown(options: type, name: str) -> Any:
    """An option's type; its name where the type is loaded only for type checkers."""
    annotation = options.__annotations__[name]
    return getattr(annotation, "__forward_arg__", annotation)


def more_options(kind: type, resilient: type) -> list[str]:
    """The options that `with_options` of the plain class behind a resilient one takes."""
    bases: tuple[Any, ...] = kind.__mro__
    plain = next(base for base in bases if not issubclass(base, resilient))
    return [name for name in inspect.signature(plain.with_options).parameters if name != "self"]
