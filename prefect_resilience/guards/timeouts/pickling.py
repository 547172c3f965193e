"""Values and exceptions on their way between a process and its child.

Functions and classes of `__main__`, closures and lambdas travel by value. An exception keeps its type, its
notes, its causes, and those of its attributes that can be pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

_CAUSES = 10
"""How far down a chain of causes is carried."""

dumps: Callable[[Any], bytes] = cast("Callable[[Any], bytes]", cloudpickle.dumps)  # pyright: ignore[reportUnknownMemberType]

_Packed = tuple[bytes, Any, Any, bool]
"""The exception itself, its cause, its context, and whether the context is suppressed."""


def pack_error(error: BaseException) -> bytes:
    """The exception as bytes for `unpack_error`. Raises what pickling raises when its class cannot travel."""
    return dumps(_pack(error, _CAUSES))


def unpack_error(body: bytes) -> BaseException:
    """The exception that `pack_error` packed. Raises what unpickling raises."""
    return _unpack(pickle.loads(body))


def _pack(error: BaseException, depth: int) -> _Packed:
    def chained(other: BaseException | None) -> _Packed | None:
        if other is None or depth == 0:
            return None
        try:
            return _pack(other, depth - 1)
        except Exception:  # noqa: BLE001 the error itself matters more than its cause
            return None

    context = None if error.__cause__ else chained(error.__context__)
    body = _whole(error) or _parts(error)
    return body, chained(error.__cause__), context, error.__suppress_context__


def _unpack(packed: _Packed) -> BaseException:
    body, cause, context, suppress = packed
    error = _rebuild(body)
    error.__cause__ = None if cause is None else _unpack(cause)
    error.__context__ = None if context is None else _unpack(context)
    error.__suppress_context__ = suppress
    return error


def _whole(error: BaseException) -> bytes | None:
    """The exception pickled by its own means, if that gives the same one back."""
    try:
        body = dumps(error)
        back = pickle.loads(body)
    except Exception:  # noqa: BLE001 many exceptions cannot be made again from their args
        return None
    return body if type(back) is type(error) and str(back) == str(error) else None


def _parts(error: BaseException) -> bytes:
    """Type, args and attributes, without what cannot be pickled. Raises when the type cannot be."""
    attributes = {name: value for name, value in vars(error).items() if _travels(value)}
    args = tuple(value if _travels(value) else repr(value) for value in error.args)
    body = dumps((type(error), args, attributes))
    _rebuild(body)
    return body


def _travels(value: Any) -> bool:
    try:
        pickle.loads(dumps(value))
    except Exception:  # noqa: BLE001 whatever a __reduce__ raises
        return False
    return True


def _rebuild(body: bytes) -> BaseException:
    """An exception, without its `__init__` if it came in parts, which may not say what that wants."""
    made = pickle.loads(body)
    if isinstance(made, BaseException):
        return made
    error_type, args, attributes = made
    error: BaseException = error_type.__new__(error_type, *args)
    error.args = args
    vars(error).update(attributes)
    return error
