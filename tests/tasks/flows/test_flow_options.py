"""What a resilient flow takes, and that it stays the Prefect flow that it is."""

import inspect

import cloudpickle
import pytest
from prefect import Flow, flow
from prefect.flows import InfrastructureBoundFlow, bind_flow_to_infrastructure
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from prefect_resilience import Backoff, ConfigurationError, RecoveryPolicy, ResilientFlow, resilient_flow
from prefect_resilience.tasks.edge.ending import Ending


def month(n: int, name: str = "x") -> str:
    """Do a month.

    Args:
        n: Which one.
    """
    return f"{n}-{name}"


def note(flow, flow_run, state) -> None:
    return None


def test_it_is_a_flow_with_the_users_own_parameters():
    plain, ours = flow(month), resilient_flow(month)
    assert isinstance(ours, ResilientFlow)
    assert isinstance(ours, Flow)
    assert ours.name == "month"
    assert ours.parameters == plain.parameters
    assert parameter_schema(ours) == parameter_schema(plain)
    assert parameter_schema(ours.fn) == parameter_schema(plain.fn)
    assert inspect.signature(ours.fn) == inspect.signature(month)
    assert (ours.description, ours.version, ours._entrypoint) == (
        plain.description,
        plain.version,
        plain._entrypoint,
    )
    assert ours.fn(1) == "1-x"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retires": 2}, "a resilient flow has no option 'retires'; did you mean 'retries'?"),
        ({"recovery": "later"}, "recovery='later' is not a recovery"),
        ({"recovery": {"attempts": -1}}, "RecoveryPolicy(attempts=-1)"),
        ({"batch": "b-{m}"}, "batch 'b-{m}' names 'm', which is not a parameter of 'month'"),
        ({"batch": ""}, "a batch needs a name"),
        ({"summary": "no"}, "summary='no' is not a boolean"),
    ],
)
def test_mistakes_are_told_at_decoration(options, said):
    with pytest.raises(ConfigurationError) as raised:
        resilient_flow(**options)(month)
    assert said in str(raised.value)


def test_what_is_a_flow_already_is_wrapped():
    with pytest.raises(ConfigurationError, match="is already a flow"):
        resilient_flow(flow(month))
    with pytest.raises(ConfigurationError, match="is already resilient"):
        ResilientFlow.wrap(resilient_flow(month))
    with pytest.raises(ConfigurationError, match="needs a Prefect flow"):
        ResilientFlow.wrap(month)
    with pytest.raises(ConfigurationError, match="takes no 'retries'"):
        ResilientFlow.wrap(flow(month), retries=2)


def test_wrapping_leaves_the_flow_as_it_is():
    plain = flow(name="m", on_failure=[note], retries=3)(month)
    ours = ResilientFlow.wrap(plain, batch="b-{n}")
    assert plain.on_failure_hooks == [note]
    assert plain.fn is month
    assert (ours.name, ours.retries, ours.guard.batch) == ("m", 3, "b-{n}")
    assert ours.on_failure_hooks[0] is note


def hooks_of(made: Flow) -> list[list[str]]:
    groups = (
        made.on_completion_hooks,
        made.on_failure_hooks,
        made.on_crashed_hooks,
        made.on_cancellation_hooks,
    )
    return [[hook.__name__ for hook in hooks] for hooks in groups]


def test_the_users_hooks_come_first():
    ours = resilient_flow(on_failure=[note], on_completion=[note])(month)
    assert hooks_of(ours) == [
        ["note", "run_summary"],
        ["note", "run_summary"],
        ["run_summary"],
        ["run_summary"],
    ]
    assert hooks_of(resilient_flow(summary=False)(month)) == [["run_summary"]] * 4
    assert hooks_of(resilient_flow(summary=False, recovery=None)(month)) == [[], [], [], []]


def test_with_options_keeps_what_is_not_written():
    ours = resilient_flow(batch="b-{n}", recovery="auto", on_failure=[note])(month)
    other = ours.with_options(name="other", retries=2, summary=False)
    assert isinstance(other, ResilientFlow)
    assert (other.name, other.retries, other.guard.batch) == ("other", 2, "b-{n}")
    assert other.guard.ending.policy == RecoveryPolicy()
    assert hooks_of(other) == [["run_summary"], ["note", "run_summary"], ["run_summary"], ["run_summary"]]
    assert hooks_of(ours)[0] == ["run_summary"]
    back = other.with_options(recovery=None, batch=None, on_failure=[])
    assert hooks_of(back) == [[], ["note"], [], []]
    assert back.guard.batch is None
    with pytest.raises(ConfigurationError, match="no option 'retires'"):
        ours.with_options(retires=1)


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        ("hint", None),
        ("auto", RecoveryPolicy()),
        (RecoveryPolicy(attempts=2), RecoveryPolicy(attempts=2)),
        ({"attempts": 2, "backoff": {"kind": "none"}}, RecoveryPolicy(attempts=2, backoff=Backoff.none())),
    ],
)
def test_recovery_in_its_forms(written, policy):
    ending = resilient_flow(recovery=written)(month).guard.ending
    assert ending.hint
    assert ending.policy == policy
    assert not resilient_flow(recovery=False)(month).guard.ending.hint


def test_it_travels():
    ours = cloudpickle.loads(cloudpickle.dumps(resilient_flow(batch="b-{n}")(month)))
    assert ours.guard.batch == "b-{n}"
    assert any(isinstance(hook, Ending) for hook in ours.on_failure_hooks)
    assert ours.fn(2) == "2-x"
    assert ours.fn.__wrapped__ is ours.guard.fn


def test_flows_for_a_work_pool_stay_of_it():
    bound = bind_flow_to_infrastructure(flow(month), "pool", ProcessWorker, job_variables={"a": 1})
    ours = ResilientFlow.wrap(bound, summary=False)
    assert isinstance(ours, InfrastructureBoundFlow)
    other = ours.with_options(job_variables={"a": 2}, recovery=None)
    assert isinstance(other, ResilientFlow)
    assert isinstance(other, InfrastructureBoundFlow)
    assert (other.work_pool, other.job_variables) == ("pool", {"a": 2})
    assert hooks_of(other) == [[], [], [], []]


def test_switched_off_it_is_a_plain_flow(monkeypatch):
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    ours = resilient_flow(recovery="auto")(month)
    assert ours.fn is month
    assert hooks_of(ours) == [[], [], [], []]
