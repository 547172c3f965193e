"""How long a server asks the client to wait, in all formats in use.

`Retry-After` is RFC 9110, section 10.2.3. The `x-ratelimit-reset*` family has no standard, so the format of
each value decides: a duration ("6m0s", "20ms"), seconds to wait, seconds or milliseconds since the epoch, or
an RFC 3339 time. A number is written in ASCII digits; no wait is longer than a day.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from prefect_resilience.base.text import Regex
from prefect_resilience.errors.classify.shapes import as_number, read, value_at
from prefect_resilience.errors.classify.table import pattern_of, places_of

DAY = 86_400.0
"""The longest wait in seconds that a server may ask for; a longer one counts as this."""

_EPOCH = 1_000_000_000.0  # a larger number of seconds is a date after 2001, not a wait
_EPOCH_MS = 100_000_000_000.0
_AWS = "x-amz-retry-after"
PUSHBACK = "grpc-retry-pushback-ms"
_WAITS = (
    (Regex(rf"(?:\A|-)retry-after-(?:ms|milliseconds)\Z|\A{_AWS}\Z|\A{PUSHBACK}\Z"), 0.001),
    (Regex(r"(?:\A|-)retry-after(?:-s|-sec|-seconds)?\Z"), 1.0),
)
"""Names of headers and the unit of their numbers in seconds, the most exact first."""
_RESETS = Regex(r"(?:\A|-)rate-?limit-.*reset(?P<ms>.*-ms\Z)?")


def plain_headers(headers: Any) -> dict[str, str]:
    """Headers of any library as a dict with lower-case names; {} if the value cannot be read as headers.

    The values of a header that is there several times are joined by commas.
    """
    plain: dict[str, str] = {}
    try:
        items = read(headers, "items")
        pairs: Any = items() if callable(items) else headers
        for key, value in pairs:
            name = _text(key).lower()
            values = cast("Any", value if isinstance(value, list | tuple) else [value])
            plain[name] = ", ".join([*([plain[name]] if name in plain else []), *map(_text, values)])
    except Exception:  # noqa: BLE001 - any library's own mapping
        return {}
    return plain


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def retry_after_seconds(headers: Mapping[str, str], *, status: int | None, now: float) -> float | None:
    """The wait in seconds that a response's headers ask for, or None when they ask for none.

    `headers` have lower-case names (see `plain_headers`), `now` is in seconds since the epoch. The exact
    `retry-after-ms` goes before `retry-after`, and that before `RateLimit` and the `x-ratelimit-reset*`
    family. These count only for a status of 429 or 503, since servers send them with every answer. Of
    several waits the longest counts. Invalid values are ignored.
    """
    base = _date(headers.get("date")) or now
    for name, unit in _WAITS:
        waits = (_seconds(value, base, unit) for header, value in headers.items() if name.search(header))
        if (wait := _longest(waits)) is not None:
            return wait
    return _longest_reset(headers, base) if status in (429, 503) else None


def _longest(waits: Iterable[float | None]) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


def wait_bounds(headers: Mapping[str, str]) -> dict[str, float]:
    """For the details of an error: how many seconds longer than the backoff the server's wait may be.

    AWS's SDKs wait at most 5 s longer, whatever the header asks for.
    """
    return {"longest_beyond_backoff": 5.0} if _AWS in headers else {}


def wait_of_value(value: Any, now: float, name: str = "") -> float | None:
    """The wait in seconds of an exception's own `retry_after`: a number, a timedelta, a date or a text.

    A number is in milliseconds if the attribute's `name` ends in `_ms`.
    """
    if name.endswith("_ms") and (number := as_number(value)) is not None:
        value = number / 1000
    if isinstance(value, timedelta):
        return _wait(value.total_seconds())
    if isinstance(value, datetime):
        return _wait(_timestamp(value) - now)
    return _seconds(value, now) if isinstance(value, str) else _from_number(as_number(value), now)


def wait_of(
    error: object,
    headers: Mapping[str, str],
    status: int | None,
    now: float,
    details: Iterable[Any] = (),
    text: str = "",
) -> float | None:
    """The wait that an error carries, from the most exact place: headers, attributes, details, its text."""
    waits = (
        retry_after_seconds(headers, status=None, now=now),
        wait_of_attributes(error, now, "waits"),
        wait_of_details(details),
        wait_in_text(text),
        retry_after_seconds(headers, status=status, now=now),
    )
    return next((wait for wait in waits if wait is not None), None)


def wait_of_attributes(error: object, now: float, places: str) -> float | None:
    """The wait that an exception, or the answer it keeps as `error`, has as an attribute of its own."""
    for source in (error, read(error, "error")):
        for name in places_of(places) if source is not None else ():
            value = read(source, name)
            if value is not None and (wait := wait_of_value(value, now, name)) is not None:
                return wait
    return None


def wait_of_details(details: Iterable[Any]) -> float | None:
    """The wait of a google.rpc.RetryInfo among an error's details, a protobuf message or its JSON."""
    for detail in details:
        delay = value_at(detail, "retryDelay") or value_at(detail, "retry_delay")
        seconds = as_number(value_at(delay, "seconds"))
        if isinstance(delay, str) and (wait := duration(delay)) is not None:
            return wait
        if seconds is not None:
            return _wait(seconds + (as_number(value_at(delay, "nanos")) or 0.0) / 1e9)
    return None


# Between the values of several headers. The comma of an HTTP date stands behind a weekday.
_BETWEEN = Regex(r"(?<!mon)(?<!tue)(?<!wed)(?<!thu)(?<!fri)(?<!sat)(?<!sun)(?<!day),", re.IGNORECASE)


def _seconds(value: str, base: float, unit: float = 1.0) -> float | None:
    """The longest wait in a header's value: numbers, dates and durations."""
    return _longest(_from_text(part.strip(), base, unit) for part in _BETWEEN.split(value[:_LIMIT]))


def _from_text(value: str, base: float, unit: float) -> float | None:
    number = as_number(value)
    if number is not None:
        return _from_number(number * unit, base)
    date = _date(value)
    return duration(value) if date is None else _wait(date - base)


def _from_number(number: float | None, base: float) -> float | None:
    """A number of seconds, or a time in seconds, milliseconds or less since the epoch."""
    if number is None or number < _EPOCH:
        return _wait(number)
    while number >= _EPOCH_MS:
        number /= 1000
    return _wait(number - base) if number >= _EPOCH else None


def _longest_reset(headers: Mapping[str, str], base: float) -> float | None:
    """The longest reset of the used-up limits, else of those that do not say how much remains."""
    limits = [(rest, _from_number(at, base)) for rest, at in _ietf_limits(headers.get("ratelimit", ""))]
    for name, value in headers.items():
        if (match := _RESETS.search(name)) is not None:
            rest = as_number(headers.get(re.sub("reset(-after)?", "remaining", name)))
            limits.append((rest, _seconds(value, base, 0.001 if match["ms"] else 1.0)))
    used, unsure = (_longest(wait for rest, wait in limits if rest == least) for least in (0.0, None))
    return unsure if used is None else used


def _ietf_limits(field: str) -> Iterator[tuple[float | None, float | None]]:
    """What is left, and the reset, of each limit in a `RateLimit` field of the IETF's draft.

    The draft's forms are `"default";r=0;t=30` for each limit, and once `limit=100, remaining=0, reset=30`.
    """
    named = Regex(r'"[^"]{0,200}"').sub("", field[:_LIMIT])
    for limit in [named] if "reset" in named else named.split(","):
        pairs = dict(re.findall(r"([^\s;,=]+)\s*=\s*([^\s;,]+)", limit))
        yield as_number(pairs.get("r", pairs.get("remaining"))), as_number(pairs.get("t", pairs.get("reset")))


def is_used_up(headers: Mapping[str, str]) -> bool:
    """Whether the headers say that nothing is left of a limit."""
    remaining = [as_number(headers[name]) for name in headers if re.search(r"rate-?limit-.*remaining", name)]
    return 0 in remaining or any(number == 0 for number, _ in _ietf_limits(headers.get("ratelimit", "")))


def duration(value: str) -> float | None:
    """Seconds of a duration such as "1s", "6m0s", "20ms", "7 seconds" or "1h2m3.5s", else None."""
    return _sum_of("duration", value.strip()[:80])


def _date(value: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date or an RFC 3339 time, else None."""
    if not value or len(value) > 64 or not value.isascii():
        return None
    from email.utils import parsedate_to_datetime

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
    return min(max(0.0, seconds), DAY)


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
    # The highest bit of a negative number is set.
    return 0.0 if seconds >= 1 << 62 else _wait(seconds + _varint(match[2]) / 1e9)


def _varint(digits: bytes | None) -> int:
    """Base 128, the lowest digit first."""
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(digits or b""))


_LIMIT = 8_000
_UNITS = {"ms": 0.001, "mil": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = Regex(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s?(ms|mil|[smhd]|)")


def wait_in_text(text: str) -> float | None:
    """The wait in seconds that a message asks for, or None. A number without a unit counts seconds."""
    return _sum_of("wait.in_text", text[:_LIMIT])


def _sum_of(pattern: str, text: str) -> float | None:
    """The seconds of the duration that a pattern finds: in its group, or in the whole match."""
    match = pattern_of(pattern).search(text.lower())
    if match is None:
        return None
    parts = _PART.findall(match[match.lastindex or 0])
    return _wait(sum(float(number) * _UNITS[unit] for number, unit in parts))
