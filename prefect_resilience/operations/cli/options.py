"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Store = Annotated[
    str | None,
    Parameter(help="The store's URL, as in sqlite:////srv/fleet.db; the configured one when left out."),
]
Json = Annotated[
    bool,
    Parameter(name="--json", negative="", show_default=False, help="Print JSON on stdout, and nothing else."),
]
Yes = Annotated[bool, Parameter(negative="", show_default=False, help="Do it without being asked.")]
DryRun = Annotated[
    bool, Parameter(negative="", show_default=False, help="Say what would be done, and do nothing.")
]
Force = Annotated[
    bool,
    Parameter(
        negative="",
        show_default=False,
        help="Also while the run is said to be going on: its process is gone for sure.",
    ),
]
