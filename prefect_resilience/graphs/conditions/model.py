"""The class `Condition`: in Python, in JSON and in Prefect's forms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, LiteralString, cast

from pydantic import (
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    SerializationInfo,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import definition_reference_schema

from prefect_resilience.base.plain import not_json, shortly
from prefect_resilience.base.policy import Policy
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.conditions.compare import EvaluationBounds
from prefect_resilience.graphs.conditions.evaluate import Evaluation, Explanation, Source, describe, parts
from prefect_resilience.graphs.conditions.reading import (
    TYPE_OF,
    WITH_VALUE,
    Operator,
    Place,
    Reading,
    json_schema,
    too_large,
)

_MOST_TOLD = 5


class Condition(Policy):
    """A condition on a result or an error; build one with `path`, `succeeded` and `failed`, or from JSON.

    operator: the comparison or check; see `Operator`.
    path: the place in the value: `a.b[0].c`, or `$...` as in RFC 9535 (`$` alone is the whole value).
    value: the JSON value to compare with; datetimes are kept as ISO strings.
    source_task: the task with the result; None for the task that the condition belongs to.
    conditions: the parts of `all`, `any` and `not`.
    category, code: the error for `failed`, as in an ErrorContext; None for any.

    JSON has a `type` beside the operator: "error_catch", "output_check", "comparison", or only a `type` with
    the operator's name. `&`, `|` and `~` combine conditions.
    """

    operator: Operator
    path: str | None = None
    value: Any = None
    source_task: str | None = None
    conditions: tuple[Condition, ...] = ()
    category: str | None = None
    code: str | None = None

    def __init__(self, /, **values: Any) -> None:
        try:
            super(Policy, self).__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(_told(error)) from None

    # Inside other models pydantic then validates without this __init__, and keeps the place of every mistake.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    def evaluate(
        self,
        value: Any,
        *,
        error: Any = None,
        scope: Mapping[str, Any] | None = None,
        source: Source | None = None,
    ) -> bool:
        """Whether the condition holds for `value`.

        error: the failure, if there was one: an ErrorContext, an ErrorInfo, the JSON of one or an exception.
        scope: mappings by name, such as `state` and `inputs`. A path that begins with such a name is followed
            there.
        source: returns (value, error) of the task that a part names in `source_task`; without it, such a part
            uses `value` and `error` too.

        Comparisons of values of different types are false, and `not_equals` is true. Raises `ConditionError`
        if a path does not exist, except for `exists` and `not_exists`, and if the evaluation computes for
        longer than 0.5 s or takes 1,000,000 steps.

        Example:
            >>> Condition(operator="gte", path="score", value=0.9).evaluate({"score": 0.7})
            False
        """
        return Evaluation(value, error, scope, source, EvaluationBounds()).of(self).holds

    def explain(
        self,
        value: Any,
        *,
        error: Any = None,
        scope: Mapping[str, Any] | None = None,
        source: Source | None = None,
    ) -> Explanation:
        """As `evaluate`, with the reason in words: `confidence is 0.71, not >= 0.9`. Secrets are masked.

        Example:
            >>> (path("score") >= 0.9).explain({"score": 0.7}).text
            'score is 0.7, not >= 0.9'
        """
        answer = Evaluation(value, error, scope, source, EvaluationBounds()).of(self)
        return Explanation(answer.holds, redact(answer.why()))

    def describe(self, limit: int = 200) -> str:
        """The condition as a line of at most `limit` characters: `confidence >= 0.9`. Secrets are masked."""
        return describe(self, limit)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The number of levels of the condition, and the number of its parts."""
        inside = [part.extent for part in self.conditions]
        return 1 + max((levels for levels, _ in inside), default=0), 1 + sum(size for _, size in inside)

    def __and__(self, other: Condition) -> Condition:
        return self._with("all", other, "&")

    def __or__(self, other: Condition) -> Condition:
        return self._with("any", other, "|")

    def __invert__(self) -> Condition:
        if self.operator == "not":
            return self.conditions[0]
        return _compose("not", (self,))

    def __bool__(self) -> bool:
        raise TypeError(
            "a condition is neither true nor false before it is evaluated: combine conditions with "
            "& | ~ instead of and, or, not, and test for None with `is None`"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Condition):
            return NotImplemented
        return self is other or self._canonical() == other._canonical()

    def __hash__(self) -> int:
        return hash(self._canonical())

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"Condition({self.describe()})"

    def _canonical(self) -> str:
        """A text that is equal for equal conditions. Unlike Python's ==, it distinguishes 1 and true."""
        return json.dumps(self._form(), sort_keys=True)

    def _with(self, operator: Literal["all", "any"], other: Condition, sign: str) -> Condition:
        if not isinstance(cast("Any", other), Condition):
            raise ConfigurationError(f"{sign} combines two conditions, not a condition and {shortly(other)}")
        opened = [side.conditions if side.operator == operator else (side,) for side in (self, other)]
        return _compose(operator, (*opened[0], *opened[1]))

    @model_validator(mode="wrap")
    @classmethod
    def _read(
        cls, data: Any, handler: ModelWrapValidatorHandler[Condition], info: ValidationInfo
    ) -> Condition:
        if isinstance(data, Condition):
            return data
        reading = Reading(data, Condition, json=info.mode == "json")
        if reading.mistakes:
            raise validation_error(cls.__name__, "condition", reading.mistakes)
        return handler(reading.fields)

    @model_serializer(mode="plain")
    def _dump(self, info: SerializationInfo) -> dict[str, Any]:
        sentences = (not_json(part.value) for part in parts(self)) if info.mode == "json" else ()
        if sentence := next(filter(None, sentences), None):
            raise ConfigurationError(sentence)
        return self._form()

    def _form(self) -> dict[str, Any]:
        """The JSON form, with only the fields that apply."""
        kind = TYPE_OF.get(self.operator, self.operator)
        form: dict[str, Any] = {"type": kind}
        if kind != self.operator:
            form["operator"] = self.operator
        for name in ("source_task", "path", "category", "code"):
            if getattr(self, name) is not None:
                form[name] = getattr(self, name)
        if self.operator in WITH_VALUE:
            form["value"] = self.value
        if self.operator == "not":
            form["condition"] = self.conditions[0]._form()
        elif self.conditions:
            form["conditions"] = [part._form() for part in self.conditions]
        return form

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        itself = definition_reference_schema(cast("dict[str, Any]", core_schema)["ref"])
        return json_schema(handler(itself))


def _compose(operator: Operator, inside: tuple[Condition, ...]) -> Condition:
    """A combined condition. Its parts are valid already, so that only its size is checked."""
    whole = Condition.model_construct(operator=operator, conditions=inside)
    if sentence := too_large(*whole.extent):
        raise ConfigurationError(f"Condition: {sentence}")
    return whole


def validation_error(
    title: str, kind: LiteralString, mistakes: Iterable[tuple[Place, str]]
) -> ValidationError:
    """Pydantic's own error with these mistakes of one kind: place and sentence of each."""
    lines = [
        InitErrorDetails(
            type=PydanticCustomError(kind, "{sentence}", {"sentence": says}), loc=place, input=None
        )
        for place, says in mistakes
    ]
    return ValidationError.from_exception_data(title, lines)


def _told(error: ValidationError) -> str:
    mistakes = error.errors()
    texts = [
        f"Condition({'.'.join(map(str, detail['loc']))}): {detail['msg']}" for detail in mistakes[:_MOST_TOLD]
    ]
    more = len(mistakes) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")
