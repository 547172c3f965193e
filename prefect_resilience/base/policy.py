"""The base of every policy: frozen, the same in Python, JSON and a block, with clear error messages."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from typing_extensions import ParamSpec

from prefect_resilience.base.text import without_comments
from prefect_resilience.errors.exceptions import ConfigurationError

P = ParamSpec("P")


class Policy(BaseModel):
    """A frozen model. An invalid option raises a `ConfigurationError` with one sentence."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True
    )

    by_position: ClassVar[tuple[str, ...]] = ()
    """The options that may be given by position."""

    @model_validator(mode="before")
    @classmethod
    def _in_snake_case(cls, data: Any) -> Any:
        """Options in camel case (`failureThreshold`), as JSON may write them, under their own names."""
        if not isinstance(data, Mapping):
            return data
        written: Mapping[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
        fields = cls.model_fields
        names = {name: name for name in written if name in fields}
        for name in written.keys() - names.keys():
            ours = snake_case(str(name))
            if ours != name and ours in fields:
                if ours in names.values():
                    raise ValueError(f"{cls.__name__} has both {ours!r} and {name!r}: write one of them")
                names[name] = ours
        return {names.get(name, name): value for name, value in written.items()}

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """The policy in a JSON text, which may have comments (`//` and `/* */`)."""
        text = json_data if isinstance(json_data, str) else json_data.decode()
        return super().model_validate_json(without_comments(text), **options)

    def __init__(self, /, *args: Any, **values: Any) -> None:
        try:
            super().__init__(**self._name_arguments(args, values))
        except ValidationError as error:
            raise ConfigurationError(sentence(type(self), error)) from None

    @classmethod
    def _name_arguments(cls, args: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
        named = dict(zip(cls.by_position, args, strict=False))
        if len(args) > len(named) or named.keys() & values.keys():
            first = cls.by_position[0] if cls.by_position else next(iter(cls.model_fields))
            raise ConfigurationError(
                f"{cls.__name__}({', '.join(map(repr, args))}): write the options by their names, as in "
                f"{cls.__name__}({first}={args[0]!r})"
            )
        return {**named, **values}


def snake_case(name: str) -> str:
    """`failure_threshold` for `failureThreshold`."""
    return re.sub("(?<=.)[A-Z]", lambda capital: f"_{capital[0].lower()}", name)


def sentence(model: type[BaseModel], error: ValidationError) -> str:
    """The first mistake of a pydantic validation, as one sentence that names its place and the right form."""
    first = error.errors(include_url=False)[0]
    parts = first["loc"][:-2] if first["loc"][-1:] == ("[key]",) else first["loc"]
    place = ".".join(str(part) for part in parts)
    if first["type"] == "extra_forbidden":
        return f"{model.__name__} has no option {place!r}{nearest(place, sorted(model.model_fields))}"
    if first["type"] == "value_error":
        text = str(first.get("ctx", {}).get("error", first["msg"]))
        return (
            text
            if text.startswith(model.__name__)
            else f"{model.__name__}({place}): {text}".replace("()", "")
        )
    if first["type"] == "missing":
        return f"{model.__name__} needs {place}: write {model.__name__}({place}=...)"
    written = "" if parts is not first["loc"] else f"={first['input']!r}"
    return f"{model.__name__}({place}{written}): {mend(first)}"


_WHOLE = "write a whole number, as in 3"
_MENDS = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": "write a number, as in 0.5",
    "float_parsing": "write a number, as in 0.5",
    "finite_number": "write a finite number, as in 0.5",
    "bool_type": "write True or False",
    "bool_parsing": "write True or False",
    "string_type": 'write a string, as in "name"',
    "dict_type": "write a mapping, as in {{...}}",
    "list_type": "write a list, as in [...]",
    "tuple_type": "write a list, as in [...]",
    "greater_than": "write more than {gt:g}",
    "greater_than_equal": "write at least {ge:g}",
    "less_than": "write less than {lt:g}",
    "less_than_equal": "write at most {le:g}",
}
"""The correction in the message, by pydantic's type of error."""


def mend(error: Any) -> str:
    """What to write instead, for a mistake that pydantic found."""
    details = error.get("ctx", {})
    if error["type"] in {"literal_error", "enum"}:
        names = re.findall(r"'([^']+)'", details["expected"])
        return f"unknown value {error['input']!r}{nearest(str(error['input']), names)}"
    if error["type"] in {"model_type", "model_attributes_type"}:
        return f"write {details.get('class_name', 'its options')}(...) or a mapping of its options"
    if error["type"] in _MENDS:
        return _MENDS[error["type"]].format(**details)
    return error["msg"][0].lower() + error["msg"][1:]


def nearest(wrong: str, right: Iterable[str]) -> str:
    """`; did you mean 'x'?` or the list of all options, as the end of a sentence."""
    options = sorted(right)
    # A part of 2 or 3 names, such as "threshold", may mean any of them.
    close = [option for option in options if wrong and wrong in option]
    close = close if 1 < len(close) < 4 else difflib.get_close_matches(wrong, options, n=1)
    # "circuit-state-change" has the name "circuit" as one of its words.
    close = close or [option for option in options if option in re.split(r"\W+|_", wrong)]
    if not close:
        return f"; write one of {', '.join(options)}"
    return f"; did you mean {' or '.join(repr(option) for option in close)}?"


def closest(wrong: str, right: Sequence[str]) -> str | None:
    """The item of `right` that is most similar to `wrong`; None if none is similar."""
    return next(iter(difflib.get_close_matches(wrong, right, n=1)), None)


def nearest_file(wrong: Path, suffixes: tuple[str, ...]) -> str:
    """`; did you mean 'x.py'?` as the end of a sentence; "" if no file in the folder has a similar name."""
    try:
        with os.scandir(wrong.parent) as entries:
            names = [entry.name for entry in islice(entries, 500) if entry.name.endswith(suffixes)]
    except OSError:
        return ""
    near = closest(wrong.name, names)
    return "" if near is None else f"; did you mean {str(wrong.parent / near)!r}?"


VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def name_of(fn: Any) -> str:
    """The name of a function in messages."""
    return str(getattr(fn, "__name__", None) or repr(fn))


def names_without_default(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """The names of the parameters that a call must give."""
    return [own.name for own in parameters if own.default is own.empty and own.kind not in VARIADIC]


def arguments_of(
    function: Callable[..., Any], given: Mapping[str, Any], *, beside_first: bool = False
) -> dict[str, Any]:
    """The given arguments that a function names, or all if it has `**kwargs`.

    `beside_first`: leaves out the function's first parameter.
    """
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    first = next(iter(parameters), None) if beside_first else None
    return {
        name: value for name, value in given.items() if (takes_all or name in parameters) and name != first
    }


def check_parameters(
    what: str, names: Iterable[str], fn: Callable[..., Any], also: Iterable[str] = ()
) -> None:
    """Raise ConfigurationError for one of `names` that is neither a parameter of `fn` nor in `also`."""
    parameters = inspect.signature(fn).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [*parameters, *also]
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{what} {name!r}, which is not a parameter of {name_of(fn)!r}{nearest(name, known)}"
            )


def refuse_async(what: str, fn: Callable[..., Any]) -> NoReturn:
    """Raise ConfigurationError: `what` is async, and `fn`, which would have to await it, is not."""
    raise ConfigurationError(
        f"{what} is async but {name_of(fn)!r} is not: write the task as `async def`, or use a plain function"
    )


def in_one_sentence(init: Callable[P, None]) -> Callable[P, None]:
    """Wrap an `__init__` so that wrong arguments raise a `ConfigurationError` with one sentence."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def init_or_explain(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigurationError(_misfit(type(args[0]).__name__, signature, kwargs, error)) from None
        init(*args, **kwargs)

    return init_or_explain


def _misfit(name: str, signature: inspect.Signature, written: Mapping[str, Any], error: TypeError) -> str:
    _, *options = signature.parameters
    for option in written:
        if option not in options:
            return f"{name} has no option {option!r}{nearest(option, options)}"
    needed = next(option for option in options)
    return f"{name}: {error}; write {name}({needed}, ...) with the options by their names"
