"""How long a caller waits, for a place and for a server: decided without a clock."""

import pytest

from prefect_resilience.guards.limits.line import (
    FOR_EVER,
    LEAST_SERVER_SECONDS,
    OVERDUE_SECONDS,
    SERVER_SECONDS,
    for_place,
    for_server,
)


@pytest.mark.parametrize(
    ("max_wait", "waited", "stuck", "left"),
    [
        (5, 2, None, 3),
        (5, 2, 2, 3),  # what is written counts, whoever holds the places
        (0, 0, None, 0),
        (300, 100, 90, 200),
        (None, 10_000, None, FOR_EVER),
        (None, 0, 0, OVERDUE_SECONDS),
        (None, 10_000, 10, OVERDUE_SECONDS - 10),  # they have been overdue for 10 s only
        (None, 10, 10_000, OVERDUE_SECONDS - 10),  # and a new caller has not waited yet
    ],
)
def test_the_wait_for_a_place(max_wait, waited, stuck, left):
    assert for_place(max_wait, waited, stuck) == left


@pytest.mark.parametrize(
    ("max_wait", "waited", "silent", "left"),
    [
        (None, 10_000, 0, SERVER_SECONDS),
        (None, 0, SERVER_SECONDS, 0),
        (30, 0, 0, 30),
        (30, 10, 5, 20),
        (30, 29.5, 0, LEAST_SERVER_SECONDS),  # one refusal at the last moment says little
        (0, 0, 0, LEAST_SERVER_SECONDS),
        (0, 0, LEAST_SERVER_SECONDS, 0),
    ],
)
def test_the_wait_for_a_server(max_wait, waited, silent, left):
    assert for_server(max_wait, waited, silent) == left
