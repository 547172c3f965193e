"""`prefect-resilience dashboard`: the fleet in a browser, live, with buttons."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from cyclopts import Parameter
from pydantic import RootModel

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import dead_letters, fleet, output
from prefect_resilience.operations.cli.options import Json, Store

PORT = 4280


def dashboard(
    *,
    host: Annotated[
        str, Parameter(help="The address to listen on. Whoever reaches it can press the buttons.")
    ] = "127.0.0.1",
    port: Annotated[int, Parameter(help="The port to listen on; 0 takes one that is free.")] = PORT,
    allow_host: Annotated[
        list[str] | None,
        Parameter(negative="", help="A name under which browsers reach it, as behind a proxy; repeat it."),
    ] = None,
    read_only: Annotated[
        bool, Parameter(negative="", show_default=False, help="Leave the buttons out.")
    ] = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show circuits, retries, fallbacks, batches, dead letters and error budgets live, until Ctrl-C.

    Replays run in this process: work in the folder of your project, so that the tasks are found.
    Example: prefect-resilience dashboard --port 4280
    """
    # Imported here: the other commands need no web server.
    from prefect_resilience.operations.dashboard.edge.app import serve

    if not 0 <= port <= 65_535:
        raise ConfigurationError(f"--port {port} must be 0 to 65535")
    circuits, letters = fleet.store_url(store), dead_letters.store_url(store)
    places = " and ".join(dict.fromkeys(map(redact, (letters, circuits))))
    # A command that pip has installed does not look for modules where it is called.
    sys.path.insert(0, os.getcwd())

    def begun(address: str) -> None:
        if json:
            output.as_json(RootModel({"url": address, "read_only": read_only}), indent=None)
        else:
            output.show(f"The dashboard of {places} is at {address}; Ctrl-C ends it.")

    try:
        serve(host, port, circuits, letters, places, hosts=allow_host or (), read_only=read_only, begun=begun)
    except KeyboardInterrupt:
        # The way to end it, and so nothing is wrong.
        return 0
    return 0
