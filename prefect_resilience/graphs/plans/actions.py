"""Actions: functions and tasks under the names that plans use as `type`, and their parameters.

Nothing here imports Prefect: a task is recognised by its attributes.
"""

from __future__ import annotations

import importlib
import inspect
import json
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from prefect_resilience.base.naming import MAIN
from prefect_resilience.base.plain import shortly
from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.model import Node
from prefect_resilience.graphs.plans.reading.mistakes import Wrong
from prefect_resilience.graphs.plans.templates import texts

F = TypeVar("F", bound=Callable[..., Any])
ERROR = "error"
"""The parameter for the ErrorContext of the failure that led to the node, or None."""

RESERVED = ("return_state", "wait_for")


@dataclass(frozen=True)
class Action:
    """A name and its function or Prefect task."""

    name: str
    target: Callable[..., Any]

    @property
    def is_task(self) -> bool:
        return hasattr(self.target, "submit") and hasattr(self.target, "task_key")

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The user's own function, without its task and decorators."""
        return inspect.unwrap(getattr(self.target, "fn", self.target))

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The names that a node's input may have, `error` included."""
        return parameters_of(self.function)

    @cached_property
    def takes_any(self) -> bool:
        kinds = [parameter.kind for parameter in inspect.signature(self.function).parameters.values()]
        return inspect.Parameter.VAR_KEYWORD in kinds

    @property
    def place(self) -> str:
        """The place of the function: `package.module:function (line 12)`; in a notebook without the line."""
        code = getattr(self.function, "__code__", None)
        line = f" (line {code.co_firstlineno})" if code and self.function.__module__ not in MAIN else ""
        return f"{self.function.__module__}:{_qualname(self.function)}{line}"

    def convert(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs converted to the annotations: JSON becomes a model, a date, an enum.

        Raises ValueError, in one sentence, for a value that does not fit.
        """
        parameters = self.parameters
        return {
            name: parameters[name].convert(value) if name in parameters else value
            for name, value in given.items()
        }


class Actions:
    """Actions by name."""

    def __init__(self, known: Mapping[str, Action] | None = None) -> None:
        self._known: dict[str, Action] = {**(known or {})}

    @classmethod
    def of(cls, given: Actions | Mapping[str, Callable[..., Any]] | Iterable[str] | None = None) -> Actions:
        """The actions from a value of `actions=`.

        None: the actions that `@action` registered. A mapping: its functions, which override registered
        actions. Names of modules, such as ["my_team.actions"]: imported, which registers their `@action`s.
        """
        if given is None:
            return REGISTERED
        if isinstance(given, Actions):
            return given
        if isinstance(given, Mapping):
            own = cls()
            for name, target in cast("Mapping[str, Callable[..., Any]]", given).items():
                own.add(name, target)
            return cls(REGISTERED._known | own._known)
        for module in [given] if isinstance(given, str) else given:
            _import_module(module)
        return REGISTERED

    def add(self, name: str, target: Callable[..., Any]) -> None:
        """Register `target`. Raises ConfigurationError if the name is taken, or an input has no name."""
        action = Action(name, target)
        _check(action)
        earlier = self._known.get(name)
        # Not for a module that was imported again, or a notebook cell that was run again.
        if earlier is not None and earlier.place != action.place:
            raise ConfigurationError(
                f"the action {name!r} is registered twice: as {earlier.place} and as {action.place}; "
                "give one of them another name"
            )
        self._known[name] = action

    def get(self, name: str) -> Action | None:
        """The action of that name, or None."""
        return self._known.get(name)

    def names(self) -> list[str]:
        """Every valid `type` of a node, sorted."""
        return sorted(self._known)

    def mistakes(self, node: Node, /) -> list[Wrong]:
        """The mistakes in a node's type and input, each with its place in the node."""
        action = self.get(node.type)
        if action is None:
            return [(("type",), self._unknown(node.type))]
        return [(("input", *place), says) for place, says in _wrong_input(action, node)]

    def _unknown(self, name: str) -> str:
        if not self.names():
            return (
                f"unknown action {name!r}, because none is registered: write @action({name!r}) above a "
                f"function and import its module, or pass actions={{{name!r}: function}}"
            )
        return f"unknown action {name!r}{nearest(name, self.names())}"


REGISTERED = Actions()
"""The actions of this process, made by `@action`."""


def action(name: str) -> Callable[[F], F]:
    """Register a function, plain or async, or a Prefect task as an action; returns it unchanged.

    The node's `input` fills its parameters; one called `error` gets the ErrorContext of the
    failure that led to the node, or None. Raises ConfigurationError when the name is taken.

    Example:
        >>> @action("shout")
        ... def shout(text: str) -> str:
        ...     return text.upper()
        >>> shout("hello")
        'HELLO'
    """
    if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f'an action needs a name, as in @action("kg_query"), not {name!r}')

    def register(target: F) -> F:
        REGISTERED.add(name, target)
        return target

    return register


def _check(made: Action) -> None:
    if not callable(made.target):
        raise ConfigurationError(
            f"the action {made.name!r} must be a function or a task, not {made.target!r}"
        )
    for name, parameter in inspect.signature(made.function).parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigurationError(
                f"the action {made.name!r} takes {name!r} by position only, but a plan passes inputs by "
                f"name: remove the / in {_qualname(made.function)}"
            )


def _qualname(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


def _import_module(module: object) -> None:
    if not isinstance(module, str):
        raise ConfigurationError(
            f"actions={module!r} is neither a mapping of names to functions nor the name of a module"
        )
    try:
        importlib.import_module(module)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"the module of actions {module!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _wrong_input(found: Action, node: Node) -> Iterator[Wrong]:
    """Inputs that the action does not take, that it misses, and literals that do not fit."""
    for name in node.input:
        if found.takes_any and name in RESERVED:
            says = "is an option of Prefect's tasks, and cannot be an input: write another name"
            yield (name,), f"{name!r} {says}"
        elif not found.takes_any and name not in found.parameters:
            names = [option for option in found.parameters if option != ERROR]
            near = nearest(name, names) if names else ", which has no inputs"
            yield (name,), f"{name!r} is not an input of {found.name!r}{near}"
    offered = {*node.input, ERROR, *([node.map.item] if node.map else ())}
    for name, parameter in found.parameters.items():
        if parameter.required and name not in offered:
            yield (), f"{found.name!r} needs {name!r}: write it in the input"
    for name, value in node.input.items():
        parameter = found.parameters.get(name)
        if parameter is not None and not any(texts(value)) and (why := parameter.refuses(value)):
            yield (name,), why


# -- the parameters of an action: types, defaults, and checks of written values

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
