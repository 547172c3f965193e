"""How long the other side asks us to wait, in all the spellings in use.

`Retry-After` is RFC 9110, section 10.2.3; the `x-ratelimit-reset*` family has no standard, so each value is
told by its shape: a duration ("6m0s", "20ms"), seconds to wait, seconds or milliseconds since the epoch, or
an RFC 3339 time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.shapes import as_number, read

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = Regex(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|[smhd])){1,5}")
_PART = Regex(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[smhd])")

_EPOCH = 1_000_000_000.0  # a larger number of seconds is a date after 2001, not a wait
_EPOCH_MS = 100_000_000_000.0

_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
_LIMITED = frozenset({429, 503})
_RESETS = (
    "x-ratelimit-reset",
    "ratelimit-reset",
    "x-rate-limit-reset",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-input-tokens-reset",
    "anthropic-ratelimit-output-tokens-reset",
)
_REMAINING = {
    "x-ratelimit-reset-requests": "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-tokens": "x-ratelimit-remaining-tokens",
    "anthropic-ratelimit-requests-reset": "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-tokens-reset": "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-input-tokens-reset": "anthropic-ratelimit-input-tokens-remaining",
    "anthropic-ratelimit-output-tokens-reset": "anthropic-ratelimit-output-tokens-remaining",
}


def plain_headers(headers: object) -> dict[str, str]:
    """Headers of any library as a dict with lower-case names; {} for what cannot be read as headers."""
    try:
        pairs = _pairs(headers)
        return {_text(name).lower(): _text(value) for name, value in pairs}
    except Exception:  # noqa: BLE001 - somebody else's mapping
        return {}


def _pairs(headers: object) -> Iterable[tuple[object, object]]:
    if isinstance(headers, Mapping):
        return cast("Mapping[object, object]", headers).items()
    items = read(headers, "items")
    if callable(items):
        return cast("Iterable[tuple[object, object]]", items())
    if isinstance(headers, list | tuple):
        return cast("Iterable[tuple[object, object]]", headers)
    return ()


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def retry_after_seconds(headers: Mapping[str, str], *, status: int | None, now: float) -> float | None:
    """The wait in seconds that a response's headers ask for, or None when they ask for none.

    `headers` have lower-case names (see `plain_headers`), `now` is in seconds since the epoch. The exact
    `retry-after-ms` wins over `retry-after`, and that over the `x-ratelimit-reset*` family, which counts only
    when the status is 429 or 503, since servers send it with every answer. Garbage is passed over.
    """
    for name in _MILLISECONDS:
        milliseconds = as_number(headers.get(name))
        if milliseconds is not None:
            return _wait(milliseconds / 1000)
    base = _date(headers.get("date")) or now
    asked = _retry_after(headers.get("retry-after"), base)
    if asked is not None or status not in _LIMITED:
        return asked
    return _longest_reset(headers, base)


def wait_of_value(value: Any, now: float) -> float | None:
    """The wait in seconds of an exception's own `retry_after`: a number, a timedelta, a date or a text."""
    if isinstance(value, timedelta):
        return _wait(value.total_seconds())
    if isinstance(value, datetime):
        return _wait(_timestamp(value) - now)
    if isinstance(value, str):
        return _retry_after(value, now)
    return _wait(as_number(value))


def wait_of_details(details: Iterable[Any]) -> float | None:
    """The wait of a google.rpc.RetryInfo among an error's details, a protobuf message or its JSON."""
    for detail in details:
        if isinstance(detail, Mapping):
            delay = cast("Mapping[str, Any]", detail).get("retryDelay")
            wait = duration(delay) if isinstance(delay, str) else None
        else:
            delay = read(detail, "retry_delay")
            seconds = as_number(read(delay, "seconds"))
            wait = (
                None if seconds is None else _wait(seconds + (as_number(read(delay, "nanos")) or 0.0) / 1e9)
            )
        if wait is not None:
            return wait
    return None


def _retry_after(value: str | None, base: float) -> float | None:
    if value is None:
        return None
    seconds = as_number(value.strip())
    if seconds is not None:
        return _wait(seconds)
    date = _date(value)
    if date is not None:
        return _wait(date - base)
    return duration(value)


def _longest_reset(headers: Mapping[str, str], base: float) -> float | None:
    """The longest of the resets, of those whose allowance is used up where the server tells which one is."""
    used_up = [name for name in _RESETS if as_number(headers.get(_REMAINING.get(name, ""))) == 0]
    waits = [_reset(headers[name], base) for name in used_up or _RESETS if name in headers]
    return max((wait for wait in waits if wait is not None), default=None)


def _reset(value: str, base: float) -> float | None:
    number = as_number(value.strip())
    if number is None:
        date = _date(value)
        return duration(value) if date is None else _wait(date - base)
    if number >= _EPOCH_MS:
        return _wait(number / 1000 - base)
    return _wait(number - base if number >= _EPOCH else number)


def duration(value: str) -> float | None:
    """Seconds of a duration such as "1s", "6m0s", "20ms" or "1h2m3.5s", else None."""
    value = value.strip().lower()
    if not _DURATION.fullmatch(value):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))


def _date(value: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date or an RFC 3339 time, else None."""
    if not value or len(value) > 64:
        return None
    for parse in (parsedate_to_datetime, _rfc3339):
        try:
            return _timestamp(parse(value.strip()))
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None


def _rfc3339(value: str) -> datetime:
    # Python 3.10 reads neither a Z nor any number of decimals but 3 and 6.
    value = re.sub(r"\.(\d{1,6})\d*", lambda match: "." + match[1].ljust(6, "0"), value)
    return datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", value))


def _timestamp(value: datetime) -> float:
    return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()


def _wait(seconds: float | None) -> float | None:
    if seconds is None or not math.isfinite(seconds):
        return None
    return max(0.0, seconds)


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# google.rpc.RetryInfo, out of the bytes of a gRPC status.
#
# The bytes are read here because no library that could read them needs to be installed. The messages are
# those of googleapis, google/rpc/status.proto and error_details.proto: Status.details is field 3, each an
# Any of a type (1) and a value (2); RetryInfo.retry_delay is field 1, a Duration of seconds (1) and nanos
# (2).

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
                return next((_protobuf_seconds(delay) for delay in _fields(value, 1)), None)
    except (ValueError, IndexError):
        return None
    return None


def _protobuf_seconds(duration: bytes) -> float:
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


_LIMIT = 8_000
_WORDED_UNITS = (
    (r"ms|milliseconds?", 0.001),
    (r"s|secs?|seconds?", 1.0),
    (r"m|mins?|minutes?", 60.0),
    (r"h|hours?", 3600.0),
    (r"d|days?", 86400.0),
)
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_UNIT = "|".join(words for words, _ in _WORDED_UNITS)
_ASKED = Regex(
    r"\b(?:(?:try|retry)\b[^.\n]{0,40}?\b(?:in|after)|retry-after|available in"
    r"|wait(?: for)?(?: at least)?)"
    rf"[\s:='\"]{{0,4}}((?:{_NUMBER}\s?(?:{_UNIT})(?![a-z])(?:,? and |,? )?){{1,4}}|{_NUMBER}(?![\w.:/-]))",
    re.IGNORECASE,
)
_WORDED_PART = Regex(rf"({_NUMBER})\s?({_UNIT})(?![a-z])", re.IGNORECASE)


def wait_in_text(text: str) -> float | None:
    """The wait in seconds that a message asks for, or None. A number without a unit counts seconds."""
    match = _ASKED.search(text[:_LIMIT])
    if match is None:
        return None
    parts = _WORDED_PART.findall(match[1])
    return sum(float(number) * _seconds_of_word(unit) for number, unit in parts) if parts else float(match[1])


def _seconds_of_word(unit: str) -> float:
    return next(seconds for words, seconds in _WORDED_UNITS if re.fullmatch(words, unit, re.IGNORECASE))
