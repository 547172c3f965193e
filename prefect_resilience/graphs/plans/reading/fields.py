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
from prefect_resilience.graphs.plans.reading.mistakes import Place, quoted, refusal, told
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
        made = handler(core_schema)
        schema = handler.resolve_ref_schema(made)
        number = {"type": "number", "minimum": 0}
        schema["properties"] |= {
            "max_retries": {"type": "integer", "minimum": 0, "title": "Max Retries"},
            "max_attempts": {"type": "integer", "minimum": 1, "title": "Max Attempts"},
            "retryable_errors": {"type": "array", "items": {"type": "string"}, "title": "Retryable Errors"},
            **{name: number | {"title": name.replace("_", " ").title()} for name in BACKOFF_SPELLINGS},
        }
        backoff = schema["properties"].get("backoff", {})
        if "anyOf" not in backoff:
            schema["properties"]["backoff"] = {"anyOf": [backoff, {"type": "string"}], "title": "Backoff"}
        attempts = {"type": "integer", "minimum": 1}
        rules = schema["properties"]["by_category"]
        if "anyOf" not in rules["additionalProperties"]:
            rules["additionalProperties"] = {"anyOf": [rules["additionalProperties"], attempts]}
        return {"anyOf": [made, attempts]}


def node_id(value: str) -> str:
    """A node's id."""
    if len(value) > LONGEST_ID:
        raise ValueError(f"{quoted(value)} is too long: an id has at most {LONGEST_ID} characters")
    if not ID.fullmatch(value):
        mended = re.sub(r"[^\w-]+", "_", value.strip()).strip("-_")
        write = f"; write {mended!r}" if mended and ID.fullmatch(mended) else ""
        raise ValueError(
            f"{quoted(value)} is not a valid id: use letters, digits, _ and -, but do not begin with -{write}"
        )
    normal = unicodedata.normalize("NFKC", value)
    if normal != value:
        raise ValueError(f"{value!a} has look-alike characters: write {normal!a}")
    if value in RESERVED_IDS:
        raise ValueError(
            f"{value!r} has a special meaning in templates: write another id, such as '{value}_1'"
        )
    return value


def not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty: write a name")
    return value


def several(value: Any) -> Any:
    """A list of names; a single name needs no list."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise ValueError(f"write a node's id or a list of them, not {quoted(value)}")
    return tuple(cast("list[Any]", value))


def listed(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError(f"write a list, not {quoted(value)}")
    return tuple(cast("list[Any]", value))


def over(value: Any) -> Any:
    """The items of a fan-out."""
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    if isinstance(value, list) or (isinstance(value, str) and read_template(value).is_one_value):
        return cast("Any", value)
    raise ValueError(
        f"write a list, or a template that gives one, such as {{{{load.output.items}}}}, not {quoted(value)}"
    )


def retry_policy(value: Any) -> Any:
    """A retry policy. Raises all its mistakes at once, each with its place."""
    if value is None or isinstance(value, Retry):
        return value
    found: list[tuple[Place, str]] = []
    made = _retry(value, (), found)
    if found:
        raise refusal("Retry", found)
    return made


def _retry(value: Any, place: Place, found: list[tuple[Place, str]]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"attempts": value}
    if not isinstance(value, Mapping):
        found.append((place, f'write an object such as {{"max_retries": 3}}, not {quoted(value)}'))
        return value
    written = {str(key): part for key, part in cast("Mapping[Any, Any]", value).items()}
    before = len(found)
    for theirs in {"max_retries", "maxRetries"} & written.keys():
        retries = written[theirs]
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            says = f"write the number of retries, a whole number of at least 0, not {quoted(retries)}"
            found.append(((*place, theirs), says))
    _flat_delays(written, place, found)
    inside = written.get("backoff")
    if isinstance(inside, Mapping):
        _backoff(cast("Mapping[Any, Any]", inside), (*place, "backoff"), found)
    rules = written.get("by_category")
    if isinstance(rules, Mapping):
        for name, rule in cast("Mapping[Any, Any]", rules).items():
            _retry(rule, (*place, "by_category", str(name)), found)
    wrong = {part[len(place)] for part, _ in found[before:] if len(part) > len(place)}
    return _placed(Retry, {key: part for key, part in written.items() if key not in wrong}, place, found)


def _backoff(written: Mapping[Any, Any], place: Place, found: list[tuple[Place, str]]) -> None:
    kind = written.get("kind", "exponential")
    if isinstance(kind, str):
        _placed(Backoff, written, place, found)
    else:
        found.append(((*place, "kind"), f"write a string, not {quoted(kind)}"))


def _flat_delays(written: Mapping[str, Any], place: Place, found: list[tuple[Place, str]]) -> None:
    """Check the options of the backoff that are written at the level of the retry policy."""
    for theirs, number in written.items():
        if CAMEL_CASE.get(theirs, theirs) not in BACKOFF_SPELLINGS:
            continue
        ours, unit = BACKOFF_SPELLINGS[CAMEL_CASE.get(theirs, theirs)]
        if isinstance(number, bool) or not isinstance(number, int | float):
            found.append(((*place, theirs), f"write a number, not {quoted(number)}"))
        else:
            wrong: list[tuple[Place, str]] = []
            bounded = {ours: min(number, 1e300) * unit}
            _placed(Backoff, bounded | ({"maximum": 1e8} if ours == "initial" else {}), (), wrong)
            found += [
                ((*place, theirs), says.replace(quoted(bounded[ours]), quoted(number)))
                for _, says in wrong[:1]
            ]


def _placed(
    model: type[BaseModel], written: Mapping[Any, Any], place: Place, found: list[tuple[Place, str]]
) -> Any:
    """A policy with all its mistakes added to `found`; its own __init__ would raise only the first."""
    made = model.__new__(model)
    fields = {str(key): part for key, part in written.items()}
    try:
        BaseModel.__init__(made, **fields)
    except ValidationError as error:
        found += [((*place, *inside), says) for inside, says in told(error, model, fields)]
    return made


def circuit(value: Any) -> Any:
    """A circuit's name, or its name and the options of a `CircuitPolicy`."""
    if value is None:
        return value
    if isinstance(value, str):
        return not_blank(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"write a circuit's name, or an object with its name, not {quoted(value)}")
    written: dict[str, Any] = dict(cast("Mapping[str, Any]", value))
    name = written.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ValueError('has no name: write {"name": "llm", ...}')
    wrong: list[tuple[Place, str]] = []
    _placed(CircuitPolicy, {key: part for key, part in written.items() if key != "name"}, (), wrong)
    if wrong:
        raise refusal("CircuitPolicy", wrong)
    return written


def effect(value: Any) -> Any:
    """A kind of effect, or an object with one."""
    if value is None:
        return value
    kind: Any = value
    if isinstance(value, Mapping):
        value = dict(cast("Mapping[str, Any]", value))
        kind = value.get("kind")
    if kind not in EFFECTS:
        near = nearest(kind, EFFECTS) if isinstance(kind, str) else f"; write one of {', '.join(EFFECTS)}"
        raise ValueError(f"{quoted(kind)} is not a kind of effect{near}")
    return value
