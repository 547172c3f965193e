"""Reads a plan from a file, a text or data, with every mistake in its place."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from prefect_resilience.base.policy import nearest_file
from prefect_resilience.base.text import without_comments
from prefect_resilience.graphs.plans.model import Asked, CheckedActions, Plan
from prefect_resilience.graphs.plans.reading.data import load_json, load_yaml, refuse
from prefect_resilience.graphs.plans.reading.mistakes import PlanError, quote, shorten
from prefect_resilience.graphs.plans.reading.validate import build_plan

LARGEST_FILE = 32_000_000
"""Bytes of a plan's file, and characters of its text."""

SUFFIXES = (".json", ".yaml", ".yml")


def read_plan(
    source: Plan | Mapping[str, Any] | str | Path,
    *,
    actions: CheckedActions | None = None,
    inputs: Mapping[str, Any] | None = None,
    base: str | Path | None = None,
) -> Plan:
    """The plan of `source`: a plan, its data, a file's path, or a string of JSON or YAML.

    A string that begins with `{` or `[` or has several lines is a plan. Any other string is a path, which
    may be relative to `base`. With `actions` and `inputs`, it also checks that the plan can run with these.

    Raises `PlanError` with all mistakes, each with its place.
    """
    context = Asked(actions, inputs)
    if isinstance(source, Plan):
        wrong = source.check(actions, inputs)
        if wrong:
            raise PlanError(wrong)
        return source
    if isinstance(source, Mapping):
        return build_plan(source, context)
    if isinstance(source, Path) or (isinstance(cast("Any", source), str) and not is_text(source)):
        return from_file(source, context, base)
    if isinstance(cast("Any", source), str):
        return from_text(source, context)
    right = "write a plan, its data, a file's path, or a string of JSON or YAML"
    return refuse("the plan", f"{right}, not {quote(source)}")


def is_text(source: str) -> bool:
    """Whether a text is a plan, rather than a path to one."""
    begins = source.lstrip()[:1]
    return begins in ("", "{", "[") or "\n" in source


def from_text(text: str, asked: Asked | None = None, source: str = "the plan") -> Plan:
    """The plan in a text: JSON if it begins with `{`, `[` or a comment, else YAML. Raises PlanError."""
    return build_plan(_data_of_text(text, source), asked or Asked(), source)


def from_file(path: str | Path, asked: Asked | None = None, base: str | Path | None = None) -> Plan:
    """The plan in a `.json`, `.yaml` or `.yml` file. Raises PlanError."""
    return build_plan(_data_of_file(path, base), asked or Asked(), _source_name(path))


def data_of(source: str | Path) -> Any:
    """The data of a text or a file, unchecked. Raises PlanError if it cannot be read."""
    if isinstance(source, str) and is_text(source):
        return _data_of_text(source, "the plan")
    return _data_of_file(source)


def _data_of_text(text: str, source: str) -> Any:
    if len(text) > LARGEST_FILE:
        refuse(source, f"{len(text):,} characters are more than the {LARGEST_FILE:,} that a plan may have")
    begins = text.lstrip()[:1]
    if begins == "/":
        begins = without_comments(text).lstrip()[:1]
    if not begins:
        refuse(source, 'is empty: write {"tasks": [...]}')
    return load_json(text, source) if begins in "{[" else load_yaml(text, source)


def _data_of_file(path: str | Path, base: str | Path | None = None) -> Any:
    place, source = Path(base or "", path), _source_name(path)
    if place.suffix.lower() not in SUFFIXES:
        refuse(source, f"is not a plan file: its name must end in {', '.join(SUFFIXES)}")
    text = _text_of(place, source)
    if not text.strip():
        refuse(source, 'is empty: write {"tasks": [...]}')
    load = load_json if place.suffix.lower() == ".json" else load_yaml
    return load(text, source)


def _source_name(path: str | Path) -> str:
    return shorten(str(path), 200) or "the plan"


def _text_of(path: Path, source: str) -> str:
    try:
        kind = os.stat(path)
        if stat.S_ISDIR(kind.st_mode):
            refuse(source, "is a directory: name a file in it")
        if not stat.S_ISREG(kind.st_mode):
            refuse(source, "is not a regular file")
        if kind.st_size > LARGEST_FILE:
            refuse(source, f"{kind.st_size:,} bytes are more than the {LARGEST_FILE:,} that a plan may have")
        with open(path, "rb") as file:
            written = file.read(LARGEST_FILE + 1)
    except PlanError:
        raise
    except FileNotFoundError:
        place = shorten(str(path.parent.absolute()), 200)
        refuse(source, f"there is no such file in {place}{nearest_file(path, SUFFIXES)}")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        refuse(source, f"cannot be read: {shorten(str(why), 200)}")
    try:
        return written.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = written.count(b"\n", 0, error.start) + 1
        refuse(f"{source}, line {line}", "is not encoded in UTF-8: save it as UTF-8")
