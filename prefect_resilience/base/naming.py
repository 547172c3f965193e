"""Names that are templates over a task's parameters: "llm:{provider}", "http:{config.host}"."""

from __future__ import annotations

import hashlib
import inspect
import re
import string
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import collect_secrets, is_secret_name, mask_forms

LONGEST = 200
MAIN = frozenset({"__main__", "__mp_main__"})
"""The names of the main module: in its own process, and in one that `multiprocessing` spawns, such as a run
of a served flow."""
LOADED_BY_PREFECT = "__prefect_loader_"


def is_of_process(module: str) -> bool:
    """Whether another process has this module under another name, so that only its file identifies it."""
    return module in MAIN or module.startswith(LOADED_BY_PREFECT)


def template_fields(name: str, what: str) -> tuple[str, ...]:
    """The parameters that `name` needs, each once, in their order; "{config.host}" needs `config`.

    Raises ConfigurationError for an empty name, a field without a name, and braces that do not match. Its
    message calls the named thing `what`, such as "circuit".
    """
    if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f'a {what} needs a name, such as "payments", not {name!r}')
    fields: dict[str, None] = {}
    try:
        parts = list(string.Formatter().parse(name))
    except ValueError:
        raise ConfigurationError(
            f"the braces in the {what} name {name!r} do not match: write {{parameter}} for a parameter "
            "and {{ }} for braces"
        ) from None
    for _, field, _, _ in parts:
        if field is None:
            continue
        first = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not first.isidentifier():
            raise ConfigurationError(
                f"{{{field}}} in the {what} name {name!r} is not a parameter: write {{parameter}}"
            )
        fields[first] = None
    return tuple(fields)


def fill(name: str, parameters: Mapping[str, Any], what: str) -> str:
    """`name` with its fields filled in, at most LONGEST characters (a longer one ends in a digest).

    A secret in a field is replaced by a mask and a digest, except in a batch's name. Raises
    ConfigurationError when a parameter is missing or has no such attribute or item.
    """
    # A batch keeps the name that older versions gave it: under another one its effects would be sent again.
    formatter = string.Formatter() if what == "batch" else _SafeFormatter()
    return shorten(fill_with(formatter, name, parameters, what))


class _SafeFormatter(string.Formatter):
    """Names are visible everywhere: a secret in a field becomes a digest, the same in every process."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        resolved: tuple[Any, Any] = super().get_field(field_name, args, kwargs)
        value, first = resolved
        secrets = collect_secrets(value) if callable(getattr(value, "get_secret_value", None)) else []
        if isinstance(value, str) and any(map(is_secret_name, re.split(r"[.\[\]]+", field_name))):
            secrets.append(value)
        return (_hidden(secrets[0]), first) if secrets else resolved

    def format_field(self, value: Any, format_spec: str) -> str:
        text: str = super().format_field(value, format_spec)
        return _mask_field(text)


@lru_cache(maxsize=1_000)
def _mask_field(text: str) -> str:
    """A field's text; if it has a secret in it, such as the password in a URL, masked and with a digest."""
    beginning = text[: 20 * LONGEST]
    clean = mask_forms(beginning)
    return text if clean == beginning else f"{clean[:LONGEST]}~{_hidden(text)}"


def _hidden(secret: str) -> str:
    key = b"prefect_resilience: a secret in a name"
    return f"hidden-{hashlib.blake2b(secret.encode(errors='replace'), key=key).hexdigest()[:16]}"


def fill_with(formatter: string.Formatter, name: str, parameters: Mapping[str, Any], what: str) -> str:
    """`name` with its fields filled in by `formatter`, of any length. Raises the same errors as `fill`."""
    try:
        return formatter.vformat(name, (), parameters)
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything
        missing = [field for field in template_fields(name, what) if field not in parameters]
        why = f"unknown parameter {missing[0]!r}" if missing else f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"the {what} name {name!r} cannot be filled in: {why}") from None


def shorten(name: str) -> str:
    """`name` if it is short enough for a key in every store, else its beginning and a digest of the whole."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 17]}~{digest(name)}"


UNPRINTABLE = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""Control characters and lone surrogates, for a character class."""


def storable(name: str) -> str:
    """`name`, shortened, for the key of every store: control characters and lone surrogates are escaped.

    Every other name stays as it is. The digest keeps an escaped name apart from one with a backslash.

    Example:
        >>> print(storable("a\\x00b"), storable("llm:primary"))
        a\\x00b~59b271ae1bbcb1d3 llm:primary
    """
    clean = re.sub(f"[{UNPRINTABLE}]", lambda found: found[0].encode("unicode_escape").decode(), name)
    return shorten(name) if clean == name else f"{clean[: LONGEST - 17]}~{digest(name)}"


def digest(name: str) -> str:
    """16 hexadecimal digits of the SHA-256 of a name."""
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]


F = TypeVar("F", bound=Callable[..., Any])


class _Unset:
    """The value of an option that the caller did not give."""

    def __repr__(self) -> str:
        return "unset"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


def shows(options: type, defaults: Mapping[str, Any], *likes: Callable[..., Any]) -> Callable[[F], F]:
    """Decorate a function that takes `**options` so that its signature has them by name.

    `options` is the TypedDict of our own options, which come first, with their `defaults`. Prefect's options
    follow: the parameters of the `likes` after the first one. The first of the `likes` that has an option
    determines its default.
    """

    def decorate(fn: F) -> F:
        signature = inspect.signature(fn)
        own = [option for option in signature.parameters.values() if option.kind is not option.VAR_KEYWORD]
        keyword = inspect.Parameter.KEYWORD_ONLY
        shown = {
            name: inspect.Parameter(name, keyword, default=default, annotation=_annotation_of(options, name))
            for name, default in defaults.items()
        }
        for like in likes:
            for parameter in [*inspect.signature(like).parameters.values()][1:]:
                shown.setdefault(parameter.name, parameter.replace(kind=keyword))
        setattr(fn, "__signature__", signature.replace(parameters=[*own, *shown.values()]))  # noqa: B010
        return fn

    return decorate


def _annotation_of(options: type, name: str) -> Any:
    """An option's type, or its name if only type checkers load the type."""
    annotation = options.__annotations__[name]
    return getattr(annotation, "__forward_arg__", annotation)


def more_options(kind: type, resilient: type) -> list[str]:
    """The options of `with_options` in the first class of `kind`'s MRO that is not `resilient`."""
    bases: tuple[Any, ...] = kind.__mro__
    plain = next(base for base in bases if not issubclass(base, resilient))
    return [name for name in inspect.signature(plain.with_options).parameters if name != "self"]
