"""Keys of effects, and the recipes that say what they were made of; the same in every process, for ever."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from pydantic import Secret, SecretBytes, SecretStr

from prefect_resilience.base.naming import filled_with, shorten
from prefect_resilience.durable.effects.encoding import Hasher, canonical, digest, loose, typed
from prefect_resilience.durable.effects.policy import BATCH_FIELD, Effect
from prefect_resilience.durable.effects.recipes import Recipe
from prefect_resilience.errors.exceptions import ConfigurationError

SHORT = 8
"""Bytes of the digest of one argument."""


@dataclass(frozen=True, slots=True)
class MadeKey:
    """The key of one effect, and what it was made of."""

    key: str
    recipe: Recipe


def effect_key(
    effect: Effect,
    task: str,
    parameters: Mapping[str, Any],
    batch_id: str,
    *,
    fn: Callable[..., Any] | None = None,
    hasher: Hasher,
) -> MadeKey:
    """The key of one effect: printable ASCII without spaces at its ends, fit for an HTTP header.

    Without a template it is a digest of the task's dotted name and of the arguments with their types;
    arguments that equal their defaults do not count. `task` names the function, `fn` is it: its signature
    tells the defaults. Raises ConfigurationError when a field cannot be filled in, and where without a
    template an argument has no value of its own.
    """
    names = list(inspect.signature(fn).parameters) if fn is not None else list(parameters)
    defaults = _defaults(fn)
    fields = frozenset(effect.fields)
    args = {
        name: _argument(value, name in defaults and _is(value, defaults[name]), name in fields, hasher)
        for name, value in parameters.items()
    }
    recipe: Recipe = {
        "task": task,
        "scope": effect.scope,
        "template": effect.key,
        "names": names,
        "args": args,
    }
    if effect.key is not None:
        given = {BATCH_FIELD: batch_id, **parameters}
        filled = filled_with(_Escaping(effect.key, hasher), effect.key, given, "effect key")
        return MadeKey(shorten(_printable(filled)), recipe)
    return MadeKey(_digest_key(effect, task, parameters, batch_id, args, hasher), recipe)


def _digest_key(
    effect: Effect,
    task: str,
    parameters: Mapping[str, Any],
    batch_id: str,
    args: Mapping[str, Mapping[str, Any]],
    hasher: Hasher,
) -> str:
    scope = f"{effect.scope}:" if effect.scope else ""
    given: list[Any] = []
    for name in sorted(parameters):
        if args[name].get("default"):
            continue
        try:
            given.append([name, typed(parameters[name], hasher)])
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"the effect of {task!r} has no key: its parameter {name!r} is {error}; "
                f'write a key over the others, such as Effect(key="{task}:{{id}}")'
            ) from None
    return f"{shorten(_printable(scope + task))}:{digest([batch_id, scope, task, given])}"


def _argument(value: Any, is_default: bool, in_key: bool, hasher: Hasher) -> dict[str, Any]:
    """One argument of a recipe."""
    said: dict[str, Any] = {"type": type(value).__name__, "typed": None, "loose": None}
    for name, encode in (("typed", typed), ("loose", loose)):
        try:
            said[name] = digest(encode(value, hasher), SHORT)
        except (TypeError, ValueError, RecursionError):
            continue
    if is_default:
        said["default"] = True
    if in_key:
        said["key"] = True
    return said


def _defaults(fn: Callable[..., Any] | None) -> dict[str, Any]:
    """The defaults that do not count: those of a function made by another one are its own."""
    if fn is None or "<locals>" in getattr(fn, "__qualname__", ""):
        return {}
    given = inspect.signature(fn).parameters
    return {name: one.default for name, one in given.items() if one.default is not one.empty}


def _is(value: Any, default: Any) -> bool:
    try:
        return value is default or (type(value) is type(default) and bool(value == default))
    except Exception:  # noqa: BLE001 - the user's types may compare as they like
        return False


class _Escaping(string.Formatter):
    """Fills a template in. The punctuation that separates its fields is escaped in their values."""

    def __init__(self, template: str, hasher: Hasher) -> None:
        literal = "".join(text for text, *_ in string.Formatter().parse(template))
        self._special = re.compile("[" + re.escape("".join(sorted({*literal, "%"} - _WORD))) + "]")
        self._hasher = hasher

    def convert_field(self, value: Any, conversion: Any) -> Any:
        # The text of a secret is asterisks, whatever the secret is.
        if isinstance(value, SecretStr | SecretBytes | Secret):
            return cast("Any", value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, SecretStr | SecretBytes | Secret):
            secret: Any = cast("Any", value).get_secret_value()
            return self._hasher(canonical(typed(secret, self._hasher)))[:32]
        return self._special.sub(_percent, cast("str", super().format_field(value, format_spec)))


_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")


def _percent(found: re.Match[str]) -> str:
    return (
        quote(found[0], safe="", errors="surrogatepass") if found[0] not in "-~" else f"%{ord(found[0]):02X}"
    )


def _printable(text: str) -> str:
    """Whatever a header cannot carry, percent-encoded; distinct texts stay distinct."""
    return (
        text
        if _fits(text)
        else quote(text, errors="surrogatepass", safe="!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~%")
    )


_fits = re.compile(r"[!-$&-~%]*").fullmatch
