"""Compensations: their records, and the report of a rollback.

A record has the function and its arguments, so that any process can call it later.

{"call": {"module", "qualname", "file"}, "parameters": {name: JSON}}

Only the parameters that the function names are recorded. They are recorded before the call: an effect
that could not be compensated is not sent.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from prefect_resilience.base.policy import arguments_of, check_parameters, name_of, names_without_default
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact

# Dead letters encode parameters. Their package is large, so it is imported only when needed.
if TYPE_CHECKING:
    from prefect_resilience.durable.effects.policy import Effect
    from prefect_resilience.durable.letters.codec import Reader

RECALLED = ("result", "external_id")
"""What a compensation gets from the effect itself, in addition to the parameters."""

Record = dict[str, Any]


# -- at decoration


def check_compensation(compensate: Callable[..., Any], primary: Callable[..., Any]) -> None:
    """Raise ConfigurationError if a rollback could not call the compensation."""
    wanted = list(inspect.signature(compensate).parameters.values())
    for param in wanted:
        if param.kind is param.POSITIONAL_ONLY:
            raise ConfigurationError(
                f"compensate={name_of(compensate)} must take {param.name!r} by name: remove the `/`"
            )
    names = names_without_default(wanted)
    check_parameters(f"compensate={name_of(compensate)} needs", names, primary, RECALLED)


def _source_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Where the function is imported from. Raises ConfigurationError if another process could not find it."""
    from prefect_resilience.durable.letters.kinds import attribute_at, source_of

    source = source_of(function)
    if source is None or not _is(attribute_at(sys.modules[source.module], source.qualname), function):
        raise ConfigurationError(
            f"nothing was sent: compensate={name_of(function)} cannot be found by another process: write a "
            f"function, or a task, at the top of a module"
        )
    return source.model_dump()


def _is(found: Any, function: Any) -> bool:
    # Each look-up of a classmethod gives a new, equal object.
    return found is function or (inspect.ismethod(function) and found == function)


# -- before the call


def record_compensation(effect: Effect, parameters: Mapping[str, Any]) -> Record:
    """The part of an intent for its compensation. Raises ConfigurationError: then nothing may be sent."""
    if effect.compensates is not None:
        return {"compensates": effect.compensates}
    assert effect.compensate is not None
    from prefect_resilience.durable.letters.codec import encode_parameters

    named = inspect.signature(effect.compensate).parameters
    encoded = encode_parameters(arguments_of(effect.compensate, parameters))
    missing = {left_out.path.split(".")[0].split("[")[0]: left_out for left_out in encoded.left_out}
    for name, left_out in missing.items():
        if name in named:
            raise ConfigurationError(
                f"nothing was sent: compensate={name_of(effect.compensate)} needs {name!r}, which cannot be "
                f"recorded ({left_out.path}: {left_out.why}); let the compensation look it up"
            )
    recorded = {name: value for name, value in encoded.parameters.items() if name not in missing}
    return {"compensation": {"call": _source_of(effect.compensate), "parameters": recorded}}


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


def compensation_arguments(
    document: Mapping[str, Any], function: Callable[..., Any], reader: Reader
) -> dict[str, Any]:
    """The arguments that a compensation names: recorded parameters, `result` and `external_id`.

    Raises DeadLetterError for a value that cannot be read, LookupError for a result that was not kept.
    """
    named = inspect.signature(function).parameters
    arguments = reader.parameters(arguments_of(function, document["compensation"]["parameters"]))
    if "external_id" in named:
        arguments["external_id"] = document["external_id"]
    if "result" in named:
        arguments["result"] = _result_of(document["result"], reader)
    return arguments


def _result_of(packed: Record, reader: Reader) -> Any:
    if packed["as"] in ("json", "told"):
        return packed["value"]
    if "recalled" not in packed:
        raise LookupError("its result was recorded in a form that cannot be read here")
    value = reader.value(packed["recalled"], "result")
    if reader.missing:
        raise LookupError(f"its result was not recorded completely ({reader.missing[0].why})")
    return value


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
        return {how: len(getattr(self, how)) for how in _OUTCOMES}

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a person to do. Skipped effects do not count."""
        return not self.failed and not self.in_doubt

    def __str__(self) -> str:
        where = "" if self.to is None else f" to {self.to!r}"
        return f"batch {self.batch_id!r} rolled back{where}: {in_words(self)}"


_OUTCOMES = ("compensated", "already", "failed", "in_doubt", "skipped")


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
    rest = f"; {no}: {first_names(stays)}" if stays else ""
    return f"{yes}: {first_names(undone) or 'nothing'}{rest}"


def why_it_stays(effect: Mapping[str, Any]) -> str:
    """Why no rollback compensates an effect that is done."""
    held: dict[str, Any] | None = effect.get("compensation")
    return "it has no compensation" if held is None else f"its compensation was given up ({held['given_up']})"


def why_in_doubt(effect: Mapping[str, Any]) -> str:
    """Why a rollback leaves an effect with an unknown outcome to a person."""
    cause = effect["error"] or {"code": "INTERRUPTED", "message": "nothing is known about the call"}
    asks = "the next run of the batch calls verify" if effect.get("verify") else "there is no verify to ask"
    return f"its outcome is unknown ({cause['code']}: {cause['message']}); {asks}"


def first_names(items: Sequence[str]) -> str:
    more = len(items) - KEYS_SHOWN
    return ", ".join(items[:KEYS_SHOWN]) + (f" and {more} more" if more > 0 else "")
