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


# As a diff: lines with - are only in the file before, lines with + only in the file after.
CHANGES = {
    "not retried": """
        -from prefect import task
        +from prefect_resilience import resilient_task

        -@task
        +@resilient_task(retries=0)
         async def fetch(): ...
        -@task()
        +@resilient_task(retries=0)
         def load(): ...
        -@task(retries=None)
        +@resilient_task(retries=0)
         def keep(): ...
        -@task(name="x", retry_delay_seconds=[1, 2])
        +@resilient_task(retries=0, name="x", retry_delay_seconds=[1, 2])
         def send(): ...
        """,
    "an option on each line": """
        -from prefect import task
        +from prefect_resilience import resilient_task

        -@task(
        +@resilient_task(
        +    retries=0,
             name="ä",  # a comment
             tags=["x"],
         )
         def fetch(): ...
        """,
    "another name": """
        -from prefect import task as step
        +from prefect_resilience import resilient_task
        -ü = "ü"; made = step(retries=1)(print)
        +ü = "ü"; made = resilient_task(retries=1)(print)
        """,
    "by the module": """
         import prefect
        +from prefect_resilience import resilient_task
        -@prefect.task(retries=1)
        +@resilient_task(retries=1)
         def fetch():
             prefect.get_run_logger()
        """,
    "called with a function": """
        -from prefect import task
        -made = task(print, retries=1, name="p"); other = task(print)
        +from prefect_resilience import resilient_task
        +made = resilient_task(retries=1, name="p")(print); other = resilient_task(retries=0)(print)
        """,
    "imports on several lines, the last name": """
         from prefect import (
             flow,
        -    task,
         )
        +from prefect_resilience import resilient_task
         from prefect.tasks import task_input_hash
         import httpx
        -@task(retries=1, cache_key_fn=task_input_hash)
        +@resilient_task(retries=1, cache_key_fn=task_input_hash)
         def fetch(): ...
        """,
    "the first name": """
        -from prefect import task, flow
        +from prefect import flow
        +from prefect_resilience import resilient_task
        -@task(retries=1)
        +@resilient_task(retries=1)
         def fetch(): ...
        """,
    "a name that is still used": """
         from prefect import task
        +from prefect_resilience import resilient_task
         __all__ = ["task"]
        -@task(retries=1)
        +@resilient_task(retries=1)
         def fetch(): ...
        """,
    "inside of a function": """
         def make():
        -    from prefect import task
        +    from prefect_resilience import resilient_task
        -    return task(retries=1)(print)
        +    return resilient_task(retries=1)(print)
        """,
    "where it is known already": """
        -from prefect import task
        +
         from prefect_resilience import resilient_task
        -@task(retries=1)
        +@resilient_task(retries=1)
         def fetch(): ...
         @resilient_task
         def other(): ...
        """,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_only_what_must_change_is_changed(change: str):
    lines = text(change).splitlines(keepends=True)
    before, wanted = ("".join(line[1:] or "\n" for line in lines if line[0] != skipped) for skipped in "+-")
    assert adopt(before).text == wanted
    ast.parse(wanted)
    assert adopt(wanted).tasks == []
    windows = before.replace("\n", "\r\n")
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
    "cursor.execute(f'insert into {order} values (1)')": "each retry repeats cursor.execute()",
    "cursor.execute('-- new rows\\nWITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a')": (
        "each retry repeats cursor.execute()"
    ),
    "cursor.execute(SQL)": "each retry repeats cursor.execute()",
    "cursor.execute(SQL + order)": "each retry repeats cursor.execute()",
    "connection.execute(text('INSERT INTO t VALUES (1)'))": "each retry repeats text()",
    "connection.execute(insert(table).values(1))": "each retry repeats insert()",
    "with Session(engine) as s: s.add(order); s.commit()": "each retry repeats s.add()",
    "self.session.add(order)": "each retry repeats self.session.add()",
    "Order.objects.create(id=order)": "each retry repeats Order.objects.create()",
    "producer.send('orders', order)": "each retry repeats producer.send()",
    "urllib.request.urlopen('u', data=order)": "each retry repeats urllib.request.urlopen()",
    "urlopen(urllib.request.Request('u', data=order))": "each retry repeats urllib.request.Request()",
    "sess.add(order)": "each retry repeats sess.add()",
    "connection.commit()": "each retry repeats connection.commit()",
    "frame.to_sql('t', engine, if_exists='append')": "each retry repeats frame.to_sql()",
    "frame.to_csv('f', mode='a')": "each retry repeats frame.to_csv()",
    "frame.write.mode('append').save('f')": "each retry repeats frame.write.mode()",
    "open('f', 'ab').write(order)": "each retry repeats open()",
    "send(order)": "each retry repeats httpx.put_record() in send()",
    "pool.map(send, order)": "each retry repeats httpx.put_record() in send()",
    "Rows().keep(order)": "each retry repeats open() in keep()",
    "from_elsewhere(method='POST')": "each retry repeats from_elsewhere()",
    "openai.OpenAI()": "OpenAI() retries calls twice",
    "anthropic.AsyncAnthropic(max_retries=3)": "AsyncAnthropic() retries calls twice",
    "tenacity.Retrying()(print)": "tenacity.Retrying() retries inside the task's retries",
    "requests.adapters.HTTPAdapter(max_retries=3)": "max_retries=3 retries calls in addition",
    "httpx.HTTPTransport(retries=2)": "retries=2 retries calls in addition",
}
HARMLESS = [
    "httpx.get('u')",
    "cursor.execute('SELECT 1')",
    "cursor.execute('SELECT updated FROM t')",
    "cursor.execute(select(table))",
    "connection.execute(text('SELECT 1'))",
    "seen = set(); seen.add(order)",
    "[].insert(0, order)",
    "Order.create(id=order)",
    "generator.send(order)",
    "urllib.request.urlopen('u')",
    "frame.to_sql('t', engine, if_exists='replace')",
    "open('a').read()",
    "with requests.Session() as s: s.add(order)",
    "post(order)",
    "openai.OpenAI(max_retries=0)",
    "requests.adapters.HTTPAdapter()",
]


def dangers_of(body: str, options: str = "retries=2"):
    return adopt(f"{BEFORE_THE_TASK}@task({options})\ndef charge(order):\n    {body}\n").dangers


BEFORE_THE_TASK = """import anthropic, httpx, openai, requests, tenacity, time
SQL = "INSERT INTO t VALUES (1)"
from prefect import task; from sqlalchemy import insert, select, text; from sqlalchemy.orm import Session
from urllib.request import Request as from_elsewhere
send = lambda order: httpx.get(order)
def send(order): return order and httpx.put_record(order) or send(order)
class Rows:
    def keep(self, order): open("f", mode="a").write(order)
"""


def test_a_session_is_known_by_its_annotation_too():
    before = "from prefect import task\n@task(retries=1)\ndef keep(s: Session, row):\n    s.add(row)\n"
    assert [danger.says.partition(",")[0] for danger in adopt(before).dangers] == [
        "each retry repeats s.add()"
    ]


def test_what_only_a_run_knows_is_said():
    before = text(
        """
        from prefect import task
        from .rows import keep
        from . import rows
        import stock

        @task
        def work(cursor, sql):
            cursor.execute(sql)
            keep(sql), rows.drop(sql), stock.sell(sql), print(sql)
            query = select(sql); cursor.execute(query)
        """
    )
    found = adopt(before, is_local=lambda module: module.startswith((".", "stock")))
    [calls] = found.calls.values()
    assert [(one.call, one.why) for one in sorted(calls.unseen)] == [
        ("cursor.execute()", "its SQL is known only in a run"),
        ("keep()", "it is in another file"),
        ("rows.drop()", "it is in another file"),
        ("stock.sell()", "it is in another file"),
    ]
    [calls] = adopt(before).calls.values()
    assert "stock.sell()" not in [one.call for one in calls.unseen]


@pytest.mark.parametrize(("body", "says"), DANGERS.items())
def test_what_is_dangerous(body: str, says: str):
    [danger] = dangers_of(body)
    assert danger.says.startswith(says)
    in_a_helper = {"send": 6, "keep": 8}
    helper = danger.says.partition(" in ")[2].partition("()")[0]
    assert (danger.task, danger.line) == ("charge", in_a_helper.get(helper, 11))


@pytest.mark.parametrize("body", HARMLESS)
def test_what_is_not(body: str):
    assert dangers_of(body) == []


def test_an_effect_is_proposed_with_the_first_parameter():
    [danger] = dangers_of("httpx.post('u')")
    assert 'effect=Effect(key="charge:{order}")' in danger.mend


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
