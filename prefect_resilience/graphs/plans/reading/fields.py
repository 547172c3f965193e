"""Validators of single fields: each returns the value or raises a ValueError with a valid form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, BeforeValidator

from prefect_resilience.base.plain import shortly
from prefect_resilience.base.policy import nearest
from prefect_resilience.graphs.conditions.model import validation_error
from prefect_resilience.graphs.plans.reading.mistakes import Wrong
from prefect_resilience.graphs.plans.templates import RESERVED, WORDS, read_template
from prefect_resilience.guards.retries.policy import BACKOFF_SPELLINGS, CAMEL_CASE, SPELLINGS, Retry

LONGEST_ID = 100
ID = re.compile(r"\w[\w-]*")
"""An id that is also a name (`kg_query`) is used unchanged in templates, any other as `nodes["my-id"]`."""

RESERVED_IDS = RESERVED | WORDS
EFFECTS = ("conditional", "external", "idempotent")

NAMES_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}


_RETRY_FIELDS = (*Retry.model_fields, "max_retries", *SPELLINGS, *BACKOFF_SPELLINGS)
RETRY_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {name: {"description": "An option of Retry."} for name in _RETRY_FIELDS},
            "additionalProperties": False,
        },
        {"type": "integer", "minimum": 1},
    ]
}
"""The JSON Schema of a retry policy: the names of its fields, in every spelling."""


def node_id(value: str) -> str:
    """A node's id."""
    if len(value) > LONGEST_ID:
        raise ValueError(f"{shortly(value)} is too long: an id has at most {LONGEST_ID} characters")
    if not ID.fullmatch(value):
        mended = re.sub(r"[^\w-]+", "_", value.strip()).strip("-_")
        write = f"; write {mended!r}" if mended and ID.fullmatch(mended) else ""
        raise ValueError(
            f"{shortly(value)} is not a valid id: use letters, digits, _ and -, not - at the beginning{write}"
        )
    if value in RESERVED_IDS:
        says = f"{value!r} has a special meaning in templates: write another id, such as '{value}_1'"
        raise ValueError(says)
    return value


def not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty: write a name")
    return value


def names(value: Any) -> Any:
    """A list of names; a single name needs no list."""
    return (value,) if isinstance(value, str) else items(value, "a node's id or a list of them")


def items(value: Any, form: str = "a list") -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError(f"write {form}, not {shortly(value)}")
    return tuple(cast("list[Any]", value))


def over(value: Any) -> Any:
    """The items of a fan-out."""
    if isinstance(value, list | tuple):
        return list(cast("list[Any]", value))
    if isinstance(value, str) and read_template(value).is_one_value:
        return value
    form = "{{load.output.items}}"
    raise ValueError(f"write a list, or a template that gives one, such as {form}, not {shortly(value)}")


def either(model: type[BaseModel], *kinds: type[Any], form: str) -> BeforeValidator:
    """A validator of a value of one of these kinds, or the fields of the model."""

    def read(value: Any) -> Any:
        if value is None or isinstance(value, (*kinds, model)):
            return value
        if isinstance(value, Mapping):
            return model.model_validate(value)
        raise ValueError(f"write {form}, not {shortly(value)}")

    return BeforeValidator(read)


def retry_policy(value: Any) -> Any:
    """A retry policy. Raises all its mistakes at once, each with its place."""
    if value is None or isinstance(value, Retry):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"attempts": value}
    if not isinstance(value, Mapping):
        raise ValueError(f'write an object such as {{"max_retries": 3}}, not {shortly(value)}')
    written = {str(name): part for name, part in cast("Mapping[Any, Any]", value).items()}
    wrong: list[Wrong] = [
        ((name,), f"write a number of at least 0, not {shortly(number)}")
        for name, number in written.items()
        if CAMEL_CASE.get(name, name) in ("max_retries", *BACKOFF_SPELLINGS) and not _is_amount(number)
    ]
    if wrong:
        raise validation_error("Retry", "plan", wrong)
    policy = Retry.__new__(Retry)
    BaseModel.__init__(policy, **written)  # its own __init__ would raise only the first mistake
    return policy


def _is_amount(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < 1e12


def effect(value: Any) -> Any:
    """A kind of effect, or an object with one."""
    kind: Any = cast("Mapping[str, Any]", value).get("kind") if isinstance(value, Mapping) else value
    if value is not None and kind not in EFFECTS:
        raise ValueError(f"{shortly(kind)} is not a kind of effect{nearest(str(kind), EFFECTS)}")
    return cast("Any", value)
