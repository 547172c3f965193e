"""The nightly operation after a bad day, with a real process that is killed and recovered."""

import pytest

from flows.nightly.__main__ import main

pytestmark = [pytest.mark.api, pytest.mark.slow]


def test_it_prints_what_its_readme_shows(example) -> None:
    example.check("nightly", main)
