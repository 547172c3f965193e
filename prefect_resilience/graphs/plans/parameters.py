"""The parameters of an action: types, defaults, and checks of written values."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from prefect_resilience.base.plain import shortly

JSON_TYPES = (
    *(Any, object, str, int, float, bool, None, type(None), inspect.Parameter.empty),
    *(list, dict, Mapping, Sequence),
)
"""Values of these types are passed on unchanged."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an action."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @cached_property
    def adapter(self) -> TypeAdapter[Any] | None:
        """Validates values; None if pydantic cannot use the annotation."""
        if self.annotation is inspect.Parameter.empty or isinstance(self.annotation, str):
            return None
        try:
            return TypeAdapter(self.annotation)
        except (PydanticUserError, TypeError, NameError):
            return None

    @cached_property
    def is_json(self) -> bool:
        return _is_json(self.annotation)

    def refuses(self, value: Any) -> str:
        """Why a literal value does not fit, in one sentence; "" if it fits."""
        if self.adapter is None:
            return ""
        try:
            # Checked as JSON, where a text may be a date, but "5" is not a number.
            try:
                text = json.dumps(value)
            except (TypeError, ValueError):  # given in Python
                self.adapter.validate_python(value)
            else:
                self.adapter.validate_json(text, strict=True)
        except ValidationError as error:
            return self._sentence(error, value)
        return ""

    def convert(self, value: Any) -> Any:
        """The value converted to the annotation; JSON types are unchanged. Raises ValueError."""
        if self.is_json or self.adapter is None:
            return value
        try:
            return self.adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(self._sentence(error, value)) from None

    def _sentence(self, error: ValidationError, value: Any) -> str:
        first = error.errors(include_url=False)[0]
        inside = "".join(f"[{part!r}]" for part in first["loc"])
        says = first["msg"][0].lower() + first["msg"][1:]
        kind = inspect.formatannotation(self.annotation).replace("typing.", "")
        shown = shortly(value, 80)
        return f"{self.name}={shown} is not a valid {kind}: {inside + ': ' if inside else ''}{says}"


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a function that can be given by name, in their order."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: Parameter(name, _evaluate(parameter.annotation, function), parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in named
    }


def _evaluate(annotation: Any, function: Callable[..., Any]) -> Any:
    """A string annotation evaluated; unchanged if its names cannot be resolved."""
    if not isinstance(annotation, str):
        return annotation
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return eval(annotation, names)
    except Exception:  # noqa: BLE001 - a local name, or one that only type checkers import
        return annotation


def _is_json(annotation: Any) -> bool:
    """Whether the type, with all its type arguments, consists of JSON types."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, list, dict, Mapping, Sequence):
        return all(_is_json(argument) for argument in get_args(annotation))
    return isinstance(annotation, str) or any(annotation is kind for kind in JSON_TYPES)
