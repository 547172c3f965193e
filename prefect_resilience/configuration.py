"""The base of every policy: small, frozen, the same in Python, JSON and a block, clear when it is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from prefect_resilience.errors.exceptions import ConfigurationError


class Policy(BaseModel):
    """A frozen model whose mistakes are raised as one sentence in a `ConfigurationError`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(sentence(type(self), error)) from None


def sentence(model: type[BaseModel], error: ValidationError) -> str:
    """The first mistake of a pydantic validation, as one sentence that names its place and the right form."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{model.__name__} has no option {place!r}{nearest(place, known_options(model))}"
    if first["type"] == "value_error":
        text = str(first.get("ctx", {}).get("error", first["msg"]))
        return (
            text
            if text.startswith(model.__name__)
            else f"{model.__name__}({place}): {text}".replace("()", "")
        )
    says = first["msg"][0].lower() + first["msg"][1:]
    return f"{model.__name__}({place}={first['input']!r}): {says}"


def known_options(model: type[BaseModel]) -> list[str]:
    return sorted(model.model_fields)


def nearest(wrong: str, right: Iterable[str]) -> str:
    """`; did you mean 'x'?` or the list of what may be written, to end a sentence with."""
    options = sorted(right)
    close = difflib.get_close_matches(wrong, options, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; write one of {', '.join(options)}"
