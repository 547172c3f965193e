"""Classes by their import path, for reading data back. Nothing but a class that only holds data is found.

Finding one may import its module. It never calls the class: what is read back is put together the way
`copy` does it, without constructors and validators.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any, cast
from weakref import WeakValueDictionary

from pydantic import BaseModel

from prefect_resilience.errors.exceptions import ResilienceError

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
