"""What a letter keeps: scalars as JSON, classes and tasks by import path; and the names of secrets.

Reading a class may import its module.
"""

from __future__ import annotations

import dataclasses
import importlib
import ipaddress
import pathlib
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from uuid import UUID
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo

import pydantic
from pydantic import BaseModel

from prefect_resilience.base.naming import is_of_process
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact_data

FindModule = Callable[[str], ModuleType]


class DeadLetterError(ResilienceError, ValueError):
    """An operation on a dead letter is not possible; the message says how to make it possible."""


# -- scalars: values without parts


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """How a kind of value is written as JSON and read back."""

    types: tuple[type[Any], ...]
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _moments(cls: type[datetime] | type[time]) -> Scalar:
    """The local time, its fold, and the zone: a name, or microseconds from UTC."""

    def write(value: Any) -> list[Any]:
        zone, offset = value.tzinfo, value.utcoffset()
        if isinstance(zone, ZoneInfo) and zone.key:
            where: str | int | None = zone.key
        else:
            where = None if offset is None else round(offset / timedelta(microseconds=1))
        return [cls.isoformat(value.replace(tzinfo=None, fold=0)), value.fold, where]

    def read(written: Any) -> Any:
        text, fold, where = written
        zone: tzinfo | None = None
        if where is not None:
            zone = ZoneInfo(where) if isinstance(where, str) else timezone(timedelta(microseconds=where))
        return cls.fromisoformat(text).replace(fold=fold, tzinfo=zone)

    return Scalar((cls,), write, read)


def _of_module(module: ModuleType, *bases: type[Any]) -> Scalar:
    """The name of the value's class in a module, and the value as text for its constructor."""

    def write(value: Any) -> list[str]:
        # A path has a class of its own on each system.
        name = "Path" if isinstance(value, pathlib.Path) else type(value).__name__
        return [name, str(value)]

    def read(written: Any) -> Any:
        cls = getattr(module, written[0], None)
        if not isinstance(cls, type) or not issubclass(cls, bases):
            raise ValueError(f"unknown kind of value {written[0]!r}")
        return cls(written[1])

    return Scalar(bases, write, read)


def _base64(value: bytes | bytearray) -> str:
    return b64encode(value).decode()


_ADDRESSES = (ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network)
# The order matters: a datetime is a date, too.
SCALARS: dict[str, Scalar] = {
    "bytes": Scalar((bytes,), _base64, b64decode),
    "bytearray": Scalar((bytearray,), _base64, lambda written: bytearray(b64decode(written))),
    "datetime": _moments(datetime),
    "date": Scalar((date,), date.isoformat, date.fromisoformat),
    "time": _moments(time),
    "timedelta": Scalar((timedelta,), lambda v: [v.days, v.seconds, v.microseconds], lambda w: timedelta(*w)),
    "zone": Scalar((ZoneInfo,), lambda zone: zone.key, ZoneInfo),
    "uuid": Scalar((UUID,), str, UUID),
    "decimal": Scalar((Decimal,), str, Decimal),
    "path": _of_module(pathlib, pathlib.PurePath),
    "address": _of_module(ipaddress, *_ADDRESSES),
    "url": _of_module(pydantic, pydantic.AnyUrl.__mro__[-2], pydantic.PostgresDsn.__mro__[-2]),
    "float": Scalar((), str, float),  # NaN and infinities, which are not JSON
}


def scalar_of(value: Any) -> str | None:
    """The kind of this value; None if there is none, or if reading would not give an equal value."""
    for name, scalar in SCALARS.items():
        if isinstance(value, scalar.types):
            # A subclass may hold more than the text that is written, such as nanoseconds.
            is_exact = type(value) in scalar.types or scalar.read(scalar.write(value)) == value
            return name if is_exact else None
    return None


# -- classes that hold data


def class_path(cls: type[Any]) -> str:
    """`module:qualname` of a class, by which `find_class` finds it. Raises LookupError if no import does."""
    if attribute_at(sys.modules.get(cls.__module__), cls.__qualname__) is not cls:
        raise LookupError(f"{cls.__qualname__} is not at the top of {cls.__module__}")
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(path: str, kind: str, find_module: FindModule = importlib.import_module) -> type[Any]:
    """The class of this path. Raises DeadLetterError if there is none, or if it is not of this kind."""
    module, _, qualname = path.partition(":")
    try:
        cls: Any = attribute_at(find_module(module), qualname)
    except Exception as error:
        raise DeadLetterError(f"the class {path} cannot be imported here: {error!r}") from error
    if cls is None:
        raise DeadLetterError(f"the class {qualname} no longer exists in {module}")
    if kind_of_class(cls) != kind:
        raise DeadLetterError(f"{path} is no {kind}, so it is not read")
    return cls


def kind_of_class(cls: Any) -> str | None:
    """The kind of a class that holds data; None for any other object."""
    if not isinstance(cls, type):
        return None
    if issubclass(cls, BaseModel):
        return "model"
    if issubclass(cls, Enum):
        return "enum"
    data = cast("Any", cls)
    if dataclasses.is_dataclass(data):
        return "dataclass"
    return "namedtuple" if issubclass(cls, tuple) and hasattr(data, "_fields") else None


def check_fields(model: type[BaseModel], members: dict[str, Any]) -> None:
    """Raise DeadLetterError if the model lost a field, or has a new one without a default."""
    lost = [] if model.model_config.get("extra") == "allow" else sorted(members.keys() - model.model_fields)
    if lost:
        raise DeadLetterError(f"{model.__qualname__} no longer has the field {lost[0]!r}")
    for name, field in model.model_fields.items():
        if field.is_required() and name not in members:
            raise DeadLetterError(f"{model.__qualname__} has a new field {name!r} without a default")


def attribute_at(module: ModuleType | None, qualname: str) -> Any:
    """The object of a dotted name in a module; None if there is none."""
    attribute: Any = module
    for part in qualname.split("."):
        attribute = getattr(attribute, part, None)
    return attribute


# -- names of secrets

_WORDS = re.compile(r"[a-z]+(?![a-z])|[A-Z][a-z]+|[A-Z]+", re.ASCII)
_CODES = frozenset({"password", "passwd", "pwd", "passphrase", "passcode", "pin", "cvv", "cvc", "otp"})
"""Names of secret numbers."""
_TEXTS = _CODES | {"jwt", "bearer"}


def hides(name: str, value: Any) -> bool:
    """Whether a value is left out because of its name: a text, or a container that may hold texts.

    Also a number if the name is that of a secret number, and a pair under "auth". Models and dataclasses are
    not hidden as a whole: their fields have names of their own.
    """
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _last_word(name) in _CODES
    if not isinstance(value, str | bytes | bytearray | dict | list | tuple | set | frozenset) or not value:
        return False
    return _names_secret(name) or (_last_word(name) == "auth" and isinstance(value, tuple | list))


@lru_cache(maxsize=10_000)
def _names_secret(name: str) -> bool:
    """Whether every value of this name is a secret: "password", "api_keys"."""
    if redact_data({name: "any text"}) != {name: "any text"} or _last_word(name) in _TEXTS:
        return True
    singular = name.removesuffix("s")
    # "tokens" usually are parts of a text.
    return singular != name and singular.casefold() != "token" and _names_secret(singular)


def _last_word(name: str) -> str:
    words = _WORDS.findall(name)
    return words[-1].casefold() if words else ""


# -- tasks and flows, so that another process can find them


class Source(BaseModel, frozen=True):
    """Where to find a task or flow: `module:qualname`, and the file if the module cannot be imported."""

    module: str
    qualname: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


# Tasks that no import finds, as in a function or a notebook. Only this process can find them.
_local_subjects: WeakValueDictionary[str, Any] = WeakValueDictionary()


def source_of(subject: Any) -> Source | None:
    """Where a task or flow is defined; None if its function has no module or name."""
    fn = getattr(subject, "fn", subject)
    module = sys.modules.get(getattr(fn, "__module__", "") or "")
    qualname = getattr(fn, "__qualname__", "")
    if module is None or not qualname:
        return None
    name = next((name for name, value in list(vars(module).items()) if value is subject), None)
    variant = attribute_at(module, qualname)
    if name is None and hasattr(variant, "fn") and _key(variant) == _key(subject):
        name = qualname
    source = Source(module=module.__name__, qualname=name or qualname, file=getattr(module, "__file__", None))
    if name is None:
        _local_subjects[f"{source}|{_key(subject)}"] = subject
    return source


def _key(subject: Any) -> str:
    return str(getattr(subject, "task_key", None) or getattr(subject, "name", ""))


class Finder:
    """Finds recorded tasks, flows and modules. `load_file` runs a Python file as a module, each file once."""

    def __init__(self, load_file: Callable[[str], ModuleType]) -> None:
        self._load_file = load_file
        self._loaded: dict[str, ModuleType] = {}

    def subject(self, source: Source | None, key: str) -> Any:
        """The task or flow. Raises DeadLetterError when it is not there."""
        if source is None:
            raise DeadLetterError("the place of its function was not recorded")
        if (local := _local_subjects.get(f"{source}|{key}")) is not None:
            return local
        if "<locals>" in source.qualname:
            raise DeadLetterError(
                f"{source} was defined in a function, so other processes cannot import it: "
                "define it at the top of its module"
            )
        try:
            module = self.module(source.module, source)
        except DeadLetterError:
            raise
        except Exception as error:
            raise DeadLetterError(
                f"{source} cannot be imported here ({error!r}): run this in the folder of its project"
            ) from error
        subject = attribute_at(module, source.qualname)
        if subject is None:
            raise DeadLetterError(
                f"{source.qualname} is not in {source.module}: restore it, or settle or purge the letter"
            )
        return subject

    def module(self, name: str, source: Source | None) -> ModuleType:
        """A module by its name, or by its recorded file: for main modules and those that no import finds."""
        file = source.file if source is not None and source.module == name else None
        passing = is_of_process(name)
        loaded = sys.modules.get(name)
        if loaded is not None and (file is None or _is_at(loaded, file) or not passing):
            return loaded
        if passing:
            if file is None:
                raise DeadLetterError(f"{name} was another program, and its file was not recorded")
            return self._of_file(file)
        try:
            return importlib.import_module(name)
        except ImportError:
            if file is None:
                raise
            return self._of_file(file)

    def _of_file(self, file: str) -> ModuleType:
        for module in list(sys.modules.values()):
            if _is_at(module, file):
                return module
        path = _present(file)
        if path not in self._loaded:
            self._loaded[path] = self._load_file(path)
        return self._loaded[path]


def _is_at(module: ModuleType, file: str) -> bool:
    there = getattr(module, "__file__", None)
    return isinstance(there, str) and Path(there).absolute() == Path(file).absolute()


def _present(file: str) -> str:
    """The file. If its folder is gone, such as a worker's, the same path below the current folder."""
    path = Path(file)
    if path.is_file():
        return str(path)
    for start in range(1, len(path.parts)):
        candidate = Path(*path.parts[start:])
        if candidate.is_file():
            return str(candidate.absolute())
    raise DeadLetterError(f"file {file} not found here: run this in the folder of its project")
