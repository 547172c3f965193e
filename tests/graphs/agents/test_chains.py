"""Chains of agents and providers in runs: who answered, what the UI shows, who is told."""

from __future__ import annotations

import asyncio
import inspect

import httpx
import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client

from prefect_resilience import (
    AgentChain,
    Backoff,
    CircuitBreaker,
    ConfigurationError,
    ErrorContext,
    Person,
    ProviderChain,
    Retry,
    agent,
    error_context,
    get_circuits,
    provider,
    resilient,
    resilient_task,
)
from prefect_resilience.graphs.agents.edge.registry import AGENTS
from prefect_resilience.graphs.agents.edge.registry import PROVIDERS as REGISTERED_PROVIDERS
from tests.graphs.agents.answering import in_flow

TWICE = Retry(attempts=2, backoff=Backoff.none())


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(AGENTS, "_known", {})
    monkeypatch.setattr(REGISTERED_PROVIDERS, "_known", {})


def asked(mode, chain, *args):
    """One call of the chain in a flow: its result or its error."""
    ask = chain.acall if mode.isasync else chain.call
    return in_flow(mode, lambda: ask(*args), return_state=True).result(raise_on_failure=False)


def runs_of(flow_run_id):
    with get_client(sync_client=True) as client:
        body = {"flow_runs": {"id": {"any_": [flow_run_id]}}}
        return client.request("POST", "/task_runs/filter", json=body).json()


@pytest.mark.api
def test_the_first_agent_answers_and_nobody_else_is_asked(mode):
    agents = {
        "builder": mode.function(lambda spec: spec.upper()),
        "simple": mode.function(lambda spec: 1 / 0),
    }
    result = asked(mode, AgentChain("builder", ["simple"], agents=agents), "hut")
    assert (result.value, result.answered_by, result.degraded) == ("HUT", "builder", False)
    assert (result.attempts, result.errors) == ({"builder": 1}, {})


@pytest.mark.smoke
@pytest.mark.requirement("003.13")
@pytest.mark.api
def test_from_the_able_to_the_simple_each_in_a_run_of_its_own(mode, service, get, seen, until):
    service.says(503)

    @agent("builder", retry=TWICE)
    def build(spec):
        return get()

    @agent("builder-quick", retry=None)
    def quick(spec, error: ErrorContext):
        raise LookupError(f"not after {error.code}")

    def simple(spec):
        return f"simple {spec}"

    AGENTS._known = {}
    agents = {
        "builder": mode.task(build, retry=TWICE),
        "builder-quick": mode.function(quick),
        "builder-simple": mode.function(simple),
    }
    chain = AgentChain("builder", ["builder-quick", "builder-simple"], agents=agents)
    result = asked(mode, chain, "hut")
    assert (result.value, result.answered_by) == ("simple hut", "builder-simple")
    assert result.attempts == {"builder": 2, "builder-quick": 1, "builder-simple": 1}
    assert {name: error.code for name, error in result.errors.items()} == {
        "builder": "503",
        "builder-quick": "LookupError",
    }
    assert len(service.calls) == 2
    flow_run_id = result.errors["builder"].flow_run_id
    runs = until(lambda: (found := runs_of(flow_run_id)) and len(found) == 3 and found)
    by_name = {run["name"].rpartition("-")[0]: run["id"] for run in runs}
    states = {name: seen.task_run(run).state for name, run in by_name.items()}
    assert {name: state.name for name, state in states.items()} == {
        "builder": "Fallback",
        "builder-quick": "Failed",
        "builder-simple": "Completed",
    }
    assert states["builder"].message.startswith("Fallback 'builder-simple' used after 2 attempts: 503")
    ours = {by_name["builder"]}
    [used] = seen.events(
        "prefect-resilience.fallback.used", lambda event: event["payload"].get("task_run_id") in ours
    )
    assert used["payload"]["to"] == "builder-simple"


@pytest.mark.requirement("003.10", "003.31")
@pytest.mark.api
def test_each_agent_has_its_own_circuit_which_every_chain_shares(mode, service, get):
    service.says(503)

    def build(spec):
        return get()

    agents = {"builder": mode.task(build, retry=None), "simple": mode.function(lambda spec: "simple")}
    for _ in range(6):
        result = asked(mode, AgentChain("builder", ["simple"], agents=agents), "hut")
        assert result.value == "simple"
    assert len(service.calls) == 5, "the sixth call was rejected"
    assert result.errors["builder"].category == "circuit_open"
    assert result.attempts == {"builder": 0, "simple": 1}
    states = {snapshot.name: snapshot.state for snapshot in get_circuits()}
    assert states["agent:builder"] == "open"
    assert states.get("agent:simple", "closed") == "closed"


@pytest.mark.requirement("003.11")
@pytest.mark.api
def test_when_nobody_answers_the_first_error_is_raised_and_people_are_told(mode):
    told = []

    def build(spec):
        raise ConnectionRefusedError("no builder; password=hunter2secret")

    def simple(spec):
        raise ValueError("too hard")

    agents = {"builder": mode.task(build, retry=None), "simple": mode.function(simple)}
    error = asked(mode, AgentChain("builder", ["simple"], agents=agents, notify=told.append), "hut")
    assert isinstance(error, ConnectionRefusedError)
    notes = "\n".join(error.__notes__)
    assert "fallback 'simple' failed: ValueError('too hard')" in notes
    assert "no step of the chain builder -> simple answered" in notes
    context = error_context(error)
    [notice] = told
    assert notice.subject == "builder: no step answered"
    assert "- simple: ValueError unexpected: too hard" in notice.body
    assert "hunter2secret" not in notice.body
    assert context.flow_run_id in notice.url


@pytest.mark.api
def test_a_notification_that_fails_hides_nothing(mode):
    def refuses(notice):
        raise OSError("no network either")

    def build(spec):
        raise ConnectionRefusedError("no builder")

    agents = {"builder": mode.task(build, retry=None)}
    error = asked(mode, AgentChain("builder", agents=agents, notify=refuses), "hut")
    assert isinstance(error, ConnectionRefusedError)
    assert any("the notification failed: OSError" in note for note in error.__notes__)


@pytest.mark.api
def test_providers_in_the_order_that_was_written(mode, service, get, tmp_path):
    def claude(prompt):
        return get()

    def openai(prompt):
        return get() and "openai"

    degraded = "The assistant is not available at the moment."
    chain = ProviderChain(
        "llm",
        {"claude": mode.task(claude, retry=None), "openai": mode.task(openai, retry=None)},
        last_known_good=3600,
        degraded=degraded,
    )
    first, other = f"{tmp_path} one", f"{tmp_path} two"
    service.says(200, 503, 200, 503)
    answers = [asked(mode, chain, prompt) for prompt in (first, first, first, other)]
    assert [answer.answered_by for answer in answers] == ["claude", "openai", "last_known_good", "degraded"]
    assert [answer.degraded for answer in answers] == [False, False, True, True]
    assert [answer.value for answer in answers] == ["{}", "openai", "{}", degraded]
    assert chain.steps == ("claude", "openai", "last_known_good", "degraded")


@pytest.mark.requirement("003.25")
def test_nothing_switches_provider_unless_the_code_said_so():
    called = []

    @provider("claude", retry=None)
    def claude(prompt):
        called.append("claude")
        raise ConnectionError("down")

    @provider("openai")
    def openai(prompt):
        called.append("openai")
        return "from another provider"

    def lone(prompt):
        raise ConnectionError("down")

    alone = [
        (ProviderChain("llm", ["claude"]).call, ["claude"]),
        (ProviderChain("llm", {"mine": resilient_task(lone, retry=None)}).call, []),
        (resilient(retry=None, circuit="provider:claude")(claude), ["claude"]),
    ]
    for call, expected in alone:
        called.clear()
        with pytest.raises(ConnectionError, match="down"):
            call("hello")
        assert called == expected
    degraded = ProviderChain("llm", ["claude"], degraded="later").call("hello")
    assert (degraded.value, degraded.answered_by) == ("later", "degraded")
    assert "openai" not in called
    named = ProviderChain("llm", ["claude", "openai"]).call("hello")
    assert (named.value, named.answered_by) == ("from another provider", "openai")


@pytest.mark.api
def test_a_plain_chain_in_async_code():
    chain = AgentChain("builder", agents={"builder": lambda spec: spec.upper()})

    @flow
    async def scenario():
        return (await chain.acall("hut")).value

    assert asyncio.run(scenario()) == "HUT"


@pytest.mark.api
def test_tasks_keep_their_policies_and_their_other_callers(service):
    service.says(503, 503, 200)

    @task(retries=2, tags=["building"])
    def build(spec):
        return httpx.get(service.url).raise_for_status().status_code

    chain = AgentChain("builder", agents={"builder": build})
    assert asked(type("Sync", (), {"isasync": False}), chain, "hut").attempts == {"builder": 3}
    assert build.name == "build"


@pytest.mark.api
def test_switched_off_the_first_agent_is_a_plain_task(mode, monkeypatch):
    def build(spec):
        raise ConnectionError("down")

    agents = {"builder": mode.function(build), "simple": mode.function(lambda spec: "simple")}
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    error = asked(mode, AgentChain("builder", ["simple"], agents=agents), "hut")
    assert isinstance(error, ConnectionError)


@pytest.mark.api
def test_a_prefect_block_tells_people(mode):
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    heard = []

    class NightShift(CustomWebhookNotificationBlock):
        _block_type_slug = f"night-shift-{mode.name}"

        async def notify(self, body, subject=None):
            heard.append((subject, body))

    def build(spec):
        raise ConnectionError("down")

    block = NightShift(name="x", url="http://127.0.0.1:1")
    agents = {"builder": mode.task(build, retry=None)}
    asked(mode, AgentChain("builder", agents=agents, notify=block), "hut")
    [(subject, body)] = heard
    assert subject == "builder: no step answered"
    assert "ConnectionError" in body or "down" in body


# -- mistakes


def build(spec):
    return spec


async def abuild(spec):
    return spec


def stream(spec):
    yield spec


def test_an_agent_s_own_circuit_may_have_the_usual_name():
    circuit = CircuitBreaker("agent:builder", failure_threshold=1)
    agent("builder", circuit=circuit, retry=None)(build)
    chain = AgentChain("builder")
    assert chain.call("hut").value == "hut"
    assert chain._first.task.guard.circuit is circuit


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: AgentChain("bulder", agents={"builder": build}),
            "unknown agent 'bulder'; did you mean 'builder'?",
        ),
        (lambda: AgentChain("nobody"), "write @agent\\('nobody'\\) above a function"),
        (lambda: AgentChain("a", "bc", agents={"a": build}), r"write \['bc'\]"),
        (lambda: AgentChain("a", ["a"], agents={"a": build}), "has 'a' twice"),
        (lambda: AgentChain("a", [7], agents={"a": build}), "7 is not a step"),
        (lambda: AgentChain("a", agents={"a": 7}), "must be a function or a task"),
        (lambda: AgentChain("a", agents={"a": stream}), "is a generator"),
        (lambda: AgentChain("a", agents={"a": Person()}), "a person can only be the last step"),
        (lambda: AgentChain("a", [Person("p"), "b"], agents={"a": build, "b": build}), "steps after 'p'"),
        (lambda: AgentChain("a", ["b"], agents={"a": build, "b": abuild}), "'b' is async but"),
        (
            lambda: AgentChain("a", ["b"], agents={"a": build, "b": lambda other: 1}),
            "needs the parameter 'other'",
        ),
        (lambda: AgentChain("a", agents={"a": build}, notify=7), "not 7"),
        (lambda: AgentChain("a", agents={"a": abuild}).call("x"), "write await chain.acall"),
        (lambda: agent("x", fallback=build)(build), "does not accept fallback="),
        (lambda: agent("x", retries_=1)(build) and AgentChain("x"), "has no option 'retries_'"),
        (lambda: agent(" ")(build), "write a name"),
        (lambda: Person(""), "needs a name"),
        (lambda: ProviderChain("llm", []), "has no providers"),
    ],
)
def test_mistakes_are_told_at_once(make, says):
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_a_name_is_registered_once():
    assert agent("builder")(build) is build
    agent("builder")(build)
    with pytest.raises(ConfigurationError, match=r"is registered twice: as .*:build and as .*:abuild"):
        agent("builder")(abuild)


def test_a_chain_looks_like_its_first_agent():
    chain = AgentChain("builder", agents={"builder": build})
    assert list(inspect.signature(chain).parameters) == ["spec"]
    assert repr(chain) == "AgentChain(builder)"
    assert chain("hut").value == "hut"


@pytest.mark.api
def test_a_resilient_task_keeps_its_own_fallbacks_before_the_chain_s(mode):
    def build(spec):
        raise ConnectionError("down")

    made = mode.task(build, retry=None, fallback=lambda spec: "its own")
    assert isinstance(made, type(resilient_task(lambda: 1)))
    chain = AgentChain("b", ["c"], agents={"b": made, "c": mode.function(lambda spec: "the chain's")})
    assert asked(mode, chain, "x").value == "its own"
