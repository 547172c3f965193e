"""A fleet at a provider that counts tokens: a short minute of a few processes."""

from __future__ import annotations

import json

import pytest

from benchmarks import token_limit

pytestmark = pytest.mark.slow


def test_each_promise_can_be_broken():
    good = {"used": 0.95, "rejected": 0.0, "operations_per_second": 50.0, "spent": 4.9}
    assert token_limit.holds(good)
    for broken in ({"used": 0.8}, {"rejected": 0.01}, {"operations_per_second": 101}, {"spent": 5.01}):
        assert not token_limit.holds({**good, **broken})


def test_a_short_minute_of_a_few_processes(capsys):
    token_limit.main(["--minute", "4", "--stores", "redis", "--processes", "2", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["used"] > 0.3
    assert row["rejected"] < 0.3  # on a busy machine
    assert row["operations_per_second"] <= token_limit.OPERATIONS
    assert 4 < row["spent"] <= token_limit.CAP
