"""Plain tasks as resilient tasks: what is changed in a file's text, and what is found dangerous in it."""

from __future__ import annotations

import ast
import asyncio
import textwrap
from typing import Any

import pytest

from prefect_resilience.operations.adoption import adopt


def text(written: str) -> str:
    return textwrap.dedent(written).lstrip("\n")


def adopted(written: str) -> str:
    return adopt(text(written)).text


CHANGES = {
    "retried": (
        """
        from prefect import flow, task

        @task(retries=3, retry_delay_seconds=10)
        def fetch(): ...
        """,
        """
        from prefect import flow
        from prefect_resilience import resilient_task

        @resilient_task(retries=3, retry_delay_seconds=10)
        def fetch(): ...
        """,
    ),
    "not retried": (
        """
        from prefect import task

        @task
        async def fetch(): ...
        """,
        """
        from prefect_resilience import resilient_task

        @resilient_task(retries=0)
        async def fetch(): ...
        """,
    ),
    "called with nothing": (
        """
        from prefect import task
        @task()
        def fetch(): ...
        """,
        """
        from prefect_resilience import resilient_task
        @resilient_task(retries=0)
        def fetch(): ...
        """,
    ),
    "delays alone do not retry": (
        """
        from prefect import task
        @task(name="x", retry_delay_seconds=[1, 2])
        def fetch(): ...
        """,
        """
        from prefect_resilience import resilient_task
        @resilient_task(retries=0, name="x", retry_delay_seconds=[1, 2])
        def fetch(): ...
        """,
    ),
    "retries that are None": (
        """
        from prefect import task
        @task(retries=None)
        def fetch(): ...
        """,
        """
        from prefect_resilience import resilient_task
        @resilient_task(retries=0)
        def fetch(): ...
        """,
    ),
    "an option on each line": (
        """
        from prefect import task

        @task(
            name="ä",  # a comment
            tags=["x"],
        )
        def fetch(): ...
        """,
        """
        from prefect_resilience import resilient_task

        @resilient_task(
            retries=0,
            name="ä",  # a comment
            tags=["x"],
        )
        def fetch(): ...
        """,
    ),
    "another name": (
        """
        from prefect import task as step
        ü = "ü"; made = step(retries=1)(print)
        """,
        """
        from prefect_resilience import resilient_task
        ü = "ü"; made = resilient_task(retries=1)(print)
        """,
    ),
    "by the module": (
        """
        import prefect
        @prefect.task(retries=1)
        def fetch():
            prefect.get_run_logger()
        """,
        """
        import prefect
        from prefect_resilience import resilient_task
        @resilient_task(retries=1)
        def fetch():
            prefect.get_run_logger()
        """,
    ),
    "called with a function": (
        """
        from prefect import task
        made = task(print, retries=1, name="p"); other = task(print)
        """,
        """
        from prefect_resilience import resilient_task
        made = resilient_task(retries=1, name="p")(print); other = resilient_task(retries=0)(print)
        """,
    ),
    "imports on several lines, the last name": (
        """
        from prefect import (
            flow,
            task,
        )
        from prefect.tasks import task_input_hash
        import httpx
        @task(retries=1, cache_key_fn=task_input_hash)
        def fetch(): ...
        """,
        """
        from prefect import (
            flow,
        )
        from prefect.tasks import task_input_hash
        from prefect_resilience import resilient_task
        import httpx
        @resilient_task(retries=1, cache_key_fn=task_input_hash)
        def fetch(): ...
        """,
    ),
    "the first name": (
        """
        from prefect import task, flow
        @task(retries=1)
        def fetch(): ...
        """,
        """
        from prefect import flow
        from prefect_resilience import resilient_task
        @resilient_task(retries=1)
        def fetch(): ...
        """,
    ),
    "a name that is still used": (
        """
        from prefect import task
        __all__ = ["task"]
        @task(retries=1)
        def fetch(): ...
        """,
        """
        from prefect import task
        from prefect_resilience import resilient_task
        __all__ = ["task"]
        @resilient_task(retries=1)
        def fetch(): ...
        """,
    ),
    "inside of a function": (
        """
        def make():
            from prefect import task
            return task(retries=1)(print)
        """,
        """
        def make():
            from prefect_resilience import resilient_task
            return resilient_task(retries=1)(print)
        """,
    ),
    "where it is known already": (
        """
        from prefect import task
        from prefect_resilience import resilient_task
        @task(retries=1)
        def fetch(): ...
        @resilient_task
        def other(): ...
        """,
        """

        from prefect_resilience import resilient_task
        @resilient_task(retries=1)
        def fetch(): ...
        @resilient_task
        def other(): ...
        """,
    ),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_only_what_must_change_is_changed(before: str, after: str):
    wanted = textwrap.dedent(after)[1:]
    assert adopted(before) == wanted
    ast.parse(wanted)
    assert adopt(wanted).tasks == []
    windows = text(before).replace("\n", "\r\n")
    assert adopt(windows).text == wanted.replace("\n", "\r\n")


@pytest.mark.parametrize(
    "before",
    [
        "from other import task\n@task\ndef f(): ...\n",
        "from prefect import task\noptions = {}\n@task(**options)\ndef f(): ...\n",
        "from prefect import task\nmade = task(*[print])\n",
        "from prefect import task\n",
        "",
    ],
)
def test_what_nobody_can_tell_stays_as_it_is(before: str):
    assert adopt(before).text == before


def test_prefects_settings_may_retry_tasks_that_say_nothing():
    before = "from prefect import task\n@task\ndef f(): ...\n"
    after = "from prefect_resilience import resilient_task\n@resilient_task\ndef f(): ...\n"
    assert adopt(before, retried_by_default=True).text == after


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ("", "retry=Retry()"),
        ("retries=2", "retry=Retry(attempts=3)"),
        ("retries=2, retry_delay_seconds=10", "retry=Retry(attempts=3, backoff=Backoff.schedule([10]))"),
        (
            "retries=2, retry_delay_seconds=[1, 9]",
            "retry=Retry(attempts=3, backoff=Backoff.schedule([1, 9]))",
        ),
        (
            "retries=2, retry_delay_seconds=exponential_backoff(backoff_factor=5)",
            "retry=Retry(attempts=3, backoff=Backoff.exponential(initial=5))",
        ),
        ("retries=2, retry_delay_seconds=pauses()", "retry=Retry(attempts=3)"),
        ("retries=times", ""),
    ],
)
def test_a_policy_with_as_many_attempts(options: str, policy: str):
    [task] = adopt(f"from prefect import task\n@task({options})\ndef f(): ...\n").tasks
    assert task.policy == policy
    if policy:
        from prefect_resilience import Backoff, Retry

        eval(f"dict({policy})", {"Retry": Retry, "Backoff": Backoff})


DANGERS = {
    "httpx.post('u', json=order)": "each retry repeats httpx.post()",
    "session.request('POST', 'u')": "each retry repeats session.request()",
    "cursor.execute('  INSERT INTO t VALUES (1)')": "each retry repeats cursor.execute()",
    "openai.OpenAI()": "OpenAI() retries calls twice",
    "anthropic.AsyncAnthropic(max_retries=3)": "AsyncAnthropic() retries calls twice",
    "tenacity.Retrying()(print)": "tenacity.Retrying() retries inside the task's retries",
    "requests.adapters.HTTPAdapter(max_retries=3)": "max_retries=3 retries calls in addition",
    "httpx.HTTPTransport(retries=2)": "retries=2 retries calls in addition",
    "requests.get('u')": "requests.get() without timeout= may wait forever",
    "while True: time.sleep(1)": "time.sleep() in a loop: such retries are neither counted nor visible",
}
HARMLESS = [
    "httpx.get('u')",
    "cursor.execute('SELECT 1')",
    "openai.OpenAI(max_retries=0)",
    "requests.adapters.HTTPAdapter()",
    "requests.get('u', timeout=3)",
    "time.sleep(1)",
    "try: pass\n    except ValueError: pass",
    "try: pass\n    except Exception: raise",
]


def dangers_of(body: str, options: str = "retries=2"):
    imports = "import anthropic, httpx, openai, requests, tenacity, time\nfrom prefect import task\n"
    return adopt(f"{imports}@task({options})\ndef charge(order):\n    {body}\n").dangers


@pytest.mark.parametrize(("body", "says"), DANGERS.items())
def test_what_is_dangerous(body: str, says: str):
    [danger] = dangers_of(body)
    assert danger.says.startswith(says)
    assert (danger.task, danger.line) == ("charge", 5)


@pytest.mark.parametrize("body", HARMLESS)
def test_what_is_not(body: str):
    assert dangers_of(body) == []


@pytest.mark.parametrize("caught", ["", " Exception", " BaseException"])
def test_an_error_that_nobody_hears_of(caught: str):
    [danger] = dangers_of(f"try: pass\n    except{caught}: pass")
    assert danger.says == f"except{caught}: without raise hides all errors; nothing is retried"


def test_what_is_not_repeated_may_send():
    assert dangers_of("httpx.post('u')", "") == []


def test_an_effect_is_proposed_with_the_first_parameter():
    [danger] = dangers_of("httpx.post('u')")
    assert 'effect=Effect(key="charge:{order}")' in danger.mend


def test_a_client_of_the_whole_file_counts_where_a_task_is_retried():
    before = "import openai\nfrom prefect import task\nclient = openai.OpenAI()\n@task({})\ndef f(): ...\n"
    assert [danger.task for danger in adopt(before.format("retries=1")).dangers] == [""]
    assert adopt(before.format("")).dangers == []


BEHAVIOUR = text(
    """
    from prefect import flow, task

    calls = []

    @task(retries=2, retry_delay_seconds=0)
    def retried():
        calls.append("retried")
        raise ValueError("no")

    @task
    def once():
        calls.append("once")
        raise ConnectionError("no")

    def twice(task, run, state):
        return len(calls) < 7

    @task(name="some", retries=9, retry_delay_seconds=[0, 0], retry_condition_fn=twice)
    async def some():
        calls.append("some")
        raise TimeoutError("no")

    @task(retries=1)
    def fine(number):
        return number + 1

    def told(states):
        return [(state.type.value, state.name) for state in states]

    @flow
    def work():
        mapped = fine.map([1, 2], return_state=True)
        return told([retried(return_state=True), once(return_state=True), *mapped])

    @flow
    async def others():
        return told([await some(return_state=True)])
    """
)


@pytest.mark.api
def test_the_changed_file_does_what_the_old_one_did():
    ended = []
    for written in (BEHAVIOUR, adopted(BEHAVIOUR)):
        module: dict[str, Any] = {"__name__": "adopted"}
        exec(compile(written, "adopted.py", "exec"), module)
        ended.append((module["work"](), asyncio.run(module["others"]()), module["calls"]))
    assert "resilient_task" in adopted(BEHAVIOUR)
    assert ended[0] == ended[1]
    assert ended[0][2] == ["retried"] * 3 + ["once"] + ["some"] * 3
