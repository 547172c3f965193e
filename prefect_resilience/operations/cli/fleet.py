"""The commands about a whole fleet: `install`, `doctor`, `report` and `dashboard`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from prefect_resilience.base.text import plural
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import DryRun, Flag, Json, Store

if TYPE_CHECKING:
    from prefect_resilience.operations.diagnosis import Diagnosis

PORT = 4280
INSTALLED: look.Columns = {"action": "action", "what": "kind", "name": "name", "why": "why"}
CHANGES = ("created", "changed", "removed", "kept", "skipped", "unchanged")


def install(
    *,
    webhook: str | None = None,
    notification_block: str | None = None,
    work_pool: str | None = None,
    dry_run: DryRun = False,
    reset: Flag = False,
    uninstall: Flag = False,
    json: Json = False,
) -> int:
    """Install blocks, deployments of the operational flows, and automations on the Prefect server.

    A second call changes nothing. Automations that a person edited are kept and listed.

    Example: prefect-resilience install --webhook https://chat.example.com/hooks/night

    Args:
        webhook: The URL to which alerts are posted as JSON, with subject, body and text.
        notification_block: A notification block for alerts instead, as in slack-webhook/night.
        work_pool: The pool for the operational flows; created if missing. Default: resilience.
        reset: Also replace automations that a person changed.
        uninstall: Remove what was installed.
    """
    from prefect_resilience.operations import installation  # the other commands need no blocks

    wanted: dict[str, Any] = {"webhook": webhook, "notification_block": notification_block}
    wanted |= {"work_pool": work_pool, "reset": reset}
    if uninstall and any(wanted.values()):
        raise ConfigurationError(
            "--uninstall can be combined only with --dry-run and --json: leave the others out"
        )
    change = installation.uninstall if uninstall else partial(installation.install, **wanted)
    changes = change(dry_run=dry_run)
    counts = Counter[str](change.action for change in changes)
    numbers = ", ".join(f"{counts[action]} {action}" for action in CHANGES if counts[action])
    sentence = f"{numbers}; dry run, nothing was changed" if dry_run else numbers
    parts = [look.table(INSTALLED, changes), sentence]
    return look.answer(
        changes, *(parts if changes else ["Nothing is installed, so there is nothing to remove."]), json=json
    )


def doctor(*targets: str, json: Json = False) -> int:
    """Check this machine, the Prefect server, the stores and the targets, and say how to fix problems.

    The exit code is 1 if something is wrong. Notes alone do not count.

    Example: prefect-resilience doctor flows/

    Args:
        targets: Folders to read; files, modules or entrypoints to import, as in flows/etl.py or my.flows.
    """
    from prefect_resilience.operations.diagnosis import examine

    diagnosis = examine(targets)
    look.answer(diagnosis, *_diagnosis_parts(diagnosis), json=json)
    return 0 if diagnosis.healthy else 1


def _diagnosis_parts(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    for check in diagnosis.checks:
        if all(finding.check != check for finding in diagnosis.findings):
            yield look.state("done", check)
    levels = Counter[str]()
    for finding in sorted(diagnosis.findings, key=lambda finding: finding.level):
        levels[finding.level] += 1
        yield look.finding(finding.level, finding.where, finding.says, finding.mend, of=finding.check)
    checks = len(diagnosis.checks)
    problems = f"{plural(levels['wrong'], 'problem')} found by {checks} checks"
    result = problems if levels["wrong"] else f"All {checks} checks passed"
    yield f"{result}, with {plural(levels['note'], 'note')}." if levels["note"] else f"{result}."


def report_command(
    *,
    since: str = "24h",
    until: str | None = None,
    markdown: Path | None = None,
    html: Path | None = None,
    json: Json = False,
) -> int:
    """Show retries, failures, fallbacks and recoveries in a period, from the Prefect API and the store.

    Example: prefect-resilience report --since 7d
    Example: prefect-resilience report --since 24h --html report.html

    Args:
        since: How long ago, as in 24h or 7d, or a time as in 2026-11-20T18:00.
        until: The end of the period, in the same form; the default is now.
        markdown: A file to write the report to as markdown.
        html: A file to write the report to as one page of HTML.
    """
    from rich.markdown import Markdown  # slow to import

    from prefect_resilience.operations.reports import rendering, report

    end = None if until is None else options.since("--until", until)
    figures = report(options.since("--since", since), end)
    for path, render in ((markdown, rendering.markdown_of), (html, rendering.html_of)):
        if path is not None:
            look.write_file(path, render(figures))
    parts = [] if markdown or html else [Markdown(rendering.markdown_of(figures))]
    return look.answer(figures, *parts, json=json)


def dashboard(
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    allow_host: list[str] | None = None,
    read_only: Flag = False,
    store: Store = None,
    json: Json = False,
) -> int:
    """Show circuits, batches, dead letters and error budgets live, until Ctrl-C.

    Replays run in this process: start it in the folder of your project, so that the tasks can be imported.
    Example: prefect-resilience dashboard --port 4280

    Args:
        host: The address to listen on. Everyone who can reach it can press the buttons.
        port: The port to listen on; 0 chooses a free one.
        allow_host: Another host name for the page, as behind a proxy; repeat it for several.
        read_only: Serve the page without buttons.
    """
    # Imported here: the other commands need no web server.
    from prefect_resilience.operations.dashboard import address_of, gate_for, listen, make_app, serve
    from prefect_resilience.operations.users_code import import_from_here

    if not 0 <= port <= 65_535:
        raise ConfigurationError(f"--port {port} must be from 0 to 65535")
    circuits, letters = options.store_url(store, circuits=True), options.store_url(store)
    places = " and ".join(dict.fromkeys(map(redact, (letters, circuits))))
    import_from_here()
    app = make_app(gate_for(host, allow_host or (), read_only=read_only), circuits, letters, places)
    listening = listen(host, port)
    address = address_of(host, listening)
    if json:
        look.as_json({"url": address, "read_only": read_only}, indent=None)
    else:
        look.show(f"The dashboard of {places} is at {address}; Ctrl-C ends it.")
    # Ctrl-C is the normal way to end it.
    with suppress(KeyboardInterrupt):
        serve(app, listening)
    return 0
