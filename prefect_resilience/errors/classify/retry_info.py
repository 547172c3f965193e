"""google.rpc.RetryInfo, out of the bytes of a gRPC status.

The bytes are read here because no library that could read them needs to be installed. The messages are
those of googleapis, google/rpc/status.proto and error_details.proto: Status.details is field 3, each an Any
of a type (1) and a value (2); RetryInfo.retry_delay is field 1, a Duration of seconds (1) and nanos (2).
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}


def retry_info_delay(status: bytes) -> float | None:
    """The seconds of the RetryInfo in a serialized google.rpc.Status, None when there is none to be read."""
    try:
        for detail in _fields(status, 3):
            parts = dict(_read(detail))
            kind, value = parts.get(1), parts.get(2)
            if (
                isinstance(kind, bytes)
                and isinstance(value, bytes)
                and kind.endswith(b"google.rpc.RetryInfo")
            ):
                return next((_seconds(delay) for delay in _fields(value, 1)), None)
    except (ValueError, IndexError):
        return None
    return None


def _seconds(duration: bytes) -> float:
    parts = dict(_read(duration))
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int) or seconds >= 1 << 62:
        return 0.0  # a negative number has its highest bit set
    return seconds + nanos / 1e9


def _fields(message: bytes, number: int) -> Iterator[bytes]:
    return (value for field, value in _read(message) if field == number and isinstance(value, bytes))


def _read(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message; raises ValueError or IndexError for what is none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in _SIZES:
            size = _SIZES[wire]
        else:
            raise ValueError(wire)
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise ValueError(at)
