"""Removes secrets from every text that leaves the process.

`redact` finds the usual tokens by their format (`patterns`), values by the name of their key (`pairs`), and
registered values. A secret becomes `***`; the key's name, the scheme and the host stay, so that the message
remains readable. It is idempotent and takes linear time.

The number of registered values is limited. Writers replace values and patterns as a whole under a lock, so
`redact` needs no lock.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar, cast
from urllib.parse import quote, quote_plus

from pydantic import BaseModel

from prefect_resilience.base.process import in_forked_child
from prefect_resilience.errors.classify.shapes import call, read
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.patterns import MASK, forms, mask_secret, piece

_ROUNDS = 5
_SHORT = 200
_DEPTH = 12
_ITEMS = 10_000
_LEAVES = frozenset({bool, int, float, str, bytes, type(None)})
T = TypeVar("T")


def redact(text: str) -> str:
    """`text` with every secret in it replaced by `***`; the same string object when there is none.

    Example:
        >>> redact("postgresql://app:hunter22@db/orders")
        'postgresql://app:***@db/orders'
    """
    masked = _short(text, registered.generation) if len(text) <= _SHORT else _mask_in_rounds(text)
    return text if masked == text else masked


def _mask_in_rounds(text: str) -> str:
    for _ in range(_ROUNDS):  # a mask may uncover a second secret; almost always the first round is the last
        masked = _once(text)
        if masked == text:
            break
        text = masked
    return text


@lru_cache(maxsize=2_000)
def _short(text: str, generation: int) -> str:
    """Names, codes and categories are in every event; `generation` is that of the registered secrets."""
    return _mask_in_rounds(text)


def _once(text: str) -> str:
    for form in all_spellings(registered.generation):
        if form in text:
            text = text.replace(form, MASK)
    for pattern in registered.patterns:
        text = pattern.sub(mask_secret, text)
    return mask_forms(text)


def mask_forms(text: str) -> str:
    """`text` without the secrets that show by their form or key: the same in every process."""
    where = f"{text}\n{text.lower()}"
    for triggers, mask in forms()[1]:
        for trigger in triggers:
            if trigger in where:
                text = mask(text)
                break
    return text


EDGE = 64_000
"""How much of a text is masked beyond the part that is kept, so that no half of a secret remains."""


def redact_beginning(text: str, limit: int, edge: int = EDGE) -> str:
    """At least the first `limit` characters of a text, redacted; of a very long text only the beginning.

    Masking takes some 0.4 s for a million characters.
    """
    if len(text) <= limit + edge:
        return redact(text)
    masked = redact(text[: limit + edge])
    # A secret at the end was cut, and may not be recognized: what is near the end is dropped.
    return masked[: max(0, min(limit, len(masked) - edge // 4))] + "…"


def redact_data(value: T, longest: int = sys.maxsize) -> T:
    """A JSON-like structure with every text redacted, and every text under a secret's name masked.

    Dicts, lists and tuples are copied, to a depth of 12 and 10,000 items. Deeper ones become `***`, further
    items are left out. Other objects are kept as they are. Of texts that are, each or together, much longer
    than `longest`, only about that many characters are kept, with "…" for the rest.
    """
    return redact_within(value, [_ITEMS, longest, longest])


def redact_within(value: T, room: list[int]) -> T:
    """The same within `room`, which several values may share: the items of this value, the characters of one
    text, and those of all texts."""
    room[0] = _ITEMS
    return cast("T", _walk(value, _DEPTH, room))


def _of_text(text: str, room: list[int]) -> str:
    if len(text) <= _SHORT and room[2] > 0:
        room[2] -= len(text)
        return _short(text, registered.generation)
    if room[2] <= -EDGE:
        return text and "…"
    limit = max(0, min(room[1:]))
    room[2] -= min(len(text), limit + EDGE)
    return redact_beginning(text, limit)


def _walk(value: Any, depth: int, room: list[int]) -> Any:
    if isinstance(value, str):
        return _of_text(value, room)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth == 0:
        return MASK
    items = cast("dict[Any, Any] | list[Any]", value)
    named = items.items() if isinstance(items, dict) else zip(argument_names(items), items, strict=True)
    count, room[0] = max(room[0], 0), room[0] - len(items)
    walked: list[tuple[Any, Any]] = []
    for name, item in islice(named, count):
        kind = _kind_of_name(name[-_SHORT:]) if isinstance(name, str) else None  # its end says what it is
        masked = MASK
        if kind is None or not _is_hidden(kind, item):
            masked = _of_text(item, room) if isinstance(item, str) else _walk(item, depth - 1, room)
        walked.append((name, masked))
    if isinstance(value, dict):
        return {_of_text(name, room) if isinstance(name, str) else name: item for name, item in walked}
    masked_items = [item for _, item in walked]
    return masked_items if isinstance(value, list) else tuple(masked_items)


@lru_cache(maxsize=2_000)
def _kind_of_name(name: str) -> tuple[bool, bool] | None:
    """Whether it is the name of a secret, and of a short code such as an OTP; None if of neither."""
    kind = is_secret_name(name), piece("CODE_FIELD").search(name) is not None
    return kind if any(kind) else None


def _is_hidden(kind: tuple[bool, bool], value: Any) -> bool:
    is_secret, is_code = kind
    if isinstance(value, str):
        return (is_secret and value != "") or (is_code and value.isdecimal())
    return is_code and isinstance(value, int) and not isinstance(value, bool) and value >= 0


def argument_names(items: Sequence[Any]) -> Iterator[str | None]:
    """For each item of a command's arguments the name of the secret that the option before it gives it."""
    option = ""
    for item in items:
        before = option if isinstance(item, str) and not item.startswith("--") else ""
        if before == "-p" and not piece("NO_PASSWORD").fullmatch(item) and "mkdir" not in items:
            yield "password"
        else:
            yield before.lstrip("-") if before.startswith("--") and is_secret_name(before) else None
        option = item if isinstance(item, str) and item.startswith("-") and "=" not in item else ""


def is_secret_name(name: str) -> bool:
    """Whether this is the name of a secret: `password`, `apiKey`, `X-Auth-Token`."""
    return piece("FIELD").search(name) is not None and not piece("PAGING_FIELD").search(name)


def add_note(error: BaseException, note: str, longest: int = sys.maxsize) -> None:
    """Add a note without secrets that tracebacks show below the error. Never raises: not every exception
    accepts one."""
    with suppress(Exception):  # a class may have its own __setattr__
        error.add_note(redact_data(note, longest))


# -- secrets that this process knows by value, and the patterns that users add

MINIMUM_LENGTH = 4
MAXIMUM_VALUES = 500


class RegisteredSecrets:
    """The secrets of this process; its tuples are replaced as a whole, so that `redact` needs no lock.

    A forked child keeps them all. It gets a new lock, since a thread of the parent may have held the old one.
    """

    def __init__(self) -> None:
        self.values: dict[str, tuple[str, ...]] = {}
        """Each secret with its spellings, the newest last."""
        self.patterns: tuple[re.Pattern[str], ...] = ()
        self.generation = 0
        """Raised after each change, so that no text redacted before it is used again."""
        self.new_lock()

    def new_lock(self) -> None:
        self.lock: threading.Lock = threading.Lock()


registered: RegisteredSecrets = RegisteredSecrets()
in_forked_child(registered.new_lock)


def register_secret(value: str | bytes) -> None:
    """Mask this value in all texts from now on, also URL-encoded, escaped or in base64.

    Values shorter than 4 characters are ignored, since they would mask ordinary text. The newest 500 are
    kept.

    Example:
        >>> register_secret("blue-monday-91")
        >>> redact("it is blue-monday-91")
        'it is ***'
    """
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    # Stars at the ends would merge with a mask, and a second pass would change the text again.
    core = text.strip().strip("*")
    if len(core) < MINIMUM_LENGTH or "***" in core:
        return
    with registered.lock:
        spellings = registered.values.pop(core, None)
        registered.values[core] = spellings or _forms_of(core)
        while len(registered.values) > MAXIMUM_VALUES:
            del registered.values[next(iter(registered.values))]
        registered.generation += spellings is None


def register_secret_pattern(pattern: str | re.Pattern[str]) -> None:
    """Mask every match of this regular expression, or only its group `secret` if it has one.

    Raises `ConfigurationError` when it does not compile. Its author must make sure that it is fast on long
    texts.

    Example:
        >>> register_secret_pattern("patient-(?P<secret>[0-9]{6})")
        >>> redact("patient-123456")
        'patient-***'
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"the secret pattern is not a valid regular expression: {error}") from None
    with registered.lock:
        if compiled in registered.patterns:
            return
        registered.patterns = (*registered.patterns, compiled)
        registered.generation += 1


@lru_cache(maxsize=1)
def all_spellings(generation: int) -> tuple[str, ...]:
    """Every spelling of every registered value, the longest first."""
    with registered.lock:
        spellings = {form for forms in registered.values.values() for form in forms}
    return tuple(sorted(spellings, key=lambda form: (-len(form), form)))


def _forms_of(value: str) -> tuple[str, ...]:
    raw = value.encode("utf-8", "surrogatepass")
    spellings = {
        value,
        quote(raw, safe=""),
        quote(raw),
        quote_plus(raw),
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        *_base64_forms(raw),
    }
    return tuple(form for form in spellings if len(form) >= MINIMUM_LENGTH)


def _base64_forms(raw: bytes) -> set[str]:
    """The value in base64, alone and inside a longer text, at each of the three alignments."""
    forms = {base64.b64encode(raw).decode().rstrip("=")}
    for shift, unsure in ((0, 0), (1, 2), (2, 3)) if len(raw) >= 8 else ():
        whole = base64.b64encode(b"\0" * shift + raw).decode()
        forms.add(whole[unsure : (shift + len(raw)) * 8 // 6])
    return forms | {form.replace("+", "-").replace("/", "_") for form in forms}


def collect_secrets(value: Any) -> list[str]:
    """The plain values of every SecretStr, SecretBytes and the like (with `get_secret_value()`) in `value`.

    Walks mappings, lists, tuples, sets, dataclasses and pydantic models, to a depth of 12 and 10,000 items,
    each object once. Never raises; unreadable objects are skipped.
    """
    secrets: dict[str, None] = {}
    visited: set[int] = set()
    waiting = [(value, 0)]
    while waiting and len(visited) < _ITEMS:
        item, depth = waiting.pop()
        if id(item) in visited:
            continue
        visited.add(id(item))
        secret = call(item, "get_secret_value")
        if isinstance(secret, bytes):
            secret = secret.decode("utf-8", "replace")
        if isinstance(secret, str) and secret:
            secrets[secret] = None
        if depth < _DEPTH:
            waiting += ((part, depth + 1) for part in _parts(item) if type(part) not in _LEAVES)
    return list(secrets)


def _parts(item: Any) -> list[Any]:
    with suppress(Exception):  # a foreign container may raise anything
        if isinstance(item, list | tuple | set | frozenset):
            return list(islice(cast("list[Any]", item), _ITEMS))
        if isinstance(item, Mapping | BaseModel):  # a model gives the pairs of its fields and extras
            return list(islice(dict(cast("Mapping[Any, Any]", item)).values(), _ITEMS))
        if dataclasses.is_dataclass(item):
            return [read(item, field.name) for field in dataclasses.fields(item)]
    return []


def learn_secrets(parameters: Mapping[str, Any]) -> None:
    """Register every `SecretStr` and every block's secret in the parameters, and every text with a secret's
    name. Never raises."""
    with suppress(Exception):  # objects of any kind are read here, while a failure is being reported
        named = (
            value for name, value in parameters.items() if isinstance(value, str) and is_secret_name(name)
        )
        held = [value for value in parameters.values() if type(value) not in _LEAVES]
        for secret in (*(collect_secrets(held) if held else ()), *named):
            register_secret(secret)
