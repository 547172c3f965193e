"""How long a server asks the client to wait, in all formats in use.

`Retry-After` is RFC 9110, section 10.2.3. The `x-ratelimit-reset*` family has no standard, so the format of
each value decides: a duration ("6m0s", "20ms"), seconds to wait, seconds or milliseconds since the epoch, or
an RFC 3339 time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, cast

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.shapes import as_number, read

_EPOCH = 1_000_000_000.0  # a larger number of seconds is a date after 2001, not a wait
_EPOCH_MS = 100_000_000_000.0

_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
_LIMITED = frozenset({429, 503})
_RESET_NAMES = """
    x-ratelimit-reset ratelimit-reset x-rate-limit-reset x-ratelimit-reset-requests x-ratelimit-reset-tokens
    anthropic-ratelimit-requests-reset anthropic-ratelimit-tokens-reset
    anthropic-ratelimit-input-tokens-reset anthropic-ratelimit-output-tokens-reset
"""
_RESETS = _RESET_NAMES.split()


def plain_headers(headers: Any) -> dict[str, str]:
    """Headers of any library as a dict with lower-case names; {} if the value cannot be read as headers."""
    try:
        items = read(headers, "items")
        pairs: Any = items() if callable(items) else headers
        return {_text(name).lower(): _text(value) for name, value in dict(pairs).items()}
    except Exception:  # noqa: BLE001 - any library's own mapping
        return {}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def retry_after_seconds(headers: Mapping[str, str], *, status: int | None, now: float) -> float | None:
    """The wait in seconds that a response's headers ask for, or None when they ask for none.

    `headers` have lower-case names (see `plain_headers`), `now` is in seconds since the epoch. The exact
    `retry-after-ms` goes before `retry-after`, and that before the `x-ratelimit-reset*` family. That family
    counts only for a status of 429 or 503, since servers send it with every answer. Invalid values are
    ignored.
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
    """The longest reset of the used-up limits; of all limits if the server does not mark any as used up."""
    given = [name for name in _RESETS if name in headers]
    used_up = [name for name in given if as_number(headers.get(name.replace("reset", "remaining"))) == 0]
    waits = [_reset(headers[name], base) for name in used_up or given]
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
    return _sum_of(_DURATION, value.strip()[:80])


def _date(value: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date or an RFC 3339 time, else None."""
    if not value or len(value) > 64:
        return None
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            return _timestamp(parse(value.strip().upper()))
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None


def _timestamp(value: datetime) -> float:
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def _wait(seconds: float | None) -> float | None:
    if seconds is None or not math.isfinite(seconds):
        return None
    return max(0.0, seconds)


# google.rpc.RetryInfo in the bytes of a gRPC status: the message's name, then its value (field 2) with a
# Duration (field 1) of seconds (1) and nanoseconds (2). Parsed here: a protobuf library may not be installed.
_VARINT = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_RETRY_INFO = rb"google\.rpc\.RetryInfo\x12.\x0a.(?:\x08" + _VARINT + rb")?(?:\x10" + _VARINT + rb")?"


def retry_info_delay(status: bytes) -> float | None:
    """The seconds of the RetryInfo in a serialized google.rpc.Status, None if it has none."""
    match = re.search(_RETRY_INFO, status, re.DOTALL)
    if match is None:
        return None
    seconds = _varint(match[1])
    return (
        0.0 if seconds >= 1 << 62 else seconds + _varint(match[2]) / 1e9
    )  # negative: the highest bit is set


def _varint(digits: bytes | None) -> int:
    """Base 128, the lowest digit first."""
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(digits or b""))


_LIMIT = 8_000
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_UNIT = r"ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?"
_UNITS = {"ms": 0.001, "mil": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = Regex(rf"\A(?:{_NUMBER}(?:ms|[smhd])){{1,5}}\Z", re.IGNORECASE)
_ASKED = Regex(
    r"\b(?:(?:try|retry)\b[^.\n]{0,40}?\b(?:in|after)|retry-after|available in"
    r"|wait(?: for)?(?: at least)?)"
    rf"[\s:='\"]{{0,4}}((?:{_NUMBER}\s?(?:{_UNIT})(?![a-z])(?:,? and |,? )?){{1,4}}|{_NUMBER}(?![\w.:/-]))",
    re.IGNORECASE,
)
_PART = Regex(rf"({_NUMBER})\s?(ms|mil|[smhd])", re.IGNORECASE)


def wait_in_text(text: str) -> float | None:
    """The wait in seconds that a message asks for, or None. A number without a unit counts seconds."""
    return _sum_of(_ASKED, text[:_LIMIT])


def _sum_of(pattern: Regex, text: str) -> float | None:
    """The seconds of the duration that a pattern finds: in its group, or in the whole match."""
    match = pattern.search(text)
    if match is None:
        return None
    found = match[match.lastindex or 0]
    parts = _PART.findall(found)
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in parts) if parts else float(found)
