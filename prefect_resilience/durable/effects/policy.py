"""Effect: the policy of a task with side effects, and the answers of a `verify`."""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from pydantic import Field, TypeAdapter, field_validator

from prefect_resilience.base.naming import template_fields
from prefect_resilience.base.policy import (
    Policy,
    arguments_of,
    check_parameters,
    name_of,
    names_without_default,
    refuse_async,
)
from prefect_resilience.durable.sagas.compensations import check_compensation
from prefect_resilience.errors.exceptions import ConfigurationError

EffectKind = Literal["idempotent", "conditional", "external"]
BATCH_FIELD = "batch_id"
"""A key's template may use this field in addition to the parameters."""


@dataclass(frozen=True, slots=True)
class Done:
    """The effect took place: the answer of a `verify`, or returned by an effect to record the receiver's id.

    `result` is the result for the caller of the task, `external_id` the receiver's id.
    """

    result: Any
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class NotDone:
    """The effect did not take place, and no earlier call can still cause it: it may be sent again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The receiver does not know whether the effect took place; a person must decide."""


class Effect(Policy):
    """The side effect of a task.

    kind: "external" is never sent twice: a message, a payment, a write to a foreign system. "conditional" may
        be repeated when its outcome is unknown; a `verify`, if there is one, is asked first: a generation, a
        costly computation. "idempotent" may always be repeated. An effect of any kind that is done in a batch
        is not repeated in that batch: the recorded result is returned.
    key: identifies the effect in the batch: a template over the task's parameters, as in
        "invoice:{order_id}", also over `{batch_id}`. Values are escaped, so that two sets of values never
        give the same key. `idempotency_key()` returns it unchanged, so that a receiver that honours keys
        accepts it once even if two batches send it. Default: a digest of the task's dotted name, its
        arguments with their types (those that equal their defaults do not count) and the batch. A closure, a
        lambda or a method needs a key.
    repeat: for a key that one pass of the code requests twice: "error" raises `RepeatedEffect`, "replay"
        returns the first call's result. A later pass (a retry of the flow, a recovery) always replays.
    was: earlier dotted names of the task, such as "billing.charge", or its current name if the types of its
        arguments changed: a later pass continues with the effects recorded under that name.
    one_request: the author's promise that the function makes one request, without redirects and without
        retries inside. A refused connection or a 4xx then proves that nothing happened. Not needed if an
        httpx client has `send_idempotency_key` as its event hook.
    verify: `verify(key, **parameters)` asks the receiver about an earlier call with an unknown outcome, and
        returns `Done(result, external_id)`, `NotDone()` or `Unknown()`. It gets the parameters that it names.
    compensate: reverses the effect when its batch is rolled back: a function or task at the top of a module,
        so that another process finds it too. It gets `result`, `external_id` and the parameters that it
        names; they are recorded before the call. It is an effect of its own in the ledger. Prefect's cache
        is not used for such a task: a compensated effect must run again.
    scope: a prefix of the default key, so that the same call in two places is two effects.
    max_wait: seconds to wait for another run of the batch that is doing the same effect now, and for a call
        that still runs after its attempt is over.
    """

    kind: EffectKind = "external"
    key: str | None = None
    verify: Callable[..., Any] | None = None
    compensate: Callable[..., Any] | None = None
    scope: str = ""
    one_request: bool = False
    repeat: Literal["error", "replay"] = "error"
    was: tuple[str, ...] = ()
    max_wait: float = Field(default=300.0, ge=0, le=86_400)
    compensates: str | None = Field(default=None, repr=False)
    """Set by a rollback: the key of the effect that this one compensates."""

    @field_validator("key")
    @classmethod
    def _key_can_be_read(cls, key: str | None) -> str | None:
        if key is not None and not key.strip():
            raise ValueError('Effect(key=""): write a template such as "invoice:{order_id}", or leave it out')
        if key is not None:
            template_fields(key, "effect key")
        return key

    @field_validator("was", mode="before")
    @classmethod
    def _names(cls, was: Any) -> Any:
        return () if was is None else (was,) if isinstance(was, str) else was

    @classmethod
    def of(cls, value: Any) -> Effect | None:
        """The Effect of an `effect=` option: an `Effect`, a kind, JSON, or None. Raises ConfigurationError.

        Example:
            >>> Effect.of("external").external
            True
        """
        if value is None or isinstance(value, Effect):
            return value
        if isinstance(value, str):
            return cls(kind=value)  # pyright: ignore[reportArgumentType]
        if isinstance(value, Mapping):
            return cls(**cast("Mapping[str, Any]", value))
        raise ConfigurationError(
            f'effect={value!r} is not an effect: write "external", "conditional", "idempotent" or Effect(...)'
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """The parameters that the key needs."""
        if self.key is None:
            return ()
        return tuple(field for field in template_fields(self.key, "effect key") if field != BATCH_FIELD)

    @property
    def external(self) -> bool:
        """Whether it is never sent twice."""
        return self.kind == "external"

    def verify_arguments(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that `verify` names after the key, or all if it has `**kwargs`."""
        assert self.verify is not None
        return arguments_of(self.verify, parameters, beside_first=True)

    def check_for(self, fn: Callable[..., Any], *, isasync: bool) -> None:
        """Check at decoration that key, `verify` and `compensate` can work. Raises ConfigurationError."""
        # A scope, such as a plan's node, already makes the key unique.
        named = self.key is not None or self.compensates is not None or bool(self.scope)
        if not named and (why := _needs_key(fn)) is not None:
            parameters = [name for name in inspect.signature(fn).parameters if name not in ("self", "cls")]
            field = f"{{{parameters[0]}}}" if parameters else "..."
            name = getattr(fn, "__name__", "effect").strip("<>")
            raise ConfigurationError(
                f'the effect of {name!r} needs a key: {why}; write Effect(key="{name}:{field}")'
            )
        if self.compensate is not None:
            check_compensation(self.compensate, fn)
        if self.verify is None:
            return
        asking = name_of(self.verify)
        if inspect.iscoroutinefunction(self.verify) and not isasync:
            refuse_async(f"verify={asking}", fn)
        wanted = list(inspect.signature(self.verify).parameters.values())
        if not wanted:
            raise ConfigurationError(f"verify={asking} takes no arguments: write def {asking}(key, ...)")
        check_parameters(f"verify={asking} needs", names_without_default(wanted[1:]), fn)


def _needs_key(fn: Callable[..., Any]) -> str | None:
    """Why the function's name and arguments do not identify its effect; None: they do."""
    function: Any = inspect.unwrap(fn)
    name: str = getattr(function, "__qualname__", "")
    if not name or name.endswith("<lambda>"):
        return "it has no name of its own"
    if getattr(function, "__closure__", None):
        inside = ", ".join(repr(variable) for variable in function.__code__.co_freevars[:3])
        return f"it uses {inside} of the enclosing function, which is not in its arguments"
    owner = name.rpartition(".")[0]
    if (
        owner
        and not owner.endswith("<locals>")
        and next(iter(inspect.signature(function).parameters), "") == "self"
    ):
        return "it is a method, so its effect may depend on its object too"
    return None


# The result of an effect as JSON in the ledger, so that a replay returns an equal value.
#
# {"as": "json", "value": ...}     plain JSON
# {"as": "typed", "value": ...}    JSON that the function's return type turns back into the value
# {"as": "stored", "ref": ...}     kept elsewhere: it is not JSON, or too long
# {"as": "told", "value": ...}     JSON that a person gave; the return type turns it into the value
# {"as": "lost", "why": ...}       it could not be kept at all

MOST_BYTES = 1_000_000
"""The longest JSON of a result that is kept in the ledger itself."""

LONGEST_INTEGER = 10**4000

Packed = dict[str, Any]


_declared: WeakKeyDictionary[FunctionType, tuple[tuple[str, ...], dict[str, Any]]] = WeakKeyDictionary()


def names_and_defaults(fn: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The parameters of a function, and its defaults that do not count in a key. A nested function has
    none of these, since its defaults may vary. Reading a signature takes as long as the rest of a key."""
    declared = _declared.get(fn) if type(fn) is FunctionType else None
    if declared is None:
        parameters = inspect.signature(fn).parameters
        own = () if "<locals>" in getattr(fn, "__qualname__", "") else parameters.items()
        defaults = {name: item.default for name, item in own if item.default is not item.empty}
        declared = tuple(parameters), defaults
        if type(fn) is FunctionType:
            _declared[fn] = declared
    return declared


def pack(value: Any, fn: Callable[..., Any] | None = None) -> Packed | None:
    """The value as JSON from which `unpack` makes an equal one; None when there is no such JSON.

    `fn` is the function that returned it: its return type counts.
    """
    if _is_plain(value):
        return _short({"as": "json", "value": value})
    adapter = _adapter(fn)
    if adapter is None:
        return None
    try:
        dumped = adapter.dump_python(value, mode="json", warnings=False)
        back = adapter.validate_python(dumped)
        same = type(back) is type(value) and bool(back == value)
    except Exception:  # noqa: BLE001 - the user's types may raise anything
        return None
    return _short({"as": "typed", "value": dumped}) if same and _is_plain(dumped) else None


def pack_told(value: Any) -> Packed | None:
    """A result that a person gave, packed; None when it is not plain JSON."""
    packed = pack(value)
    return None if packed is None else {**packed, "as": "told"}


def rebuilt(value: Any, fn: Callable[..., Any] | None) -> Any:
    """JSON converted to the function's return type; unchanged if it does not fit, or is not JSON."""
    adapter = _adapter(fn) if _is_plain(value) else None
    try:
        return value if adapter is None or value is None else adapter.validate_python(value)
    except Exception:  # noqa: BLE001 - the user's types may raise anything
        return value


def unpack(packed: Packed, fn: Callable[..., Any] | None = None) -> Any:
    """The value of a result with a "value". LookupError if the function's type does not fit, or is gone.

    A value that a person gave is returned unchanged if there is no return type, or if it is None.
    """
    if packed["as"] == "json":
        return packed["value"]
    adapter = _adapter(fn)
    if packed["as"] == "told" and (adapter is None or packed["value"] is None):
        return packed["value"]
    if adapter is None:
        raise LookupError("the function no longer has a return type that can rebuild it")
    try:
        return adapter.validate_python(packed["value"])
    except Exception as error:
        raise LookupError(f"it no longer fits the function's return type: {error}") from error


def shown(packed: Packed | None) -> Any:
    """A result for operators: its JSON, or None."""
    return None if packed is None else packed.get("value")


def _short(packed: Packed) -> Packed | None:
    text = json.dumps(packed["value"], ensure_ascii=False, allow_nan=False)
    return packed if len(text.encode("utf-8", "surrogatepass")) <= MOST_BYTES else None


def _is_plain(value: Any, depth: int = 200) -> bool:
    """Whether the value survives JSON unchanged: no tuples, no subclasses, only string keys."""
    kind = cast("type[Any]", type(value))
    if value is None or kind in (bool, str):
        return True
    if kind is int:
        return -LONGEST_INTEGER < value < LONGEST_INTEGER
    if kind is float:
        return math.isfinite(value)
    if depth and kind is list:
        return all(_is_plain(item, depth - 1) for item in value)
    if depth and kind is dict:
        items = cast("dict[Any, Any]", value).items()
        return all(type(name) is str and _is_plain(item, depth - 1) for name, item in items)
    return False


def _adapter(fn: Callable[..., Any] | None) -> TypeAdapter[Any] | None:
    """The adapter of the function's return type, or None."""
    return _adapter_of(fn) if isinstance(fn, Hashable) else None


@lru_cache(maxsize=1_000)
def _adapter_of(fn: Callable[..., Any] | None) -> TypeAdapter[Any] | None:
    try:
        wanted = typing.get_type_hints(fn, include_extras=True)["return"] if fn else Any
        return None if wanted in (Any, None, type(None), Done) else TypeAdapter(wanted)
    except Exception:  # noqa: BLE001 - hints that cannot be read count as none
        return None
