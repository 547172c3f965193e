"""The data of a plan: read from a file or a text of JSON or YAML, valid as JSON, bounded in depth and size.

YAML is read with the data model of JSON, as YAML 1.2 does: `yes`, `off`, `012` and dates are strings.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml

from prefect_resilience.base.plain import can_be_written, shortly
from prefect_resilience.base.policy import nearest_file
from prefect_resilience.base.text import without_comments
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, Place, PlanError, Wrong, shorten

LARGEST_FILE = 32_000_000
"""Bytes of a plan's file, and characters of its text."""

SUFFIXES = (".json", ".yaml", ".yml")

DEEPEST = 100
"""Levels of objects and lists in a plan, the plan itself included."""

MOST_VALUES = 100_000
"""Values in one node or in the other fields of a plan, each entry of a list or of an object counted."""

MOST_PARTS = 2_000_000
"""Commas and opening brackets of a JSON text. This bounds the memory of its data to about 150 MB."""

LONGEST_YAML = 4_000_000
"""Characters. Reading YAML takes twenty times as long as JSON."""

MOST_YAML_VALUES = 200_000
MOST_DIGITS = 1_500
"""The most digits of a whole number that are parsed; a longer number is rejected afterwards."""

TOO_DEEP = f"is nested more than {DEEPEST} levels deep: reduce the nesting"
TOO_MANY = f"has more than {MOST_VALUES:,} values: refer to large data instead of writing it in the plan"
HALF_LETTER = "a lone surrogate (half a character): write valid Unicode"


class WrittenTwice(str):
    """Replaces the value of a key that its object has more than once; its text is the mistake."""


def refuse(place: str, says: str, source: str | None = None) -> NoReturn:
    raise PlanError([Mistake(place, says)], source or place) from None


def is_text(source: str) -> bool:
    """Whether a text is a plan, rather than a path to one."""
    begins = source.lstrip()[:1]
    return begins in ("", "{", "[") or "\n" in source


def data_of(source: str | Path) -> Any:
    """The data of a text or a file, unchecked. Raises PlanError if it cannot be read."""
    if isinstance(source, str) and is_text(source):
        return data_of_text(source, source_name(source))
    return data_of_file(source)


def data_of_text(text: str, source: str) -> Any:
    if len(text) > LARGEST_FILE:
        refuse(source, f"{len(text):,} characters are more than the {LARGEST_FILE:,} that a plan may have")
    begins = text.lstrip()[:1]
    if begins == "/":
        begins = without_comments(text).lstrip()[:1]
    if not begins:
        refuse(source, 'is empty: write {"tasks": [...]}')
    return load_json(text, source) if begins in "{[" else load_yaml(text, source)


def data_of_file(path: str | Path) -> Any:
    source = source_name(path)
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        refuse(source, f"is not a plan file: its name must end in {', '.join(SUFFIXES)}")
    text = _text_of(Path(path), source)
    if not text.strip():
        refuse(source, 'is empty: write {"tasks": [...]}')
    return load_json(text, source) if suffix == ".json" else load_yaml(text, source)


def source_name(path: str | Path) -> str:
    return "the plan" if isinstance(path, str) and is_text(path) else shorten(str(path), 200)


def _text_of(path: Path, source: str) -> str:
    try:
        size = path.stat().st_size
        if path.is_file() and size <= LARGEST_FILE:
            return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        place = shorten(str(path.parent.absolute()), 200)
        refuse(source, f"there is no such file in {place}{nearest_file(path, SUFFIXES)}")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        refuse(f"{source}, line {line}", "is not encoded in UTF-8: save it as UTF-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        refuse(source, f"cannot be read: {shorten(str(why), 200)}")
    if size <= LARGEST_FILE:
        refuse(source, "is not a regular file")
    refuse(source, f"{size:,} bytes are more than the {LARGEST_FILE:,} that a plan may have")


def load_json(text: str, source: str) -> Any:
    """The data of a JSON text. Raises PlanError with the place of the first mistake."""
    text = without_comments(text)
    if text.count(",") + text.count("[") + text.count("{") > MOST_PARTS:
        refuse(source, f"has more than {MOST_PARTS:,} commas and brackets: refer to large data instead")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_whole)
    except json.JSONDecodeError as error:
        near = shorten(text[error.pos : error.pos + 20].split("\n")[0].strip())
        near = f", at {near!r}" if near else ", at the end" if error.pos >= len(text) - 1 else ""
        place = f"{source}, line {error.lineno}, column {error.colno}"
        refuse(place, f"is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}{near}", source)
    except RecursionError:
        refuse(source, "cannot be read: it, or the program that reads it, is nested too deeply")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        for name in data:
            if names.count(name) > 1:
                data[name] = WrittenTwice(f"{shortly(name)} is written more than once: write it once")
    return data


def _whole(literal: str) -> int:
    return int(literal[:MOST_DIGITS])


def load_yaml(text: str, source: str) -> Any:
    """The data of a YAML text. Raises PlanError with the place of the first mistake."""
    if len(text) > LONGEST_YAML:
        says = f"{len(text):,} characters of YAML are more than the allowed {LONGEST_YAML:,}: use JSON"
        refuse(source, says)
    try:
        return _YamlReader(text).document()
    except yaml.MarkedYAMLError as error:
        says = shorten(str(error.problem or error.context or "cannot be read"), 200)
        mark = error.problem_mark or error.context_mark
        if mark and "\t" in "".join(text.splitlines()[mark.line : mark.line + 1]):
            says = f"{says}; indent with spaces, not tabs"
        place = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        refuse(place, f"is not valid YAML: {says}", source)
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        refuse(source, f"is not valid YAML: {shorten(str(error).splitlines()[0], 200)}")


_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


class _YamlReader:
    """Builds the data of one YAML document from the parser's events: Loaders crash on deep nesting."""

    def __init__(self, text: str) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[Any] = cast("Any", yaml).parse(text, Loader=loader)
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._count = 0

    def document(self) -> Any:
        documents = [self._value(event, 0) for event in self._events if isinstance(event, yaml.NodeEvent)]
        if len(documents) > 1:
            raise yaml.YAMLError("it has several documents: write one plan per file")
        return documents[0] if documents else None

    def _value(self, event: Any, level: int) -> Any:
        """The value that begins with an event. An alias counts as many values as its anchor."""
        before, says = self._count, ""
        self._count += 1
        value: Any = None
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                says = f"the alias *{shorten(event.anchor)} has no anchor that ends above it"
            value, size = self._anchors.get(event.anchor, (None, 0))
            self._count += size
        elif event.tag is not None:
            says = f"the tag {shortly(event.tag)} is not supported: write plain data"
        elif isinstance(event, yaml.ScalarEvent):
            value = _scalar(event.value) if event.implicit[0] else event.value
        elif level >= DEEPEST:
            says = TOO_DEEP
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [self._value(part, level + 1) for part in self._parts()]
        else:
            value = _object([self._pair(key, level + 1) for key in self._parts()])
        if self._count > MOST_YAML_VALUES:
            says = f"it has more than {MOST_YAML_VALUES:,} values, including those of its aliases"
        if says:
            raise yaml.MarkedYAMLError(problem=says, problem_mark=event.start_mark)
        if event.anchor:
            self._anchors[event.anchor] = value, self._count - before
        return value

    def _parts(self) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, yaml.CollectionEndEvent):
                return
            yield event

    def _pair(self, event: Any, level: int) -> tuple[str, Any]:
        key = self._value(event, level)
        if not isinstance(key, str):
            says = f"{shortly(key)} is not a key: write a string, in quotes if necessary"
            raise yaml.MarkedYAMLError(problem=says, problem_mark=event.start_mark)
        return key, self._value(next(self._events), level)


def _scalar(text: str) -> Any:
    """The value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return _whole(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def wrong_data(value: Mapping[Any, Any], level: int) -> Iterator[Wrong]:
    """The parts of an object that JSON cannot write, each with its place. Too deep levels are skipped."""
    waiting: list[tuple[Place, Any, int]] = [((), value, level)]
    room = MOST_VALUES
    while waiting:
        place, data, level = waiting.pop()
        room -= len(data)
        if room < 0:
            yield place, TOO_MANY
            return
        if level >= DEEPEST:
            yield place, TOO_DEEP
            continue
        keyed = isinstance(data, dict | Mapping)
        inner: list[tuple[Place, Any, int]] = []
        parts: Any = cast("Any", data).items() if keyed else enumerate(data)
        for key, part in parts:
            if keyed and not isinstance(key, str):
                yield place, f"{shortly(key)} is not a key: write a string"
            elif keyed and not (key.isascii() or can_be_written(key)):
                yield place, f"has a key with {HALF_LETTER}"
            elif isinstance(part, _HOLDS):
                inner.append(((*place, key), cast("Any", part), level + 1))
            elif says := _wrong_scalar(part):
                yield (*place, key), says
        waiting += reversed(inner)


_HOLDS = (dict, list, tuple, Mapping)


def _wrong_scalar(value: Any) -> str:
    """The mistake in a value that is not a container, "" if there is none."""
    if value is None or isinstance(value, WrittenTwice):
        return str(value or "")
    if isinstance(value, str):
        return "" if value.isascii() or can_be_written(value) else f"contains {HALF_LETTER}"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"write a finite number, not {value}"
    if isinstance(value, int):
        return "is a number with too many digits: write it as a string" if value.bit_length() > 4096 else ""
    return f"write a JSON value, not {shorten(shortly(value))}"
