"""The root of the command line. Each error is one sentence on stderr and exit code 1."""

from __future__ import annotations

import errno
import logging
import sys
from importlib.metadata import version
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from prefect_resilience.base.process import user_of_host
from prefect_resilience.base.text import sentence_of
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import look
from prefect_resilience.telemetry.edge.events import at_a_terminal

PACKAGE = "prefect-resilience"
UNWRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""The errors of a write to a full disk, and to a file that is closed."""

app: App = App(
    name=PACKAGE,
    help="Operate the resilience of a fleet of Prefect workers: circuits, batches, dead letters, plans.",
    version=lambda: version(PACKAGE),
    help_format="plaintext",
    help_formatter="plain",  # no tables of rich
    # No --no-... or --empty-... options.
    default_parameter=Parameter(negative=""),
)
COMMANDS = (
    ("adopt", "adopt:adopt", "Turn the plain Prefect tasks of a project into resilient tasks."),
    ("batches", "batches:app", "Show the effects of runs; recover, settle, roll back or abandon them."),
    ("circuits", "circuits:app", "Show the circuits of a fleet; open, close, disable or reset them."),
    ("dashboard", "fleet:dashboard", "Show circuits, batches, dead letters, error budgets and limits live."),
    ("dead-letters", "letters:app", "Show the calls that failed for good, replay them, and purge old ones."),
    ("doctor", "fleet:doctor", "Check this machine, the Prefect server, the stores and your project."),
    ("install", "fleet:install", "Install blocks, deployments and automations on the Prefect server."),
    ("limits", "limits:app", "Show the token limits and the spending caps of a fleet."),
    ("plan", "plan:app", "Run, validate and draw plans."),
    (
        "rehearse",
        "rehearse:rehearse_command",
        "Kill a flow at every point, and count its side effects.",
    ),
    ("report", "fleet:report_command", "Show retries, failures, fallbacks and recoveries in a period."),
    ("runs", "parked_runs:app", "Show the flow runs that run or are parked, and wake parked ones."),
    ("tune", "tune:tune_command", "Say which numbers of the tasks' policies to change."),
    ("what-if", "tune:what_if_command", "Replay a period with other options of one task."),
)
"""The name of each command, its place, which is imported when it is called, and its line in the help."""
for _name, _place, _about in COMMANDS:
    app.command(f"prefect_resilience.operations.cli.{_place}", name=_name, help=_about)
_about = "Install the completion of bash, zsh or fish."
app.register_install_completion_command(help=_about)  # pyright: ignore[reportUnknownMemberType]


def main() -> NoReturn:
    """Run the command in `sys.argv` and exit with its code."""
    # Commands print what a worker would log.
    logging.getLogger("prefect_resilience").addHandler(logging.NullHandler())
    logging.getLogger("prefect_resilience").propagate = False
    look.prepare()
    with at_a_terminal(user_of_host()) as events:
        code = _run()
    if events.trouble is not None:
        look.say(f"Done, but the event was not sent: the Prefect API did not accept it ({events.trouble}).")
    sys.exit(code)


def _run() -> int:
    try:
        if (name := sys.argv[1] if sys.argv[1:] else "") in app and app[name].default_command is not None:
            app[name].help = None  # the help of this command alone is the docstring of its function
        code = app(
            sys.argv[1:],
            console=look.PipeConsole(width=1_000),  # of the help; the terminal folds its lines
            print_error=False,
            exit_on_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except CycloptsError as error:
        command = " ".join([PACKAGE, *(error.command_chain or ())])
        return _wrong(f"{str(error).strip()} See `{command} --help`.")
    except ResilienceError as error:
        return _wrong(redact(str(error)))
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does.
        look.discard(sys.stdout)
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNWRITTEN and error.filename is None:
            look.discard(sys.stdout)
            return _wrong(f"the output could not be written: {error.strerror}")
        if sys.flags.dev_mode:
            raise
        return _wrong(
            f"this is a bug in {PACKAGE} ({redact(f'{type(error).__name__}: {error}')}): "
            "`python -X dev -m prefect_resilience ...` shows the stack trace"
        )
    return code if isinstance(code, int) else 0


def _wrong(sentence: str) -> int:
    look.say(sentence_of(sentence))
    return 1
