"""Validators of single fields: each returns the value or raises a ValueError with a valid form."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from prefect_resilience.base.policy import nearest
from prefect_resilience.graphs.plans.reading.mistakes import Place, quote, refusal, sentences_of
from prefect_resilience.graphs.plans.templates import RESERVED, WORDS, read_template
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import BACKOFF_SPELLINGS, CAMEL_CASE, Retry

LONGEST_ID = 100
ID = re.compile(r"\w[\w-]*")
"""An id that is also a name (`kg_query`) is used unchanged in templates, any other as `nodes["my-id"]`."""

RESERVED_IDS = RESERVED | WORDS
EFFECTS = ("conditional", "external", "idempotent")

NAMES_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}


class RetrySchema:
    """The JSON Schema of a retry policy, with every accepted spelling of its fields."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        retry = handler(core_schema)
        fields = handler.resolve_ref_schema(retry)["properties"]
        attempts = {"type": "integer", "minimum": 1}
        fields |= {
            "max_retries": {"type": "integer", "minimum": 0, "title": "Max Retries"},
            "max_attempts": attempts | {"title": "Max Attempts"},
            "retryable_errors": {"type": "array", "items": {"type": "string"}, "title": "Retryable Errors"},
        }
        for name in BACKOFF_SPELLINGS:
            fields[name] = {"type": "number", "minimum": 0, "title": name.replace("_", " ").title()}
        for place, key, other in (
            (fields, "backoff", {"type": "string"}),
            (fields["by_category"], "additionalProperties", attempts),
        ):
            if "anyOf" not in place[key]:
                place[key] = {"anyOf": [place[key], other]}
        return {"anyOf": [retry, attempts]}


def node_id(value: str) -> str:
    """A node's id."""
    if len(value) > LONGEST_ID:
        raise ValueError(f"{quote(value)} is too long: an id has at most {LONGEST_ID} characters")
    if not ID.fullmatch(value):
        mended = re.sub(r"[^\w-]+", "_", value.strip()).strip("-_")
        write = f"; write {mended!r}" if mended and ID.fullmatch(mended) else ""
        raise ValueError(
            f"{quote(value)} is not a valid id: use letters, digits, _ and -, but do not begin with -{write}"
        )
    normal = unicodedata.normalize("NFKC", value)
    if normal != value:
        raise ValueError(f"{value!a} has look-alike characters: write {normal!a}")
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
        raise ValueError(f"write {form}, not {quote(value)}")
    return tuple(cast("list[Any]", value))


def over(value: Any) -> Any:
    """The items of a fan-out."""
    if isinstance(value, list | tuple):
        return list(cast("list[Any]", value))
    if isinstance(value, str) and read_template(value).is_one_value:
        return value
    form = "{{load.output.items}}"
    raise ValueError(f"write a list, or a template that gives one, such as {form}, not {quote(value)}")


def retry_policy(value: Any) -> Any:
    """A retry policy. Raises all its mistakes at once, each with its place."""
    if value is None or isinstance(value, Retry):
        return value
    wrong: list[tuple[Place, str]] = []
    policy = _retry(value, (), wrong)
    if wrong:
        raise refusal("Retry", wrong)
    return policy


def _retry(value: Any, place: Place, wrong: list[tuple[Place, str]]) -> Any:
    """The policy. Its mistakes are added to `wrong`."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"attempts": value}
    if not isinstance(value, Mapping):
        wrong.append((place, f'write an object such as {{"max_retries": 3}}, not {quote(value)}'))
        return None
    written: dict[str, Any] = {str(name): part for name, part in cast("Mapping[Any, Any]", value).items()}
    for name, part in [*written.items()]:
        count = len(wrong)
        number: Any = part
        fields: Any = cast("Any", part) if isinstance(part, Mapping) else None
        inner = (*place, name)
        snake = CAMEL_CASE.get(name, name)
        if snake == "max_retries" or snake in BACKOFF_SPELLINGS:
            kinds, kind = (int, "a whole number") if snake == "max_retries" else (int | float, "a number")
            if isinstance(number, bool) or not isinstance(number, kinds) or not 0 <= number < 1e12:
                wrong.append((inner, f"write {kind} of at least 0, not {quote(number)}"))
        elif name == "backoff" and fields is not None:
            if isinstance(fields.get("kind", ""), str):
                _check(Backoff, fields, inner, wrong)
            else:
                wrong.append(((*inner, "kind"), f"write a string, not {quote(fields['kind'])}"))
        elif name == "by_category" and fields is not None:
            for category, rule in fields.items():
                _retry(rule, (*inner, str(category)), wrong)
        if len(wrong) > count:
            del written[name]
    return _check(Retry, written, place, wrong)


def _check(
    model: type[BaseModel], written: Mapping[str, Any], place: Place, wrong: list[tuple[Place, str]]
) -> Any:
    """A policy with all its mistakes added to `wrong`; its own __init__ would raise only the first."""
    policy = model.__new__(model)
    try:
        BaseModel.__init__(policy, **written)
    except ValidationError as error:
        wrong += [((*place, *inner), says) for inner, says in sentences_of(error, model, written)]
    return policy


def circuit(value: Any) -> Any:
    """A circuit's name, or its name and the options of a `CircuitPolicy`."""
    if value is None:
        return value
    if isinstance(value, str):
        return not_blank(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"write a circuit's name, or an object with its name, not {quote(value)}")
    written: dict[str, Any] = dict(cast("Mapping[str, Any]", value))
    name = written.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ValueError('has no name: write {"name": "llm", ...}')
    wrong: list[tuple[Place, str]] = []
    _check(CircuitPolicy, {key: part for key, part in written.items() if key != "name"}, (), wrong)
    if wrong:
        raise refusal("CircuitPolicy", wrong)
    return written


def effect(value: Any) -> Any:
    """A kind of effect, or an object with one."""
    kind: Any = cast("Mapping[str, Any]", value).get("kind") if isinstance(value, Mapping) else value
    if value is not None and kind not in EFFECTS:
        raise ValueError(f"{quote(kind)} is not a kind of effect{nearest(str(kind), EFFECTS)}")
    return cast("Any", value)
