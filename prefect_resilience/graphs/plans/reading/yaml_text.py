"""YAML as a plan's text: the data model of JSON, bounded while it is read.

Words that older YAML reads as something else (`yes`, `no`, `on`, `off`, `012`, `1:30`) are refused rather
than guessed at, except in quotes. Dates stay texts. An alias counts as all that it stands for. Tags are
refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from prefect_resilience.graphs.plans.reading.data import DEEPEST, Repeated
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, PlanError, quoted, shortened

LONGEST_YAML = 4_000_000
"""Characters: YAML is read twenty times slower than JSON."""

MOST_YAML_VALUES = 200_000
LONGEST_NUMBER = 1_000

_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_OLD_NUMBER = re.compile(
    r"[-+]?(?:0[0-7_]+|0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7]+|[0-9][0-9_]*(?::[0-5]?[0-9])+|[0-9]+(?:_[0-9]+)+)"
)
_OLD_BOOLEAN = frozenset(
    form for word in ("yes", "no", "on", "off") for form in (word, word.capitalize(), word.upper())
)
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass
class _Open:
    """A list or object that is being read."""

    value: list[Any] | dict[str, Any]
    anchor: str | None
    keys: list[str] = field(default_factory=list[str])
    key: str | None = None
    merging: bool = False
    merges: list[Any] = field(default_factory=list[Any])
    size: int = 1


def load_yaml(text: str, source: str) -> Any:
    """The data of a YAML text. Raises PlanError with the place of the first mistake."""
    import yaml

    if len(text) > LONGEST_YAML:
        says = f"{len(text):,} characters of YAML are more than {LONGEST_YAML:,}: write it as JSON"
        raise PlanError([Mistake(source, says)], source)
    loader = cast("Any", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    reading = Reading(source)
    try:
        for event in cast("Any", yaml).parse(text, Loader=loader):
            reading.take(event)
    except yaml.MarkedYAMLError as error:
        says = shortened(str(error.problem or error.context or "cannot be read"), 200)
        mark = error.problem_mark or error.context_mark
        reading.refuse(mark, f"is no YAML: {says}{_tab(text, mark)}")
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        reading.refuse(None, f"is no YAML: {shortened(str(error).splitlines()[0], 200)}")
    return reading.result


def _tab(text: str, mark: Any) -> str:
    lines = text.splitlines()[mark.line : mark.line + 1] if mark else []
    return "; indent with spaces, not tabs" if lines and "\t" in lines[0] else ""


class Reading:
    """Takes what the parser finds, piece by piece, and puts the data together."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.result: Any = None
        self._documents = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._count = 0

    def refuse(self, mark: Any, says: str) -> NoReturn:
        place = f"{self.source}, line {mark.line + 1}, column {mark.column + 1}" if mark else self.source
        raise PlanError([Mistake(place, says)], self.source) from None

    def take(self, event: Any) -> None:
        kind = type(event).__name__
        mark = event.start_mark
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                self.refuse(mark, "a second document begins: write one plan in a file")
        elif kind == "AliasEvent":
            self._alias(event, mark)
        elif kind == "ScalarEvent":
            self._no_tag(event, mark)
            self._count_in(1, mark)
            value = self._scalar(event, mark)
            if event.anchor:
                self._anchors[event.anchor] = (value, 1)
            self._put(value, 1, mark, merge=event.implicit[0] and value == "<<")
        elif kind in ("SequenceStartEvent", "MappingStartEvent"):
            self._no_tag(event, mark)
            if len(self._open) >= DEEPEST:
                self.refuse(mark, f"is nested more than {DEEPEST} levels deep: write it flatter")
            self._count_in(1, mark)
            self._open.append(_Open([] if kind == "SequenceStartEvent" else {}, event.anchor))
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            self._close(mark)

    def _no_tag(self, event: Any, mark: Any) -> None:
        if event.tag is not None:
            self.refuse(mark, f"the tag {quoted(event.tag)} is not read: write plain data")

    def _count_in(self, size: int, mark: Any) -> None:
        self._count += size
        if self._count > MOST_YAML_VALUES:
            self.refuse(mark, f"has more than {MOST_YAML_VALUES:,} values, those of its aliases counted")

    def _alias(self, event: Any, mark: Any) -> None:
        if event.anchor not in self._anchors:
            inside = any(part.anchor == event.anchor for part in self._open)
            says = "stands inside what it names" if inside else "names nothing above it"
            self.refuse(mark, f"the alias *{shortened(event.anchor)} {says}")
        value, size = self._anchors[event.anchor]
        self._count_in(size, mark)
        self._put(value, size, mark)

    def _put(self, value: Any, size: int, mark: Any, *, merge: bool = False) -> None:
        if not self._open:
            self.result = value
            return
        top = self._open[-1]
        top.size += size
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is None:
            top.key, top.merging = self._key(value, mark), merge
            if not merge:
                top.keys.append(top.key)
        elif top.merging:
            parts = cast("list[Any]", value) if isinstance(value, list) else [value]
            if not all(isinstance(part, dict) for part in parts):
                self.refuse(mark, "'<<' takes an object or a list of objects")
            top.merges.extend(parts)
            top.key = None
        else:
            top.value[top.key] = value
            top.key = None

    def _key(self, value: Any, mark: Any) -> str:
        if isinstance(value, str):
            return value
        self.refuse(mark, f"{quoted(value)} is no key: write a text, in quotes if need be")

    def _close(self, mark: Any) -> None:
        done = self._open.pop()
        value = done.value
        if isinstance(value, dict):
            value = _object(done)
        if done.anchor:
            self._anchors[done.anchor] = (value, done.size)
        self._put(value, done.size, mark)

    def _scalar(self, event: Any, mark: Any) -> Any:
        text = cast(str, event.value)
        if not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if text in _OLD_BOOLEAN:
            self.refuse(mark, f"{text} may mean true or false, or the word: write true, false or '{text}'")
        if _NO_NUMBER.fullmatch(text):
            self.refuse(mark, f"{text} is no number that a plan can have: write a finite one, null or a text")
        if _OLD_NUMBER.fullmatch(text):
            self.refuse(mark, f"{shortened(text)} is read differently by different YAML: write it in quotes")
        return self._number(text, mark) if _NUMBER.fullmatch(text) else text

    def _number(self, text: str, mark: Any) -> int | float:
        if len(text) <= LONGEST_NUMBER:
            number = int(text) if _WHOLE.fullmatch(text) else float(text)
            if math.isfinite(number):
                return number
        self.refuse(mark, f"{shortened(text, 40)} is larger than a number can be: write it as a text")


def _object(done: _Open) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for part in reversed(done.merges):
        made.update(part)
    made.update(done.value)
    if len(set(done.keys)) == len(done.keys):
        return made
    repeated = Repeated(made)
    repeated.keys_repeated = tuple(dict.fromkeys(key for key in done.keys if done.keys.count(key) > 1))
    return repeated
