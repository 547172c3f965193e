"""Ready-made mergers: what the parts gave, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast


def concat(results: Sequence[Any]) -> Any:
    """Lists and tuples one after the other in a list, mappings and sets united, texts put together.

    Of mappings the last one wins. Raises TypeError for anything else, and where they are of several kinds.

    Example:
        >>> concat([[1], [2, 3]])
        [1, 2, 3]
    """
    first: Any = results[0]
    for kind, merged in _MERGED:
        if isinstance(first, kind):
            if all(isinstance(result, kind) for result in results):
                return merged(results)
            break
    kinds = sorted({type(result).__name__ for result in results})
    raise TypeError(
        f"concat cannot merge {', '.join(kinds)}: write merge= as a function of the list of results"
    )


def _texts(results: Sequence[Any]) -> str:
    return "".join(results)


def _lists(results: Sequence[Any]) -> list[Any]:
    return [item for result in results for item in result]


def _mappings(results: Sequence[Any]) -> dict[Any, Any]:
    return {key: value for result in results for key, value in cast("Mapping[Any, Any]", result).items()}


def _sets(results: Sequence[Any]) -> set[Any]:
    return set[Any]().union(*results)


_MERGED: tuple[tuple[Any, Any], ...] = (
    (str, _texts),
    ((list, tuple), _lists),
    (Mapping, _mappings),
    ((set, frozenset), _sets),
)


@dataclass(frozen=True)
class _Join:
    separator: str

    def __call__(self, results: Sequence[str]) -> str:
        return self.separator.join(results)


def join(separator: str = "\n\n") -> Any:
    """A merger of texts: one after the other, with `separator` between them.

    Example:
        >>> join(", ")(["a", "b"])
        'a, b'
    """
    return _Join(separator)
