"""A pytest plugin for httpx's own suite: our transports between each client and its transport.

The suite has a package `tests` of its own, so this file is loaded by its bare name. It reads two variables:
HTTPX_SUITE_TRANSPORTS ("plain" or "ours"), and HTTPX_SUITE_OUTCOMES, the file that gets a line of JSON for
each test. The functions `httpx.get` and so on make a client for each call, so they are covered too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

ORDER = ("passed", "skipped", "failed")
"""From the best outcome of a test's phases to the worst, which counts."""


def put_between(client: type[Any], ours: type[Any], **options: Any) -> None:
    """Let the client wrap each transport that it makes or is given."""
    for name in ("_init_transport", "_init_proxy_transport"):
        made = getattr(client, name)

        def wrapped(self: Any, *args: Any, __made: Any = made, **kwargs: Any) -> Any:
            return ours(transport=__made(self, *args, **kwargs), **options)

        setattr(client, name, wrapped)


class Outcomes:
    """Writes the outcome of each test."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcome: dict[str, str] = {}
        self.error: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self.outcome[name] = max(self.outcome.get(name, "passed"), report.outcome, key=ORDER.index)
        if report.failed and name not in self.error:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash is not None else report.longreprtext
            self.error[name] = (text.splitlines() or [""])[0]
        if report.when == "teardown":
            line = {"test": name, "outcome": self.outcome[name], "error": self.error.get(name, "")}
            with self.file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("HTTPX_SUITE_TRANSPORTS") == "ours":
        from prefect_resilience import Backoff, CircuitBreaker, Retry, Timeout
        from prefect_resilience.http import AsyncResilientTransport, ResilientTransport

        # The suite asks one host for all its failures: they are retried at once, and open no circuit.
        options: dict[str, Any] = {
            "retry": Retry(attempts=3, backoff=Backoff.none()),
            "circuit": CircuitBreaker("http:{host}", failure_threshold=10_000, minimum_calls=10_000),
            "timeout": Timeout(30, idle=20),
        }
        put_between(httpx.Client, ResilientTransport, **options)
        put_between(httpx.AsyncClient, AsyncResilientTransport, **options)
    config.pluginmanager.register(Outcomes(Path(os.environ["HTTPX_SUITE_OUTCOMES"])))
