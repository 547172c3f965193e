"""The data of a plan: read from JSON or YAML, valid as JSON, and bounded in depth and size.

YAML is read with the data model of JSON. Words that older YAML reads as another type (`yes`, `no`, `on`,
`off`, `012`, `1:30`) are rejected, except in quotes. Dates stay strings. An alias counts as many values as
its anchor. Tags are rejected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, cast

import yaml

from prefect_resilience.base.plain import can_be_written
from prefect_resilience.base.text import without_comments
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, Place, PlanError, quoted, shortened

DEEPEST = 100
"""Levels of objects and lists in a plan, the plan itself included."""

MOST_VALUES = 100_000
"""Values in one node or one field of a plan, each entry of a list or of an object counted."""

MOST_PARTS = 2_000_000
"""Commas and opening brackets of a JSON text. This bounds the memory of its data to about 150 MB."""

LONGEST_YAML = 4_000_000
"""Characters. Reading YAML takes twenty times as long as JSON."""

MOST_YAML_VALUES = 200_000
MOST_DIGITS = 1_500
"""The most digits of a whole number that are parsed; a longer number is rejected afterwards."""

TOO_DEEP = f"is nested more than {DEEPEST} levels deep: reduce the nesting"
TOO_MANY = f"has more than {MOST_VALUES:,} values: refer to large data instead of writing it in the plan"


class WrittenTwice:
    """Replaces the value of a key that its object has more than once."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __str__(self) -> str:
        return f"{quoted(self._key)} is written more than once: write it once"


def refuse(place: str, says: str, source: str | None = None) -> NoReturn:
    raise PlanError([Mistake(place, says)], source or place) from None


def load_json(text: str, source: str) -> Any:
    """The data of a JSON text. Raises PlanError with the place of the first mistake."""
    text = without_comments(text)
    if text.count(",") + text.count("[") + text.count("{") > MOST_PARTS:
        refuse(source, f"has more than {MOST_PARTS:,} commas and brackets: refer to large data instead")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_whole)
    except json.JSONDecodeError as error:
        near = shortened(text[error.pos : error.pos + 20].split("\n")[0].strip())
        near = f", at {near!r}" if near else ", at the end" if error.pos >= len(text) - 1 else ""
        place = f"{source}, line {error.lineno}, column {error.colno}"
        refuse(place, f"is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}{near}", source)
    except RecursionError:
        refuse(source, "cannot be read: it, or the program that reads it, is nested too deeply")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        made.update((key, WrittenTwice(key)) for key, _ in pairs if key in seen or seen.add(key))
    return made


def _whole(literal: str) -> int:
    return int(literal[:MOST_DIGITS])


def load_yaml(text: str, source: str) -> Any:
    """The data of a YAML text. Raises PlanError with the place of the first mistake."""
    if len(text) > LONGEST_YAML:
        refuse(
            source, f"{len(text):,} characters of YAML are more than the allowed {LONGEST_YAML:,}: use JSON"
        )
    loader = cast("Any", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    reading = YamlReading(cast("Any", yaml).parse(text, Loader=loader), source)
    try:
        return reading.document()
    except yaml.MarkedYAMLError as error:
        says = shortened(str(error.problem or error.context or "cannot be read"), 200)
        mark = error.problem_mark or error.context_mark
        lines = text.splitlines()[mark.line : mark.line + 1] if mark else []
        tab = "; indent with spaces, not tabs" if lines and "\t" in lines[0] else ""
        reading.refuse(mark, f"is not valid YAML: {says}{tab}")
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        refuse(source, f"is not valid YAML: {shortened(str(error).splitlines()[0], 200)}")


_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_OLD_NUMBER = re.compile(
    r"[-+]?(?:0[0-7_]+|0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7]+|[0-9][0-9_]*(?::[0-5]?[0-9])+|[0-9]+(?:_[0-9]+)+)"
)
_OLD_BOOLEAN = re.compile("yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class YamlReading:
    """Builds the data of one YAML document from the parser's events."""

    def __init__(self, events: Iterator[Any], source: str) -> None:
        self._events = events
        self._source = source
        self._anchors: dict[str, tuple[Any, int] | None] = {}
        self._count = 0

    def refuse(self, mark: Any, says: str) -> NoReturn:
        place = f"{self._source}, line {mark.line + 1}, column {mark.column + 1}" if mark else self._source
        refuse(place, says, self._source)

    def document(self) -> Any:
        found: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent) and found:
                self.refuse(event.start_mark, "a second document begins here: write one plan per file")
            if isinstance(event, yaml.NodeEvent):
                found.append(self._value(event, 0))
        return found[0] if found else None

    def _value(self, event: Any, level: int) -> Any:
        """The value that begins with an event."""
        mark, anchor = event.start_mark, event.anchor
        if isinstance(event, yaml.AliasEvent):
            known = self._anchors.get(anchor)
            if known is None:
                says = "is inside its own anchor" if anchor in self._anchors else "has no anchor above it"
                self.refuse(mark, f"the alias *{shortened(anchor)} {says}")
            self._count_in(known[1], mark)
            return known[0]
        if event.tag is not None:
            self.refuse(mark, f"the tag {quoted(event.tag)} is not supported: write plain data")
        before = self._count
        self._count_in(1, mark)
        if anchor:
            self._anchors[anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event.value, mark) if event.implicit[0] else event.value
        elif level >= DEEPEST:
            self.refuse(mark, TOO_DEEP)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [self._value(inner, level + 1) for inner in self._until(yaml.SequenceEndEvent)]
        else:
            value = self._mapping(level + 1)
        if anchor:
            self._anchors[anchor] = value, self._count - before
        return value

    def _until(self, end: type[Any]) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _mapping(self, level: int) -> dict[str, Any]:
        own: list[tuple[str, Any]] = []
        merged: dict[str, Any] = {}
        for event in self._until(yaml.MappingEndEvent):
            key = self._value(event, level)
            if not isinstance(key, str):
                self.refuse(
                    event.start_mark, f"{quoted(key)} is not a key: write a string, in quotes if necessary"
                )
            after = next(self._events)
            value = self._value(after, level)
            if key != "<<" or not getattr(event, "implicit", (False,))[0]:
                own.append((key, value))
                continue
            parts = cast("list[Any]", value) if isinstance(value, list) else [value]
            for part in parts:
                if not isinstance(part, dict):
                    self.refuse(after.start_mark, "'<<' takes an object or a list of objects")
                merged = {**part, **merged}
        return merged | _object(own)

    def _count_in(self, size: int, mark: Any) -> None:
        self._count += size
        if self._count > MOST_YAML_VALUES:
            self.refuse(mark, f"has more than {MOST_YAML_VALUES:,} values, including those of its aliases")

    def _scalar(self, text: str, mark: Any) -> Any:
        if text in _WORDS:
            return _WORDS[text]
        if _OLD_BOOLEAN.fullmatch(text):
            self.refuse(mark, f"{text} may be a boolean or a word: write true, false or '{text}'")
        if _OLD_NUMBER.fullmatch(text):
            self.refuse(
                mark,
                f"{shortened(text)} has different meanings in different versions of YAML: write it in quotes",
            )
        if _NO_NUMBER.fullmatch(text):
            return float(text.replace(".", ""))
        if not _NUMBER.fullmatch(text):
            return text
        return _whole(text) if text.lstrip("+-").isdecimal() else float(text)


def wrong_data(value: Any, depth: int = 0) -> Iterator[tuple[Place, str]]:
    """The parts of a value that JSON cannot write, each with its place. Too deep levels are skipped."""
    if not isinstance(value, _HOLDS):
        says = _wrong_scalar(value)
        if says:
            yield (), says
        return
    waiting: list[tuple[Place, Any, int]] = [((), value, depth)]
    left = MOST_VALUES
    while waiting:
        place, found, level = waiting.pop()
        if level >= DEEPEST:
            yield place, TOO_DEEP
            continue
        left -= len(found)
        if left < 0:
            yield place, TOO_MANY
            return
        keyed = isinstance(found, Mapping)
        parts: Iterable[tuple[Any, Any]] = (
            cast("Mapping[Any, Any]", found).items() if keyed else enumerate(cast("list[Any]", found))
        )
        inside: list[tuple[Place, Any, int]] = []
        for key, part in parts:
            if keyed and (not isinstance(key, str) or not key.isascii()) and (says := _wrong_key(key)):
                yield place, says
            elif isinstance(part, _HOLDS):
                inside.append(((*place, key), cast("Any", part), level + 1))
            elif (type(part) is not str or not part.isascii()) and (says := _wrong_scalar(part)):
                yield (*place, key), says
        waiting.extend(reversed(inside))


_HOLDS = (dict, list, tuple, Mapping)


def _wrong_key(key: Any) -> str:
    if not isinstance(key, str):
        return f"{quoted(key)} is not a key: write a string"
    return (
        ""
        if can_be_written(key)
        else "has a key with a lone surrogate (half a character): write valid Unicode"
    )


def _wrong_scalar(value: Any) -> str:
    """The mistake in a value that is not a container, "" if there is none."""
    if value is None:
        return ""
    if isinstance(value, WrittenTwice):
        return str(value)
    if isinstance(value, str):
        return (
            ""
            if can_be_written(value)
            else "contains a lone surrogate (half a character): write valid Unicode"
        )
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"write a finite number, not {value}"
    if isinstance(value, int):
        return "is a number with too many digits: write it as a string" if value.bit_length() > 4096 else ""
    return f"write a JSON value, not {shortened(quoted(value))}"
