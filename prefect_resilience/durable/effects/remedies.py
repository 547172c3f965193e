"""What a person can do about a store that does not take an effect, by what its database said."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_URL = "PREFECT_RESILIENCE_STORE_URL"
_WRITABLE = f"let this program write there, or name another store in {_URL}"

# The first that is found counts: a refused connection names a port, and an error of a script its line.
_REMEDIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("root flow run", "could not be found out"),
        "let the Prefect API answer, or name the batch: `with batch(...)`",
    ),
    (
        ("oom command not allowed", "out of memory", "maxmemory"),
        "give Redis more memory (maxmemory), or make room there",
    ),
    (
        (
            "is full",
            "no space left",
            "could not extend file",
            "could not write",
            "quota",
            "file too large",
            "disk i/o error",
            "misconf",
        ),
        "its disk is full, over its quota or failing: make room there",
    ),
    (
        ("readonly", "read-only", "read only", "permission denied", "insufficient privilege"),
        f"it may only be read: {_WRITABLE}",
    ),
    (("noreplicas",), "let its replicas catch up (min-replicas-to-write)"),
    (("is locked", "lock timeout"), "another program holds its lock: let that end"),
    (
        ("password", "noauth", "wrongpass", "noperm", "authentication"),
        f"give the user and the password in {_URL}",
    ),
    (("unable to open", "file exists", "not a directory", "not a database", "no such file"), _WRITABLE),
    (
        (
            "refused",
            "timeout",
            "timed out",
            "connect",
            "closed",
            "reset",
            "shutting down",
            "starting up",
            "no route",
            "name or service",
            "resolve",
        ),
        f"start it, or mend its address in {_URL}",
    ),
)


def remedy(said: str) -> str:
    """How to mend a store, in a few words. `said` is why it could not answer."""
    # Neither the URL nor a path says what is wrong.
    said = _QUOTED.sub("", said.rpartition("could not answer: ")[2].casefold())
    for signs, words in _REMEDIES:
        if any(sign in said for sign in signs):
            return words
    return f"mend it, or name another store in {_URL}"
