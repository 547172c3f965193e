"""What the error of a store says of how to mend it."""

from __future__ import annotations

import pytest

from prefect_resilience.durable.effects.sequences import remedy


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("the root flow run, which is the batch, could not be found out: ConnectError", "Prefect API"),
        ("could not extend file base/5/16389: No space left on device", "make room there"),
        ("database or disk is full", "make room there"),
        ("MISCONF Redis is configured to save RDB snapshots", "make room there"),
        ("-NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("database is locked", "holds its lock"),
        ("canceling statement due to lock timeout", "holds its lock"),
        ('password authentication failed for user "ada"', "the user and the password"),
        ("NOAUTH Authentication required.", "the user and the password"),
        ("permission denied for table prefect_resilience_documents", "let this program write there"),
        (
            "the store sqlite:////a?timeout=1 could not answer: [Errno 20] Not a directory: '/full'",
            "write there",
        ),
        ("Error 111 connecting to localhost:6379. Connection refused.", "start it, or mend its address"),
        ("there is no kind of store 'mysql'", "mend it, or name another store"),
    ],
)
def test_remedies(said: str, words: str) -> None:
    assert words in remedy(said)
