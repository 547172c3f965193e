"""Values that have no parts, as JSON and back: times, numbers, ids, addresses, paths."""

from __future__ import annotations

import importlib
import ipaddress
import math
import pathlib
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pydantic_core

_KINDS = "biufcmM"
"""Truth values, numbers and times: what else an array may hold is not kept, as texts may be secret."""


def is_array(value: Any) -> bool:
    """Whether this is an array, or one number out of an array."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return False
    return value.dtype.kind in _KINDS


def write_array(value: Any) -> list[Any]:
    """The type of the elements, the shape (None: one number alone), and the bytes."""
    numpy: Any = sys.modules["numpy"]
    shape = None if isinstance(value, numpy.generic) else list(value.shape)
    return [value.dtype.str, shape, b64encode(value.tobytes()).decode()]


def read_array(written: Any) -> Any:
    numpy: Any = importlib.import_module("numpy")
    kind, shape, data = written
    flat = numpy.frombuffer(b64decode(data), numpy.dtype(kind))
    return flat[0] if shape is None else flat.reshape(shape).copy()


GREATEST_PLAIN_BITS = 10_000
"""Python's JSON reads no longer integers; those are written in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One kind of value: how it is written as JSON and read back."""

    name: str
    types: tuple[type[Any], ...]
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _zone(zone: tzinfo | None, offset: timedelta | None) -> Any:
    """A time zone by its name where it has one, else as microseconds from UTC."""
    if isinstance(zone, ZoneInfo) and zone.key:
        return str(zone.key)
    return None if offset is None else round(offset / timedelta(microseconds=1))


def _read_zone(written: Any) -> tzinfo | None:
    if isinstance(written, str):
        return ZoneInfo(written)
    return None if written is None else timezone(timedelta(microseconds=written))


def _write_datetime(value: datetime) -> list[Any]:
    zone = _zone(value.tzinfo, value.utcoffset())
    return [datetime.isoformat(value.replace(tzinfo=None, fold=0)), value.fold, zone]


def _read_datetime(written: Any) -> datetime:
    text, fold, zone = written
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _write_time(value: time) -> list[Any]:
    zone = _zone(value.tzinfo, value.utcoffset())
    return [time.isoformat(value.replace(tzinfo=None, fold=0)), value.fold, zone]


def _read_time(written: Any) -> time:
    text, fold, zone = written
    return time.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _write_complex(value: complex) -> list[Any]:
    return [float(value.real).hex(), float(value.imag).hex()]


def _read_complex(written: Any) -> complex:
    return complex(float.fromhex(written[0]), float.fromhex(written[1]))


def _write_path(value: pathlib.PurePath) -> list[str]:
    pure = not isinstance(value, pathlib.Path)
    flavour = "PureWindowsPath" if isinstance(value, pathlib.PureWindowsPath) else "PurePosixPath"
    return [flavour if pure else "Path", str(value)]


_PATHS: dict[str, type[pathlib.PurePath]] = {
    "Path": pathlib.Path,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}
_ADDRESSES: tuple[type[Any], ...] = (
    ipaddress.IPv4Interface,  # is an address as well
    ipaddress.IPv6Interface,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
)
_URLS: tuple[type[Any], ...] = (
    pydantic.AnyUrl.__mro__[-2],
    *getattr(pydantic.PostgresDsn, "__mro__", (None,))[-2:-1],
    pydantic_core.Url,
    pydantic_core.MultiHostUrl,
)


def _write_url(value: Any) -> list[str]:
    return [type(value).__name__, str(value)]


def _read_url(written: Any) -> Any:
    name, text = written
    kind = getattr(pydantic, name, None) or getattr(pydantic_core, name, None)
    if not isinstance(kind, type) or not issubclass(kind, _URLS):
        raise ValueError(f"there is no kind of URL {name!r}")
    return kind(text)


# The order matters: a datetime is a date, too.
SCALARS: tuple[Scalar, ...] = (
    Scalar("bytes", (bytes,), lambda v: b64encode(v).decode(), b64decode),
    Scalar("bytearray", (bytearray,), lambda v: b64encode(v).decode(), lambda w: bytearray(b64decode(w))),
    Scalar("datetime", (datetime,), _write_datetime, _read_datetime),
    Scalar("date", (date,), date.isoformat, date.fromisoformat),
    Scalar("time", (time,), _write_time, _read_time),
    Scalar(
        "timedelta",
        (timedelta,),
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda w: timedelta(w[0], w[1], w[2]),
    ),
    Scalar("zone", (ZoneInfo,), lambda v: v.key, ZoneInfo),
    Scalar("uuid", (UUID,), str, UUID),
    Scalar("decimal", (Decimal,), str, Decimal),
    Scalar("fraction", (Fraction,), str, Fraction),
    Scalar("complex", (complex,), _write_complex, _read_complex),
    Scalar("range", (range,), lambda v: [v.start, v.stop, v.step], lambda w: range(*w)),
    Scalar("path", (pathlib.PurePath,), _write_path, lambda w: _PATHS[w[0]](w[1])),
    Scalar(
        "address",
        _ADDRESSES,
        lambda v: [type(v).__name__, str(v)],
        lambda w: {kind.__name__: kind for kind in _ADDRESSES}[w[0]](w[1]),
    ),
    Scalar("url", _URLS, _write_url, _read_url),
)
ARRAY = Scalar("array", (), write_array, read_array)
BY_NAME: dict[str, Scalar] = {scalar.name: scalar for scalar in (*SCALARS, ARRAY)}


def scalar_of(value: Any) -> Scalar | None:
    """The kind that this value is of; None also where it would not come back equal."""
    for scalar in SCALARS:
        if isinstance(value, scalar.types):
            return scalar if type(value) in scalar.types or _comes_back(scalar, value) else None
    return ARRAY if is_array(value) else None


def _comes_back(scalar: Scalar, value: Any) -> bool:
    """Subclasses may know more than what is written of them, such as nanoseconds."""
    try:
        return bool(scalar.read(scalar.write(value)) == value)
    except Exception:  # noqa: BLE001 - somebody else's class
        return False


def plain_number(value: int | float) -> bool:
    """Whether JSON has this number."""
    return math.isfinite(value) if isinstance(value, float) else value.bit_length() <= GREATEST_PLAIN_BITS
