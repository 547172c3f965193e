"""CircuitBreaker: the handle for users. The registry of each process holds its state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from inspect import signature
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from prefect_resilience.base.drive import Blocking, Invoke, Steps
from prefect_resilience.base.durations import Duration
from prefect_resilience.base.naming import LONGEST, fill, storable, template_fields
from prefect_resilience.base.outcomes import PLAIN, is_coroutine_function, require_result
from prefect_resilience.base.policy import in_one_sentence
from prefect_resilience.base.wrapping import Guarding
from prefect_resilience.errors.exceptions import CircuitOpenError, ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards import faults
from prefect_resilience.guards.circuits import machine, registry
from prefect_resilience.guards.circuits.circuit import Circuit, PendingAdmission
from prefect_resilience.guards.circuits.link import PREFIX
from prefect_resilience.guards.circuits.model import (
    CircuitPolicy,
    CircuitSnapshot,
    CircuitState,
    circuit_policy,
    moment_of,
)
from prefect_resilience.guards.circuits.view import Permit, snapshot_of

if TYPE_CHECKING:
    from prefect_resilience.errors.taxonomy import ErrorInfo

T = TypeVar("T")

BOUND_KEPT = 2048
"""Of a template: a breaker is found by its name, and by texts of parameters."""

_TEXTS = frozenset({str})


class CircuitBreaker(Guarding):
    """Guards calls to one service for a whole fleet; `CircuitPolicy` documents the parameters.

    `name` may be a template over a task's parameters, as in "llm:{provider}". `store` is None for the
    configured one, a URL, or a store. The same name in the same store is the same circuit: a second
    breaker with an equal policy shares its state, one with another policy raises ConfigurationError.

    It can be pickled: it carries its name, policy and store URL. Raises ConfigurationError.
    """

    _kind: ClassVar[str] = "breaker"

    @in_one_sentence
    def __init__(
        self,
        name: str,
        failure_threshold: int = 5,
        failure_rate: float = 0.5,
        minimum_calls: int = 10,
        window: int | str | timedelta = "60s",
        slow_call: Duration | None = None,
        slow_rate: float = 1.0,
        open_for: Duration = 30,
        open_backoff: float = 2.0,
        open_max: Duration = 600,
        success_threshold: int = 2,
        probes: int = 1,
        probe_lease: Duration = 60,
        counts: Iterable[str | type[BaseException]] | None = None,
        sync_interval: Duration = 0.5,
        store: registry.StoreReference = None,
        adaptive: bool = False,
        failure_rate_floor: float = 0.1,
        baseline_memory: Duration = 3600,
        probe_calls: int | None = None,
        volume_threshold: int = 1,
    ) -> None:
        if isinstance(failure_threshold, CircuitPolicy):
            raise ConfigurationError(
                f"CircuitBreaker({name!r}, ...) takes options: with a CircuitPolicy write "
                f"CircuitBreaker.from_policy({name!r}, policy)"
            )
        if not isinstance(cast("Any", name), str):
            raise ConfigurationError(f"CircuitBreaker({name!r}): write the circuit's name first, as in 'llm'")
        written = locals()
        options = {key: written[key] for key, default in _defaults().items() if written[key] is not default}
        self._prepare(name, circuit_policy(name, options), store, literal=False)

    @classmethod
    def from_policy(
        cls, name: str, policy: CircuitPolicy, store: registry.StoreReference = None, *, apart: bool = False
    ) -> CircuitBreaker:
        """A breaker with a policy that was read from JSON or a block.

        `apart`: an operator chose the policy; the code may use the same circuit with another policy.
        """
        return cls.__new__(cls)._prepare(name, policy, store, literal=False, apart=apart)

    def beside(self, policy: CircuitPolicy, name: str | None = None) -> CircuitBreaker:
        """A breaker with an operator's policy, for this circuit or another one of the same store."""
        literal = name is None and not self._fields
        return remake(name or self.name, policy, self._store, literal, apart=True)

    def _prepare(
        self,
        name: str,
        policy: CircuitPolicy,
        store: registry.StoreReference,
        literal: bool,
        apart: bool = False,
    ) -> Self:
        fields = () if literal else template_fields(name, "circuit")
        # A name without fields may still have doubled braces; `format` turns them into single ones.
        self.name: str = name if fields else storable(name if literal else name.format())
        self._fields = fields
        self.policy = policy
        self._store = store
        self._bound: OrderedDict[str | tuple[Any, ...], CircuitBreaker] = OrderedDict()
        # A template is never called. Declaring it checks that breakers of the same name have equal policies.
        self._apart = apart
        self._declare()
        return self

    def _declare(self) -> Circuit:
        self._circuit = registry.declare(self.name, self.policy, self._store, self._apart)
        self._shown = self._circuit.shown
        return self._circuit

    # -- templates

    @property
    def fields(self) -> tuple[str, ...]:
        """The parameters that the name needs."""
        return self._fields

    def bind(self, parameters: Mapping[str, Any]) -> CircuitBreaker:
        """The breaker of the name with these parameters filled in; this breaker if the name has no fields.

        Raises ConfigurationError when a parameter is missing, or when that name has another policy.
        """
        if not self._fields:
            return self
        # Texts determine the name. This is on the path of every call, so each name is made only once.
        values: tuple[Any, ...] = tuple(map(parameters.get, self._fields))
        texts = _TEXTS.issuperset(map(type, values))
        bound = self._bound.get(values) if texts else None
        if bound is None:
            name = fill(self.name, parameters, "circuit")
            bound = self._bound.get(name) or remake(name, self.policy, self._store, apart=self._apart)
            self._bound[name] = bound
            if texts and sum(map(len, values)) <= LONGEST:
                self._bound[values] = bound
            while len(self._bound) > BOUND_KEPT:
                self._bound.popitem(last=False)
        return bound

    def _current(self) -> Circuit:
        """The circuit of this process; raises ConfigurationError if the name has unfilled fields."""
        if self._fields:
            raise ConfigurationError(
                f"the circuit name {self.name!r} is a template: call "
                f".bind({{{self._fields[0]!r}: ...}}) first, or decorate a function that has the parameter"
            )
        return self._declare() if self._shown.retired else self._circuit

    # -- guarding calls

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call `fn(*args, **kwargs)`, or raise CircuitOpenError when the circuit is open.

        Exceptions of `fn` propagate unchanged. For an async function use `acall`.

        Example:
            >>> CircuitBreaker("labels").call(str.upper, "found")
            'FOUND'
        """
        # Hot path for a closed circuit: no lock, no store, no allocation. Even a `cast` would be measurable.
        result: Any
        until, successes, permit = self._shown.fresh
        if monotonic() < until and not faults.active:
            try:
                # Unpacking an empty dictionary would cost an eighth of the time of this path.
                result = fn(*args, **kwargs) if kwargs else fn(*args)
            except BaseException as error:
                self._current().end(permit, error)
                raise
        else:
            view = self._shown.view
            if view.refused and monotonic() < view.until and not self._shown.retired:
                raise self._circuit.refusal(view)  # here, without a driver and its generators
            return super().call(fn, *args, **kwargs)
        if type(result) not in PLAIN:
            try:
                require_result(result, fn)
            except Exception as error:  # noqa: BLE001 - an awaitable, or a failed state
                self._current().end(permit, error)
                return self._hand_over(error, result, fn, args, kwargs)
        next(successes)
        return result

    def _around(self, invoke: Invoke) -> Steps[Any]:
        return super()._around(faults.around(invoke, is_coroutine_function(invoke.fn), self.name))

    def acquire(self, patience: float = 0.0) -> Steps[tuple[Permit, float]]:
        """Enter a block, for the drivers: the permit, and the `monotonic()` time when it was granted.

        With patience, in seconds, a call waits while another call probes. An open circuit rejects it at once.
        """
        until = monotonic() + patience
        while True:
            try:
                return (yield from self._acquire_once())
            except CircuitOpenError:
                if not self._current().shown.is_changing(until):
                    raise
            yield from self._current().shown.wait_for_change(until)

    def _acquire_once(self) -> Steps[tuple[Permit, float]]:
        circuit = self._current()
        if (permit := circuit.admit()) is not None:
            return permit, monotonic()
        # If the caller is cancelled while a thread asks the store, that thread gives back the lease it gets.
        pending = PendingAdmission(circuit)
        try:
            return (yield Blocking(pending.ask)), monotonic()
        except BaseException:
            pending.abandon()
            raise

    def finish(
        self,
        ticket: tuple[Permit, float],
        error: BaseException | None = None,
        *,
        info: ErrorInfo | None = None,
        took: float | None = None,
    ) -> Steps[None]:
        """Leave a block, for the drivers; counts the outcome."""
        permit, began = ticket
        circuit = self._current()
        if circuit.settle(permit, error, info, monotonic() - began if took is None else took):
            yield from circuit.flush_after(error)

    def enter_at_once(self) -> tuple[Permit, float] | None:
        """As `acquire`, if the circuit is closed and this process has just seen it; None if it is not so."""
        until, _, permit = self._shown.fresh
        now = monotonic()
        return (permit, now) if now < until else None

    def leave_at_once(self, ticket: tuple[Permit, float]) -> bool:
        """Count a success after `enter_at_once`; True when `flush` is due."""
        permit, began = ticket
        until, successes, fresh = self._shown.fresh
        now = monotonic()
        if fresh is permit and now < until:
            next(successes)
            return False
        return self._current().settle(permit, duration=now - began)

    def flush(self) -> None:
        """Merge the counted outcomes into the store (which may block). Never raises."""
        self._current().flush()

    # -- state and commands

    def record_success(self, duration: float | None = None) -> bool:
        """Count a successful call that was made elsewhere; `duration` in seconds identifies slow calls.

        Returns False and counts nothing while the circuit rejects calls. In half-open the call counts as
        a probe. May block for the store.
        """
        return self._record(None, duration)

    def record_failure(self, error: BaseException, duration: float | None = None) -> bool:
        """Count a failed call that was made elsewhere, as the policy judges `error`."""
        return self._record(error, duration)

    def _record(self, error: BaseException | None, duration: float | None) -> bool:
        circuit = self._current()
        try:
            permit = circuit.admit() or circuit.ask()
        except CircuitOpenError:
            return False
        circuit.end(permit, error, duration)
        return True

    @property
    def state(self) -> CircuitState:
        """The state that a call would meet now; asks the store only when this process's view is old."""
        return self._current().snapshot(ask=False).state

    def snapshot(self) -> CircuitSnapshot:
        """The current snapshot of the circuit, from the store when it answers."""
        return self._current().snapshot(ask=True)

    def force_open(
        self, reason: str = "forced open", until: float | str | datetime | timedelta | None = None
    ) -> None:
        """Reject every call of the fleet until `until`: seconds since the epoch, a time, or a span ("10m").

        Then a probe decides; without `until` the circuit stays open until another command. Raises
        StoreUnavailable, and changes nothing, when the store cannot be written; so do the other commands.
        """
        circuit = self._current()
        if until is not None:
            circuit.refresh()  # the store's clock counts
        circuit.command(machine.Force("forced_open", redact(reason), moment_of(until, circuit.link.now())))

    def force_closed(self, reason: str = "closed manually") -> None:
        """Close the circuit for the fleet and empty its windows; it can open again as usual."""
        self._current().command(machine.Force("closed", redact(reason)))

    def disable(self, reason: str = "disabled") -> None:
        """Let every call of the fleet through and count nothing, until `reset` or `force_closed`."""
        self._current().command(machine.Force("disabled", redact(reason)))

    def reset(self, reason: str = "reset") -> None:
        """Return to the initial state for the fleet: closed, windows empty, re-openings forgotten."""
        self._current().command(machine.Reset(redact(reason)))

    def __reduce__(self) -> tuple[Any, ...]:
        store = self._store if isinstance(self._store, str | None) else self._store.url
        return remake, (self.name, self.policy, store, not self._fields, self._apart)

    def __repr__(self) -> str:
        return f"CircuitBreaker({self.name!r})"


def remake(
    name: str,
    policy: CircuitPolicy,
    store: registry.StoreReference,
    literal: bool = True,
    apart: bool = False,
) -> CircuitBreaker:
    """Build a breaker from its parts, for example from those in a pickle."""
    breaker = CircuitBreaker.__new__(CircuitBreaker)
    return breaker._prepare(name, policy, store, literal, apart)  # pyright: ignore[reportPrivateUsage]


@cache
def _defaults() -> dict[str, Any]:
    parameters = signature(CircuitBreaker.__init__).parameters
    return {name: parameters[name].default for name in CircuitPolicy.model_fields}


# -- the circuits of a whole fleet, as their store knows them


def get_circuit(name: str, store: registry.StoreReference = None) -> CircuitBreaker:
    """The breaker of this name: as this process declared it, else one with the default policy.

    `name` is taken literally, as in a snapshot: it is not a template.
    """
    circuit = registry.circuit_in_use(name, store)
    policy = circuit.policy if circuit is not None else circuit_policy(name, {})
    return remake(name, policy, store)


def get_circuits(store: registry.StoreReference = None) -> list[CircuitSnapshot]:
    """Every circuit in the store, by name. Raises StoreUnavailable when the store does not answer.

    Example:
        >>> CircuitBreaker("labels").force_open("maintenance")
        >>> [(circuit.name, circuit.state) for circuit in get_circuits()]
        [('labels', 'forced_open')]
    """
    registry.flush_all()
    documents, now = registry.read_documents(PREFIX, store)
    return [
        snapshot_of(key.removeprefix(PREFIX), machine.read(value), now) for key, value in documents.items()
    ]


def reset_all_circuits(store: registry.StoreReference = None) -> int:
    """Reset every circuit in the store and return their number. Raises StoreUnavailable.

    Example:
        >>> CircuitBreaker("labels").force_open("maintenance")
        >>> reset_all_circuits()
        1
    """
    snapshots = get_circuits(store)
    for snapshot in snapshots:
        get_circuit(snapshot.name, store).reset()
    return len(snapshots)
