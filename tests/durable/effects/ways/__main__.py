"""Try all ways and print the table: `python -m tests.durable.effects.ways [--write] [--only TEXT]`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.durable.effects.ways.catalogue import ways
from tests.durable.effects.ways.places import Places
from tests.durable.effects.ways.running import cells
from tests.durable.effects.ways.staged import all_tried
from tests.durable.effects.ways.table import PAGE, page, told
from tests.stores_servers import PostgresServer


def postgres(ending: ExitStack) -> Callable[[], str]:
    """A server that is started when it is first needed."""
    started: list[str] = []

    def url() -> str:
        if not started:
            server = PostgresServer()
            ending.callback(server.remove)
            server.start()
            started.append(server.url())
        return started[0]

    return url


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durable.effects.ways", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}, too")
    parser.add_argument("--only", default="", help="only the ways in whose name this text is")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("--write needs all ways: leave out --only")
    chosen = [way for way in ways() if given.only in way.name]
    began = time.monotonic()
    with ExitStack() as ending:
        places = Places(postgres(ending))
        ending.callback(places.close)
        tried = ending.enter_context(all_tried(cells(chosen), places))
        outcomes = [one.result() for one in tried.values()]
    print(told(outcomes, time.monotonic() - began))
    if given.write:
        PAGE.write_text(page(outcomes), encoding="utf-8")
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
