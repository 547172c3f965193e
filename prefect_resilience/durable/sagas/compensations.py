"""Compensations: their records, and the report of a rollback.

A record has the function and its arguments, so that any process can call it later.

{"call": {"module", "qualname", "file"}, "verify": the same or None, "parameters": {name: JSON}}

Only the parameters that the two functions name are recorded. They are recorded before the call: an effect
that could not be compensated is not sent.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import TypeAdapter

from prefect_resilience.base.naming import MAIN
from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact

# Dead letters encode parameters. Their package is large, so it is imported only when needed.
if TYPE_CHECKING:
    from prefect_resilience.durable.effects.policy import Effect
    from prefect_resilience.durable.letters.codec import Reader
    from prefect_resilience.durable.letters.kinds import Finder

RECALLED = ("result", "external_id")
"""What a compensation gets from the effect itself, in addition to the parameters."""

Record = dict[str, Any]
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


# -- at decoration


def check_compensation(compensate: Callable[..., Any], primary: Callable[..., Any]) -> None:
    """Raise ConfigurationError if another process could not find or call the compensation."""
    _source_of(compensate, being_loaded=True)
    wanted = list(inspect.signature(compensate).parameters.values())
    check_parameters(f"compensate={name_of(compensate)}", wanted, primary, RECALLED)


def check_parameters(
    option: str, wanted: Iterable[inspect.Parameter], primary: Callable[..., Any], also: Iterable[str] = ()
) -> None:
    """Raise ConfigurationError if a function needs a parameter that neither `primary` nor `also` has."""
    parameters = inspect.signature(primary).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    names = [*parameters, *also]
    for param in wanted:
        if param.default is param.empty and param.kind not in _VARIADIC and param.name not in names:
            raise ConfigurationError(
                f"{option} needs {param.name!r}, which {name_of(primary)!r} does not have"
                f"{nearest(param.name, names)}"
            )


def named_by(
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


def _source_of(function: Callable[..., Any], *, being_loaded: bool = False) -> dict[str, Any]:
    """Where the function is imported from. `being_loaded`: its module may not be complete yet."""
    from prefect_resilience.durable.letters.kinds import bound_name

    name = name_of(function)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    qualname = getattr(function, "__qualname__", None)
    if module is None or not isinstance(qualname, str):
        raise _not_found(name, "it has no name of its own")
    if "<" in qualname:
        raise _not_found(name, f"{qualname} cannot be imported")
    bound = bound_name(module, function, qualname, _is)
    if bound is None and not (being_loaded and _is_being_loaded(module)):
        raise _not_found(name, f"{module.__name__}:{qualname} is another object")
    file = getattr(module, "__file__", None)
    return {"module": module.__name__, "qualname": bound or qualname, "file": file}


def _not_found(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"compensate={name} cannot be found by another process: {why}; write a function, or a task, at the "
        f"top of a module"
    )


def _is_being_loaded(module: Any) -> bool:
    # A script that runs as __main__ has no such mark; its compensation is checked again before the call.
    return module.__name__ in MAIN or bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _is(found: Any, function: Any) -> bool:
    # Each look-up of a classmethod gives a new, equal object.
    return found is function or (inspect.ismethod(function) and found == function)


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or repr(function))


# -- before the call


def recorded_compensation(effect: Effect, parameters: Mapping[str, Any]) -> Record:
    """The part of an intent for its compensation. Raises ConfigurationError: then nothing may be sent."""
    if effect.compensates is not None:
        return {"compensates": effect.compensates}
    assert effect.compensate is not None
    from prefect_resilience.durable.letters.codec import encode_parameters

    named = inspect.signature(effect.compensate).parameters
    verify_parameters = {} if effect.verify is None else named_by(effect.verify, parameters)
    encoded = encode_parameters({**named_by(effect.compensate, parameters), **verify_parameters})
    missing = {left_out.path.split(".")[0].split("[")[0]: left_out for left_out in encoded.left_out}
    for name, left_out in missing.items():
        if name in named:
            raise ConfigurationError(
                f"nothing was sent: compensate={name_of(effect.compensate)} needs {name!r}, which cannot be "
                f"recorded ({left_out.path}: {left_out.why}); let the compensation look it up"
            )
    verify = effect.verify
    if verify is not None and missing.keys() & inspect.signature(verify).parameters.keys():
        verify = None
    compensation = {
        "call": _source_of(effect.compensate),
        "verify": _source_of_verify(verify),
        "parameters": {name: value for name, value in encoded.parameters.items() if name not in missing},
    }
    return {"compensation": compensation}


def _source_of_verify(verify: Callable[..., Any] | None) -> dict[str, Any] | None:
    """Where `verify` is imported from; None if no import finds it: only the task's own runs can call it."""
    try:
        return None if verify is None else _source_of(verify)
    except ConfigurationError:
        return None


def with_result(packed: Record, value: Any) -> Record:
    """A packed result, readable without the function that returned it."""
    if packed["as"] in ("json", "told"):
        return packed
    from prefect_resilience.durable.letters.codec import encode_parameters

    return {**packed, "recalled": encode_parameters({"result": value}).parameters["result"]}


# -- at the rollback


def compensation_of(document: Mapping[str, Any]) -> str | None:
    """The compensation of a recorded effect, as "module:name"."""
    recorded = document.get("compensation")
    return None if recorded is None else f"{recorded['call']['module']}:{recorded['call']['qualname']}"


def find(source: Mapping[str, Any], finder: Finder) -> Callable[..., Any]:
    """The recorded function. Raises DeadLetterError, or any error of its module."""
    from prefect_resilience.durable.letters.kinds import Source

    return finder.subject(Source(**source), "")


def reader_of(document: Mapping[str, Any], finder: Finder, load_block: Callable[[str], Any]) -> Reader:
    """A reader of an effect's recorded values; it finds their classes where the compensation is."""
    from prefect_resilience.durable.letters.codec import Reader
    from prefect_resilience.durable.letters.kinds import Source

    call = Source(**document["compensation"]["call"])
    return Reader(find_module=finder.modules_of(call), load_block=load_block)


def recalled(document: Mapping[str, Any], function: Callable[..., Any], reader: Reader) -> dict[str, Any]:
    """The arguments that a compensation names: recorded parameters, `result` and `external_id`.

    Raises DeadLetterError for a value that cannot be read, LookupError for a result that was not kept.
    """
    named = inspect.signature(function).parameters
    arguments = reader.parameters(named_by(function, document["compensation"]["parameters"]))
    if "external_id" in named:
        arguments["external_id"] = document["external_id"]
    if "result" in named:
        arguments["result"] = _result_of(document["result"], reader, function)
    return arguments


def verify_arguments(
    document: Mapping[str, Any], verify: Callable[..., Any], reader: Reader
) -> dict[str, Any]:
    """The recorded parameters that a `verify` names after the key."""
    parameters = document["compensation"]["parameters"]
    return reader.parameters(named_by(verify, parameters, beside_first=True))


def _result_of(packed: Record, reader: Reader, function: Callable[..., Any]) -> Any:
    if packed["as"] == "json":
        return packed["value"]
    if packed["as"] == "told":
        return _as_annotated(packed["value"], function)
    if "recalled" not in packed:
        raise LookupError("its result was recorded in a form that cannot be read here")
    value = reader.value(packed["recalled"], "result")
    if reader.missing:
        raise LookupError(f"its result was not recorded completely ({reader.missing[0].why})")
    return value


def _as_annotated(value: Any, function: Callable[..., Any]) -> Any:
    """JSON that a person gave as the result, converted to the compensation's annotation."""
    try:
        wanted = typing.get_type_hints(getattr(function, "fn", function), include_extras=True).get("result")
        return value if wanted is None or value is None else TypeAdapter(wanted).validate_python(value)
    except Exception:  # noqa: BLE001 - the user's types may raise anything; then JSON is passed
        return value


def positional(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Named arguments, split into positional-only and keyword arguments."""
    named = inspect.signature(function).parameters
    first: Iterable[str] = [
        name for name, param in named.items() if param.kind is param.POSITIONAL_ONLY and name in arguments
    ]
    return [arguments[name] for name in first], {
        name: value for name, value in arguments.items() if name not in first
    }


# -- the report of a rollback


@dataclass(frozen=True, slots=True)
class Compensation:
    """One effect of a batch that was rolled back.

    `function` is its compensation, as "module:name"; None if it has none. `why` is an error or a note.
    `generation` is one more than the number of times that it was compensated.
    """

    key: str
    task: str | None
    function: str | None
    external_id: str | None
    generation: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """The outcome of a rollback; each list is in the order of work.

    compensated: compensated now. already: compensated by an earlier rollback, even an interrupted one.
    failed: the compensation raised, or could not be called: a person must act.
    in_doubt: the outcome of the effect, or of its compensation, is unknown: a person must act.
    skipped: done without a compensation, or with one that a person gave up: it stays done.
    """

    batch_id: str
    to: str | None
    compensated: tuple[Compensation, ...] = ()
    already: tuple[Compensation, ...] = ()
    failed: tuple[Compensation, ...] = ()
    in_doubt: tuple[Compensation, ...] = ()
    skipped: tuple[Compensation, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The number of effects in each list."""
        return {how: len(getattr(self, how)) for how in _SAID}

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a person to do. Skipped effects do not count."""
        return not self.failed and not self.in_doubt

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {_SAID[how]}" for how, count in self.counts.items() if count)
        where = "" if self.to is None else f" to {self.to!r}"
        return f"batch {self.batch_id!r} rolled back{where}: {counts or 'nothing to compensate'}"


_SAID = {
    "compensated": "compensated",
    "already": "already compensated",
    "failed": "failed",
    "in_doubt": "in doubt",
    "skipped": "without a compensation",
}


def compensation_entry(effect: Mapping[str, Any], why: str = "") -> Compensation:
    """An effect as an entry of a report."""
    return Compensation(
        key=effect["key"],
        task=effect.get("task"),
        function=compensation_of(effect),
        external_id=effect["external_id"],
        generation=effect.get("generation", 1),
        why=redact(why),
    )


KEYS_SHOWN = 3
NotUndoneHow = Literal["failed", "in_doubt", "skipped"]


@dataclass(frozen=True, slots=True)
class NotUndone:
    """An effect that a rollback does not compensate.

    how: "skipped" (it stays done), "failed" (its compensation failed) or "in_doubt" (outcome unknown).
    """

    key: str
    how: NotUndoneHow
    why: str


def not_undone(report: RollbackReport) -> tuple[NotUndone, ...]:
    """The effects that the rollback did not compensate, with the reasons."""
    return tuple(
        NotUndone(row.key, how, row.why) for how in get_args(NotUndoneHow) for row in getattr(report, how)
    )


def in_words(report: RollbackReport, *, planned: bool = False) -> str:
    """What a rollback compensated, or would compensate, and what not, as one phrase."""
    yes, no = ("to compensate", "not to compensate") if planned else ("compensated", "not compensated")
    undone = [repr(compensation.key) for compensation in (*report.already, *report.compensated)]
    stays = [f"{effect.key!r} ({effect.why})" for effect in not_undone(report)]
    if not undone and not stays:
        return "there is nothing to compensate"
    rest = f"; {no}: {named_some(stays)}" if stays else ""
    return f"{yes}: {named_some(undone) or 'nothing'}{rest}"


def why_it_stays(effect: Mapping[str, Any]) -> str:
    """Why no rollback compensates an effect that is done."""
    held: dict[str, Any] | None = effect.get("compensation")
    return "it has no compensation" if held is None else f"its compensation was given up ({held['given_up']})"


def named_some(items: Sequence[str]) -> str:
    more = len(items) - KEYS_SHOWN
    return ", ".join(items[:KEYS_SHOWN]) + (f" and {more} more" if more > 0 else "")
