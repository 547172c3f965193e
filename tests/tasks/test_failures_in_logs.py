"""The log tells a retry once, an unhandled failure with one traceback, and a handled one in a line."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client

from prefect_resilience import Backoff, Retry, on_error, resilient_flow, resilient_task, run_plan

pytestmark = pytest.mark.api

QUICK = Retry(attempts=3, backoff=Backoff.none())
Log = list[logging.LogRecord]


@pytest.fixture(autouse=True)
def every_level() -> Iterator[None]:
    loggers = [logging.getLogger(f"prefect.{kind}_runs") for kind in ("task", "flow")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def of(log: Log, name: str) -> list[str]:
    """What is logged above DEBUG for the runs of this task or flow, but for the attempts' own noise."""
    told: list[str] = []
    for record in log:
        if name in (getattr(record, "task_name", None), getattr(record, "flow_name", None)):
            said = record.getMessage()
            quiet = said.startswith(("Beginning", "View at", "Running hook", "Finished in state Completed"))
            if record.levelno > logging.DEBUG and not quiet:
                told.append(f"{record.levelname}: {said}")
    return told


def tracebacks(log: Log, name: str) -> list[tuple[str, str]]:
    found = [record for record in log if getattr(record, "task_name", None) == name and record.exc_text]
    return [(record.levelname, str(record.exc_text)) for record in found]


@pytest.mark.smoke
def test_a_retry_is_one_line(mode: Any, run_log: Log, seen: Any) -> None:
    errors = iter([ConnectionResetError("cut"), TimeoutError("slow"), ConnectionResetError("cut")])

    def flaky() -> str:
        for error in errors:
            raise error
        return "done"

    retry = Retry(attempts=3, backoff=Backoff.constant(0.01), by_category={"timeout": 6})
    state = mode.state(mode.task(flaky, retry=retry))
    assert state.is_completed()
    expected = [
        "WARNING: Retrying (2/3) in 0.0 s: NETWORK_ERROR network: cut",
        "WARNING: Retrying (2/6) in 1.0 s: TIMEOUT timeout: slow",
        "WARNING: Retrying (3/3) in 0.0 s: NETWORK_ERROR network: cut",
    ]
    expected[1] = next(line for line in of(run_log, "flaky") if "(2/6)" in line)  # it has another delay
    assert of(run_log, "flaky")[:3] == expected
    assert of(run_log, "flaky")[3].startswith("INFO: Recovered at attempt 4")
    assert len(of(run_log, "flaky")) == 4
    assert not tracebacks(run_log, "flaky")
    run = state.state_details.task_run_id
    assert seen.logged(state.state_details.flow_run_id, "Finished in state Completed()")
    with get_client(sync_client=True) as client:
        body = {"logs": {"task_run_id": {"any_": [str(run)]}}}
        lines = [line["message"] for line in client.request("POST", "/logs/filter", json=body).json()]
    assert not [line for line in lines if "will start" in line]


UNHANDLED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "not retryable": ({"retry": QUICK}, ValueError, "1 attempt (ValueError is not retryable (unexpected))"),
    "exhausted": ({"retry": QUICK}, ConnectionResetError, "3 attempts (all 3 attempts used)"),
    "no retries": ({"retry": None}, ConnectionResetError, "1 attempt (one attempt only)"),
    "Prefect's own": ({"retries": 1}, KeyError, "2 attempts (all 2 attempts used)"),
    "in a thread": (
        {"retry": None, "timeout": 20},
        KeyError,
        "1 attempt (KeyError is not retryable (unexpected))",
    ),
    "of a fallback": (
        {"retry": None, "fallback": lambda: [][1]},
        KeyError,
        "1 attempt (KeyError is not retryable (unexpected))",
    ),
}


@pytest.mark.parametrize("name", UNHANDLED)
def test_an_unhandled_failure_has_one_traceback(name: str, mode: Any, run_log: Log) -> None:
    options, error, why = UNHANDLED[name]

    def broken() -> None:
        raise error("no")

    assert mode.state(mode.task(broken, **options)).is_failed()
    last = of(run_log, "broken")[-2:]
    assert last[0].startswith(f"ERROR: Giving up after {why}: ")
    assert last[1].startswith("ERROR: Finished in state ")
    [(level, text)] = tracebacks(run_log, "broken")
    assert level == "ERROR"
    assert text.count("Traceback (most recent call last)") == 1
    assert "in broken\n    raise error" in text
    assert "prefect_resilience/" not in text.replace("tests/", "")
    if name == "of a fallback":
        assert "fallback '<lambda>' failed: IndexError" in text


def test_a_failure_that_a_fallback_answers_is_a_line(mode: Any, run_log: Log) -> None:
    def broken() -> None:
        raise ValueError("first")

    def also_broken() -> None:
        raise KeyError("second")

    second = mode.task(also_broken, retry=None)
    third = mode.task(lambda: "third", name="third")
    made = mode.task(broken, retry=None, fallback=[second, third])
    assert mode.value(made) == "third"
    assert [line.partition(":")[0] for line in of(run_log, "also_broken")] == ["WARNING", "WARNING"]
    assert tracebacks(run_log, "also_broken")[0][0] == "DEBUG"
    assert of(run_log, "broken")[:1] == [
        "WARNING: Fallback 'third' used after 1 attempt: ValueError unexpected: first"
    ]
    [(level, text)] = tracebacks(run_log, "broken")
    assert (level, "in broken\n    raise ValueError" in text) == ("DEBUG", True)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "resilient"])
def test_a_failure_that_a_handler_takes_over_is_a_line(plain: bool, mode: Any, run_log: Log) -> None:
    go_on = threading.Event()

    def broken() -> None:
        go_on.wait(30)
        raise ValueError("no")

    function = mode.function(broken)
    made: Any = task(function) if plain else resilient_task(retry=None)(function)

    @flow
    def handling() -> list[Any]:
        handled = on_error(made.submit(), mode.function(lambda error: error.code))
        passed = on_error(made.submit(), mode.function(lambda: "never"), when="rate_limit")
        go_on.set()
        passed.wait()
        return [handled.result(), passed.state.name]

    assert handling() == ["ValueError", "Failed"]
    assert {line.partition(":")[0] for line in of(run_log, "broken")} == {"WARNING"}
    assert [level for level, _ in tracebacks(run_log, "broken")] == ["DEBUG", "DEBUG"]
    # What was passed on is nobody's: it is raised by the node, with where it came from.
    [(level, text)] = tracebacks(run_log, "on_error")
    assert (level, "in broken\n" in text) == ("ERROR", True)


def test_a_node_of_a_plan_whose_failure_leads_on(run_log: Log) -> None:
    def broken() -> None:
        raise ValueError("no")

    def handle() -> str:
        return "handled"

    actions = {"broken": broken, "handle": handle}
    first = {"id": "first", "type": "broken", "on_failure": ["second"]}
    by_name = {"id": "third", "type": "broken"}
    plan = {
        "tasks": [
            first,
            {"id": "second", "type": "handle"},
            by_name,
            {"id": "fourth", "type": "handle", "handles_error": ["third"]},
        ]
    }
    assert run_plan(plan, actions=actions).succeeded
    for name in ("first", "third"):
        assert {line.partition(":")[0] for line in of(run_log, name)} == {"WARNING"}
        assert [level for level, _ in tracebacks(run_log, name)] == ["DEBUG"]
    run_log.clear()
    with pytest.raises(Exception, match="1 of 1 node failed"):
        run_plan({"tasks": [{"id": "alone", "type": "broken"}]}, actions=actions)
    assert [level for level, _ in tracebacks(run_log, "alone")] == ["ERROR"]


def test_what_plain_tasks_and_flows_log_is_left_alone(run_log: Log) -> None:
    @task(retries=1)
    def plain() -> None:
        raise ValueError("no")

    @resilient_flow
    def ours() -> None:
        plain()

    with pytest.raises(ValueError, match="no"):
        ours()
    told = of(run_log, "plain")
    assert "Retry 1/1 will start immediately" in told[0]
    assert told[1] == "ERROR: Task run failed with exception: ValueError('no') - Retries are exhausted"
    assert [level for level, _ in tracebacks(run_log, "plain")] == ["ERROR"]
    assert [line for line in of(run_log, "ours") if "Encountered exception during execution" in line]
