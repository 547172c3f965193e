"""`ResiliencePolicy`: the options of a task that an operator may change, as a block with a form in the UI.

The fields are few and simple on purpose. The form shows a simple field where pydantic would describe a choice
between a number and null. A changed field would be a new block schema on every server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from prefect.blocks.core import Block
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, field_validator, model_serializer, model_validator
from pydantic.config import JsonDict

from prefect_resilience.base.policy import nearest, snake_case
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.model import DEFAULT_POLICY as CIRCUIT
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import DEFAULT_RETRY as RETRY
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.tasks.edge.task_options import MOST_RETRIES_BY_POLICY

SLUG = "resilience-policy"
MOST_ATTEMPTS = MOST_RETRIES_BY_POLICY + 1
BACKOFF = cast(Backoff, RETRY.backoff)
EMPTY = "An empty field keeps the value in the task's code."


def _plain(schema: JsonDict) -> None:
    """An optional field in the form's simplest schema: its one type, and empty without a value."""
    schema.pop("default", None)
    for option in cast("list[JsonDict]", schema.pop("anyOf", [])):
        if option.get("type") != "null":
            schema.update(option)


def optional(description: str, by_default: object = None, **bounds: Any) -> Any:
    """A field that keeps the code's value if the block leaves it out. `by_default` is the value if the code
    has none either. The form shows no values of the code, because many tasks may share a block."""
    shown = f"{by_default:g}" if isinstance(by_default, float) else by_default
    default = "" if by_default is None else f", or {shown} by default"
    text = f"{description} Empty: the value in the code{default}."
    return Field(default=None, description=text, json_schema_extra=_plain, **bounds)


class Fields(BaseModel):
    """Some options of a policy. What is left out is not stored; what the form does not show is kept."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    @model_serializer(mode="plain")
    def as_options(self) -> dict[str, Any]:
        """The options with a value, as JSON."""
        values = {
            **{name: getattr(self, name) for name in type(self).model_fields},
            **(self.__pydantic_extra__ or {}),
        }
        plain = {
            name: value.as_options() if isinstance(value, Fields) else value for name, value in values.items()
        }
        return {name: value for name, value in plain.items() if value not in (None, {}, [])}


class BackoffFields(Fields):
    """The delays between attempts, in seconds."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="Backoff")

    kind: Literal["none", "constant", "linear", "exponential", "decorrelated", "schedule"] | None = optional(
        "How the delays grow.", BACKOFF.kind
    )
    initial: float | None = optional("The first delay, in seconds.", BACKOFF.initial, ge=0)
    multiplier: float | None = optional("The factor from one delay to the next.", BACKOFF.multiplier, ge=1)
    maximum: float | None = optional("The longest delay, in seconds.", BACKOFF.maximum, ge=0)
    jitter: float | None = optional(
        "The fraction by which a delay may be shorter or longer.", BACKOFF.jitter, ge=0, le=1
    )
    delays: list[float] | None = optional("For the kind schedule: each delay, in seconds.")


class RetryFields(Fields):
    """When a failed attempt is retried."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="Retry")

    attempts: int | None = optional(
        "The maximum number of attempts, including the first one.",
        RETRY.attempts,
        ge=1,
        le=MOST_ATTEMPTS,
    )
    backoff: BackoffFields = Field(
        default_factory=BackoffFields, description=f"The delays between attempts. {EMPTY}"
    )
    max_elapsed: float | None = optional("No further attempt starts after this many seconds.", ge=0)
    retry_on: list[str] | None = optional(
        "Retry only these errors: categories such as rate_limit, codes such as 503.", "transient errors"
    )
    give_up_on: list[str] | None = optional(
        "Never retry these errors: categories, codes or names of exceptions."
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        """Convert other spellings to these fields. Raises ValueError where `Retry` does."""
        if data is None or isinstance(data, RetryFields):
            return data or {}
        is_form = isinstance(data, Mapping)
        try:
            policy = Retry.model_validate(
                _without_nothing(cast("Mapping[str, Any]", data)) if is_form else data
            )
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return policy.model_dump(mode="json", exclude_unset=True)


class CircuitFields(Fields):
    """When calls are rejected, and for how long."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="Circuit")

    name: str | None = optional(
        "The circuit's name. It may contain the task's parameters, as in llm:{provider}.", min_length=1
    )
    failure_threshold: int | None = optional(
        "Opens after this many failures in a row.", CIRCUIT.failure_threshold, ge=1
    )
    volume_threshold: int | None = optional(
        "Failures in a row count once this many calls are in the window.",
        CIRCUIT.volume_threshold,
        ge=1,
    )
    failure_rate: float | None = optional(
        "Opens when this share of the calls in the window failed.", CIRCUIT.failure_rate, gt=0, le=1
    )
    minimum_calls: int | None = optional(
        "The share counts once this many calls are in the window.", CIRCUIT.minimum_calls, ge=1
    )
    window: str | None = optional(
        "The calls that count: a time such as 60s, or a number of calls.", CIRCUIT.window
    )
    open_for: float | None = optional("Seconds until the first probe.", CIRCUIT.open_for, ge=0)
    open_max: float | None = optional("The longest open period, in seconds.", CIRCUIT.open_max, ge=0)
    success_threshold: int | None = optional(
        "Closes after this many successful probes.", CIRCUIT.success_threshold, ge=1
    )
    probe_calls: int | None = optional(
        "The maximum number of probes among which these must succeed.", "1.5 times as many", ge=1
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if data is None:
            return {}
        if isinstance(data, str):
            return {"name": data}
        if not isinstance(data, Mapping):
            return data
        options = _without_nothing(cast("Mapping[str, Any]", data))
        policy = {name: value for name, value in options.items() if name != "name"}
        # `CircuitPolicy` reports mistakes, and converts numbers that the form left as text.
        for option in policy:
            if snake_case(option) not in CircuitPolicy.model_fields and option != "timeout":
                accepted = ["name", *CircuitPolicy.model_fields]
                raise ValueError(f"a circuit has no option {option!r}{nearest(option, accepted)}")
        checked = CircuitPolicy(**policy).model_dump(mode="json", exclude_unset=True)
        if "window" in checked:
            checked["window"] = str(checked["window"])
        return {**checked, "name": options["name"]} if "name" in options else checked


class ResiliencePolicy(Block):
    """The options of a task with `@resilient_task(policy="...")`, which can be changed while workers run.

    A value here overrides the value in the code, option by option; an option without a value keeps the value
    in the code. Running workers pick up a change within 30 seconds.

    Attributes:
        retry: Options of `Retry`: attempts, backoff (delays in seconds), max_elapsed, retry_on, give_up_on.
        circuit: Options of `CircuitPolicy`, and the circuit's name. Needs a name if the code has no circuit.
        timeout: Seconds that one attempt may take.
        deadline: Seconds for the whole call, with its delays and fallbacks.
        fallback: The names of fallbacks among the task's own `fallback=`, in order. Empty: all of them.

    Example:
        >>> block_id = ResiliencePolicy(retry={"attempts": 5}).save("llm-default", overwrite=True)

    Raises pydantic's ValidationError for invalid values, with one sentence for each mistake.
    """

    _block_type_name: ClassVar[str | None] = "Resilience Policy"
    _block_type_slug: ClassVar[str | None] = SLUG
    _logo_url: ClassVar[HttpUrl | None] = None
    _description: ClassVar[str | None] = (
        "Retries, circuit, timeout and fallbacks of resilient tasks. Running workers pick up a change."
    )

    retry: RetryFields = Field(
        default_factory=RetryFields, description=f"When a failed attempt is retried. {EMPTY}"
    )
    circuit: CircuitFields = Field(
        default_factory=CircuitFields, description=f"When calls are rejected, and for how long. {EMPTY}"
    )
    timeout: float | None = optional("The longest time that one attempt may take, in seconds.", gt=0)
    deadline: float | None = optional(
        "The longest time for all attempts, delays and fallbacks together, in seconds.", gt=0
    )
    fallback: list[Annotated[str, Field(min_length=1)]] | None = optional(
        "The names of fallbacks among the task's own, in order."
    )

    @field_validator("fallback", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @classmethod
    def checksum(cls) -> str:
        """The checksum of its schema, by which a server identifies the schema."""
        return cls._calculate_schema_checksum()

    def as_options(self) -> dict[str, Any]:
        """The options with a value, as JSON; options that are left to the code are missing."""
        options = self.model_dump(include={"retry", "circuit", "timeout", "deadline", "fallback"})
        return {name: value for name, value in options.items() if value}


def _without_nothing(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the fields that a form left empty."""
    filled: dict[str, Any] = {}
    for name, value in options.items():
        inner = _without_nothing(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        if isinstance(value, Backoff) or inner not in (None, {}, [], ""):
            filled[name] = inner
    return filled
