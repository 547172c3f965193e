"""The root of the command line. Each error is one sentence on stderr and exit code 1."""

from __future__ import annotations

import errno
import logging
import sys
from importlib.metadata import version
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from prefect_resilience.base.text import sentence_of
from prefect_resilience.durable.batches.edge import recovery
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
    # No --no-... or --empty-... options.
    default_parameter=Parameter(negative=""),
)
COMMANDS = {
    **{"adopt": "adopt:adopt", "batches": "batches:app", "circuits": "circuits:app"},
    **{"dashboard": "fleet:dashboard", "dead-letters": "letters:app", "doctor": "fleet:doctor"},
    **{"install": "fleet:install", "plan": "plan:app", "report": "fleet:report_command"},
    **{"tune": "tune:tune_command", "what-if": "tune:what_if_command"},
}
"""The place of each command. It is imported when it is called, and all are for the help of the root."""
for _name, _place in COMMANDS.items():
    app.command(f"prefect_resilience.operations.cli.{_place}", name=_name)


def main() -> NoReturn:
    """Run the command in `sys.argv` and exit with its code."""
    # Commands print what a worker would log.
    logging.getLogger("prefect_resilience").addHandler(logging.NullHandler())
    logging.getLogger("prefect_resilience").propagate = False
    look.prepare()
    sys.exit(_exit_code())


def _exit_code() -> int:
    with at_a_terminal(recovery.who()) as events:
        code = _run()
    if events.trouble is not None:
        look.say(f"Done, but the event was not sent: the Prefect API did not accept it ({events.trouble}).")
    return code


def _run() -> int:
    try:
        if not sys.argv[1:] or sys.argv[1] in ("-h", "--help"):
            for name in COMMANDS:
                _ = app[name]
        code = app(
            sys.argv[1:],
            console=look.PipeConsole(),
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
