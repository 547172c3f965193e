"""Run the pipeline twice for one day, on a service with failures, and print what arrived where."""

from __future__ import annotations

import os

from rich import box
from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine, text

from flows.etl.pipeline import database, etl
from flows.etl.service import PAGES, Shop
from flows.own_process import apart
from flows.serving import running

DAY = "2026-11-23"


def main() -> None:
    console, shop = Console(width=90, highlight=False), Shop()
    os.environ.setdefault("ETL_DATABASE_URL", f"sqlite:///{os.environ['EXAMPLE_FOLDER']}/orders.db")
    with running(shop) as address:
        for number in (1, 2):
            state = etl(address, f"{address}/webhook", DAY, return_state=True)
            if state.is_completed():
                console.print(f"Run {number} loaded {state.result()} orders from {PAGES} pages")
            else:
                console.print(f"Run {number} failed: {str(state.message).splitlines()[0]}", soft_wrap=True)
            if number == 1:
                table = Table("page", "responses of the API", box=box.SIMPLE_HEAD)
                for page, responses in sorted(shop.responses.items()):
                    table.add_row(str(page), ", ".join(responses))
                console.print(table)
    with create_engine(database()).connect() as connection:
        rows = connection.execute(text("SELECT count(*) FROM orders")).scalar()
    console.print(f"The {connection.dialect.name} database has {rows} orders")
    keys = [webhook["key"] for webhook in shop.webhooks]
    console.print(f"Webhooks received: {len(keys)} {' '.join(keys)}".rstrip())


if __name__ == "__main__":
    apart("flows.etl", main)
