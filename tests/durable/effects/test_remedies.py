"""What the error of a store says of how to mend it."""

from __future__ import annotations

import pytest

from prefect_resilience.durable.effects.ledger import remedy


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("the root flow run, which identifies the batch, could not be read: ConnectError", "Prefect API"),
        ("could not extend file base/5/16389: No space left on device", "free some space"),
        ("database or disk is full", "free some space"),
        ("MISCONF Redis is configured to save RDB snapshots", "free some space"),
        ("-NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("database is locked", "holds its lock"),
        ("canceling statement due to lock timeout", "holds its lock"),
        ('password authentication failed for user "ada"', "the user and the password"),
        ("NOAUTH Authentication required.", "the user and the password"),
        ("permission denied for table prefect_resilience_documents", "give this program write access"),
        (
            "the store sqlite:////a?timeout=1 could not answer: [Errno 20] Not a directory: '/full'",
            "write access",
        ),
        ("Error 111 connecting to localhost:6379. Connection refused.", "start it, or correct its address"),
        ("there is no kind of store 'mysql'", "repair it, or set another store"),
    ],
)
def test_remedies(said: str, words: str) -> None:
    assert words in remedy(said)
