"""The acceptance scenarios of error recovery for agents, each under its name, on real runs.

The provider is real HTTP, asked through its SDK (see flows/llm_service.py); waits are shorter than in
production, and the defaults that stand in for them are asserted beside.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import anthropic
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterTaskRunId

from flows.llm_providers import ask_anthropic, ask_openai
from flows.llm_service import LLMService
from flows.serving import running
from prefect_resilience import (
    AgentChain,
    Backoff,
    CircuitBreaker,
    CircuitOpenError,
    CircuitPolicy,
    Person,
    ProviderChain,
    Retry,
    classify,
    get_circuits,
    resilient_task,
)
from prefect_resilience.base.edge.current_settings import current_settings
from tests.contexts import context_of

pytestmark = pytest.mark.api

QUICK = Retry(backoff=Backoff.exponential(initial=0.05, jitter=0.2))
"""The default policy, in less time."""


@pytest.fixture(scope="module")
def llm() -> Iterator[tuple[LLMService, str]]:
    service = LLMService()
    with running(service) as address:
        yield service, address


@pytest.fixture
def claude(llm):
    """The provider `anthropic` of the service, with nothing in its script and no calls yet."""
    service, _ = llm
    service.given.clear()
    service.script.clear()
    return service


def circuit_states():
    return {snapshot.name: snapshot.state for snapshot in get_circuits()}


@pytest.mark.requirement("003.26")
def test_retry_on_transient_error(mode, llm, claude, seen, until):
    """503: it is tried up to three times, with exponential backoff, and the UI says `Retrying (2/3)`."""
    _, address = llm
    claude.says("anthropic", "503", "503", "503", "503")
    task = mode.task(ask_anthropic, retry=QUICK)
    state = mode.state(task, "hello", address)
    assert state.is_failed()
    assert claude.given["anthropic"] == ["503"] * 3
    run = state.state_details.task_run_id
    names = [found.name for found in seen.states(run)]
    assert names.count("AwaitingRetry") == 2
    assert names.count("Retrying") == 2
    delays = [record.delay for record in context_of(state).history[:-1]]
    assert delays == [pytest.approx(0.05, rel=0.21), pytest.approx(0.1, rel=0.21)]
    default = Retry()
    assert (default.attempts, default.backoff.initial, default.backoff.maximum) == (3, 1.0, 30.0)
    assert (default.backoff.multiplier, default.backoff.jitter) == (2.0, 0.2)
    with get_client(sync_client=True) as client:
        only = LogFilter(task_run_id=LogFilterTaskRunId(any_=[run]))

        def said():
            body = {"logs": only.model_dump(mode="json")}
            lines = [line["message"] for line in client.request("POST", "/logs/filter", json=body).json()]
            return [line for line in lines if line.startswith("Retrying (")]

        lines = until(lambda: (found := said()) and len(found) == 2 and found)
    assert [line.partition(" in ")[0] for line in sorted(lines)] == ["Retrying (2/3)", "Retrying (3/3)"]


@pytest.mark.requirement("003.05", "003.27")
def test_circuit_breaker_opens(mode, llm, claude):
    """Five errors in a row: the circuit is open, a call fails at once, and the fallback is asked."""
    _, address = llm
    claude.says("anthropic", *["503"] * 9)
    assert CircuitPolicy().failure_threshold == 5
    circuit = CircuitBreaker("provider:claude")
    alone = mode.task(ask_anthropic, retry=None, circuit=circuit)
    assert [mode.state(alone, "hello", address).is_failed() for _ in range(5)] == [True] * 5
    assert circuit.state == "open"
    began = time.monotonic()
    with pytest.raises(CircuitOpenError):
        mode.value(alone, "hello", address)
    assert claude.given["anthropic"] == ["503"] * 5
    assert time.monotonic() - began < 10
    configured = alone.with_options(fallback=mode.function(ask_openai))
    state = mode.state(configured, "hello", address)
    assert (state.name, state.result()) == ("Fallback", "You said: hello")
    assert claude.given == {"anthropic": ["503"] * 5, "openai": ["ok"]}


@pytest.mark.requirement("003.05", "003.28")
def test_circuit_breaker_recovers(mode, llm, claude, until):
    """After the open period it is half-open; the next call is a probe; its success closes the circuit."""
    _, address = llm
    defaults = CircuitPolicy()
    assert (defaults.open_for, defaults.success_threshold, defaults.minimum_calls) == (30, 2, 10)
    circuit = CircuitBreaker(f"recovers-{mode.name}", failure_threshold=1, open_for=3, success_threshold=1)
    task = mode.task(ask_anthropic, retry=None, circuit=circuit)
    claude.says("anthropic", "503")
    assert mode.state(task, "hello", address).is_failed()
    assert circuit.state in ("open", "half_open")
    until(lambda: circuit.state == "half_open")
    assert mode.value(task, "hello", address) == "You said: hello"
    assert circuit.state == "closed"
    assert claude.given["anthropic"] == ["503", "ok"]


@pytest.mark.smoke
@pytest.mark.requirement("003.29")
def test_fallback_to_a_simpler_agent(mode, llm, claude, seen):
    """The builder's attempts are used up: builder-simple is asked; when it fails, too, the user is told."""
    _, address = llm

    def build(prompt):
        return ask_anthropic(prompt, address)

    def build_simply(prompt):
        return ask_openai(prompt, address)

    told = []
    agents = {
        "builder": mode.task(build, retry=QUICK),
        "builder-simple": mode.task(build_simply, retry=QUICK),
        "manual-mode": Person(notify=told.append, timeout=0.1, poll_interval=0.1),
    }
    chain = AgentChain("builder", ["builder-simple", "manual-mode"], agents=agents)

    def ask():
        if mode.isasync:

            @flow
            async def building():
                return await chain.acall("a hut")

            return asyncio.run(building())

        @flow
        def building():
            return chain.call("a hut")

        return building()

    claude.says("anthropic", *["503"] * 3)
    result = ask()
    assert (result.value, result.answered_by) == ("You said: a hut", "builder-simple")
    assert claude.given == {"anthropic": ["503"] * 3, "openai": ["ok"]}
    assert seen.task_run(result.errors["builder"].task_run_id).state.name == "Fallback"
    assert told == []
    claude.says("anthropic", *["401"] * 3)
    claude.says("openai", *["529"] * 3)
    with pytest.raises(Exception, match="'manual-mode' must take over"):
        ask()
    [notice] = told
    assert "- builder: 401 auth" in notice.body
    assert "- builder-simple: 529 unavailable" in notice.body


@pytest.mark.requirement("003.30")
def test_timeout_in_tool_execution(mode, monkeypatch):
    """A tool that takes longer than `tool-execution` allows is ended with a TimeoutError, and retryable."""
    assert current_settings().operations["tool-execution"] == 120
    monkeypatch.setenv("PREFECT_RESILIENCE_TIMEOUTS", '{"tool-execution": 0.3}')
    began = time.monotonic()
    if mode.isasync:

        @resilient_task(retry=None, timeout="tool-execution")
        async def tool():
            await asyncio.sleep(60)
    else:

        @resilient_task(retry=None, timeout="tool-execution")
        def tool():
            time.sleep(60)

    state = mode.state(tool)
    assert time.monotonic() - began < 30
    assert state.name == "TimedOut"
    context = context_of(state)
    assert (context.category, context.code, context.retryable) == ("timeout", "TIMEOUT", True)
    with pytest.raises(TimeoutError):
        mode.value(tool)


# -- what users ask


@pytest.mark.requirement("003.11")
def test_all_providers_fail_and_the_user_reads_of_degraded_mode(mode, llm, claude):
    """Their circuits open for all; the user sees a message; trying again later by hand works."""
    _, address = llm
    degraded = "The assistant is not available at the moment. Please try again later."
    chain = ProviderChain(
        "llm",
        {
            "claude": mode.task(ask_anthropic, retry=None, circuit=CircuitBreaker("claude", 2)),
            "openai": mode.task(ask_openai, retry=None, circuit=CircuitBreaker("openai", 2)),
        },
        degraded=degraded,
    )

    def ask():
        if mode.isasync:
            return asyncio.run(flow(chain.acall)("hello", address))
        return flow(chain.call)("hello", address)

    claude.says("anthropic", "503", "503")
    claude.says("openai", "503", "503")
    answers = [ask() for _ in range(2)]
    assert [answer.value for answer in answers] == [degraded, degraded]
    assert all(answer.degraded for answer in answers)
    states = circuit_states()
    assert (states["claude"], states["openai"]) == ("open", "open")
    assert ask().value == degraded
    assert claude.given == {"anthropic": ["503"] * 2, "openai": ["503"] * 2}
    chain._first.task.guard.circuit.force_closed()
    assert ask().answered_by == "claude"


@pytest.mark.requirement("003.20")
def test_retries_can_be_switched_off_for_debugging(mode, llm, claude, monkeypatch):
    _, address = llm
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    claude.says("anthropic", "503", "503")
    task = mode.task(ask_anthropic, retry=QUICK, fallback=mode.function(ask_openai))
    assert mode.state(task, "hello", address).is_failed()
    assert claude.given == {"anthropic": ["503"]}


@pytest.mark.requirement("003.21")
@pytest.mark.parametrize(("word", "wait"), [("429", 1.0), ("429-ms", 0.25)])
def test_a_429_waits_as_the_provider_suggests(mode, llm, claude, seen, word, wait):
    _, address = llm
    claude.says("anthropic", word)
    task = mode.task(ask_anthropic, retry=QUICK)
    began = time.monotonic()
    state = mode.state(task, "hello", address)
    assert time.monotonic() - began >= wait
    assert state.result() == "You said: hello"
    waiting = next(
        each for each in seen.states(state.state_details.task_run_id) if each.name == "AwaitingRetry"
    )
    planned = (waiting.state_details.scheduled_time - waiting.timestamp).total_seconds()
    assert planned == pytest.approx(wait, rel=0.3)
    assert claude.given["anthropic"] == [word, "ok"]


@pytest.mark.requirement("003.09")
def test_a_circuit_is_global_per_provider(llm, claude, tmp_path, monkeypatch):
    """If Claude fails for one user, its circuit is open for all: here for another process."""
    _, address = llm
    url = f"sqlite:///{tmp_path}/circuits.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    claude.says("anthropic", *["503"] * 5)

    def ask(prompt):
        return ask_anthropic(prompt, address)

    chain = ProviderChain("llm", {"claude": resilient_task(retry=None)(ask)})
    for _ in range(5):
        with pytest.raises(Exception, match="not available"):
            chain.call("hello")
    code = (
        "from prefect_resilience import CircuitBreaker; "
        f"print(CircuitBreaker('provider:claude', store={url!r}).state)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "open"


@pytest.mark.requirement("003.01")
@pytest.mark.parametrize(
    ("word", "category", "retryable", "wait", "error"),
    [
        ("429", "rate_limit", True, 1.0, "RateLimitError"),
        ("401", "auth", False, None, "AuthenticationError"),
        ("503", "unavailable", True, None, "ServiceUnavailableError"),
        ("529", "unavailable", True, None, "OverloadedError"),
    ],
)
def test_what_is_known_of_every_category_in_one_place(
    mode, llm, claude, word, category, retryable, wait, error
):
    """An error says what it is, whether to try again, and when; the original is kept."""
    _, address = llm
    claude.says("anthropic", word)
    state = mode.state(mode.task(ask_anthropic, retry=None), "hello", address)
    original = state.result(raise_on_failure=False)
    assert isinstance(original, anthropic.APIStatusError)
    assert (type(original).__name__, original.status_code) == (error, int(word))
    for known in (classify(original), context_of(state)):
        assert (known.category, known.retryable, known.retry_after) == (category, retryable, wait)
        assert known.code == word
        assert known.exception_type.rpartition(".")[2] == error
