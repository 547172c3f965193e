"""No planted secret is in what is written about runs, nor in the databases of the server and the store."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pydantic
import pytest
import sqlalchemy
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.events import emit_event

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Effect,
    ErrorBudget,
    Retry,
    dead_letters,
    error_context,
    get_circuits,
    resilient_flow,
    resilient_task,
)
from prefect_resilience.operations.reports import report
from prefect_resilience.operations.reports.rendering import html_of, markdown_of
from prefect_resilience.tasks.edge.artifacts import markdown_of as circuits_of
from prefect_resilience.telemetry.payloads import LIMIT
from tests.prefect_api import drain
from tests.prefect_runs import until

pytestmark = pytest.mark.api

CORPUS = json.loads((Path(__file__).parents[2] / "errors" / "planted_secrets.json").read_text())
TWICE = Retry(attempts=2, backoff=Backoff.none(), retry_on=(Exception,))


@resilient_task(task_run_name="look at {text}", retry=None)
def look(text: str) -> dict[str, str]:
    return {"said": text}


@resilient_task(
    task_run_name="say {text}",
    retry=TWICE,
    circuit=CircuitBreaker("for {text}", failure_threshold=1, counts=("unexpected",)),
    error_budget=ErrorBudget(objective=0.9, name=f"of {CORPUS[0]['secret']}"),
    dead_letter=True,
    fallback=lambda text: 1 / 0,
)
def say(text: str) -> None:
    raise RuntimeError(text)


held: list[Any] = []
"""The states of what was said."""


@resilient_flow
def saying() -> None:
    for entry in CORPUS:
        look(entry["text"])
        held.append(say(entry["text"], return_state=True))
    raise RuntimeError("\n".join(entry["text"] for entry in CORPUS))


def events_since(since: datetime) -> list[dict[str, Any]]:
    """Every event of ours, without `related`: there Prefect puts the names that runs were given."""
    body = {
        "filter": {"event": {"prefix": ["prefect-resilience."]}, "occurred": {"since": since.isoformat()}},
        "limit": 50,
    }
    with get_client(sync_client=True) as client:
        page = client.request("POST", "/events/filter", json=body).json()
        found = page["events"]
        while page["next_page"]:
            page = client._client.get(page["next_page"]).json()
            found += page["events"]
    return [{**event, "related": []} for event in found]


def artifacts_of(flow_run_id: Any) -> list[dict[str, Any]]:
    body = {"artifacts": {"flow_run_id": {"any_": [str(flow_run_id)]}}}
    with get_client(sync_client=True) as client:
        return client.request("POST", "/artifacts/filter", json=body).json()


def with_pictures(text: str) -> str:
    pictures = re.findall(r"base64,([A-Za-z0-9+/=]+)", text)
    return "\n".join([text, *(base64.b64decode(one).decode() for one in pictures)])


def what_a_state_says(state: Any) -> str:
    error = state.data.result if hasattr(state.data, "result") else state.data
    context = error_context(state)
    assert context is not None
    return "\n".join([str(error), repr(error), *error.__notes__, state.message, context.model_dump_json()])


@pytest.mark.timeout(300)
def test_none_of_the_corpus_is_in_what_is_written(until: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Each planted text in a task that fails twice and then for good, and whose fallback fails too."""
    began = datetime.now(UTC)
    with caplog.at_level(logging.DEBUG):
        final = saying(return_state=True)
    run = final.state_details.flow_run_id
    count = len(CORPUS)
    assert count >= 50

    def arrived() -> list[dict[str, Any]] | None:
        events = events_since(began)
        named = [event["event"].removeprefix("prefect-resilience.") for event in events]
        awaited = ("run.failed", "retry.scheduled", "circuit.opened", "dead-letter.created")
        return (
            events if "budget.burned" in named and all(named.count(one) >= count for one in awaited) else None
        )

    events = until(arrived, 40)
    (summary,) = (one["data"] for one in artifacts_of(run) if (one["key"] or "").startswith("run-summary-"))
    assert "## Calls" in summary
    made = report(began)
    assert made.budgets
    assert len(get_circuits()) == count
    letters = dead_letters.list()
    assert len(letters) == count
    artifacts = artifacts_of(run)
    written = {
        **{f"artifact {one['key']}": with_pictures(json.dumps(one, ensure_ascii=False)) for one in artifacts},
        **{f"event {one['event']} {one['id']}": json.dumps(one, ensure_ascii=False) for one in events},
        **{f"letter {one.id}": one.model_dump_json() for one in letters},
        **{f"state {number}": what_a_state_says(state) for number, state in enumerate(held)},
        "the run's state": final.model_dump_json(exclude={"data"}),
        "log": "\n".join(logging.Formatter().format(record) for record in caplog.records),
        "circuits": circuits_of(get_circuits(), began),
        "report": made.model_dump_json(),
        "report as markdown": with_pictures(markdown_of(made)),
        "report as a page": with_pictures(html_of(made)),
    }
    leaks = [
        (place, one["secret"]) for place, text in written.items() for one in CORPUS if one["secret"] in text
    ]
    assert leaks == []
    assert max(len(json.dumps(event).encode()) for event in events) < 2 * LIMIT


def planted(name: str) -> str:
    """A secret that no line of this file has: a traceback shows source code."""
    return "-".join(("planted", name, "x7Q"))


class Login(pydantic.BaseModel):
    user: str
    password: int


class Connection(pydantic.BaseModel):
    hostname_of_the_database: str
    credentials: int | Login


class Account(pydantic.BaseModel):
    user: str
    password: str

    @pydantic.model_validator(mode="after")
    def _never(self) -> Account:
        raise ValueError("no such account")


def executed(statement: str, parameters: Any) -> None:
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        connection.execute(sqlalchemy.text("create table users (name text, password text not null, age int)"))
        connection.exec_driver_sql(statement, parameters)


def of_a_field() -> None:
    Login.model_validate({"user": "ann", "password": planted("field")})


def of_a_model() -> None:
    Account.model_validate({"user": "somebody with a long name", "password": planted("model")})


def of_a_union() -> None:
    login = {"user": "ann", "password": planted("union")}
    Connection.model_validate({"hostname_of_the_database": "db", "credentials": login})


def of_a_wrapped_field() -> None:
    try:
        Login.model_validate({"user": "ann", "password": planted("wrapped")})
    except pydantic.ValidationError as error:
        raise RuntimeError({"cannot log in": str(error)}) from error


INSERT = "insert into users (name, password, age) values (?, ?, no_column)"


def of_a_parameter() -> None:
    executed(INSERT, ("ann", planted("parameter")))


def of_a_parameter_with_a_quote() -> None:
    executed(INSERT, ("ann", f"it's {planted('quoted')}"))


def of_a_quoted_block() -> None:
    text = f"db:\n  - api_key: >-\n      {planted('folded')}\n      more\n    user: ann\n"
    raise ValueError({"configuration": text}, repr(text))


def of_a_broken_block() -> None:
    yaml.safe_load(f"user: ann\npassword: |\n  first\n {planted('broken')}: [\n")


def of_nothing_secret() -> None:
    raise RuntimeError(planted("control"))


KINDS: dict[str, Callable[..., object]] = {
    name: each for name, each in globals().items() if name.startswith("of_") and callable(each)
}
OF_THE_FLOW = ("of_a_field", "of_a_parameter_with_a_quote", "of_a_quoted_block", "of_nothing_secret")
SUITE = uuid4().hex
GUARDS: dict[str, Any] = {
    "retry": TWICE,
    "circuit": CircuitBreaker(f"planted-{SUITE}-{{kind}}", failure_threshold=1, open_for=0),
    "dead_letter": True,
    "persist_result": True,
}


@resilient_task(**GUARDS)
def retried(kind: str) -> None:
    KINDS[kind]()


@resilient_task(**GUARDS)
async def retried_async(kind: str) -> None:
    KINDS[kind]()


@resilient_task(effect=Effect(kind="external", key="planted:{kind}"), dead_letter=True)
def sent(kind: str) -> None:
    KINDS[kind]()


@resilient_task(effect=Effect(kind="external", key="planted:{kind}"), dead_letter=True)
async def sent_async(kind: str) -> None:
    KINDS[kind]()


@resilient_task(retry=None, fallback=lambda kind: KINDS[kind]())
def replaced(kind: str) -> None:
    KINDS[kind]()


@resilient_flow
def sync_tasks() -> None:
    for kind in KINDS:
        retried(kind, return_state=True)
        sent.submit(kind).wait()
        replaced(kind, return_state=True)


@resilient_flow
async def async_tasks() -> None:
    for kind in KINDS:
        await retried_async(kind, return_state=True)  # pyright: ignore[reportGeneralTypeIssues]
        await sent_async(kind, return_state=True)  # pyright: ignore[reportGeneralTypeIssues]


@resilient_flow
def failing(kind: str) -> None:
    KINDS[kind]()


@resilient_flow
async def failing_async(kind: str) -> None:
    KINDS[kind]()


@flow
def plain(kind: str) -> None:
    replaced(kind)


def texts_in(value: bytes, depth: int = 3) -> Iterator[bytes]:
    """The bytes, and those that are in them as base64: results are."""
    yield value
    for found in re.findall(rb"[A-Za-z0-9+/]{24,}={0,2}", value) if depth else ():
        try:
            yield from texts_in(base64.b64decode(found), depth - 1)
        except binascii.Error:
            continue


def rows_of(database: Path) -> Iterator[tuple[str, bytes]]:
    """Each row with its table's name."""
    with closing(sqlite3.connect(database)) as connection:
        connection.text_factory = bytes
        for (name,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
            for row in connection.execute(f'select * from "{name.decode()}"'):
                cells = (cell if isinstance(cell, bytes) else str(cell).encode() for cell in row)
                yield name.decode(), b"\n".join(cells)


@pytest.mark.timeout(600)
def test_no_row_has_a_secret(own_prefect_api: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/store.db")
    monkeypatch.setenv("PREFECT_LOCAL_STORAGE_PATH", str(tmp_path / "results"))
    sync_tasks(return_state=True)
    asyncio.run(async_tasks(return_state=True))
    for kind in OF_THE_FLOW:
        assert failing(kind, return_state=True).is_failed()
        assert asyncio.run(failing_async(kind, return_state=True)).is_failed()
        assert plain(kind, return_state=True).is_failed()
    emit_event(f"planted.{SUITE}", resource={"prefect.resource.id": f"planted.{SUITE}"})
    drain()
    server, store = own_prefect_api / "prefect.db", tmp_path / "store.db"
    until(lambda: any(table == "events" and SUITE.encode() in row for table, row in rows_of(server)), 60)

    leaks: list[tuple[str, bytes]] = []
    reached: set[str] = set()
    for table, row in (*rows_of(server), *rows_of(store)):
        for text in texts_in(row):
            for found in re.finditer(rb"planted-(\w+)-x7Q", text):
                if found[1] == b"control":
                    reached.add(table)
                else:
                    leaks.append((table, text[max(0, found.start() - 200) : found.end()]))
    assert leaks == []
    tables = {"flow_run_state", "task_run_state", "log", "events", "artifact", "prefect_resilience_documents"}
    assert tables <= reached, "what the errors say did not come there: nothing is shown"
    files = [file for folder in (own_prefect_api, tmp_path) for file in folder.rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert not re.findall(rb"planted-(?!control)\w+-x7Q", file.read_bytes()), file
