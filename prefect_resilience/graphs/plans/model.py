"""The model of a plan: nodes, their dependencies and their routes. `reading` reads it from JSON and YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from prefect_resilience.base.policy import Policy
from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.plans.reading import fields
from prefect_resilience.graphs.plans.reading.mistakes import (
    PARTS,
    Mistake,
    PlanError,
    Wrong,
    mistakes_in,
    sentences_of,
)
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.retries.policy import Retry

if TYPE_CHECKING:
    from prefect_resilience.graphs.plans.result import PlanResult


TriggerRule = Literal["all_settled", "all_success", "any_success", "always"]

Text = Annotated[str, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
NodeId = Annotated[Text, AfterValidator(fields.node_id)]
NodeType = Annotated[Text, AfterValidator(fields.not_blank)]
Names = Annotated[
    tuple[Text, ...], BeforeValidator(fields.names), WithJsonSchema(fields.NAMES_SCHEMA, mode="validation")
]
RetryPolicy = Annotated[
    Retry, BeforeValidator(fields.retry_policy), WithJsonSchema(fields.RETRY_SCHEMA, mode="validation")
]


class CheckedActions(Protocol):
    """Actions that can check a node. The places of the mistakes begin in the node."""

    def mistakes(self, node: Node, /) -> list[Wrong]: ...


class PlanPart(Policy):
    """A part of a plan. All its mistakes are raised at once, as a `PlanError`."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super(Policy, self).__init__(**values)
        except ValidationError as error:
            whole = error.errors()[0].get("ctx", {}).get("error")
            if isinstance(whole, PlanError):  # a plan's nodes were read together
                raise whole from None
            wrong = sentences_of(error, type(self))
            raise PlanError(mistakes_in(wrong, values), type(self).__name__) from None

    # Inside other models pydantic then validates without this __init__, and keeps the place of every mistake.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]


class PlanTransition(PlanPart):
    """A route out of a node. The first one that holds is taken, tried from the lowest `priority` up."""

    to: Text = Field(
        validation_alias=AliasChoices("to", "to_node_id"), description="The id of the node that runs next."
    )
    from_node_id: Text | None = Field(
        default=None, description="The node that it leaves; needed only beside the nodes."
    )
    priority: Whole = Field(
        default=0, description="The lowest is tried first; equal ones in the given order."
    )
    condition: Condition | None = Field(
        default=None, description="Evaluated on the output of this node. Without one, the transition holds."
    )


class FanOut(PlanPart):
    """One branch per item of `over`, a list or a template that gives one; `as` names the item."""

    model_config: ClassVar[ConfigDict] = ConfigDict(populate_by_name=True)

    over: Annotated[Any, AfterValidator(fields.over)] = Field(
        description="A list, or a template that gives one, such as {{load.output.items}}.",
        json_schema_extra={"anyOf": [{"type": "array", "items": {}}, {"type": "string"}]},
    )
    item: Text = Field(
        default="item", alias="as", description="The name of the item in the templates of the input."
    )
    allow_failures: Number = Field(
        default=0, ge=0, description="How many branches may fail: below 1 a share of them, from 1 a number."
    )


class Cache(PlanPart):
    """Keep a node's output for other runs. `ttl` in seconds; `key` a template, by default the whole input."""

    ttl: Number | None = Field(
        default=None, gt=0, description="Seconds for which the output is kept; by default forever."
    )
    key: Text | None = Field(
        default=None, description="A template; runs with the same key share the output. By default the input."
    )


class NodeCircuit(PlanPart, CircuitPolicy):
    """A circuit's name and its options."""

    name: Text = Field(description="The circuit's name, a template over the action's parameters.")


class Execution(PlanPart):
    """How a node is executed: the same as the node's own `timeout_ms` and `retry_policy`."""

    timeout_ms: Number | None = Field(
        default=None, gt=0, description="The timeout of one attempt, in milliseconds."
    )
    retry_policy: RetryPolicy | None = Field(default=None, description="Whether and when to retry.")


_BEFORE_POLICIES = {"backoff": "constant", "initial_delay_ms": 100}
"""The delay of the older field `retries`."""
_CIRCUIT = "a circuit's name, or an object with its name"
_CACHE = "true, false, or an object with ttl and key"


class Node(PlanPart):
    """One step of a plan.

    It runs when the nodes in `depends_on` have settled, by its `trigger_rule`. A node that is a target of
    another node (`on_success`, `on_failure`, `transitions`) or has `handles_error` runs only if it is chosen.
    """

    id: NodeId = Field(description="The node's id, also in templates: letters, digits, _ and -.")
    type: NodeType = Field(
        validation_alias=AliasChoices("type", "kind"), description="The name of the action to run."
    )
    description: Text = Field(default="", description="The purpose of the node.")
    cell_type: Text | None = Field(default=None, description="A label, shown with the node.")
    input: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        validation_alias=AliasChoices("input", "implementation"),
        description="The action's parameters; strings may have templates such as {{kg_query.output.text}}.",
    )
    depends_on: Names = Field(default=(), description="The nodes that must end before this one starts.")
    trigger_rule: TriggerRule = Field(
        default="all_settled",
        description="When the node runs. all_settled: all dependencies have ended and one has a value; "
        "all_success: all succeeded; any_success: one succeeded; always: all have ended.",
    )
    condition: Condition | None = Field(
        default=None, description="Chooses between on_success and on_failure by this node's output."
    )
    on_success: Names = Field(
        default=(), description="The nodes to run if it succeeded and the condition holds."
    )
    on_failure: Names = Field(
        default=(), description="The nodes to run if it failed or the condition does not hold."
    )
    handles_error: Names = Field(default=(), description="The nodes with errors that this node handles.")
    transitions: Annotated[tuple[PlanTransition, ...], BeforeValidator(fields.items)] = Field(
        default=(), description="Routes to other nodes; the first one that holds is taken."
    )
    retry_policy: RetryPolicy | None = Field(default=None, description="Whether and when to retry.")
    retries: Annotated[Whole, Field(ge=0)] | None = Field(
        default=None, description="The older form of retry_policy: retries, each after 0.1 s."
    )
    timeout_ms: Number | None = Field(
        default=None, gt=0, description="The timeout of one attempt, in milliseconds."
    )
    deadline: Number | None = Field(
        default=None, gt=0, description="The seconds for all attempts, delays and fallbacks of the node."
    )
    execution: Execution | None = Field(
        default=None, description="An alternative place for retry_policy and timeout_ms."
    )
    circuit: Annotated[str | NodeCircuit | None, fields.either(NodeCircuit, str, form=_CIRCUIT)] = Field(
        default=None, description="A circuit's name, or an object with its name and its options."
    )
    effect: Annotated[str | dict[str, Any] | None, BeforeValidator(fields.effect)] = Field(
        default=None, description="idempotent, conditional or external, or an object with kind and key."
    )
    cache: Annotated[bool | Cache, fields.either(Cache, bool, form=_CACHE)] = Field(
        default=False, description="true, or an object with ttl and key: keep the output for other runs."
    )
    map: FanOut | None = Field(default=None, description="Run the action once for each item of a list.")

    @property
    def retry(self) -> Retry | None:
        if self.retries is not None:
            return Retry.model_validate({"max_retries": self.retries, **_BEFORE_POLICIES})
        return self.retry_policy or (self.execution.retry_policy if self.execution else None)

    @property
    def timeout(self) -> float | None:
        """Seconds that one attempt may take."""
        written = self.timeout_ms or (self.execution.timeout_ms if self.execution else None)
        return None if written is None else written / 1000

    @property
    def targets(self) -> list[str]:
        """The nodes that it may route to, in the order of its fields, each once."""
        ways = (*self.on_success, *self.on_failure, *(way.to for way in self.transitions))
        return list(dict.fromkeys(ways))

    @property
    def names(self) -> frozenset[str]:
        """Names that templates of the input may use beside nodes: in a fan-out the item and `index`."""
        return frozenset({self.map.item, "index"}) if self.map else frozenset()


@dataclass(frozen=True)
class Inject:
    """Add `nodes` to the plan, with `output` as the output of the node that returns this.

    A new node is a `Node`, or a mapping as in a plan's JSON. New nodes may depend on any node of the plan,
    and route to each other and to conditional nodes that wait. They are checked like a plan: if they have a
    mistake or exceed the plan's bounds, the node that returned this fails.
    """

    nodes: Sequence[Node | Mapping[str, Any]]
    output: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))


class Bounds(PlanPart):
    """Limits on the size and the duration of a run. `seconds` is the timeout of the whole run."""

    nodes: Whole = Field(
        default=100_000,
        ge=1,
        le=1_000_000,
        description="The most nodes, including added ones and all branches.",
    )
    fan_out: Whole = Field(default=10_000, ge=1, le=100_000, description="The most branches of one fan-out.")
    depth: Whole = Field(default=5, ge=0, le=50, description="The most levels of added nodes that add nodes.")
    seconds: Number | None = Field(
        default=None, gt=0, description="The timeout of the whole run, in seconds."
    )


PARTS.update(transitions=PlanTransition, execution=Execution, map=FanOut, cache=Cache)
PARTS.update(bounds=Bounds, circuit=NodeCircuit)


class PlanHead(PlanPart):
    """The fields of a plan other than its nodes."""

    name: Text = Field(default="", description="The plan's name.")
    version: Text = Field(default="", description="The version of the plan, in any notation.")
    description: Text = Field(default="", description="What the plan does.")
    intent: Text = Field(default="", description="The goal of the plan.")
    inputs: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        description="Values for templates such as {{inputs.name}}; a run may override them.",
    )
    bounds: Bounds = Field(default=Bounds(), description="Limits on the size and the duration of a run.")
    transitions: Annotated[tuple[PlanTransition, ...], BeforeValidator(fields.items)] = Field(
        default=(), exclude=True, description="Transitions of nodes, each with its from_node_id."
    )


class Plan(PlanHead):
    """A flow as data. A plan with mistakes is rejected with a `PlanError` that lists all of them."""

    tasks: Annotated[tuple[Node, ...], BeforeValidator(fields.items)] = Field(
        min_length=1, description="The nodes."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls):
            return data
        from prefect_resilience.graphs.plans.reading.reading import read_fields

        return handler(read_fields(data))

    @classmethod
    def from_file(cls, path: str | Path) -> Plan:
        """The plan in a `.json`, `.yaml` or `.yml` file. Raises `PlanError` with every mistake."""
        from prefect_resilience.graphs.plans.reading.reading import read_plan

        return read_plan(Path(path))

    @classmethod
    def from_text(cls, text: str) -> Plan:
        """The plan in a JSON or YAML string. Raises `PlanError` with every mistake.

        Example:
            >>> Plan.from_text("tasks: [{id: hello, type: shout}]").tasks[0].id
            'hello'
        """
        from prefect_resilience.graphs.plans.reading.reading import plan_of_text

        return plan_of_text(text)

    def check(
        self, actions: CheckedActions | None = None, inputs: Mapping[str, Any] | None = None
    ) -> list[Mistake]:
        """The mistakes that keep this plan from running with these actions and inputs.

        Mistakes of the plan itself were raised when it was made.
        """
        from prefect_resilience.graphs.plans.reading.reading import mistakes_of_run

        return mistakes_of_run(self, actions, inputs)

    def to_mermaid(self, result: PlanResult | None = None) -> str:
        """The plan as a mermaid flowchart; with `result`, the outcome of each node too."""
        from prefect_resilience.graphs.plans.picture import plan_to_mermaid

        return plan_to_mermaid(self, result)

    def to_svg(self, result: PlanResult | None = None) -> str:
        """The plan as an SVG document; with `result`, the outcome of each node too."""
        from prefect_resilience.graphs.plans.picture import plan_to_svg

        return plan_to_svg(self, result)
