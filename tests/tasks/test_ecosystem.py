"""The tasks and blocks of Prefect's integrations, as users would guard them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from prefect import flow
from prefect_shell.commands import shell_run_command
from prefect_sqlalchemy import ConnectionComponents, SqlAlchemyConnector, SyncDriver

from prefect_resilience import Backoff, ResilientTask, Retry, resilient_task

pytestmark = [pytest.mark.api, pytest.mark.slow]

SOON = Backoff.constant(0.05)


async def test_a_task_of_prefect_shell(tmp_path: Path):
    counted = tmp_path / "counted"
    command = f"echo x >> {counted}; test $(wc -l < {counted}) -ge 3 && echo done"
    retry = Retry(attempts=3, backoff=SOON, retry_on=["RuntimeError"])
    run_command = ResilientTask.wrap(shell_run_command, retry=retry, timeout=20)

    @flow
    async def run() -> str:
        return await run_command(command)

    assert await run() == "done"
    assert counted.read_text() == "x\n" * 3


def test_a_block_of_prefect_sqlalchemy(tmp_path: Path):
    file = tmp_path / "shop.db"
    setup = sqlite3.connect(file, isolation_level=None)
    setup.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
    setup.execute("BEGIN IMMEDIATE")  # nobody else may write now
    attempts: list[int] = []
    components = ConnectionComponents(driver=SyncDriver.SQLITE_PYSQLITE, database=str(file))

    @resilient_task(retry=Retry(attempts=3, backoff=SOON))
    def insert(number: int) -> None:
        attempts.append(number)
        if len(attempts) == 2:
            setup.execute("COMMIT")
        connect_args = {"timeout": 0.05}
        with SqlAlchemyConnector(connection_info=components, connect_args=connect_args) as database:
            database.execute("INSERT INTO orders VALUES (:number)", parameters={"number": number})

    @flow
    def run() -> bool:
        insert(7)
        return insert(7, return_state=True).is_failed()

    assert run() is True  # the same number again: a conflict, which is not retried
    assert attempts == [7, 7, 7]
    assert setup.execute("SELECT number FROM orders").fetchall() == [(7,)]
    setup.close()
